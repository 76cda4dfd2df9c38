"""mm_kermac.hyper_semiring_gradient: sums over points of functions of features, and the zoo.

out[o, n, m] = epilogue(e), where e starts at 0 and becomes accumulate(c[o, k],
multiply(d[n, m], b[n, k], a[k, m]), e) for each k. That is one call of ``mercer.gradient_field``:
of phi where products c a phi(d, b) are added, of a reduction over the points otherwise. Neither
makes an array of O x N x M x K values.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import mercer as mc
from mercer import _mercer
from mercer.compat import _calls
from mercer.compat.mm_kermac import _formulas
from mercer.compat.mm_kermac.hyper_semiring import bind, parameters_of
from mercer.compat.mm_kermac.stack_ptx_types import PtxInstruction as Ptx
from mercer.compat.mm_kermac.stack_ptx_types import Stack
from mercer.compat.mm_ptx._machine import Limits, Value

__all__ = ["HyperSemiringGradientKernel", "NormL1", "NormL2", "NormLp"]

_POINTS = {"d": mc.x, "b": mc.z}
_ARRAYS = {"c": mc.param("coef"), "a": mc.param("amplitude")}  # of a reduction over the points


class HyperSemiringGradientKernel:
    """The function above of three lists of stack instructions.

    multiply_lambda: takes the registers d, b, a and a dict of those of the hyper-parameters;
    accumulate_lambda takes c, that result, e and the dict; epilogue_lambda takes e and the dict.
    The limits are those of Stack PTX, whose StackPtxError the first call raises.
    """

    def __init__(
        self,
        multiply_lambda: Callable[..., Sequence[Any]],
        accumulate_lambda: Callable[..., Sequence[Any]],
        epilogue_lambda: Callable[..., Sequence[Any]],
        execution_limit: int = 100,
        max_ast_size: int = 100,
        max_ast_to_visit_stack_depth: int = 20,
        stack_size: int = 128,
        max_frame_depth: int = 4,
    ) -> None:
        self.multiply_lambda = multiply_lambda
        self.accumulate_lambda = accumulate_lambda
        self.epilogue_lambda = epilogue_lambda
        self.limits = Limits(
            execution_limit, max_ast_size, max_ast_to_visit_stack_depth, stack_size, max_frame_depth
        )
        self._plans: dict[tuple[str, ...], _Plan] = {}

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        d: torch.Tensor,
        hyper_dict: dict[str, torch.Tensor] | None = None,
        out: torch.Tensor | None = None,
        debug: bool = False,
    ) -> torch.Tensor:
        """a ``[K, M]``, b ``[N, K]``, c ``[O, K]``, d ``[N, M]``, out ``[O, N, M]``.

        hyper_dict: float32 tensors of shape () or (L,), bound by their names. Batches, layouts,
        out, debug and errors: those of kermac's cdist_grad.
        """
        names, hypers = bind(hyper_dict)
        is_plain = _calls.check_points(a, b, c, d, out)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._plans[names] = _Plan(self, names)
        if plan.is_plain and plan.field is not None:
            phi = plan.field[0]
            return _calls.field(phi, a, b, c, d, out, hypers, debug, is_plain=is_plain)
        return plan.run(a, b, c, d, hypers, out, debug)


class _Plan:
    """The formulas of a kernel for hyper-parameters of certain names."""

    def __init__(self, kernel: HyperSemiringGradientKernel, hypers: tuple[str, ...]) -> None:
        parameters, limits = parameters_of(hypers), kernel.limits
        factor = _formulas.trace(kernel.multiply_lambda, "dba", "diff", hypers, limits)
        step = _formulas.trace(kernel.accumulate_lambda, ("c", "diff", "e"), "e", hypers, limits)
        end = _formulas.trace(kernel.epilogue_lambda, "e", "e", hypers, limits)
        self.field = _field_of(step, factor, parameters)
        self.epilogue: mc.Expr | None = None
        self.is_plain = False  # one field of the arrays as they are
        if self.field is None:
            registers = {**_POINTS, **_ARRAYS, **parameters}
            registers["diff"] = _formulas.Writer(registers).write(factor)
            self.fold = _formulas.fold(step, "e", registers, end, parameters)
        elif not _formulas.is_register(end, "e"):
            self.epilogue = _formulas.Writer({"e": mc.row, **parameters}).write(end)
            self.reads_row = _reads_row(self.epilogue)
        else:
            phi, with_a, with_c = self.field
            self.is_plain = with_a and with_c and len(phi.parameters) == len(hypers)

    def run(
        self, a: Any, b: Any, c: Any, d: Any, hypers: dict[str, Any], out: Any, debug: bool
    ) -> torch.Tensor:
        length = _calls.batch_of({"a": a, "b": b, "c": c, "d": d}, 2)
        length = _calls.batch_of(hypers, 0, _calls.batch_of({"out": out}, 3, length))
        whole = _output(out, (length, c.shape[-2], *d.shape[-2:]), a)
        result = whole if whole.ndim == 4 else whole.unsqueeze(0)
        _calls.check_hypers(hypers, length, a.device)
        if self.field is None:
            read = _read(self.fold, hypers)
            _calls.field(self.fold, a, b, c, d, result, read, debug, "reduce")
            return whole
        phi, with_a, with_c = self.field
        one = a.new_ones((1, 1))
        a, c = a if with_a else one.expand_as(a), c if with_c else one.expand_as(c)
        _calls.field(phi, a, b, c, d, result, _read(phi, hypers), debug)
        if self.epilogue is not None:
            self._finish(self.epilogue, result, hypers)
        return whole

    def _finish(self, epilogue: mc.Expr, result: torch.Tensor, hypers: dict[str, Any]) -> None:
        """The epilogue of each value, which is a value per point of points without features."""
        length = result.shape[0]
        values = result.reshape(length, -1)
        points = values.new_empty((length, values.shape[1], 0))
        params = _calls.check_hypers(_read(epilogue, hypers), length, result.device)
        column = values.new_empty((1, 0))
        arrays = {"row": values} if self.reads_row else {}
        values = mc.pairwise(epilogue, points, column, **arrays, **params)
        result.copy_(values.view(result.shape))


def _field_of(
    step: Value, factor: Value, parameters: Mapping[str, mc.Expr]
) -> tuple[mc.Expr, bool, bool] | None:
    """phi, and whether a and c are factors next to it, if that is what a step adds."""
    found = _formulas.addends(step, "e")
    if found is None or len(found) != 1:
        return None
    sign, factors = found[0]
    rest, counts = [], {"a": 0, "c": 0}
    for one in _factors(factors, factor):
        name = next((n for n in counts if _formulas.is_register(one, n)), None)
        if name:
            counts[name] += 1
        elif counts.keys() & one.registers or "diff" in one.registers:
            return None
        else:
            rest.append(one)
    if max(counts.values()) > 1:
        return None
    writer = _formulas.Writer({**_POINTS, **parameters})
    written = [*map(writer.write, rest)] or [_mercer.constant(1.0)]
    phi = functools.reduce(operator.mul, written)
    return (phi if sign > 0 else -phi), counts["a"] == 1, counts["c"] == 1


def _factors(values: Sequence[Value], factor: Value) -> list[Value]:
    """Products taken apart, and the result of multiply in the place of its register."""
    found: list[Value] = []
    for value in values:
        if _formulas.is_register(value, "diff"):
            found += _factors([factor], factor)
        elif value.kind == "ptx" and value.source.instruction is Ptx.mul_ftz_f32:
            found += _factors(value.arguments, factor)
        else:
            found.append(value)
    return found


def _read(f: Any, hypers: dict[str, Any]) -> dict[str, Any]:
    known = f.parameters
    return {name: value for name, value in hypers.items() if name in known}


def _reads_row(f: mc.Expr) -> bool:
    """Whether a call must be given row: the engine refuses what a simpler form does not read."""
    one, params = torch.ones(1, dtype=torch.float32), dict.fromkeys(f.parameters, 1.0)
    try:
        mc.workspace_size("pairwise", f, one[None], one[None], row=one, **params)
    except ValueError:
        return False
    return True


def _output(out: Any, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    if out is None:
        return like.new_empty(shape)
    if tuple(out.shape) != shape and (1, *out.shape) != shape:
        raise ValueError(f"Expected shape {shape} for out, got {tuple(out.shape)}")
    return out


class NormL1:
    """The gradient of sum over k of coefs[o, k] g[k, m] |z[n, m] - x[n, k]| by z, g the matrix."""

    def __init__(self) -> None:
        self.hyper_semiring_gradient = HyperSemiringGradientKernel(
            lambda d, b, a, _: [
                a, Stack.f32.constant(1.0), b, d, Ptx.sub_ftz_f32, Ptx.copysign_f32,
                Ptx.mul_ftz_f32,
            ],
            _add_product, _as_it_is,
        )  # fmt: skip

    def __call__(
        self, x: torch.Tensor, z: torch.Tensor, coefs: torch.Tensor,
        grad_kernel_matrix: torch.Tensor, out: torch.Tensor | None = None, debug: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        return self.hyper_semiring_gradient(grad_kernel_matrix, x, coefs, z, None, out, debug)


class NormL2(NormL1):
    """The gradient of half the sum of coefs[o, k] g[k, m] (z[n, m] - x[n, k])^2 by z."""

    def __init__(self) -> None:
        self.hyper_semiring_gradient = HyperSemiringGradientKernel(
            lambda d, b, a, _: [b, d, Ptx.sub_ftz_f32, a, Ptx.mul_ftz_f32],
            _add_product, _as_it_is,
        )  # fmt: skip


class NormLp:
    """sum over k of coefs[o, k] g[k, m] sign(t) max(|t|, epsilon)^p_power_grad, t as above.

    p_power_grad is p - 1.
    """

    def __init__(self, epsilon: float) -> None:
        def multiply(d: Any, b: Any, a: Any, hypers: Any) -> list[Any]:
            gap, size, least = 0, 1, Stack.f32.constant(epsilon)
            return [
                a,
                b, d, Ptx.sub_ftz_f32, Stack.f32.dup, Stack.f32.store(gap),
                Ptx.abs_ftz_f32, Stack.f32.store(size),
                Stack.load(size), Stack.load(size), least, Ptx.setp_gt_ftz_f32, least, Ptx.selp_f32,
                Ptx.lg2_approx_ftz_f32, hypers["p_power_grad"], Ptx.mul_ftz_f32,
                Ptx.ex2_approx_ftz_f32, Stack.load(gap), Ptx.copysign_f32,
                Ptx.mul_ftz_f32,
            ]  # fmt: skip

        self.hyper_semiring_gradient = HyperSemiringGradientKernel(
            multiply, _add_product, _as_it_is
        )

    def __call__(
        self, x: torch.Tensor, z: torch.Tensor, coefs: torch.Tensor,
        grad_kernel_matrix: torch.Tensor, p_power_grad: torch.Tensor,
        out: torch.Tensor | None = None, debug: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        hypers = {"p_power_grad": p_power_grad}
        return self.hyper_semiring_gradient(grad_kernel_matrix, x, coefs, z, hypers, out, debug)


def _add_product(c: Any, diff: Any, e: Any, _: Any) -> list[Any]:
    return [e, c, diff, Ptx.fma_rn_ftz_f32]


def _as_it_is(e: Any, _: Any) -> list[Any]:
    return [e]
