"""A tour in a minute: a Laplace kernel classifies handwritten digits and a layout draws a map of
them; then come times of the peers, and of a GPU where there is one.

The classifier is kernel ridge regression on one-against-the-rest targets,

    c = (K + alpha I)^-1 Y,    K[m, n] = exp(-sum_k |x_mk - x_nk| / bandwidth),

and a new point belongs to the class of the largest entry of k(x)^T c. The map is the layout of
examples/gallery/digits_layout.py. Writes two pictures to demo_out/. Needs NumPy, SciPy,
scikit-learn and matplotlib.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import runpy
import time
import warnings
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
from mercer.models import KernelRidgeClassifier
from sklearn.datasets import load_digits

BANDWIDTH = 12.0  # not critical: any from 5 to 40 gives 98.6 % or more on this split
ALPHA = 1e-3
TRAINING = 1200
LAYOUT = pathlib.Path(__file__).parent / "gallery" / "digits_layout.py"
SHOWN_ROWS = ("l1", "l2", "linf", "p1.3")
ACCENT, PEER_COLORS, INK = "#c2410c", ("#64748b", "#94a3b8", "#cbd5e1"), "#1e293b"
GPU_COLOR = "#0f766e"


@dataclasses.dataclass
class Digits:
    """1797 pictures, pixels in [0, 1]; the first 1200 of ``order`` train the model."""

    pixels: np.ndarray
    labels: np.ndarray
    order: np.ndarray

    @property
    def train(self) -> np.ndarray:
        return self.order[:TRAINING]

    @property
    def test(self) -> np.ndarray:
        return self.order[TRAINING:]


def load() -> Digits:
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return Digits(pixels / 16, labels, order)


def classify(digits: Digits) -> np.ndarray:
    """Predicted digits of the held-out pictures, in the order of ``digits.test``."""
    kernel = mc.laplace(p=1, bandwidth=BANDWIDTH)
    model = KernelRidgeClassifier(kernel, alpha=ALPHA)
    start = time.perf_counter()
    model.fit(digits.pixels[digits.train], digits.labels[digits.train])
    fitted = time.perf_counter()
    found = model.predict(digits.pixels[digits.test])
    done = time.perf_counter()
    accuracy = float(np.mean(found == digits.labels[digits.test]))

    n, m = len(digits.train), len(digits.test)
    print(f"handwritten digits told apart by KernelRidgeClassifier, {kernel}")
    print(
        f"fit              {n} points, 10 classes, {time_text(fitted - start)} (compiling included)"
    )
    print(f"prediction       {m} points, {time_text(done - fitted)}, no kernel matrix formed")
    print(f"accuracy         {accuracy:.2%} of the held-out digits")
    return found


def layout() -> np.ndarray:
    """A place [1797, 2] for each picture, from its nearest neighbours alone."""
    print(f"\na map of the digits, by {LAYOUT.name} of the gallery")
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        places = runpy.run_path(str(LAYOUT))["y"]
    plt.close("all")
    print(
        f"350 steps with exact forces between all pairs, {time_text(time.perf_counter() - start)}"
    )
    return places


def picture_of_digits(digits: Digits, found: np.ndarray, places: np.ndarray, path: pathlib.Path):
    """All digits at their places in the colours of their classes; rings mark what was mistaken."""
    side, scale = 2400, 3
    low, high = places.min(0), places.max(0)
    corners = (60 + (places - low) / (high - low) * (side - 144)).astype(int)
    canvas = np.ones((side, side, 3))
    colors = plt.get_cmap("tab10")(digits.labels)[:, :3]
    for (column, row), pixels, color in zip(corners, digits.pixels, colors, strict=True):
        ink = np.kron(pixels.reshape(8, 8), np.ones((scale, scale)))[..., None]
        patch = canvas[row : row + 8 * scale, column : column + 8 * scale]
        np.minimum(patch, 1 - ink * (1 - color), out=patch)
    wrong = digits.test[found != digits.labels[digits.test]]
    figure, axes = plt.subplots(figsize=(8, 8.5), layout="constrained")
    axes.imshow(canvas, interpolation="bilinear")
    middle = corners[wrong] + 4 * scale
    axes.plot(*middle.T, "o", ms=13, mfc="none", mec=INK, mew=1.2)
    axes.set_axis_off()
    share = 1 - len(wrong) / len(digits.test)
    axes.set_title(
        f"{len(places)} handwritten digits, placed by their nearest neighbours alone\n"
        f"kernel ridge classifier: {share:.1%} of held-out digits right, rings mark the others",
        fontsize=11,
        color=INK,
    )
    figure.savefig(path, dpi=200)
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
            print(f"\nno GPU measured: {missing}. NVIDIA's GPUs run these calls.")
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
    """The GPU's part of the table, each time compared with the CPU's for the same call."""
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
    found = classify(digits)
    picture_of_digits(digits, found, layout(), options.out / "digits.png")
    lines = compare(options.points)
    on_gpu = gpu_seconds(options.points)
    print_gpu(lines, on_gpu)
    picture_of_times(lines, on_gpu, options.out / "times.png")
    print("\npictures:")
    for name in ("digits.png", "times.png"):
        print(f"  {(options.out / name).resolve()}")


if __name__ == "__main__":
    main()
