"""A tour in a minute: handwritten digits told apart by a Laplace kernel, then times of the peers,
and of a GPU where there is one.

The classifier is kernel ridge regression on one-of-ten targets,

    alpha = (K + reg I)^-1 Y,    K[m, n] = exp(-sum_k |x_mk - x_nk| / bandwidth),

and a new point belongs to the class of the largest entry of k(x)^T alpha. Writes two pictures to
demo_out/. Needs NumPy, SciPy, scikit-learn and matplotlib.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time
from collections.abc import Iterator

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import mercer as mc
import numpy as np
from mercer.benchmarks import engine, gpu_machine, rows, runs
from mercer.benchmarks.gpu_data import Case as GpuCase
from mercer.benchmarks.gpu_result import ms_text
from mercer.benchmarks.gpu_settings import GpuSettings
from mercer.benchmarks.result import Line, time_text
from mercer.benchmarks.settings import Settings
from mercer.benchmarks.timing import one_thread
from scipy.linalg import cho_factor, cho_solve
from sklearn.datasets import load_digits

BANDWIDTH = 12.0  # not critical: any from 5 to 40 gives 98.6 % or more on this split
REGULARIZATION = 1e-3
TRAINING = 1200
SHOWN_ROWS = ("l1", "l2", "linf", "p1.3")
ACCENT, PEER_COLORS, INK = "#c2410c", ("#64748b", "#94a3b8", "#cbd5e1"), "#1e293b"
GPU_COLOR = "#0f766e"


@dataclasses.dataclass
class Digits:
    """The split: 1200 pictures to learn from, 597 held out. Pixels lie in [0, 1]."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


def load() -> Digits:
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:TRAINING], order[TRAINING:]
    return Digits(pixels[train], labels[train], pixels[test], labels[test])


def classify(digits: Digits) -> tuple[np.ndarray, float]:
    """The kernel matrix of the training points, and the accuracy on the held-out ones."""
    kernel = mc.laplace(p=1, bandwidth=BANDWIDTH)
    start = time.perf_counter()
    matrix = mc.kernel_matrix(kernel, digits.train)
    formed = time.perf_counter()
    system = matrix.astype(np.float64)
    system[np.diag_indices_from(system)] += REGULARIZATION
    alpha = cho_solve(cho_factor(system, overwrite_a=True), np.eye(10)[digits.train_labels])
    solved = time.perf_counter()
    scores = mc.kernel_product(kernel, digits.test, digits.train, alpha.astype(np.float32))
    done = time.perf_counter()
    accuracy = float(np.mean(scores.argmax(1) == digits.test_labels))

    n, m = len(digits.train), len(digits.test)
    print(f"handwritten digits told apart by a Laplace kernel, {kernel}")
    print(f"kernel matrix    {n} x {n}, formed in {time_text(formed - start)} (compiling included)")
    print(f"solve            SciPy's Cholesky, {time_text(solved - formed)}")
    print(f"prediction       {m} points, {time_text(done - solved)}, no kernel matrix formed")
    print(f"accuracy         {accuracy:.2%} of the held-out digits")
    return matrix, accuracy


