"""Gradients of weighted sums of distances and kernels, by the points."""

from __future__ import annotations

from typing import Any

import torch

import mercer as mc
from mercer.compat.kermac._common import (
    batch_of,
    check_hypers,
    check_tensors,
    majorness,
)
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
    params = {} if isinstance(p, (int, float)) and p in (1, 2) else {"p": p}
    phi = _GRADIENTS[None if params else p]
    _check_points(a, b, c, d, out)
    return _field(phi, a, b, c, d, out, params, debug)


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
    _check_points(a, b, c, d, out)
    if not isinstance(q, (int, float)) or q != 1:
        if s_km is None:
            s_km = cdist_expadd(b.mT, d.mT, p=p, scale=scale, debug=debug)
        check_tensors({"a": a, "s_km": s_km})
        a = a * q_factor(s_km, q, c0, eps)
    params = {"p": p, "scale": scale, "eps": eps}
    return _field(_EXPADD, a, b, c, d, out, params, debug)


def q_factor(s_km: torch.Tensor, q: Any, c0: Any, eps: float) -> torch.Tensor:
    """The derivative of (c0 + s)^q by s."""
    q, c0 = (v[:, None, None] if isinstance(v, torch.Tensor) and v.ndim else v for v in (q, c0))
    return (s_km + c0).clamp_min_(eps).pow_(q - 1).mul_(q)


def _check_points(a: Any, b: Any, c: Any, d: Any, out: Any) -> None:
    inputs = {"a": a, "b": b, "c": c, "d": d}
    check_tensors({**inputs, "out": out})
    batch_of(inputs, 2)
    k, m, n = a.shape[-2], a.shape[-1], b.shape[-2]
    for name, shape in (("b", (n, k)), ("c", (c.shape[-2], k)), ("d", (n, m))):
        if tuple(inputs[name].shape[-2:]) != shape:
            raise ValueError(
                f"Expected shape {shape} for {name}, got {tuple(inputs[name].shape[-2:])}"
            )
    for name, tensor in inputs.items():
        majorness(tensor)
        _check_last_stride(name, tensor)
    if out is not None:
        _check_last_stride("out", out)


def _check_last_stride(name: str, tensor: torch.Tensor) -> None:
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} must have stride 1 in last dimension")


def _field(
    phi: mc.Expr, a: Any, b: Any, c: Any, d: Any, out: Any, hypers: dict[str, Any], debug: bool
) -> torch.Tensor:
    """The field of phi at the points d with the sources b, written where kermac has it."""
    length = batch_of({"out": out}, 3, batch_of({"a": a, "b": b, "c": c, "d": d}, 2))
    for name, value in hypers.items():
        if isinstance(value, torch.Tensor):
            length = batch_of({name: value}, 0, length)
    params = check_hypers(hypers, length, a.device)
    shape = (length, c.shape[-2], *d.shape[-2:])
    whole = out
    if out is None:
        whole = out = torch.empty(shape, dtype=a.dtype, device=a.device)
    elif out.ndim == 3:
        out = out.unsqueeze(0)
    if tuple(out.shape) != shape:
        raise ValueError(f"Expected shape {shape} for out, got {tuple(whole.shape)}")
    points = d.detach().mT.expand(length, *reversed(d.shape[-2:]))
    mc.gradient_field(phi, points, b.detach().mT, a.detach().mT, c.detach(), out=out.mT, **params)
    if debug:
        print(f"(mercer.compat.kermac) field: {phi}")
    return whole
