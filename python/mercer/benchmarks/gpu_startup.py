"""What a call costs in addition to its kernels: the host's part, compiling, loading from the disk.

As a program, ``python -m mercer.benchmarks.gpu_startup FORMULA MxNxK``, it times the first two
calls of a process and prints them as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import mercer

from . import gpu_peers, gpu_rows
from .gpu_data import Case
from .gpu_result import GpuLine
from .gpu_settings import GpuSettings
from .gpu_timing import Stopwatch

TINY = (64, 64, 8)
TRIALS = 5


def fresh_formula(name: str) -> str:
    """A text that no cache can hold: it has a random constant in it."""
    # Not seeded: another run must not find the kernels of this one.
    number = random.SystemRandom().randrange(10**8)
    if name == "cold-lp":
        p = 1.2 + number * 1e-9
        return f"sum(abs(x-z)^{p:.9f})^(1/{p:.9f})"
    terms = "(x-z)^2" if name == "cold-l2" else "abs(x-z)"
    return f"sum({terms})*{1 + number * 1e-9:.9f}"


def timed_first_call(formula: str, case: Case, out: Any, watch: Stopwatch) -> float:
    """Milliseconds from the text to the result."""
    return watch.wall(lambda: mercer.pairwise(mercer.kernel(formula), case.x, case.z, out=out))


def call_lines(s: GpuSettings) -> Iterator[GpuLine]:
    """How long a call of small arrays keeps the host, its kernels compiled and loaded."""
    case = Case(TINY, "normal", "float32", s.device)
    x, z, formula = case.x, case.z, mercer.kernel(gpu_rows.norm_text(1))
    out = case.empty(*TINY[:2])
    peer = gpu_peers.cdist(1)
    its_call = peer.make(x, z)
    its_call(len(x))
    peer_ms = s.watch.host(lambda: its_call(len(x)))
    calls = {
        "with out=": lambda: mercer.pairwise(formula, x, z, out=out),
        "allocating": lambda: mercer.pairwise(formula, x, z),
    }
    yield from host_lines(GpuLine("call", TINY, peer=peer.name, peer_ms=peer_ms), calls, s)


def host_lines(
    line: GpuLine, calls: dict[str, Callable[[], object]], s: GpuSettings
) -> Iterator[GpuLine]:
    """A line for each call, by its note."""
    least = gpu_rows.CACHED_CALL_BAR if s.device.startswith("cuda") else None
    for note, call in calls.items():
        call()
        ms = s.watch.host(call)
        yield dataclasses.replace(line, ms=ms, note=f"host, {note}", least=least)


def cold_lines(name: str, s: GpuSettings) -> Iterator[GpuLine]:
    """A formula never seen: parsed, planned, compiled by NVRTC, loaded, run."""
    case = Case(s.shape(gpu_rows.SMALL), "normal", "float32", s.device)
    out = case.empty(*case.shape[:2])
    timed_first_call(fresh_formula(name), case, out, s.watch)  # loads NVRTC and the fixed kernels
    times = []
    for _ in range(TRIALS):
        mercer._mercer.finish_compiling()  # of the formula before
        times.append(timed_first_call(fresh_formula(name), case, out, s.watch))
    line = GpuLine(name, case.shape, ms=statistics.median(times))
    line.note = f"first call, {min(times):.0f} to {max(times):.0f} ms"
    line.least = gpu_rows.COLD_BARS[name] if s.device.startswith("cuda") else None
    yield line


def in_new_process(module: str, *arguments: str, **environment: str) -> dict[str, float]:
    """What a module, as a program, prints as JSON in its last line.

    NVRTC 13 keeps what it compiles on the disk as well; it does not there.
    """
    command = [sys.executable, "-m", module, *arguments]
    env = {**os.environ, "CUDA_CACHE_DISABLE": "1", **environment}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return json.loads(result.stdout.splitlines()[-1])


def disk_lines(s: GpuSettings) -> Iterator[GpuLine]:
    """The first call of a process that finds its kernels on the disk."""
    case = Case(s.shape(gpu_rows.SMALL), "normal", "float32", s.device)
    formula = fresh_formula("cold-l1")
    timed_first_call(formula, case, case.empty(*case.shape[:2]), s.watch)
    mercer._mercer.finish_compiling()
    shape = "x".join(map(str, case.shape))
    runs = [in_new_process(__name__, formula, shape, s.device) for _ in range(TRIALS)]
    first, second = (statistics.median(run[key] for run in runs) for key in ("first", "second"))
    line = GpuLine("disk", case.shape, ms=first)
    line.note = f"new process; its second call {second:.2f} ms"
    line.least = gpu_rows.DISK_BAR if s.device.startswith("cuda") else None
    yield line


ROWS: dict[str, Callable] = {
    "call": call_lines,
    "cold-l1": lambda s: cold_lines("cold-l1", s),
    "cold-l2": lambda s: cold_lines("cold-l2", s),
    "cold-lp": lambda s: cold_lines("cold-lp", s),
    "disk": disk_lines,
}


def main(arguments: list[str]) -> None:
    formula, shape, device = arguments
    m, n, k = (int(size) for size in shape.split("x"))
    case = Case((m, n, k), "normal", "float32", device)
    out, watch = case.empty(m, n), Stopwatch(device)
    times = {key: timed_first_call(formula, case, out, watch) for key in ("first", "second")}
    print(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1:])
