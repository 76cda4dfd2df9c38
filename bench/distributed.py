"""ScaLAPACK's solve and eigenvectors on one rank and on two, of one thread each: distributed.py.

--solve N and --eigh N are the rows of the kernel matrices of float64; --ranks the numbers of ranks.
Seconds are the least of --rounds; those of the CPU are the busiest rank's, to be read where other
programs share the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import mercer as mc
import numpy as np


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solve", type=int, default=8192)
    parser.add_argument("--eigh", type=int, default=4096)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", action="store_true", help="be a rank; mpirun starts these")
    options = parser.parse_args()
    if options.rank:
        measure(options)
        return 0
    for ranks in options.ranks:
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
        words = ["--rank", "--solve", str(options.solve), "--eigh", str(options.eigh)]
        words += ["--rounds", str(options.rounds)]
        command = [*start, sys.executable, "-m", "mpi4py", __file__, *words]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return 0


def measure(options: argparse.Namespace) -> None:
    from mercer.linalg import distributed

    grid = distributed.Grid()
    first = grid.board.rank == 0
    for name, n in (("solve_cholesky", options.solve), ("eigh", options.eigh)):
        if not n:
            continue
        x = np.random.default_rng(0).normal(size=(n, 8))
        y = np.random.default_rng(1).normal(size=(n, 1))
        a = distributed.kernel_matrix(grid, mc.gauss(bandwidth=1.0), x, ridge=0.1)
        rounds = []
        for _ in range(options.rounds):
            began, busy = time.perf_counter(), time.process_time()
            found = distributed.solve_cholesky(a, y) if name != "eigh" else distributed.eigh(a)
            spent = time.perf_counter() - began, time.process_time() - busy
            rounds.append([max(ranks) for ranks in zip(*grid.board.exchange(spent), strict=True)])
        error = residual(a, found, y)
        if first:
            wall, cpu = map(min, zip(*rounds, strict=True))
            print(
                f"{name} n = {n}, {grid}: {wall:.2f} s (CPU {cpu:.2f} s), residual {error:.1e}",
                flush=True,
            )


def residual(a, found, y) -> float:
    """|a x - y| / (|a| |x|), or |a v s - v w s| / (|a| |s|) for a random s, in the largest norm."""
    from mercer.linalg.distributed import _probe

    norm = _probe.a_norm(a)
    if not isinstance(found, tuple):
        return float(np.abs(_probe.lower_product(a, found) - y).max() / norm / np.abs(found).max())
    w, v = found
    s = np.random.default_rng(2).normal(size=(len(w), 1))
    left = _probe.lower_product(a, _probe.product(v, s))
    return float(np.abs(left - _probe.product(v, w[:, None] * s)).max() / norm / np.abs(s).max())


if __name__ == "__main__":
    sys.exit(main())
