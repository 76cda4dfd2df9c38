"""Runs the GPU's rows: data on the device, times of Mercer and of the peers, errors, floors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import mercer

from . import (
    engine,
    gpu_kron,
    gpu_kron_startup,
    gpu_masks,
    gpu_rows,
    gpu_startup,
    linalg,
    random_calls,
)
from .gpu_data import (
    Case,
    agop_error,
    gradient_error,
    median_square,
    nearest_error,
    product_error,
    sampled_error,
)
from .gpu_peers import Peer
from .gpu_result import GpuLine
from .gpu_rows import Backward, Bars, Gradient, Nearest, Pairs, Product, Several
from .gpu_settings import GpuSettings


def with_bars(line: GpuLine, bars: Bars, s: GpuSettings) -> GpuLine:
    line.error_bar, line.ratio_bar = bars.error, bars.ratio if s.has_bars() else None
    if s.has_bars():
        line.least, line.reach = bars.least, bars.reach
        if bars.of_floor is not None and line.floor_ms:
            line.least = line.floor_ms / bars.of_floor
    return line


def time_of_peer(peer: Peer, case: Case, s: GpuSettings) -> tuple[float, bool]:
    """Milliseconds of the whole, and whether they were scaled; timed once for all kinds of data."""
    rows = case.shape[0]
    timed = min(rows, peer.most_rows or rows)
    dtype = str(case.x.dtype).replace("uint8", "float32")
    key = (peer.name, peer.columns, case.shape, dtype)
    if key not in s.peer_times:
        call = peer.make(case.x, case.z)
        call(min(rows, 64))
        ms = s.watch.once(lambda: call(timed))
        if ms < 100:
            ms = s.watch.median(lambda: call(timed))
        s.peer_times[key] = ms * rows / timed, timed < rows
    return s.peer_times[key]


def against(
    line: GpuLine, peers: tuple[Peer, ...], case: Case, s: GpuSettings
) -> Iterator[GpuLine]:
    """One line a peer, the first with all of Mercer's numbers."""
    if not peers:
        yield line
    for index, peer in enumerate(peers):
        if index > 0:
            line = GpuLine(line.row, line.shape, line.dtype, data=line.data, ms=line.ms)
        line.peer = peer.name
        line.peer_ms, line.peer_scaled = time_of_peer(peer, case, s)
        yield line


def pairs_lines(row: Pairs, s: GpuSettings) -> Iterator[GpuLine]:
    case = Case(s.shape(row.shape), row.data, row.dtype, s.device)
    if row.same:
        case.z = case.x
    formula, out = mercer.kernel(row.formula), case.empty(*case.shape[:2], dtype=row.out)
    line = GpuLine(row.name, case.shape, row.dtype, data=row.data)
    if s.tunes:
        mercer.tune(formula, case.x, case.z, out=out, **row.params)
        out.fill_(float("nan"))
    with mercer.options(precision=row.precision):
        s.time(line, lambda: mercer.pairwise(formula, case.x, case.z, out=out, **row.params))
    line.floor_ms = engine.gpu_floor(
        row.formula,
        case.shape,
        row.dtype,
        s.floors,
        mixed_pipes=row.mixed_pipes,
        products=row.products,
        symmetric=row.same,
    )["ms"]
    line.error = sampled_error(out, case, row.reference, of_points=row.of_points)
    yield from against(with_bars(line, row.bars, s), row.peers, case, s)


def product_lines(row: Product, s: GpuSettings) -> Iterator[GpuLine]:
    case = Case(s.shape(row.shape), row.data, "float32", s.device)
    if row.of_median is not None:
        row = row.of_median(median_square(case))
    v = case.normal(case.shape[1], row.columns)
    out = case.empty(case.shape[0], row.columns)
    formula = mercer.kernel(row.formula)
    line = GpuLine(row.name, case.shape, data=row.data, note=f"{row.columns} columns")
    if s.tunes:
        mercer.tune(formula, case.x, case.z, verb="kernel_product", v=v, **row.params)
    s.time(line, lambda: mercer.kernel_product(formula, case.x, case.z, v, out=out, **row.params))
    line.floor_ms = engine.gpu_floor(
        row.formula, case.shape, "float32", s.floors, verb="kernel_product", columns=row.columns
    )["ms"]
    line.error = product_error(out, case, v, row.reference)
    if row.noted is not None and s.has_bars():
        line.peer, line.peer_ms = row.noted
        yield with_bars(line, row.bars, s)
        line = GpuLine(line.row, line.shape, ms=line.ms)
    yield from against(with_bars(line, row.bars, s), row.peers, case, s)


