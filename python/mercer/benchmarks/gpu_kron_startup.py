"""What a Kronecker product costs besides its kernels: the host's part, compiling, loading.

As a program, ``python -m mercer.benchmarks.gpu_kron_startup MxPxN DEVICE``, it times the first two
calls of a process for M rows and N factors P x P, behind one of another shape, and prints them as
JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import mercer

from .gpu_kron import uniform
from .gpu_result import GpuLine
from .gpu_settings import GpuSettings

TRIALS = 3
CALL_BAR, COLD_BAR, DISK_BAR = 0.012, 500.0, 5.0  # milliseconds
SHAPES = ((1024, 8, 5), (1024, 16, 4), (1024, 32, 3), (1024, 64, 2), (1024, 128, 2))
OTHER = (8, 3, 2)  # loads NVRTC and what all calls need
TINY = (64, 4, 3)

Shape = tuple[int, int, int]  # rows, P, N


class _Call:
    def __init__(self, shape: Shape, s: GpuSettings) -> None:
        rows, p, n = shape
        self.x = uniform(s, (rows, p**n), "float32", 0)
        self.factors = [uniform(s, (p, p), "float32", 1 + i) for i in range(n)]
        self.out = self.x.new_empty(rows, p**n)

    def __call__(self) -> None:
        mercer.kron.matmul(self.x, self.factors, out=self.out)


def call_lines(s: GpuSettings) -> Iterator[GpuLine]:
    """How long a call of small arrays keeps the host, its kernels compiled and loaded."""
    call, rows = _Call(TINY, s), TINY[0]
    peer_ms = s.watch.host(lambda: call.x @ call.x.mT)
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("with out=", call),
        ("allocating", lambda: mercer.kron.matmul(call.x, call.factors)),
    )
    for note, one in calls:
        one()
        line = GpuLine("kron-call", (rows, *call.x.shape[1:] * 2), data="uniform")
        line.ms, line.note = s.watch.host(one), f"host, {note}"
        line.peer, line.peer_ms = "torch x @ x.mT", peer_ms
        line.least = CALL_BAR if s.device.startswith("cuda") else None
        yield line


def in_new_process(shape: Shape, device: str, cache: str) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, "x".join(map(str, shape)), device]
    settings = {**os.environ, "MERCER_CACHE_DIR": cache}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    return json.loads(result.stdout.splitlines()[-1])


def startup_lines(name: str, shape: Shape, s: GpuSettings) -> Iterator[GpuLine]:
    """The first call for a shape, by processes with an empty cache and with a filled one."""
    if s.scale < 1:
        shape = (8, 4, 3)
    size = shape[1] ** shape[2]
    on_gpu = s.device.startswith("cuda")
    cold, disk = [], []
    for _ in range(TRIALS):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(in_new_process(shape, s.device, cache)["first"])
            disk.append(in_new_process(shape, s.device, cache)["first"])
    for note, times, bar in (("compiled", cold, COLD_BAR), ("from the disk", disk, DISK_BAR)):
        line = GpuLine(name, (shape[0], size, size), data="uniform", ms=statistics.median(times))
        line.note = f"first call, {note}, {min(times):.3g} to {max(times):.3g} ms"
        line.least = bar if on_gpu else None
        yield line


def all_rows() -> dict[str, Callable[[GpuSettings], Iterator[GpuLine]]]:
    rows: dict[str, Callable[[GpuSettings], Iterator[GpuLine]]] = {"kron-call": call_lines}
    for shape in SHAPES:
        name = f"kron-startup {shape[1]}^{shape[2]}"
        rows[name] = lambda s, name=name, shape=shape: startup_lines(name, shape, s)
    return rows


def main(arguments: list[str]) -> None:
    text, device = arguments
    rows, p, n = (int(size) for size in text.split("x"))
    s = GpuSettings(device)
    other, call = _Call(OTHER, s), _Call((rows, p, n), s)
    other()
    print(json.dumps({key: s.watch.wall(call) for key in ("first", "second")}))


if __name__ == "__main__":
    main(sys.argv[1:])
