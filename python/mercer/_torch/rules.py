"""The derivatives of the operators, made of the operators themselves.

With L the value that is differentiated and W[m, n] the weight of a pair, dL/df(x_m, z_n):

    pairwise   W = the cotangent C
    product    W = C v',  dL/dv = f' C
    reduce     sum: W = C 1',  logsumexp: W = C exp(f - out),  max, min: W = C at the extremum
    knn        W = C at the neighbours
    field      W as given, of the formula differentiated in the direction C: field is linear in it

    dL/dx[m, k]   = sum_n W df/dx[m, k]         a field; to z with the sides swapped
    dL/dw[k]      = sum_mn W df/dw[k]           a field, summed over m
    dL/drow[m]    = sum_n W df/drow             df/drow, df/dp are formulas again
    dL/dp         = sum_mn W df/dp
    dL/ddirection = the field by what the direction is added to, without that direction

What has the weights C v' or C takes two passes where no derivative of it is recorded: one
with the rows x, which adds up df/drow and df/dp beside the field, and one with the rows z, which
has dL/dv; of C v' one for both where the formula and its points are the same on both sides. dL/dv
of many columns is a third where products of matrices make it sooner than these passes do.

Formulas of norms and means are taken as formulas of other points first (point_form.py); those that
are linear in x and z then take products of matrices in place of passes (linear_form.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mercer import _mercer
from mercer._derived import derivative, leaves, parsed
from mercer._torch import autograd, linear_form, products
from mercer._torch.operands import FEW_FEATURES, Pairs, Weights, like
from mercer._torch.operators import has_passes
from mercer._torch.point_form import PointForm, point_form
from mercer._torch.weight_form import GradientByWeights

_FIELDS = len(Pairs._fields)
NONE = Pairs(*([None] * _FIELDS))
_MOST_SUMS = 8  # that a pass adds up beside its field


def pairwise(pairs: Pairs) -> Tensor:
    return autograd.call("pairwise", *pairs)


def product(pairs: Pairs, v: Tensor) -> Tensor:
    return autograd.call("product", *pairs, v)


def field(pairs: Pairs, wrt: str, weights: Weights) -> Tensor:
    return autograd.call("field", *pairs, wrt, *weights)


def ones(pairs: Pairs, points: Tensor) -> Tensor:
    return points.new_ones(1, 1, dtype=pairs.type).expand(points.shape[-2], 1)


def _over_columns(pairs: Pairs, weights: Weights) -> Tensor:
    """[..., M]: the sum over n of weight times formula."""
    if weights.amplitude is not None:
        return (weights.matrix() * pairwise(pairs)).sum(-1)
    values = product(pairs, ones(pairs, pairs.columns) if weights.v is None else weights.v)
    return (values if weights.u is None else weights.u * values).sum(-1)


def _by_points(pairs: Pairs, weights: Weights, needs_z: bool) -> Tensor:
    """To x; where z is x (`needs_z`) to both, at once if f does not tell them apart."""
    if not needs_z:
        return field(pairs, "x", weights)
    if not _same_sides(pairs):
        return field(pairs, "x", weights) + field(pairs, "z", weights)
    amplitude, u, v = weights
    if amplitude is not None:
        matrix = weights.matrix()
        return field(pairs, "x", Weights(matrix + matrix.mT))
    one = ones(pairs, pairs.x)
    u, v = _alike(one if u is None else u, one if v is None else v)
    return field(pairs, "x", Weights(None, torch.cat([u, v], -1), torch.cat([v, u], -1)))


def _alike(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Broadcast to one shape. torch.broadcast_tensors has no rule for vmap."""
    shape = torch.broadcast_shapes(u.shape, v.shape)
    return u.expand(shape), v.expand(shape)


def _same_sides(pairs: Pairs) -> bool:
    """Whether x and z are the same points to a formula that does not tell them apart."""
    alike = pairs.row is pairs.col and pairs.i_offset == pairs.j_offset
    return pairs.z is None and alike and not pairs.along and parsed(pairs.f).symmetric


def _by_parameter(pairs: Pairs, weights: Weights, name: str, parameter: Tensor) -> Tensor:
    by_name = pairs.with_formula(derivative(pairs.f, f"p:{name}"))
    return like(_over_columns(by_name, weights).sum(-1), parameter)


def _pass(
    pairs: Pairs, weights: Weights, by: list[str], needs_v: bool, without_weight: bool
) -> tuple[Tensor, dict]:
    """The field to x, and in the same pass gradients by `by` ("w", "p:h", "row") and v."""
    found = linear_form.passed(pairs, weights, by, needs_v, without_weight)
    if found is not None:
        return found
    amplitude, u, v = weights
    if amplitude is not None:
        name, inputs = "pairwise_backward", (amplitude, " ".join(by), without_weight)
    else:
        name, inputs = "product_backward", (u, v, " ".join(by), needs_v, without_weight)
    gradient, *further = autograd.call(name, *pairs, *inputs)
    summed = [name for name in by if name != "w"]
    sums = dict(zip(summed, further.pop(0).unbind(-2), strict=True)) if summed else {}
    if "w" in by:
        sums["w"] = further.pop(0)
    if needs_v:
        sums["v"] = further[-1]
    return gradient, sums


