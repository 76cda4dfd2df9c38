"""Timing: contestants take turns, the best CPU time of each counts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping

Call = Callable[[], object]

# A shorter call is repeated within one measurement, so that the clock's own cost does not show.
SHORTEST = 0.01


def _seconds(call: Call, count: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(count):
        call()
    return (clock() - start) / count


def best_times(
    calls: Mapping[str, Call], repeats: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Seconds of one call of each contestant: the best of ``repeats`` rounds, interleaved."""
    counts = {}
    for name, call in calls.items():
        call()  # compiles, allocates, warms up
        counts[name] = max(1, int(SHORTEST / max(_seconds(call, 1, clock), 1e-7)))
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            best[name] = min(best[name], _seconds(call, counts[name], clock))
    return best


def time_once(call: Call) -> float:
    """Seconds of the first call, for contestants of many seconds."""
    return _seconds(call, 1, time.process_time)


def rows_within(call: Callable[[int], object], rows: int, budget: float) -> int:
    """How many of ``rows`` rows a call may compute within ``budget`` seconds of CPU time."""
    probe = min(rows, 16)
    call(probe)
    per_row = _seconds(lambda: call(probe), 1, time.process_time) / probe
    return rows if per_row * rows <= budget else max(probe, min(rows, int(budget / per_row)))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Holds Mercer, torch, BLAS and OpenMP to one thread each."""
    import mercer

    with contextlib.ExitStack() as stack:
        before = mercer.get_num_threads()
        mercer.set_num_threads(1)
        stack.callback(mercer.set_num_threads, before)
        with contextlib.suppress(ImportError):
            import torch

            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        with contextlib.suppress(ImportError):
            import threadpoolctl

            stack.enter_context(threadpoolctl.threadpool_limits(1))
        yield


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))
