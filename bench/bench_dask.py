"""mercer.dask with less memory than data: nearest neighbours, and the product of a memory map.

    python bench/bench_dask.py [--queries 2e6] [--points 1e5] [--gigabytes 12] [--limit 4]

``--limit``: gigabytes that the process may allocate (RLIMIT_DATA, which does not count the pages of
files that are mapped to be read); 0: as many as there are. ``--folder``: where the memory map is
made, of so many gigabytes of float32. Rows of both results are compared with those of one array.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import tempfile
import threading
import time

import dask
import dask.array as da
import mercer as mc
import numpy as np
from dask.diagnostics import ProgressBar
from mercer import dask as md

FEATURES = 20
CHECKED = 50  # rows that are computed again, as one array


class Peak:
    """The most memory of the process that is not of files, every 20 ms; and the time."""

    def __enter__(self) -> Peak:
        self.bytes, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        self.began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self.began
        self.done.set()
        self.thread.join()

    def watch(self) -> None:
        while not self.done.wait(0.02):
            text = pathlib.Path("/proc/self/status").read_text("ascii")
            self.bytes = max(self.bytes, int(text.split("RssAnon:")[1].split()[0]) << 10)

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, at most {self.bytes / 1e9:.2f} GB"


def nearest(queries: int, points: int) -> None:
    draw = np.random.default_rng(0)
    x, z = (draw.standard_normal((rows, FEATURES), dtype=np.float32) for rows in (queries, points))
    given = [
        da.from_array(a, chunks=(max(1, len(a) // parts), -1)) for a, parts in ((x, 20), (z, 4))
    ]
    with Peak() as peak, ProgressBar():
        values, indices = dask.compute(*md.knn("sqeuclidean", *given, 10))
    print(f"nearest {queries} x {points} x {FEATURES}, k = 10, 20 x 4 chunks: {peak}")
    expected = mc.knn("sqeuclidean", x[:CHECKED], z, 10)
    for found, right in zip((values, indices), expected, strict=True):
        np.testing.assert_array_equal(found[:CHECKED], right)


def make_map(path: pathlib.Path, rows: int) -> np.memmap:
    made = np.lib.format.open_memmap(path, "w+", np.float32, (rows, FEATURES))
    draw = np.random.default_rng(0)
    for first in range(0, rows, 1 << 20):
        part = made[first : first + (1 << 20)]
        part[:] = draw.random(part.shape, dtype=np.float32)
    made.flush()
    return np.load(path, mmap_mode="r")


def product(folder: str, gigabytes: float) -> None:
    rows = max(CHECKED, int(gigabytes * 1e9 / (4 * FEATURES)))
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        x = make_map(pathlib.Path(inside, "points.npy"), rows)
        z, v = x[:100].copy(), np.ones(100, np.float32)
        with Peak() as peak, ProgressBar():
            y = md.kernel_product("gauss", x, z, v, bandwidth=1.0).compute()
        print(f"product of a map of {x.nbytes / 1e9:.3g} GB, {rows} x 100 x {FEATURES}: {peak}")
        for part in (slice(CHECKED), slice(-CHECKED, None)):
            right = mc.kernel_product("gauss", x[part], z, v, bandwidth=1.0)
            np.testing.assert_array_equal(y[part], right)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--queries", type=float, default=2e6)
    parser.add_argument("--points", type=float, default=1e5)
    parser.add_argument("--gigabytes", type=float, default=12)
    parser.add_argument("--limit", type=float, default=4)
    parser.add_argument("--folder")
    given = parser.parse_args()
    if given.limit:
        most = int(given.limit * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with dask.config.set(scheduler="threads"):
        nearest(int(given.queries), int(given.points))
        product(given.folder, given.gigabytes)


if __name__ == "__main__":
    main()