def _most_sums(by: list[str], rows: list[str]) -> int:
    """How many of them a pass takes, with those by rows; those by w do not count."""
    return _MOST_SUMS + ("w" in by) - len(rows)


def _form_of(pairs: Pairs, weights: Weights, needs: Pairs) -> PointForm | None:
    tensors = [t for _, t, _ in pairs.tensors()] + [t for t in weights if t is not None]
    return point_form(pairs, needs) if autograd.records_nothing(tensors) else None


def _made_in_one_pass(
    pairs: Pairs,
    weights: Weights,
    needs: Pairs,
    by: list[str],
    needs_v: bool,
    form: GradientByWeights | None,
) -> dict[str, Tensor]:
    """Of points that are both sides to the formula: with the weights u v' + v u', whose sums are
    twice those of one side."""
    _, u, v = weights
    u, v = _alike(u, v)
    both = Weights(None, torch.cat([u, v], -1), torch.cat([v, u], -1))
    rows = ["row"] if pairs.row is not None and (needs.row or needs.col) else []
    names = by[: _most_sums(by, rows)] + rows
    x, found = _pass(pairs, both, names, needs_v, form is not None)
    halves = {name: sums / 2 for name, sums in found.items()}
    if needs_v:
        halves["v"] = found["v"][..., u.shape[-1] :]
    if form is not None:
        x, by_w = form.taken(pairs, x)
        halves["w"] = by_w if form.of_both_sides else by_w / 2
    if rows:
        halves["col"] = halves["row"]
    return halves | {"x": x}


def _made_in_passes(
    pairs: Pairs, weights: Weights, needs: Pairs, needs_v: bool
) -> dict[str, Tensor]:
    """Gradients by leaf, as their points have them: what passes over the pairs have beside the
    fields, and these; nothing where there are no such passes."""
    given = [t for _, t, _ in pairs.tensors()] + [t for t in weights if t is not None]
    if not has_passes(pairs, weights) or not autograd.records_nothing(given):
        return {}
    needs_z = needs.x if pairs.z is None else needs.z
    form = GradientByWeights.of(pairs, needs)
    # On CUDA, of more features, a field by w alone is less than a pass with that to x beside.
    has_fields = not pairs.x.is_cuda or pairs.x.shape[-1] <= FEW_FEATURES
    has_others = needs.x or needs_z or needs.row or needs.col or any(needs.params)
    has_weights = pairs.w is not None and needs.w
    by_w = form is None and has_weights and (has_fields or has_others)
    if not (needs.x or needs_z or by_w or form is not None):
        return {}
    by = [
        f"p:{name}"
        for name, needed in zip(pairs.names.split(), needs.params, strict=False)
        if needed
    ]
    if by_w:
        by.insert(0, "w")
    if weights.amplitude is None and _same_sides(pairs):
        return _made_in_one_pass(pairs, weights, needs, by, needs_v, form)
    of_x = needs.x or (form is not None and (form.of_both_sides or not needs_z))
    of_x = of_x or (by_w and not needs_z)
    of_z = needs_z or (form is not None and form.of_both_sides)
    found: dict[str, Tensor] = {}
    fields = {}
    if of_x:
        rows = ["row"] if pairs.row is not None and needs.row else []
        taken = _most_sums(by, rows)
        names, by = by[:taken] + rows, by[taken:]
        fields["x"], further = _pass(pairs, weights, names, False, form is not None)
        found |= further
    if of_z:
        rows = ["row"] if pairs.col is not None and needs.col else []
        names, swapped = by[: _most_sums(by, rows)] + rows, pairs.swapped()
        fields["z"], further = _pass(swapped, weights.swapped(), names, needs_v, form is not None)
        if rows:
            found["col"] = further.pop("row")
        found |= further
    if form is not None:
        for side, own in fields.items():
            fields[side], part = form.taken(pairs if side == "x" else pairs.swapped(), own)
            if "w" not in found:
                found["w"] = part
            elif form.of_both_sides:
                found["w"] = found["w"] + part
    if pairs.z is None and "z" in fields:
        fields = {"x": fields["x"] + fields["z"]}
    return found | fields