def nearest_lines(row: Nearest, s: GpuSettings) -> Iterator[GpuLine]:
    """The bar: the time of the matrix of as many pairs, stored some columns at a time."""
    case = Case(s.shape(row.shape), "normal", "float32", s.device)
    m, n, _ = case.shape
    count = min(row.count, n)
    values = case.empty(m, count)
    indices = values.long()
    formula = mercer.kernel(row.formula)
    line = GpuLine(row.name, case.shape, note=f"{count} neighbours")
    s.time(line, lambda: mercer.knn(formula, case.x, case.z, count, out=(values, indices)))
    line.floor_ms = engine.gpu_floor(row.formula, case.shape, "float32", s.floors, verb="knn")["ms"]
    line.error = nearest_error(values, case, row.reference)
    if row.bars.of_tile is not None and s.has_bars():
        rows, cols = min(m, 20000), min(n, 200000)
        x, z, out = case.x[:rows], case.z[:cols], case.empty(rows, cols)
        ms = s.watch.median(lambda: mercer.pairwise(formula, x, z, out=out))
        line.peer, line.peer_scaled = "mercer, the matrix", True
        line.peer_ms = ms * m / rows * n / cols
        line.least = row.bars.of_tile * line.peer_ms
        del out
        yield line
        line = GpuLine(line.row, line.shape, ms=line.ms)
    yield from against(with_bars(line, row.bars, s), row.peers, case, s)


def gradient_lines(row: Gradient, s: GpuSettings) -> Iterator[GpuLine]:
    case = Case(s.shape(row.shape), "normal", "float32", s.device)
    m, n, k = case.shape
    coef = case.normal(row.outputs, n)
    out = case.empty(k, k) if row.agop else case.empty(row.outputs, m, k)
    formula = mercer.kernel(row.formula)
    line = GpuLine(row.name, case.shape, note=f"{row.outputs} outputs")
    amplitude = None
    if row.agop:
        s.time(
            line, lambda: mercer.kernel_agop(formula, case.x, case.z, coef, out=out, **row.params)
        )
    elif row.field is None:
        s.time(
            line,
            lambda: mercer.kernel_gradient(formula, case.x, case.z, coef, out=out, **row.params),
        )
    else:
        amplitude, phi = case.normal(m, n), row.field
        s.time(line, lambda: mercer.gradient_field(phi, case.x, case.z, amplitude, coef, out=out))
    line.floor_ms = engine.gpu_floor(
        row.formula, case.shape, "float32", s.floors, verb="kernel_gradient", columns=row.outputs
    )["ms"]
    if row.agop:
        gradients = mercer.kernel_gradient(formula, case.x, case.z, coef, **row.params).flatten(
            0, 1
        )
        line.error = agop_error(out, gradients)
        del gradients
    else:
        weights = coef.double()
        line.error = gradient_error(
            out,
            case,
            lambda m: weights if amplitude is None else weights * amplitude[m].double(),
            lambda x, z: row.slope(x - z),
        )
    if row.noted is not None and s.has_bars():
        line.peer, line.peer_ms = row.noted
    yield from against(with_bars(line, row.bars, s), row.peers, case, s)


