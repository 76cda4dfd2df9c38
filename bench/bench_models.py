"""Kernel models compared with their peers: times in one process, in turns, and what both reach.

    python bench/bench_models.py --data FOLDER [--only WORD ...] [--long] [--keep]

Each file of bench/models has ``rows()``, a dict of functions by name. A function takes the `Sets`
and returns a `Result`. FOLDER holds name.csv.gz, the target in the last column. Everything runs on
one thread, NumPy's products too, but for the rows "gpu:", and those with "long" in their names run
when asked for. A row that fails says why, and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mercer.benchmarks import cpu_machine, gpu_machine, keeping, timing

HERE = pathlib.Path(__file__).parent


@dataclass
class Result:
    """Seconds of both, or units in place of them, and what else is worth a look."""

    ours: float
    peer: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    unit: str = "s"


class Skipped(Exception):
    """A row that is not for this machine."""


@dataclass
class Sets:
    """Standardised regression sets of a folder, and what rows on a device are told."""

    folder: pathlib.Path
    device: str = "cuda"
    divide: int = 1  # numbers of points are divided by it
    cap: float = 40.0  # seconds of an iteration of a peer

    def load(
        self, name: str, n: int | None = None, *, seed: int = 0, dtype: str = "float64"
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(x, y, x_test, y_test): a tenth is for tests, n rows of the others at most."""
        with gzip.open(self.folder / f"{name}.csv.gz", "rt") as file:
            table = np.loadtxt(file, delimiter=",")
        order = np.random.default_rng(seed).permutation(len(table))
        test, train = order[: len(table) // 10], order[len(table) // 10 :][:n]
        centre, width = table[train].mean(0), table[train].std(0)
        table = ((table - centre) / np.where(width > 0, width, 1)).astype(dtype)
        parts = (table[train, :-1], table[train, -1], table[test, :-1], table[test, -1])
        return tuple(map(np.ascontiguousarray, parts))


def seconds(function: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """(the least processor time of the runs, the last result)."""
    best = np.inf
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        best = min(best, time.process_time() - start)
    return best, result


def rmse(predicted: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.mean((np.asarray(predicted, float) - y) ** 2)))


def rows() -> dict[str, Callable[[Sets], Result]]:
    """The rows of all files, each under the name of its file."""
    sys.path.insert(0, str(HERE))
    sys.modules.setdefault("bench_models", sys.modules[__name__])
    found = {}
    for path in sorted((HERE / "models").glob("[a-z]*.py")):
        module = importlib.import_module(f"models.{path.stem}")
        found |= {f"{path.stem}: {name}": row for name, row in module.rows().items()}
    return found


def line(name: str, result: Result) -> str:
    peer = "" if result.peer is None else (
        f"  peer {result.peer:.3g} {result.unit}  {result.peer / result.ours:.2f}x"
    )  # fmt: skip
    notes = "  ".join(f"{key} {value}" for key, value in result.notes.items())
    return f"{name:60s} {result.ours:.3g} {result.unit}{peer}  {notes}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder of the sets, name.csv.gz")
    parser.add_argument("--only", nargs="*", default=[], help="rows with one of these words")
    parser.add_argument("--long", action="store_true", help="rows that take minutes, too")
    parser.add_argument("--device", default="cuda", help="of the rows gpu:, or cpu")
    parser.add_argument("--divide", type=int, default=1, help="the points of the rows gpu: by it")
    parser.add_argument("--cap", type=float, default=40.0, help="seconds of iterations of peers")
    parser.add_argument("--keep", action="store_true", help=f"keep the lines in {keeping.RUNS}")
    options = parser.parse_args()
    sets = Sets(pathlib.Path(options.data), options.device, options.divide, options.cap)
    warnings.simplefilter("ignore")
    kept: list[dict[str, Any]] = []
    for name, row in rows().items():
        is_wanted = not options.only or any(word in name for word in options.only)
        if is_wanted and (options.long or "long" not in name):
            is_free = name.startswith("gpu:")
            with contextlib.nullcontext() if is_free else timing.one_thread():
                print(said(name, row, sets, kept), flush=True)
    if options.keep:
        on_gpu = options.device == "cuda" and not gpu_machine.why_not()
        machine = cpu_machine.describe() | (gpu_machine.describe("cuda:0") if on_gpu else {})
        print(keeping.keep(machine, kept, program="models"))


def kept_line(name: str, result: Result) -> dict[str, Any]:
    """The result for JSON; units other than seconds under their own names."""
    unit = "seconds" if result.unit == "s" else result.unit
    notes = {key: str(value) for key, value in result.notes.items()}
    return {"row": name, unit: result.ours, f"peer_{unit}": result.peer, "notes": notes}


def said(name: str, row: Callable[[Sets], Result], sets: Sets, kept: list[dict[str, Any]]) -> str:
    """Runs a row: the text of its line, which is kept, or why there is none."""
    try:
        result = row(sets)
        kept.append(kept_line(name, result))
        return line(name, result)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        kind = "skipped" if isinstance(error, Skipped) else type(error).__name__
        return f"{name:60s} {kind}: {first}"


if __name__ == "__main__":
    main()