def gradients(
    pairs: Pairs, weights: Weights, needs: Pairs, made: dict[str, Tensor] | None = None
) -> Pairs:
    """The gradient to each operand that needs one; some may be made already."""
    if made is None:
        form = _form_of(pairs, weights, needs)
        if form is not None:
            return form.back(gradients(form.pairs, weights, form.needs(needs)), needs)
        made = _made_in_passes(pairs, weights, needs, False)
    # The form that PyTorch wants: a list of numbers counts as one value, an empty one as a list.
    found: dict[str, Any] = {"numbers": None if pairs.numbers else []}
    if needs.x:
        x = made["x"] if "x" in made else _by_points(pairs, weights, pairs.z is None)
        found["x"] = like(x, pairs.x)
    if pairs.z is not None and needs.z:
        found["z"] = like(made["z"] if "z" in made else field(pairs, "z", weights), pairs.z)
    if pairs.w is not None and needs.w:
        found["w"] = like(made["w"] if "w" in made else field(pairs, "w", weights), pairs.w)
    for leaf, operand in (("row", pairs.row), ("col", pairs.col)):
        if leaf in made and getattr(needs, leaf):
            found[leaf] = like(made[leaf], operand)
    if pairs.row is not None and needs.row and "row" not in made:
        by_row = pairs.with_formula(derivative(pairs.f, "row"))
        found["row"] = like(_over_columns(by_row, weights), pairs.row)
    if pairs.col is not None and needs.col and "col" not in made:
        by_col = pairs.with_formula(derivative(pairs.f, "col")).swapped()
        found["col"] = like(_over_columns(by_col, weights.swapped()), pairs.col)
    found["params"] = [
        None
        if not needed
        else like(made[f"p:{name}"].sum(-1), parameter)
        if f"p:{name}" in made
        else _by_parameter(pairs, weights, name, parameter)
        for name, parameter, needed in zip(
            pairs.names.split(), pairs.params, needs.params, strict=False
        )
    ]
    found["directions"] = [
        like(field(pairs.without_direction(d), pairs.along[d], weights), direction)
        if needed
        else None
        for d, (direction, needed) in enumerate(
            zip(pairs.directions, needs.directions, strict=True)
        )
    ]
    return NONE._replace(**found)


# ---- The rules: (inputs, outputs, cotangents, which inputs need a gradient) -> gradients. --------


