"""Figures as PNG files, without a window and without pyplot's state. Needs matplotlib."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mercer._cli import files
from mercer._cli.command import Refusal

SUFFIXES = (".png",)


def check(path: str) -> None:
    """Before the work: the file, and matplotlib."""
    files.check_output(path, SUFFIXES)
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError as error:
        raise Refusal(
            f"{path}: pictures need matplotlib: pip install matplotlib. Received none"
        ) from error


@contextlib.contextmanager
def figure(path: str, size: tuple[float, float]) -> Iterator[Any]:
    """A figure of so many inches to draw on, which is then written."""
    check(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=size, dpi=110, layout="constrained")
    FigureCanvasAgg(made)
    yield made
    with files.replaced(path) as file:
        made.savefig(file, format="png")
