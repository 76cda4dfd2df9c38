"""``mercer show``: a matrix as a heat map, its rows and columns ordered by cluster."""

from __future__ import annotations

import argparse
import shutil
import sys

import numpy as np

import mercer as mc
from mercer._cli import arguments as a
from mercer._cli import pairs, pictures
from mercer._cli.command import Command, Refusal, argument

#: Characters for the least value to the largest, and those for terminals without blocks.
SHADES = (" ░▒▓█", " .:*#")


def _drawn(points: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Row numbers of at most so many points, in order."""
    n = points.shape[0]
    chosen = np.random.default_rng(seed).permutation(n)[:most]
    return np.sort(chosen) if n > most else np.arange(n)


def _clustered(rows: np.ndarray) -> np.ndarray:
    """An order of the rows [n, k] by average linkage, near leaves next to each other."""
    try:
        from scipy.cluster import hierarchy
    except ModuleNotFoundError as error:
        raise Refusal(
            "--order cluster needs SciPy (pip install scipy), --order file does not. Received none"
        ) from error
    if len(rows) < 3:
        return np.arange(len(rows))
    return hierarchy.leaves_list(
        hierarchy.linkage(rows, "average", optimal_ordering=len(rows) <= 300)
    )


def matrix(options: argparse.Namespace) -> np.ndarray:
    """float64, in the order that is shown; refuses values that have no shade."""
    _, x, z = pairs.read_points(options)
    for points in (x, z):
        if points is not None and points.ndim != 2:
            raise Refusal(f"points must be of two axes. Received {points.ndim}")
    x = x[_drawn(x, options.most, options.seed)]
    z = None if z is None else z[_drawn(z, options.most, options.seed)]
    params = a.parameters(options, "kernel_matrix")
    call = {**pairs.weights(options, x), **pairs.settings(options), **params}
    k = np.asarray(mc.kernel_matrix(options.formula, x, z, **call), np.float64)
    if k.ndim != 2:
        raise Refusal("parameters must have one value each. Received several")
    if k.size == 0:
        raise Refusal("there must be a point on each side. Received none")
    if not np.isfinite(k).all():
        raise Refusal(
            f"values must be finite. Received {np.count_nonzero(~np.isfinite(k))} of {k.size} "
            "that are not"
        )
    if options.order == "file":
        return k
    order = _clustered(k)
    return k[order][:, order if z is None else _clustered(k.T)]


def shrunk(k: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Means of blocks: at most so many rows and columns."""
    for axis, most in enumerate((rows, columns)):
        n = k.shape[axis]
        edges = np.linspace(0, n, min(n, most) + 1).astype(int)
        sizes = np.diff(edges).reshape((-1, 1) if axis == 0 else (1, -1))
        k = np.add.reduceat(k, edges[:-1], axis) / sizes
    return k


def _shades(encoding: str | None) -> str:
    try:
        SHADES[0].encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return SHADES[1]
    return SHADES[0]


def as_text(k: np.ndarray, width: int, shades: str) -> str:
    """Two characters a cell, which is about square in a terminal, and a line about the shades."""
    cells = shrunk(k, width // 2, width // 2)
    low, high = float(k.min()), float(k.max())
    levels = (cells - low) / ((high - low) or 1.0) * len(shades)
    levels = np.clip(levels.astype(int), 0, len(shades) - 1)
    lines = ["".join(2 * shades[level] for level in row) for row in levels]
    edges = np.linspace(low, high, len(shades) + 1)
    scale = "  ".join(f"'{s}' from {edge:.3g}" for s, edge in zip(shades, edges, strict=False))
    return "\n".join([*lines, f"{scale}  to {high:.3g}"])


def _picture(path: str, k: np.ndarray, formula: str) -> None:
    with pictures.figure(path, (6.4, 5.6)) as figure:
        axes = figure.subplots()
        image = axes.imshow(shrunk(k, 1200, 1200), aspect="auto", interpolation="nearest",
                            extent=(0, k.shape[1], k.shape[0], 0))  # fmt: skip
        figure.colorbar(image, ax=axes)
        title = formula if len(formula) < 60 else formula[:57] + "..."
        axes.set_title(title, parse_math=False)
    print(f"{path}: {k.shape[0]} x {k.shape[1]} values from {k.min():.3g} to {k.max():.3g}")


def _run(options: argparse.Namespace) -> None:
    if options.output is not None:
        pictures.check(options.output)
    k = matrix(options)
    if options.output is not None:
        _picture(options.output, k, options.formula)
    else:
        width = options.width or shutil.get_terminal_size().columns
        print(as_text(k, max(width, 2), _shades(sys.stdout.encoding)))


COMMANDS = (
    Command(
        "show",
        "a kernel matrix as a heat map, in the terminal or as a picture, ordered by cluster",
        _run,
        (
            a.FORMULA,
            a.X,
            a.Z_OR_X,
            argument("-o", "--output", metavar="OUT", help="the .png; without it, the terminal"),
            argument("--order", choices=["cluster", "file"], default="cluster",
                     help="of rows and columns (cluster)"),
            argument("--most", type=a.count, default=1000, help="points at most, drawn (1000)"),
            argument("--seed", type=a.seed, default=0, help="of the draw (0)"),
            argument("--width", type=a.count, help="characters of a line (the terminal's)"),
            a.PARAM,
            a.WEIGHTS,
            a.HEADER,
            *a.RUNNING,
        ),
        "mercer show gauss x.csv --param bandwidth=3\n"
        "mercer show laplace x.npy z.npy -o k.png",
    ),
)  # fmt: skip
