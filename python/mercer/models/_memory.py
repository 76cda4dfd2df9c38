"""What memory is free, and refusals before a fit begins."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

from mercer.models._arrays import Space

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
            values.append(
                int(pathlib.Path(limit).read_text()) - int(pathlib.Path(used).read_text())
            )
        except (OSError, ValueError):
            continue
    return max(min(values), 0)


def require(needed: int, space: Space, what: str, n: int, name: str,
            advice: Callable[[int], str] | None = None) -> None:  # fmt: skip
    """MemoryError, with what would fit, where ``needed`` bytes are not free.

    advice: made of the bytes that are free; without it, centres.
    """
    available = free(space)
    if needed <= available:
        return
    if advice is None:
        centers = int((available / (4 * (4 if space.dtype == "float32" else 8))) ** 0.5)
        said = f'solver="cg" stores no matrix; centers={centers} or fewer fit'
    else:
        said = advice(available)
    raise MemoryError(
        f"{name}: {what} of {n} points needs {needed / 2**30:.3g} GiB on {space.device}, where "
        f"{available / 2**30:.3g} GiB are free. {said}"
    )
