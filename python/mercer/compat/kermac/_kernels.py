"""Matrices of values of pairs: run_kernel, and what is made of it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

import mercer as mc
from mercer.compat import _calls
from mercer.compat.kermac._descriptors import (
    KernelDescriptor,
    KernelType,
    PowerType,
    formula_of,
    kernel_descriptor_l1_norm,
    kernel_descriptor_l2_norm,
    kernel_descriptor_p_norm,
    reads_power,
)

_EPSILON = 1e-5  # below it a distance counts as 0 for a kernel
_EXPADD = mc.kernel("sum(exp(scale*abs(x-z)^p))")
# The formulas of the norms with their roots, and without.
_ABS, _SQUARE, _POW = (
    tuple(
        formula_of((*norm.choices[:2], outer, KernelType.NONE), True, False, False)
        for outer in (norm.choices[2], PowerType.NOOP)
    )
    for norm in (
        kernel_descriptor_l1_norm, kernel_descriptor_l2_norm, kernel_descriptor_p_norm,
    )
)  # fmt: skip
Hyper: TypeAlias = float | torch.Tensor | None


def run_kernel(
    kernel_descriptor: KernelDescriptor,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    p: Hyper = None,
    inner_p: Hyper = None,
    outer_p: Hyper = None,
    bandwidth: Hyper = None,
    epsilon: float | None = None,
    regularization: Hyper = None,
    regularization_offset_x: int = 0,
    regularization_offset_y: int = 0,
    try_to_align: bool = False,
    debug: bool = False,
) -> torch.Tensor:
    """The values of a kernel for all pairs of rows of a and b.

    a: ``[M, K]`` or ``[L, M, K]``, b: ``[N, K]`` or ``[L, N, K]``, float32, of one device, by rows
    or by columns; a batch of one serves all. out: ``[M, N]`` or ``[L, M, N]``, returned as given;
    without it the result is ``[L, M, N]``. p, inner_p, outer_p, bandwidth and regularization:
    numbers, or float32 tensors of shape () or (L,); p stands for inner_p = p, outer_p = 1 / p.

    epsilon: distances below it count as 0 (1e-5 where there is a kernel). Where
    regularization_offset_x + n = regularization_offset_y + m the value is 1 + regularization; for
    an ``out`` that lies by columns x and y change places, and a difference its sign.
    try_to_align is not read. debug: print what is compiled or found.

    Raises TypeError for what is no tensor and for dtypes, ValueError for shapes, layouts, devices,
    and for hyper-parameters that the descriptor needs or does not read.
    """
    choices = kernel_descriptor.choices
    _check_given(
        choices, p is not None, inner_p is not None, outer_p is not None, bandwidth is not None,
        epsilon is not None, regularization is not None,
    )  # fmt: skip
    if isinstance(epsilon, torch.Tensor):
        raise TypeError("epsilon must be a number, got a tensor")
    hypers: dict[str, Any] = {"bandwidth": bandwidth, "regularization": regularization}
    if isinstance(regularization, (int, float)) and regularization == 0:
        hypers["regularization"] = None
    if p is not None:
        _check_root("run_kernel", p)
        hypers["p"] = p
    else:
        hypers["inner_p"], hypers["outer_p"] = inner_p, outer_p
    by_columns = _calls.lies_by_columns(out)
    x_offset, y_offset = regularization_offset_x, regularization_offset_y
    if by_columns:
        x_offset, y_offset = y_offset, x_offset
    regularized = hypers["regularization"] is not None
    f = formula_of(choices, p is not None, regularized, by_columns)
    fixed: dict[str, Any] = {"i_offset": y_offset, "j_offset": x_offset} if regularized else {}
    if choices[3] is not KernelType.NONE:
        fixed["epsilon"] = _EPSILON if epsilon is None else float(epsilon)
    return _calls.pairwise(f, a, b, out, hypers, fixed, debug)


def cdist(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    p: float | torch.Tensor = 2.0,
    skip_epilogue: bool = False,
    try_to_align: bool = False,
    debug: bool = False,
) -> torch.Tensor:
    """Distances (sum |a_mk - b_nk|^p)^(1/p), without the root with skip_epilogue.

    p: a number that is neither 0 nor infinite, or a float32 tensor of shape () or (L,). Shapes,
    layouts, the other arguments and errors: those of run_kernel.
    """
    if not isinstance(p, torch.Tensor):
        if p == 1 or p == 2:
            norm = _ABS if p == 1 else _SQUARE
            return _calls.pairwise(norm[bool(skip_epilogue)], a, b, out, {}, {}, debug)
        _check_root("cdist", p)
    return _calls.pairwise(_POW[bool(skip_epilogue)], a, b, out, {"p": p}, {}, debug)


def cdist_expadd(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    p: float | torch.Tensor = 2.0,
    lengthscale: Hyper = None,
    scale: Hyper = None,
    try_to_align: bool = False,
    debug: bool = False,
) -> torch.Tensor:
    """sum over k of exp(scale |a_mk - b_nk|^p); scale is 1 / lengthscale^p when it is not given.

    A decaying kernel has a negative scale. Shapes, layouts, the other arguments and errors: those
    of run_kernel; ValueError if neither scale nor lengthscale is given.
    """
    scale = scale_of(scale, lengthscale, p)
    return _calls.pairwise(_EXPADD, a, b, out, {"p": p, "scale": scale}, {}, debug)


def scale_of(scale: Hyper, lengthscale: Hyper, p: Any) -> float | torch.Tensor:
    if scale is not None:
        return scale
    if lengthscale is None:
        raise ValueError("scale or lengthscale must be given")
    return 1.0 / lengthscale**p


def pre_compile_descriptors(
    device: Any,
    descriptors: Sequence[KernelDescriptor],
    try_to_align: bool = False,
    debug: bool = False,
) -> None:
    """Compiles descriptors ahead of their calls, for a few and for many points by rows or columns.

    device: a torch.device, its name, or the index of a CUDA device. Code for points of other sizes,
    and for exponents that are numbers, is compiled at its first call.
    """
    kind = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    where: int | str = "cpu"
    if kind.type == "cuda":
        where = torch.cuda.current_device() if kind.index is None else kind.index
    layouts = [(x, z, "row") for x in ("row", "column") for z in ("row", "column")]
    for descriptor in descriptors:
        f = formula_of(descriptor.choices, reads_power(descriptor.choices[1]), False, False)
        with _calls.announced(f) if debug else contextlib.nullcontext():
            mc.compile(
                f, shapes=[(256, 256, 64), (8192, 8192, 256)], layouts=layouts, devices=[where]
            )


def _check_root(verb: str, p: Any) -> None:
    if isinstance(p, (int, float)) and (p == 0 or math.isinf(p)):
        raise ValueError(f"{verb}: p must be finite and not 0. Got {p}")


@functools.cache
def _check_given(
    choices: tuple, p: bool, inner_p: bool, outer_p: bool, bandwidth: bool, epsilon: bool,
    regularization: bool,
) -> None:  # fmt: skip
    """Whether a kernel of these choices reads what is given, and is given what it reads."""
    inner, outer = reads_power(choices[1]), choices[2] is PowerType.POW
    if p and (inner_p or outer_p):
        raise ValueError("`p` stands for inner_p and outer_p, which must not be set with it")
    for name, reads, own in (("inner", inner, inner_p), ("outer", outer, outer_p)):
        if reads and not (p or own):
            raise ValueError(f"'{name}_power' of the kernel needs `p` or `{name}_p`")
        if not reads and own:
            raise ValueError(f"`{name}_p` is set but '{name}_power' of the kernel is no power")
    if p and not inner:
        raise ValueError("`p` is set but 'inner_power' of the kernel is no power")
    scaled, plain = choices[1] is PowerType.EXP_POW_SCALED, choices[3] is KernelType.NONE
    if not bandwidth and (scaled or not plain):
        raise ValueError("the kernel needs `bandwidth`")
    for name, given in (
        ("bandwidth", bandwidth and not scaled), ("epsilon", epsilon),
        ("regularization", regularization),
    ):  # fmt: skip
        if plain and given:
            raise ValueError(f"`{name}` is set but 'kernel_type' is NONE")
