"""Arrays of the host that stream to one GPU (``device=``), compared with arrays of the GPU.

``python bench/bench_streaming.py [--rows 1e6] [--points 2e7] [--only product,knn] [--folder /tmp]``

``product``: a Gauss kernel, rows x rows points of 64 features, 16 columns of v, from arrays of
NumPy; wanted are 90 % of the rate with all of it on the device. ``knn``: 10 neighbours of as many
rows among the points of a memory map, whose file is written first; wanted are 80 %. Needs PyTorch
with CUDA for the arrays of the device. Seconds are by the host's clock, after a call that compiles.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import mercer as mc
import numpy as np
import torch

FEATURES, COLUMNS, NEIGHBOURS = 64, 16, 10
GAUSS, SQUARES = "exp(-sum((x-z)^2)/128)", "sum((x-z)^2)"
PART = 300_000  # queries that compile the kernels of all


def best_of(repeats: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the fastest call, and the last one's result."""
    times, result = [], None
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times), result


def report(name: str, here: float, there: float, bar: float, error: float) -> None:
    share = there / here
    print(
        f"{name}: {here:.3f} s from the host, {there:.3f} s on the device, {100 * share:.1f} % of "
        f"its rate (wanted: {100 * bar:.0f} %){'' if share >= bar else '  MISSED'}; the largest "
        f"difference is {error:.1e} of the largest value",
        flush=True,
    )


def product_on_device(x: np.ndarray, z: np.ndarray, v: np.ndarray) -> tuple[float, np.ndarray]:
    arrays = [torch.from_numpy(array).cuda() for array in (x, z, v)]
    mc.kernel_product(GAUSS, *arrays)
    time_there, result = best_of(3, lambda: mc.kernel_product(GAUSS, *arrays))
    return time_there, result.cpu().numpy()


def product(rows: int) -> None:
    random = np.random.default_rng(0)
    x, z = (random.standard_normal((rows, FEATURES), dtype=np.float32) for _ in range(2))
    v = random.standard_normal((rows, COLUMNS), dtype=np.float32)
    there, expected = product_on_device(x, z, v)
    torch.cuda.empty_cache()
    mc.kernel_product(GAUSS, x, z, v, device="cuda")
    here, result = best_of(3, lambda: mc.kernel_product(GAUSS, x, z, v, device="cuda"))
    error = abs(result - expected).max() / abs(expected).max()
    report(f"product {rows} x {rows} x {FEATURES}, E = {COLUMNS}", here, there, 0.9, error)


def write_points(path: pathlib.Path, points: int) -> np.ndarray:
    """A memory map of so many points; a block of them comes again, shifted a little."""
    random = np.random.default_rng(1)
    block = random.standard_normal((1 << 20, FEATURES), dtype=np.float32)
    with path.open("wb") as file:
        for first in range(0, points, len(block)):
            block[:, 0] += np.float32(1e-3)
            block[: points - first].tofile(file)
    return np.memmap(path, dtype=np.float32, mode="r", shape=(points, FEATURES))


def knn_on_device(queries: np.ndarray, points: np.ndarray) -> tuple[float, np.ndarray]:
    x, z = torch.from_numpy(queries).cuda(), torch.empty(points.shape, device="cuda")
    for first in range(0, len(points), 1 << 20):
        z[first : first + (1 << 20)] = torch.from_numpy(points[first : first + (1 << 20)].copy())
    mc.knn(SQUARES, x[:PART], z, NEIGHBOURS)
    time_there, result = best_of(1, lambda: mc.knn(SQUARES, x, z, NEIGHBOURS))
    return time_there, result[0].cpu().numpy()


def knn(rows: int, points: int, folder: str | None) -> None:
    queries = np.random.default_rng(2).standard_normal((rows, FEATURES), dtype=np.float32)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        z = write_points(pathlib.Path(name) / "points.f32", points)
        there, expected = knn_on_device(queries, z)
        torch.cuda.empty_cache()
        mc.knn(SQUARES, queries[:PART], z, NEIGHBOURS, device="cuda")
        here, result = best_of(1, lambda: mc.knn(SQUARES, queries, z, NEIGHBOURS, device="cuda"))
        error = abs(result[0] - expected).max() / expected.max()
        report(f"knn {rows} x {points} x {FEATURES}, k = {NEIGHBOURS}", here, there, 0.8, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--points", type=float, default=2e7)
    parser.add_argument("--only", default="product,knn")
    parser.add_argument("--folder", default=None, help="where the file of points is written")
    options = parser.parse_args()
    wanted = options.only.split(",")
    if "product" in wanted:
        product(int(options.rows))
    if "knn" in wanted:
        knn(int(options.rows), int(options.points), options.folder)


if __name__ == "__main__":
    main()
