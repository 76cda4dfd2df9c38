"""Gradients of weighted sums of distances and kernels, by the points."""

from __future__ import annotations

from typing import Any

import torch

import mercer as mc
from mercer.compat import _calls
from mercer.compat.kermac._kernels import Hyper, cdist_expadd, scale_of

# Functions of the difference d_nm - b_nk. Coincident features count as a difference of 1e-8, so
# that powers below 1 stay finite, with the sign of their zero.
_GRADIENTS = {
    1: mc.kernel("copysign(1, x - z)"),
    2: mc.kernel("x - z"),
    None: mc.kernel("copysign(max(abs(x - z), 1e-8)^(p-1), x - z)"),
}
_EXPADD = mc.kernel("u = max(abs(x - z), eps); v = u^(p-1); sign(x - z)*v*exp(scale*u*v)*(p*scale)")


def cdist_grad(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    out: torch.Tensor | None = None,
    p: float | torch.Tensor = 2.0,
    debug: bool = False,
) -> torch.Tensor:
    """The gradient of sum over k of c[o, k] a[k, m] |d[n, m] - b[n, k]|^p / p by d[n, m].

    out[o, n, m] = sum over k of c[o, k] a[k, m] sign(t) |t|^(p - 1) with t = d[n, m] - b[n, k].

    a: ``[K, M]``, b: ``[N, K]``, c: ``[O, K]``, d: ``[N, M]``, out: ``[O, N, M]``, each with or
    without a leading batch axis; float32, of one device, rows of neighbouring elements. Without
    out the result is ``[L, O, N, M]``. p: a number, or a float32 tensor of shape () or (L,). No
    array of O x N x M x K values is made, and nothing is read back from a device.

    Raises TypeError for what is no tensor and for dtypes, ValueError for shapes, layouts and
    devices.
    """
    power = int(p) if isinstance(p, (int, float)) and p in (1, 2) else None
    params = {} if power else {"p": p}
    phi = _GRADIENTS[power]
    is_plain = _calls.check_points(a, b, c, d, out)
    return _calls.field(phi, a, b, c, d, out, params, debug, is_plain=is_plain)


def cdist_grad_expadd(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    s_km: torch.Tensor | None = None,
    p: float | torch.Tensor = 2.0,
    q: float | torch.Tensor = 1.0,
    c0: float | torch.Tensor = 0.0,
    lengthscale: Hyper = None,
    scale: Hyper = None,
    eps: float = 1e-8,
    try_to_align: bool = False,
    debug: bool = False,
) -> torch.Tensor:
    """The gradient of sum over k of c[o, k] a[k, m] (c0 + s[k, m])^q by d[n, m], ``[L, O, N, M]``.

    s[k, m] is the sum over n of exp(scale |d[n, m] - b[n, k]|^p): s_km ``[K, M]`` as it is given,
    or computed. Bases of powers are at least eps; equal features contribute nothing. scale is
    1 / lengthscale^p when it is not given. Shapes, layouts and errors: those of cdist_grad.
    """
    scale = scale_of(scale, lengthscale, p)
    is_plain = _calls.check_points(a, b, c, d, out)
    if not isinstance(q, (int, float)) or q != 1:
        if s_km is None:
            s_km = cdist_expadd(b.mT, d.mT, p=p, scale=scale, debug=debug)
        _calls.check_tensors({"a": a, "s_km": s_km})
        a = a * q_factor(s_km, q, c0, eps)
        is_plain = is_plain and a.ndim == 2
    params = {"p": p, "scale": scale, "eps": eps}
    return _calls.field(_EXPADD, a, b, c, d, out, params, debug, is_plain=is_plain)


def q_factor(s_km: torch.Tensor, q: Any, c0: Any, eps: float) -> torch.Tensor:
    """The derivative of (c0 + s)^q by s."""
    q, c0 = (v[:, None, None] if isinstance(v, torch.Tensor) and v.ndim else v for v in (q, c0))
    return (s_km + c0).clamp_min_(eps).pow_(q - 1).mul_(q)
