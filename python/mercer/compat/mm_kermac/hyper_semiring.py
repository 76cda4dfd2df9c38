"""mm_kermac.hyper_semiring: matrices of semirings, and the zoo of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

import mercer as mc
from mercer.compat import _calls
from mercer.compat.mm_kermac import _formulas
from mercer.compat.mm_kermac.stack_ptx_types import PtxInstruction as Ptx
from mercer.compat.mm_kermac.stack_ptx_types import Stack
from mercer.compat.mm_ptx._machine import Limits

__all__ = ["Gemm", "HyperSemiringKernel", "NormL1", "NormL2", "NormLp"]


class HyperSemiringKernel:
    """out[m, n] = epilogue(c), where c starts at 0 and becomes mma(a_mk, b_nk, c) for each k.

    mma_lambda: takes the registers a, b and c and a dict of those of the hyper-parameters; the list
    of instructions that it returns leaves the next c on top of the f32 stack. epilogue_lambda takes
    the register e, the last c, and the dict. An output that lies by rows swaps a and b, as
    mm-kermac does: there the register a has the features of the second tensor. The limits are those
    of Stack PTX, whose StackPtxError the first call raises.
    """

    def __init__(
        self,
        mma_lambda: Callable[..., Sequence[Any]],
        epilogue_lambda: Callable[..., Sequence[Any]],
        execution_limit: int = 100,
        max_ast_size: int = 100,
        max_ast_to_visit_stack_depth: int = 20,
        stack_size: int = 128,
        max_frame_depth: int = 4,
    ) -> None:
        self.mma_lambda, self.epilogue_lambda = mma_lambda, epilogue_lambda
        self.limits = Limits(
            execution_limit, max_ast_size, max_ast_to_visit_stack_depth, stack_size, max_frame_depth
        )
        self._formulas: dict[tuple[tuple[str, ...], bool], tuple[mc.Expr, frozenset[str]]] = {}

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        hyper_dict: dict[str, torch.Tensor] | None = None,
        out: torch.Tensor | None = None,
        try_to_align: bool = False,
        debug: bool = False,
    ) -> torch.Tensor:
        """The values for all pairs of rows of a ``[M, K]`` and b ``[N, K]``, ``[L, M, N]``.

        hyper_dict: float32 tensors of shape () or (L,), bound by their names. Shapes, layouts, out,
        debug and errors: those of kermac's run_kernel.
        """
        names, hypers = bind(hyper_dict)
        f, reads = self._prepared(names, out is not None and _calls.lies_by_columns(out))
        if not reads.issuperset(hypers):
            a, hypers = without_unread(reads, a, hypers)
        return _calls.pairwise(f, a, b, out, hypers, {}, debug)

    def formula(self, hypers: Sequence[str] = (), by_columns: bool = False) -> mc.Expr:
        """The formula for hyper-parameters of these names: parameters hyper0, hyper1, ..."""
        return self._prepared(tuple(hypers), by_columns)[0]

    def _prepared(
        self, hypers: tuple[str, ...], by_columns: bool
    ) -> tuple[mc.Expr, frozenset[str]]:
        """The formula, and the parameters that it reads."""
        found = self._formulas.get((hypers, by_columns))
        if found is None:
            f = self._formula(hypers, by_columns)
            found = self._formulas[hypers, by_columns] = f, frozenset(f.parameters)
        return found

    def _formula(self, hypers: tuple[str, ...], by_columns: bool) -> mc.Expr:
        a, b = (mc.x, mc.z) if by_columns else (mc.z, mc.x)
        parameters = parameters_of(hypers)
        step = _formulas.trace(self.mma_lambda, "abc", "c", hypers, self.limits)
        total, positive = _formulas.accumulation(step, "c", {"a": a, "b": b, **parameters})
        end = _formulas.trace(self.epilogue_lambda, "e", "e", hypers, self.limits)
        return _formulas.Writer(
            {"e": total, **parameters}, frozenset({"e"} if positive else ())
        ).write(end)


def parameters_of(hypers: Sequence[str]) -> dict[str, mc.Expr]:
    """Registers of hyper-parameters as parameters; any text may be the name of one."""
    return {f"hyper.{name}": mc.param(f"hyper{i}") for i, name in enumerate(hypers)}


def bind(hyper_dict: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names in their order, and the values of the parameters."""
    if hyper_dict is None:
        return (), {}
    if not isinstance(hyper_dict, dict):
        raise TypeError(f"hyper_dict must be a dict, got {type(hyper_dict).__name__}")
    for name, value in hyper_dict.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"hyper_dict['{name}'] must be a PyTorch tensor, got {type(value).__name__}"
            )
    names = tuple(sorted(hyper_dict))
    values = [hyper_dict[name] for name in names]
    return names, dict(zip(_words(len(names)), values, strict=True))


