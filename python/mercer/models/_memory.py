"""What memory is free, and refusals before a fit begins."""

from __future__ import annotations

import bisect
import os
import pathlib
from collections.abc import Callable
from typing import NoReturn

from mercer.models._arrays import Space

#: Values of K_nm, of points and centres, that are there at a time.
CENTER_BLOCK = 2**23
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free(space: Space) -> int:
    """Bytes that arrays of this space can still take; libraries keep freed ones of a device."""
    if space.library == "numpy" or space.device == "cpu":
        return _free_on_host()
    cuda = space.xp.cuda
    if space.library == "torch":
        kept = cuda.memory_reserved(space.device) - cuda.memory_allocated(space.device)
        return int(cuda.mem_get_info(space.device)[0]) + int(kept)
    with cuda.Device(int(space.device.rpartition(":")[2])):
        kept = space.xp.get_default_memory_pool().free_bytes()
        return int(cuda.runtime.memGetInfo()[0]) + int(kept)


def _free_on_host() -> int:
    values = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    info = pathlib.Path("/proc/meminfo")
    if info.exists():
        entries = dict(line.split(":") for line in info.read_text().splitlines() if ":" in line)
        values = [int(entries["MemAvailable"].split()[0]) * 1024]
    for limit, used in _LIMITS:
        try:
            taken = int(pathlib.Path(used).read_text()) - _left_by_files(pathlib.Path(used))
            values.append(int(pathlib.Path(limit).read_text()) - taken)
        except (OSError, ValueError):
            continue
    return max(min(values), 0)


def _left_by_files(used: pathlib.Path) -> int:
    """Bytes of the page cache that count as used until another needs them."""
    stat = used.with_name("memory.stat")
    if not stat.exists():
        return 0
    entries = dict(line.split() for line in stat.read_text().splitlines())
    return int(entries.get("total_inactive_file", entries.get("inactive_file", 0)))


def itemsize(space: Space) -> int:
    return 4 if space.dtype == "float32" else 8


def require(needed: int, space: Space, what: str, n: int, name: str,
            advice: Callable[[int], str] | None = None) -> None:  # fmt: skip
    """MemoryError, with what would fit, where ``needed`` bytes of a matrix are not free.

    advice: made of the bytes that are free; without it, centres.
    """
    available = free(space)
    if needed > available:
        said = f'solver="cg" stores no matrix; {centers_that_fit(n, space, available)}'
        said = said if advice is None else advice(available)
        _refuse(needed, available, space, what, n, name, said)


def require_columns(n: int, rank: int, columns: int, space: Space, name: str,
                    other: str = "", copies: int = 4) -> None:  # fmt: skip
    """MemoryError where conjugate gradients have no memory: eight vectors for each of the columns
    that are solved for, and copies of those of a factor. other: what fits where no factor does."""
    column, available = n * itemsize(space), free(space)
    vectors = 8 * columns * column
    needed = vectors + copies * rank * column
    if needed <= available:
        return
    fits = (available - vectors) // (copies * column)
    advice = f"rank={fits} or less fits" if fits >= 0 else (
        other or f"Up to {available // (8 * column)} columns at a time fit without a factor"
    )  # fmt: skip
    what = f"a factor of {rank} columns and the vectors of {columns} right-hand sides"
    _refuse(needed, available, space, what, n, name, advice)


def require_blocks(n: int, block: int, columns: int, space: Space, name: str,
                   has_centers: bool = True) -> None:  # fmt: skip
    """MemoryError where sketch and project has no memory: two matrices of a block of rows, and
    eight vectors for each column."""
    available = free(space)
    needed = (2 * block * block + 8 * columns * n) * itemsize(space)
    if needed > available:
        what, vectors = f'solver="sap" with blocks of {block} rows', 8 * columns * n
        advice = [centers_that_fit(n, space, available)] if has_centers else []
        if vectors * itemsize(space) <= available:
            advice.insert(0, 'solver="cg" with rank=0 has no blocks')
        _refuse(needed, available, space, what, n, name, "; ".join(advice))


def require_points(n: int, d: int, space: Space, name: str) -> None:
    """MemoryError where points of the host have no room on the device that computes."""
    needed, available = n * d * itemsize(space), free(space)
    if needed > available:
        advice = "Without device= they stay on the host"
        _refuse(needed, available, space, f"a copy of {d} features", n, name, advice)


def bytes_of_centers(m: int, n: int, columns: int, exact: bool, space: Space) -> int:
    """Three matrices of m x m in float64, five on a device; and a block of K_nm twice in float64
    in addition to its own dtype, or for products four vectors of n numbers for each column."""
    square = (40 if space.on_device else 24) * m * m
    if exact:
        return square + min(n, max(1, CENTER_BLOCK // m)) * m * (16 + itemsize(space))
    return square + 4 * n * columns * itemsize(space)


def centers_that_fit(n: int, space: Space, available: int) -> str:
    fits = bisect.bisect_right(
        range(1, n + 1), available, key=lambda m: bytes_of_centers(m, n, 1, True, space)
    )
    return f"centers={fits} or fewer fit" if fits else "Fewer points are what fits"


def _refuse(needed: int, available: int, space: Space, what: str, n: int, name: str,
            advice: str) -> NoReturn:  # fmt: skip
    raise MemoryError(
        f"{name}: {what} of {n} points needs {needed / 2**30:.3g} GiB on {space.device}, where "
        f"{available / 2**30:.3g} GiB are free. {advice}"
    )