def picture_of_matrix(matrix: np.ndarray, labels: np.ndarray, accuracy: float, path: pathlib.Path):
    """The kernel matrix with the points ordered by class: bright blocks on the diagonal."""
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], np.arange(11))
    brightest = np.quantile(matrix, 0.995)  # the diagonal of ones would darken all the rest
    figure, axes = plt.subplots(figsize=(7.2, 6.2), layout="constrained")
    image = axes.imshow(matrix[np.ix_(order, order)], cmap="magma", vmin=0, vmax=brightest)
    for edge in edges[1:-1]:
        axes.axhline(edge - 0.5, color="white", lw=0.4, alpha=0.6)
        axes.axvline(edge - 0.5, color="white", lw=0.4, alpha=0.6)
    middles = (edges[:-1] + edges[1:]) / 2
    axes.set_xticks(middles, range(10))
    axes.set_yticks(middles, range(10))
    axes.tick_params(length=0)
    axes.set_xlabel("digit of the column's picture")
    axes.set_ylabel("digit of the row's picture")
    axes.set_title(
        f"Laplace kernel of {len(labels)} handwritten digits, ordered by class\n"
        f"ridge classifier on it: {accuracy:.1%} of held-out digits right",
        fontsize=11,
        color=INK,
    )
    bar = figure.colorbar(image, ax=axes, shrink=0.85, extend="max")
    bar.set_label(f"exp(-|x - z|₁ / {BANDWIDTH:g})")
    bar.outline.set_visible(False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def compare(points: int) -> list[Line]:
    """Times of Mercer and its peers, one thread each."""
    settings = Settings(quick=True)
    settings.points = points
    lines: list[Line] = []
    print(f"\n{points} x {points} pairs of 256 features in float32: CPU time of one thread")
    with one_thread():
        for row in rows.PAIRWISE:
            if row.name not in SHOWN_ROWS:
                continue
            for place, line in enumerate(runs.pairwise_lines(row, settings)):
                lines.append(line)
                if place == 0:
                    print_mercer(row.formula, line)
                print_peer(line)
    print("  * timed on some of the rows and scaled")
    if why := engine.why_no_floor():
        print(f"  {why}")
    return lines


def print_mercer(formula: str, line: Line) -> None:
    floor = f"{line.floor:6.0%} of what the arithmetic units allow" if line.floor else ""
    print(f"  {formula:<25}  {'Mercer':<24} {time_text(line.seconds):>8}  {floor}")


def print_peer(line: Line) -> None:
    if line.peer:
        time_of_it = f"{time_text(line.peer_seconds):>8}{'*' if line.peer_scaled else ' '}"
        print(f"  {'':<25}  {line.peer:<24} {time_of_it} {line.ratio:6.1f} times as long")


def gpu_seconds(points: int) -> dict[str, float]:
    """Times of the same calls on the GPU by row; empty, with the reason printed, without one."""
    missing = gpu_machine.why_not()
    try:
        return {} if missing else dict(gpu_times(points))
    except (mc.CompileError, mc.DeviceError, NotImplementedError) as error:
        missing = str(error)
    finally:
        if missing:
            print(f"\nno GPU measured: {missing}. The same calls run on NVIDIA's GPUs.")
    return {}


def gpu_times(points: int) -> Iterator[tuple[str, float]]:
    settings = GpuSettings()
    case = GpuCase((points, points, 256), "normal", "float32", settings.device)
    print(f"\nthe same on one {gpu_machine.describe(settings.device)['gpu']}, CUDA events")
    out = case.empty(points, points)
    for row in rows.PAIRWISE:
        if row.name in SHOWN_ROWS:
            formula = mc.kernel(row.formula)
            ms = settings.watch.median(lambda f=formula: mc.pairwise(f, case.x, case.z, out=out))
            yield row.name, ms / 1e3


def print_gpu(lines: list[Line], times: dict[str, float]) -> None:
    """The GPU's part of the table: beside the CPU's time of the same call."""
    formulas = {row.name: row.formula for row in rows.PAIRWISE}
    for name, seconds in times.items():
        on_cpu = next(line.seconds for line in lines if line.row == name)
        print(
            f"  {formulas[name]:<25}  {'Mercer on the GPU':<24} {ms_text(1e3 * seconds):>8}  "
            f"one CPU thread takes {on_cpu / seconds:.0f} times as long"
        )


def _bars(
    axes: plt.Axes, group: list[Line], top: float, floor: float | None, on_gpu: float | None
) -> float:
    """Draws the bars of one formula downwards from ``top``; returns where the next may start."""
    entries = [("Mercer", group[0].seconds, ACCENT)]
    if on_gpu is not None:
        entries.append(("Mercer on the GPU", on_gpu, GPU_COLOR))
    entries += [
        (line.peer, line.peer_seconds, PEER_COLORS[i % len(PEER_COLORS)])
        for i, line in enumerate(group)
        if line.peer_seconds is not None
    ]
    for place, (name, seconds, color) in enumerate(entries):
        y = top - place
        axes.barh(y, seconds, height=0.78, color=color)
        times = "" if name.startswith("Mercer") else f"  ({seconds / group[0].seconds:.3g} x)"
        axes.annotate(
            f"{name}  {time_text(seconds)}{times}", (seconds, y), (5, 0), va="center",
            textcoords="offset points", fontsize=8.5, color=INK,
            fontweight="bold" if place == 0 else "normal",
        )  # fmt: skip
    if floor is not None:
        axes.plot([floor, floor], [top - 0.46, top + 0.46], color=INK, lw=2)
    return top - len(entries) - 0.9


def picture_of_times(lines: list[Line], on_gpu: dict[str, float], path: pathlib.Path) -> None:
    """Bars of the times, with the floor of the pipe model as a black tick."""
    formulas = {row.name: row.formula for row in rows.PAIRWISE}
    groups = {name: [line for line in lines if line.row == name] for name in SHOWN_ROWS}
    figure, axes = plt.subplots(figsize=(9, 6.4), layout="constrained")
    top, ticks, any_floor = 0.0, [], False
    for group in groups.values():
        rate = engine.floor(formulas[group[0].row], group[0].shape, "float32", group[0].target)
        floor = np.prod(group[0].shape, dtype=float) / rate / 1e9 if rate else None
        any_floor = any_floor or floor is not None
        bottom = _bars(axes, group, top, floor, on_gpu.get(group[0].row))
        ticks.append((top + bottom + 1.9) / 2)
        top = bottom
    axes.set_yticks(ticks, [formulas[name] for name in groups], family="monospace", fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 12)  # room for the labels
    longest = max(line.peer_seconds or line.seconds for line in lines)
    axes.xaxis.set_major_formatter(lambda s, _: time_text(s) if s <= 10 * longest else "")
    m, n, k = lines[0].shape
    gpu = "; on the GPU, of one call" if on_gpu else ""
    axes.set_xlabel(f"CPU time of one call on one thread{gpu} (logarithmic)")
    note = (
        "\nblack ticks: the least time that the CPU's arithmetic units allow" if any_floor else ""
    )
    axes.set_title(
        f"All pairs of {m} and {n} points with {k} features, float32{note}", fontsize=11, color=INK
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo_out"))
    parser.add_argument("--points", type=int, default=2048, help="points of the timings")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    digits = load()
    matrix, accuracy = classify(digits)
    picture_of_matrix(matrix, digits.train_labels, accuracy, options.out / "kernel_matrix.png")
    lines = compare(options.points)
    on_gpu = gpu_seconds(options.points)
    print_gpu(lines, on_gpu)
    picture_of_times(lines, on_gpu, options.out / "times.png")
    print(f"\npictures in {options.out}/: kernel_matrix.png, times.png")


if __name__ == "__main__":
    main()