def backward_lines(row: Backward, s: GpuSettings) -> Iterator[GpuLine]:
    import torch

    case = Case(s.shape(row.shape), "normal", "float32", s.device)
    m, n, _ = case.shape
    leaves = [t.clone().requires_grad_() for t in (case.x, case.z)]
    cotangent = case.normal(m, row.columns or n).flip(0)
    if row.columns:
        leaves.append(case.normal(n, row.columns).requires_grad_())
        given = dict(row.params)
        if row.weighs:
            given["w"] = torch.ones_like(case.x[0]).requires_grad_()
        out = mercer.kernel_product(mercer.kernel(row.formula), *leaves, **given)
        leaves += [given["w"]] if row.weighs else []
        note = f"{row.columns} columns, by x, z, v" + ", w" * row.weighs
    else:
        out = mercer.pairwise(mercer.kernel(row.formula), *leaves, **row.params)
        note = "of the matrix, by x and z"

    def gradients() -> Any:
        return torch.autograd.grad(out, leaves, cotangent, retain_graph=True)

    def weights(m: int) -> Any:
        of_row = cotangent[m : m + 1].double()
        return of_row @ leaves[2].detach().double().mT if row.columns else of_row

    line = GpuLine(row.name, case.shape, note=note)
    s.time(line, gradients)
    line.error = gradient_error(
        gradients()[0].unsqueeze(0),
        case,
        weights,
        row.slope if row.of_points else lambda x, z: row.slope(x - z),
    )
    yield from against(with_bars(line, row.bars, s), row.peers, case, s)


def several_lines(row: Several, s: GpuSettings) -> Iterator[GpuLine]:
    """Several values share one accumulation; the peer is as many calls."""
    case = Case(s.shape(row.shape), "normal", "float32", s.device)
    formula, count = mercer.kernel(row.formula), len(row.values)
    out = case.empty(count, *case.shape[:2])

    def one_by_one() -> None:
        for index, value in enumerate(row.values):
            params: dict[str, Any] = {row.param: value}
            mercer.pairwise(formula, case.x, case.z, out=out[index], **params)

    line = GpuLine(row.name, case.shape, note=f"{count} values of {row.param} at once")
    line.peer = f"mercer, {count} calls"
    line.peer_ms = s.watch.median(one_by_one)
    out.fill_(float("nan"))
    values: dict[str, Any] = {row.param: list(row.values)}
    s.time(line, lambda: mercer.pairwise(formula, case.x, case.z, out=out, **values))
    line.floor_ms = engine.gpu_floor(row.formula, case.shape, "float32", s.floors, items=count)[
        "ms"
    ]
    # Narrow kernels give values far below 1, whose relative error is that of their exponents.
    line.error = sampled_error(out[-1], case, row.reference(row.values[-1]))
    yield with_bars(line, row.bars, s)


def symmetric_lines(s: GpuSettings) -> Iterator[GpuLine]:
    """A matrix of points with themselves against the same points given as two arrays."""
    case = Case(s.shape(gpu_rows.LARGE), "normal", "float32", s.device)
    case.z = case.x.clone()
    out, formula = case.empty(*case.shape[:2]), mercer.kernel(gpu_rows.norm_text(1))
    line = GpuLine("symmetric", case.shape, peer="mercer, general")
    line.peer_ms = s.watch.median(lambda: mercer.kernel_matrix(formula, case.x, case.z, out=out))
    out.fill_(float("nan"))
    s.time(line, lambda: mercer.kernel_matrix(formula, case.x, out=out))
    line.floor_ms = engine.gpu_floor(
        gpu_rows.norm_text(1), case.shape, "float32", s.floors, symmetric=True
    )["ms"]
    line.error = sampled_error(out, case, gpu_rows.norm(1))
    yield with_bars(line, Bars(), s)


def all_rows() -> dict[str, Callable[[GpuSettings], Iterator[GpuLine]]]:
    """Every row by name, in the order of the table."""
    rows: dict[str, Callable[[GpuSettings], Iterator[GpuLine]]] = {}
    kinds: tuple[tuple[Callable[[Any, GpuSettings], Iterator[GpuLine]], tuple[Any, ...]], ...] = (
        (pairs_lines, gpu_rows.PAIRS),
        (several_lines, gpu_rows.SEVERAL),
        (product_lines, gpu_rows.PRODUCTS),
        (nearest_lines, gpu_rows.NEAREST),
        (gradient_lines, gpu_rows.GRADIENTS),
        (backward_lines, gpu_rows.BACKWARDS),
    )
    for lines, own in kinds:
        rows.update({row.name: functools.partial(lines, row) for row in own})
    rows["symmetric"] = symmetric_lines
    rows.update(gpu_masks.all_rows())
    rows.update(linalg.all_rows())
    rows.update(gpu_kron.all_rows())
    rows.update(gpu_kron_startup.all_rows())
    rows.update(gpu_startup.ROWS)
    rows["random"] = random_calls.gpu_lines
    return rows
