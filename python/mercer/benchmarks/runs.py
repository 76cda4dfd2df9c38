"""Runs the rows: prepares data, lets the contestants take turns, checks the numbers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mercer

from . import backward, engine, kron, peers, random_calls
from .data import Case
from .result import Line
from .rows import (
    AVX2_FLOOR_BAR,
    INTERPRETER_BAR,
    JIT_BAR_SECONDS,
    MASKS,
    PAIRWISE,
    PRODUCTS,
    THREADS_BAR,
    Mask,
    Pairwise,
    Product,
    Rival,
)
from .settings import Settings
from .timing import best_times, rows_within, time_once, usable_cpus


def pairwise_call(row: Pairwise, case: Case) -> Callable[[], object]:
    """Mercer's call of one row, ready to be timed."""
    formula = mercer.kernel(row.formula)
    x, z, out, params = case.x, case.z, case.out, row.params
    return lambda: mercer.pairwise(formula, x, z, out=out, **params)


def product_call(row: Product, case: Case) -> Callable[[], object]:
    formula = mercer.kernel(row.formula)
    x, z, v = case.x, case.z, case.v
    return lambda: mercer.kernel_product(formula, x, z, v)


def pairwise_error(row: Pairwise, case: Case, rows: int = 8) -> float:
    """Largest relative error of some rows; of a dot product, relative to |x||z|."""
    got = np.asarray(
        mercer.pairwise(mercer.kernel(row.formula), case.x[:rows], case.z, **row.params)
    )
    worst = 0.0
    for x, values in zip(case.x64, got, strict=False):
        exact = row.reference(x, case.z64)
        scale = np.linalg.norm(x) * np.linalg.norm(case.z64, axis=1) if row.name == "dot" else exact
        worst = max(
            worst, float(np.max(np.abs(values - exact) / np.maximum(np.abs(scale), 1e-300)))
        )
    return worst


def product_error(row: Product, case: Case, rows: int = 8) -> float:
    """Largest error of some rows relative to sum |K||v|."""
    got = np.asarray(
        mercer.kernel_product(mercer.kernel(row.formula), case.x[:rows], case.z, case.v)
    )
    worst = 0.0
    for x, value in zip(case.x64, got, strict=False):
        terms = row.reference(x, case.z64) * case.v
        worst = max(worst, float(abs(value - terms.sum()) / np.abs(terms).sum()))
    return worst


def against_rivals(
    line: Line,
    ours: Callable[[], object],
    rivals: tuple[Rival, ...],
    case: Case,
    s: Settings,
    whole: bool = False,
) -> Iterator[Line]:
    """Times Mercer and its rivals in turns: one line a rival, the first with Mercer's data.

    `whole`: rivals run once on the whole problem however long it takes, because a part of the rows
    would not show what storing the whole matrix costs them.
    """
    present = [rival for rival in rivals if peers.installed(rival.name)]
    calls, shares = {}, {}
    for rival in present:
        call = rival.make(case)
        rows = case.shape[0] if whole else rows_within(call, case.shape[0], s.peer_budget)
        shares[rival.name] = rows / case.shape[0]
        calls[rival.name] = lambda call=call, rows=rows: call(rows)
    if whole:
        times = {name: time_once(call) for name, call in calls.items()}
        times |= best_times({"mercer": ours}, s.repeats)
    else:
        times = best_times({"mercer": ours} | calls, s.repeats)
    line.seconds = times["mercer"]
    line.gelem = case.elements / times["mercer"] / 1e9
    if line.floor is not None:  # so far the floor's rate
        line.floor = line.gelem / line.floor
    if not present:
        yield line
    for index, rival in enumerate(present):
        if index > 0:
            line = Line(line.row, line.shape, line.dtype, target=line.target)
            line.seconds = times["mercer"]
        line.peer, line.ratio_bar = rival.name, rival.bar
        line.peer_seconds = times[rival.name] / shares[rival.name]
        line.peer_scaled = shares[rival.name] < 1
        line.ratio = line.peer_seconds / times["mercer"]
        yield line