def _of_pairwise(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    return tuple(gradients(Pairs(*inputs), Weights(cotangents[0]), Pairs(*needs)))


def _of_product(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    pairs, v = Pairs(*inputs[:_FIELDS]), inputs[_FIELDS]
    weights = Weights(None, cotangents[0], v.to(pairs.type))
    wanted, needs_v = Pairs(*needs[:_FIELDS]), needs[_FIELDS]
    form = _form_of(pairs, weights, wanted)
    if form is None:
        made = _made_in_passes(pairs, weights, wanted, needs_v)
        found = gradients(pairs, weights, wanted, made)
    else:
        made = _made_in_passes(form.pairs, weights, form.needs(wanted), needs_v)
        found = form.back(gradients(form.pairs, weights, form.needs(wanted), made), wanted)
    if not needs_v:
        return (*found, None)
    return (*found, like(made["v"] if "v" in made else product(pairs.swapped(), cotangents[0]), v))


def _of_field(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    pairs, wrt, weights = split_field(inputs)
    wanted = Pairs(*needs[:_FIELDS])
    moved = pairs.moved(wrt, cotangents[0])
    found = gradients(moved, weights, wanted._replace(directions=[*wanted.directions, False]))
    found = found._replace(directions=found.directions[:-1])
    return (*found, None, *_by_weights(moved, weights, Weights(*needs[_FIELDS + 1 :])))


def split_field(inputs: tuple) -> tuple[Pairs, str, Weights]:
    return Pairs(*inputs[:_FIELDS]), inputs[_FIELDS], Weights(*inputs[_FIELDS + 1 :])


def _by_weights(pairs: Pairs, weights: Weights, needs: Weights) -> Weights:
    """To the factors of the weights, of what is the sum of weight times formula over the pairs."""
    amplitude, u, v = weights
    by_amplitude = by_u = by_v = None
    if amplitude is None:
        if u is not None and needs.u:
            by_u = product(pairs, ones(pairs, pairs.columns) if v is None else v)
        if v is not None and needs.v:
            by_v = product(pairs.swapped(), ones(pairs, pairs.x) if u is None else u)
    elif any(needs):
        values = pairwise(pairs)
        factor = weights.factor()
        if needs.amplitude:
            by_amplitude = values if factor is None else values * factor
        values = values * amplitude
        if u is not None and needs.u:
            by_u = values.sum(-1, keepdim=True) if v is None else products.matmul(values, v)
        if v is not None and needs.v:
            one = values.sum(-2).unsqueeze(-1)
            by_v = one if u is None else products.matmul(values.mT, u)
    found = zip((by_amplitude, by_u, by_v), weights, strict=True)
    return Weights(*(None if g is None else like(g, t) for g, t in found))


def _of_reduce(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    pairs, kind = Pairs(*inputs[:_FIELDS]), inputs[_FIELDS]
    wanted, column = Pairs(*needs[:_FIELDS]), cotangents[0].unsqueeze(-1)
    if kind == "sum":
        found = gradients(pairs, Weights(None, column, ones(pairs, pairs.columns)), wanted)
    elif kind == "logsumexp":
        found = _of_logsumexp(pairs, outputs[0], column, wanted)
    else:
        index = autograd.call("reduce", *pairs, "arg" + kind)
        found = _at(pairs, index.unsqueeze(-1), column, wanted)
    return (*found, None)


def _of_logsumexp(pairs: Pairs, out: Tensor, column: Tensor, needs: Pairs) -> Pairs:
    if "row" in leaves(pairs.f):
        matrix = column * torch.exp(pairwise(pairs) - out.unsqueeze(-1))
        return gradients(pairs, Weights(matrix), needs)
    # exp(f - out) is a formula, its derivative exp(f - out) df: nothing of the size M * N is made.
    shifted = pairs._replace(f=str(_mercer.exp(parsed(pairs.f) - _mercer.row)), row=out)
    weights = Weights(None, column, ones(pairs, pairs.columns))
    return gradients(shifted, weights, needs._replace(row=False))


def _of_knn(inputs: tuple, outputs: tuple, cotangents: tuple, needs: tuple) -> tuple:
    pairs = Pairs(*inputs[:_FIELDS])
    return (*_at(pairs, outputs[1], cotangents[0], Pairs(*needs[:_FIELDS])), None)


def _at(pairs: Pairs, index: Tensor, cotangent: Tensor, needs: Pairs) -> Pairs:
    """The gradients of f(x_m, z_index[m, q]), with a cotangent for each."""
    if leaves(pairs.f) & {"i", "j"}:
        zeros = cotangent.new_zeros(*cotangent.shape[:-1], pairs.columns.shape[-2])
        return gradients(pairs, Weights(zeros.scatter(-1, index, cotangent)), needs)
    batch, items = index.shape[:-2], index.shape[:-2].numel()
    columns = pairs.columns.shape[-2]
    # Indices into the points of all items: index_put adds up in a fixed order, scatter_add in any.
    first = torch.arange(items, device=index.device).reshape(*batch, 1, 1) * columns
    flat = (index + first).reshape(-1)

    def gathered(points: Tensor) -> Tensor:  # [..., N, k] -> [..., M, q, k]
        wide = points.expand(*batch, *points.shape[-2:]).reshape(-1, points.shape[-1])
        return wide[flat].reshape(*index.shape, points.shape[-1])

    def scattered(gradient: Tensor, points: Tensor) -> Tensor:
        features = points.shape[-1]
        zeros = gradient.new_zeros(items * columns, features)
        total = zeros.index_put((flat,), gradient.reshape(-1, features), accumulate=True)
        return like(total.reshape(*batch, columns, features), points)

    # Each row of x becomes an item of the batch, with its own few columns.
    near = pairs._replace(
        x=pairs.x.expand(*batch, *pairs.x.shape[-2:]).unsqueeze(-2),
        z=gathered(pairs.columns),
        row=None if pairs.row is None else pairs.row.unsqueeze(-1),
        col=None if pairs.col is None else gathered(pairs.col.unsqueeze(-1)).squeeze(-1),
        params=[p if p.ndim == 0 else p.unsqueeze(-1) for p in pairs.params],
    )
    wanted = needs._replace(z=needs.x if pairs.z is None else needs.z)
    found = gradients(near, Weights(cotangent.unsqueeze(-2)), wanted)
    by: dict[str, Any] = {"w": found.w, "numbers": found.numbers, "directions": []}
    if found.x is not None:
        by["x"] = like(found.x.squeeze(-2), pairs.x)
    if found.z is not None and pairs.z is None:
        by["x"] = by["x"] + scattered(found.z, pairs.x)
    elif found.z is not None:
        by["z"] = scattered(found.z, pairs.z)
    if found.row is not None:
        by["row"] = like(found.row.squeeze(-1), pairs.row)
    if found.col is not None:
        by["col"] = scattered(found.col.unsqueeze(-1), pairs.col.unsqueeze(-1)).squeeze(-1)
    by["params"] = [
        None if g is None else g if p.ndim == 0 else g.squeeze(-1)
        for g, p in zip(found.params, pairs.params, strict=True)
    ]
    return NONE._replace(**by)


RULES: dict[str, Callable[[tuple, tuple, tuple, tuple], tuple]] = {
    "pairwise": _of_pairwise,
    "product": _of_product,
    "field": _of_field,
    "reduce": _of_reduce,
    "knn": _of_knn,
}
