"""Gradients by the weights w, made of those by the points (plan/backward/weight_form.h).

Where each term that a formula adds up over the features is c(w) times a function of degree d of the
points,

    dL/dx_mk = c(w_k) F_mk,   dL/dz_nk = c(w_k) G_nk
    dL/dw_k  = c'(w_k) / d (sum_m (x_mk - o_k) F_mk + sum_n (z_nk - o_k) G_nk)

by Euler's theorem on homogeneous functions. o is a common centre where terms are of x - z, else 0.
Products of x and z need one side only. A term's rounding is that of |x - z| (|x - o| + |z - o|),
where sums by w with a field have that of (x - z)^2: in float32 points of few features, of which
narrow kernels see a small part at a time, have those.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mercer._torch import autograd
from mercer._torch.operands import Pairs, weight_form

_SAMPLED = 64  # points of a side, for the centre


def of_weights(text: str, w: Tensor) -> Tensor:
    """A formula of row, which is w: [..., K]."""
    if text == "row":
        return w
    if not text.strip("0123456789.e+-"):
        return w.new_full((), float(text))
    points = w.new_zeros(w.shape[-1], 1)
    pairs = Pairs(text, points, points[:1], w, None, None, [], "", [], [], "", 0, 0)
    return autograd.call("pairwise", *pairs).squeeze(-1)


def _sample_median(points: Tensor) -> Tensor:
    """[..., 1, K], by sorting: PyTorch refuses its median on CUDA where results are to repeat."""
    step = max(1, points.shape[-2] // _SAMPLED)
    ordered = points[..., ::step, :].sort(-2).values
    middle = (ordered.shape[-2] - 1) // 2
    return ordered[..., middle : middle + 1, :]


class GradientByWeights:
    """The gradient by w of pairs whose rows are x; rows of z are those of the swapped pairs."""

    def __init__(self, pairs: Pairs) -> None:
        form = weight_form(pairs.f)
        assert form is not None
        self.of_both_sides = form.of_both_sides
        self._sides = (pairs.x, pairs.columns) if form.of_differences else ()
        self._w = pairs.widened().w
        self._centre: Tensor | None = None

    def taken(self, rows: Pairs, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient to the rows with its weight, from that without, and the rows' part by w."""
        form = weight_form(rows.f)
        assert form is not None
        points = rows.x.to(rows.type)
        if self._sides:
            if self._centre is None:
                x, z = (_sample_median(side.to(rows.type)) for side in self._sides)
                self._centre = (x + z) / 2
            points = points - self._centre
        total = (points * gradient).sum(-2, dtype=torch.float64)
        by_w = of_weights(form.slope, self._w).double() * total  # parts of both sides may cancel
        return gradient * of_weights(form.weight, self._w).unsqueeze(-2), by_w