@functools.cache
def _words(count: int) -> tuple[str, ...]:
    return tuple(f"hyper{i}" for i in range(count))


def without_unread(
    reads: frozenset[str], a: Any, hypers: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The hyper-parameters that a formula reads; a batch of the others is one of the points."""
    length = _calls.batch_of({name: v for name, v in hypers.items() if name not in reads}, 0)
    if length > 1 and isinstance(a, torch.Tensor) and a.ndim == 2:
        a = a.expand(length, *a.shape)
    return a, {name: value for name, value in hypers.items() if name in reads}


class Gemm:
    """out[m, n] = sum over k of x_mk z_nk."""

    def __init__(self) -> None:
        self.hyper_semiring = HyperSemiringKernel(
            lambda a, b, c, _: [c, a, b, Ptx.fma_rn_ftz_f32], lambda e, _: [e]
        )

    def __call__(
        self, x: torch.Tensor, z: torch.Tensor, out: torch.Tensor | None = None,
        try_to_align: bool = False, debug: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        return self.hyper_semiring(x, z, None, out, try_to_align, debug)


class NormL1(Gemm):
    """out[m, n] = sum over k of |x_mk - z_nk|."""

    def __init__(self) -> None:
        self.hyper_semiring = HyperSemiringKernel(
            lambda a, b, c, _: [a, b, Ptx.sub_ftz_f32, Ptx.abs_ftz_f32, c, Ptx.add_ftz_f32],
            lambda e, _: [e],
        )


class NormL2(Gemm):
    """out[m, n] = sqrt(sum over k of (x_mk - z_nk)^2)."""

    def __init__(self) -> None:
        self.hyper_semiring = HyperSemiringKernel(
            lambda a, b, c, _: [
                c, a, b, Ptx.sub_ftz_f32, Stack.f32.dup, Ptx.fma_rn_ftz_f32,
            ],
            lambda e, _: [e, Ptx.sqrt_approx_ftz_f32],
        )  # fmt: skip


class NormLp:
    """out[m, n] = (sum over k of |x_mk - z_nk|^p_inner)^p_outer; 0 where that is below epsilon."""

    def __init__(self, epsilon: float) -> None:
        def power(name: str, hypers: Any) -> list[Any]:
            return [Ptx.lg2_approx_ftz_f32, hypers[name], Ptx.mul_ftz_f32, Ptx.ex2_approx_ftz_f32]

        def mma(a: Any, b: Any, c: Any, hypers: Any) -> list[Any]:
            gap = [a, b, Ptx.sub_ftz_f32, Ptx.abs_ftz_f32]
            return [*gap, *power("p_inner", hypers), c, Ptx.add_ftz_f32]

        def epilogue(e: Any, hypers: Any) -> list[Any]:
            return [
                e, *power("p_outer", hypers), Stack.f32.dup, Stack.f32.constant(epsilon),
                Ptx.setp_gt_ftz_f32, Stack.f32.constant(0.0), Ptx.selp_f32,
            ]  # fmt: skip

        self.hyper_semiring = HyperSemiringKernel(mma, epilogue)

    def __call__(
        self, x: torch.Tensor, z: torch.Tensor, p_inner: torch.Tensor, p_outer: torch.Tensor,
        out: torch.Tensor | None = None, try_to_align: bool = False, debug: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        hypers = {"p_inner": p_inner, "p_outer": p_outer}
        return self.hyper_semiring(x, z, hypers, out, try_to_align, debug)