def pairwise_lines(row: Pairwise, s: Settings) -> Iterator[Line]:
    """float32, one thread, the best target, against the peers."""
    best = engine.targets()[0]
    for k in s.features:
        case = Case(s.points, s.points, k)
        line = Line(
            row.name, case.shape, target=best, floor_bar=row.floor_bar, error_bar=row.error_bar
        )
        line.floor = engine.floor(row.formula, case.shape, case.dtype, best)
        line.error = pairwise_error(row, case)
        yield from against_rivals(line, pairwise_call(row, case), row.rivals, case, s)


def product_lines(row: Product, s: Settings) -> Iterator[Line]:
    best = engine.targets()[0]
    case = Case(*s.product)
    line = Line(row.name, case.shape, target=best, floor_bar=row.floor_bar, error_bar=2e-6)
    line.floor = engine.floor(row.formula, case.shape, case.dtype, best)
    line.error = product_error(row, case)
    yield from against_rivals(line, product_call(row, case), row.rivals, case, s, whole=True)


def mask_lines(mask: Mask, s: Settings) -> Iterator[Line]:
    """A product with a mask against that of all pairs."""
    row, points = PRODUCTS[0], min(s.product[:2])
    case = Case(points, points, s.product[2])
    formula = mercer.kernel(f"where({mask.condition}, {row.formula}, 0)")
    params: dict[str, Any] = {"width": points // 20} if "width" in mask.condition else {}
    x, z, v = case.x, case.z, case.v

    def ours() -> object:
        return mercer.kernel_product(formula, x, z, v, **params)

    times = best_times({"masked": ours, "all": product_call(row, case)}, s.repeats)
    line = Line(f"mask {mask.name}", case.shape, seconds=times["masked"])
    line.peer, line.peer_seconds = "mercer, all pairs", times["all"]
    line.ratio, line.ratio_bar = times["all"] / times["masked"], mask.bar
    got, columns = np.asarray(ours()), np.arange(points)
    line.error, line.error_bar = 0.0, 2e-6
    for i in (0, points // 3, points - 1):
        keeps = mask.keeps(np.asarray(i), columns, points)
        terms = np.where(keeps, row.reference(case.x64[i], case.z64), 0) * case.v
        line.error = max(line.error, float(abs(got[i] - terms.sum()) / np.abs(terms).sum()))
    yield line


def avx2_lines(s: Settings) -> Iterator[Line]:
    """The AVX2 target, forced, against its own floors."""
    if "x86_avx2" not in engine.targets():
        return
    for row in PAIRWISE:
        case = Case(s.points, s.points, s.features[0])
        with engine.target("x86_avx2"):
            # No peer shares the rounds: more of them find a moment in which the host is quiet.
            seconds = best_times({"avx2": pairwise_call(row, case)}, 4 * s.repeats)["avx2"]
            error = pairwise_error(row, case)
        line = Line(f"avx2 {row.name}", case.shape, target="x86_avx2", seconds=seconds)
        line.gelem = case.elements / seconds / 1e9
        line.error, line.error_bar = error, row.error_bar
        rate = engine.floor(row.formula, case.shape, case.dtype, "x86_avx2")
        if rate:
            line.floor, line.floor_bar = line.gelem / rate, AVX2_FLOOR_BAR
        yield line


def fp64_lines(s: Settings) -> Iterator[Line]:
    """The rate in float64 as a share of the rate in float32."""
    shape = (s.points, s.points, s.features[0])
    jobs: list[tuple[Any, Callable[[Any, Case], Callable[[], object]], tuple[int, int, int]]]
    jobs = [(row, pairwise_call, shape) for row in PAIRWISE]
    m, n, k = s.product
    few = (min(m, 8000), min(n, 8000), min(k, 8000))
    jobs += [(row, product_call, few) for row in PRODUCTS]
    for row, make, size in jobs:
        single, double = Case(*size), Case(*size, "float64")
        times = best_times({"f32": make(row, single), "f64": make(row, double)}, s.repeats)
        line = Line(f"fp64 {row.name}", size, "float64", seconds=times["f64"])
        line.gelem = double.elements / times["f64"] / 1e9
        line.peer, line.peer_seconds = "mercer float32", times["f32"]
        line.ratio, line.ratio_bar = times["f32"] / times["f64"], row.fp64_bar
        yield line


def thread_lines(s: Settings) -> Iterator[Line]:
    """Two threads against one, in wall time: other work on the machine shows here."""
    if usable_cpus() < 2:
        return
    for row in (PAIRWISE[0], PAIRWISE[1], PAIRWISE[5]):
        case = Case(s.points, s.points, s.features[0])
        ours = pairwise_call(row, case)

        def with_threads(count: int, ours: Callable[[], object] = ours) -> None:
            mercer.set_num_threads(count)
            ours()

        calls = {str(n): functools.partial(with_threads, n) for n in (1, 2)}
        times = best_times(calls, 2 * s.repeats, time.perf_counter)
        mercer.set_num_threads(1)
        line = Line(f"threads {row.name}", case.shape, seconds=times["2"], note="wall time")
        line.gelem = case.elements / times["2"] / 1e9
        line.peer, line.peer_seconds = "mercer, one thread", times["1"]
        line.ratio, line.ratio_bar = times["1"] / times["2"], THREADS_BAR
        yield line


def jit_lines(s: Settings) -> Iterator[Line]:
    """First call of a formula never seen before, less a warm call: planning, emission, mapping."""
    case = Case(64, 64, 8)
    costs = []
    for trial in range(20):
        formula = mercer.kernel(f"sum(max(abs(x-z)-{0.5 + trial / 1000},0)^2)")
        start = time.process_time()
        mercer.pairwise(formula, case.x, case.z)
        middle = time.process_time()
        mercer.pairwise(formula, case.x, case.z)
        costs.append((middle - start) - (time.process_time() - middle))
    line = Line("jit user", case.shape, seconds=sorted(costs)[len(costs) // 2])
    line.peer, line.peer_seconds = "the bar", JIT_BAR_SECONDS
    line.ratio, line.ratio_bar = JIT_BAR_SECONDS / max(line.seconds, 1e-9), 1.0
    line.note = "median of 20 new formulas"
    yield line


def interpreter_lines(s: Settings) -> Iterator[Line]:
    """The interpreter against the emitted code."""
    if engine.targets()[0] == "interpreter":
        return
    for row in (PAIRWISE[0], PAIRWISE[1], PAIRWISE[5], PAIRWISE[6]):
        case = Case(s.points // 2, s.points // 2, s.features[0])
        emitted = best_times({"jit": pairwise_call(row, case)}, s.repeats)["jit"]
        with engine.target("interpreter"):
            slow = best_times({"slow": pairwise_call(row, case)}, min(s.repeats, 3))["slow"]
            error = pairwise_error(row, case)
        line = Line(f"interpreter {row.name}", case.shape, target="interpreter", seconds=slow)
        line.gelem = case.elements / slow / 1e9
        line.error, line.error_bar = error, row.error_bar
        line.peer, line.peer_seconds = "mercer, emitted code", emitted
        line.ratio, line.ratio_bar = emitted / slow, INTERPRETER_BAR
        yield line


def all_rows() -> dict[str, Callable[[Settings], Iterator[Line]]]:
    """Every row by name, in the order of the table."""
    rows: dict[str, Callable[[Settings], Iterator[Line]]] = {}
    for row in PAIRWISE:
        rows[row.name] = functools.partial(pairwise_lines, row)
    for product in PRODUCTS:
        rows[product.name] = functools.partial(product_lines, product)
    for mask in MASKS:
        rows[f"mask-{mask.name}"] = functools.partial(mask_lines, mask)
    for gradients in backward.BACKWARDS:
        rows[gradients.name] = functools.partial(backward.lines, gradients)
    rows["jit"] = jit_lines
    rows["interpreter"] = interpreter_lines
    rows["avx2"] = avx2_lines
    rows["fp64"] = fp64_lines
    rows["threads"] = thread_lines
    rows["kron"] = kron.lines
    rows["kron-fp64"] = kron.fp64_lines
    rows["kron-threads"] = kron.thread_lines
    rows["random"] = random_calls.cpu_lines
    return rows
