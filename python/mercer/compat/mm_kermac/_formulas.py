"""Values of the stack machine as formulas.

The accumulation c' = c + f(a, b) is sum(f), which is what the engine has fast paths for; any other
function of c is a reduction in the order of the features. 2^(p log2 t) with t >= 0 is t^p, which is
one power in place of two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mercer as mc
from mercer import _mercer
from mercer.compat.mm_kermac.stack_ptx_types import PtxInstruction as Ptx
from mercer.compat.mm_kermac.stack_ptx_types import Stack, compiler
from mercer.compat.mm_ptx._machine import Application, Limits, Value
from mercer.compat.mm_ptx.stack_ptx import RegisterRegistry

_FUNCTIONS: dict[Any, Callable[..., mc.Expr]] = {
    Ptx.copysign_f32: lambda sign, size: mc.copysign(size, sign),
    Ptx.add_ftz_f32: lambda a, b: a + b,
    Ptx.sub_ftz_f32: lambda a, b: a - b,
    Ptx.mul_ftz_f32: lambda a, b: a * b,
    Ptx.fma_rn_ftz_f32: mc.fma,
    Ptx.div_approx_ftz_f32: lambda a, b: a / b,
    Ptx.abs_ftz_f32: mc.abs,
    Ptx.neg_ftz_f32: lambda a: -a,
    Ptx.min_ftz_f32: mc.minimum,
    Ptx.max_ftz_f32: mc.maximum,
    Ptx.rcp_approx_ftz_f32: mc.rcp,
    Ptx.sqrt_approx_ftz_f32: mc.sqrt,
    Ptx.rsqrt_approx_ftz_f32: mc.rsqrt,
    Ptx.sin_approx_ftz_f32: mc.sin,
    Ptx.cos_approx_ftz_f32: mc.cos,
    Ptx.lg2_approx_ftz_f32: mc.log2,
    Ptx.ex2_approx_ftz_f32: mc.exp2,
    Ptx.tanh_approx_f32: mc.tanh,
    Ptx.setp_lt_ftz_f32: lambda a, b: a < b,
    Ptx.setp_gt_ftz_f32: lambda a, b: a > b,
    Ptx.selp_f32: lambda a, b, condition: mc.where(condition, a, b),
}
# Instructions whose value is not negative, and those of which it is not if no argument is.
_NOT_NEGATIVE = {Ptx.abs_ftz_f32, Ptx.ex2_approx_ftz_f32, Ptx.sqrt_approx_ftz_f32,
                 Ptx.rsqrt_approx_ftz_f32}  # fmt: skip
_KEEP_SIGN = {Ptx.add_ftz_f32, Ptx.mul_ftz_f32, Ptx.fma_rn_ftz_f32, Ptx.div_approx_ftz_f32,
              Ptx.min_ftz_f32, Ptx.max_ftz_f32, Ptx.rcp_approx_ftz_f32, Ptx.selp_f32}  # fmt: skip


def trace(
    function: Callable[..., Sequence[Any]],
    names: Sequence[str],
    wanted: str,
    hypers: Sequence[str],
    limits: Limits,
) -> Value:
    """What a function leaves for a register.

    The function takes the registers of these names and a dict of those of the hyper-parameters. A
    register that finds an empty stack keeps its value. Raises what Stack PTX raises, and ValueError
    for a register that never had a value.
    """
    registry = RegisterRegistry()
    for name in (*names, *(f"hyper.{hyper}" for hyper in hypers), wanted):
        registry.add(name, Stack.f32)
    records = {hyper: registry.get(f"hyper.{hyper}") for hyper in hypers}
    tokens = function(*map(registry.get, names), records)
    request = registry.get(wanted)
    compiler.compile(registry, tokens, [request], **vars(limits))  # for its limits
    (value,) = compiler.run(tokens, limits).top([Stack.f32])
    if value is None and wanted not in names:
        raise ValueError(f"the instructions for {wanted} leave no value on the f32 stack")
    return value or Value("input", Stack.f32, request)


def is_register(value: Value, name: str) -> bool:
    return value.kind == "input" and value.source.name == name


class Writer:
    """Formulas of values: of a register that of its name, of each value one expression."""

    def __init__(
        self, registers: Mapping[str, mc.Expr], not_negative: frozenset[str] = frozenset()
    ) -> None:
        self._registers, self._not_negative = registers, not_negative
        self._written: dict[tuple[int, int], mc.Expr] = {}
        self._known: list[tuple[Value, mc.Expr]] = []
        self._signs: dict[int, bool] = {}

    def know(self, values: Sequence[Value], expressions: Sequence[mc.Expr]) -> None:
        """Values that are there already."""
        self._known = [*zip(values, expressions, strict=True)]

    def write(self, value: Value) -> mc.Expr:
        for known, expression in self._known:
            if _same(known, value):
                return expression
        if value.kind == "input":
            return self._registers[value.source.name]
        if value.kind == "constant":
            return _mercer.constant(float(value.source))
        key = id(value.source), value.output
        if key not in self._written:
            self._written[key] = self._apply(value.source)
        return self._written[key]

    def _apply(self, application: Application) -> mc.Expr:
        first, *rest = application.arguments
        if application.instruction is Ptx.ex2_approx_ftz_f32:
            for exponent, base in _powers(first):
                if self.is_not_negative(base):
                    return self.write(base) ** self.write(exponent)
        if application.instruction is Ptx.mul_ftz_f32 and _same(first, rest[0]):
            return mc.square(self.write(first))
        return _FUNCTIONS[application.instruction](*map(self.write, application.arguments))

    def is_not_negative(self, value: Value) -> bool:
        if value.kind == "constant":
            return value.source >= 0
        if value.kind == "input":
            return value.source.name in self._not_negative
        key = id(value.source)
        if key not in self._signs:
            self._signs[key] = self._keeps_sign(value.source)
        return self._signs[key]

    def _keeps_sign(self, application: Application) -> bool:
        instruction, operands = application.instruction, application.arguments
        if instruction in (Ptx.mul_ftz_f32, Ptx.fma_rn_ftz_f32) and _same(*operands[:2]):
            operands = operands[2:]
        elif instruction is Ptx.selp_f32:
            operands = operands[:2]
        return instruction in _NOT_NEGATIVE or (
            instruction in _KEEP_SIGN and all(map(self.is_not_negative, operands))
        )


def _same(a: Value, b: Value) -> bool:
    return a is b or (a.kind == b.kind == "input" and a.source is b.source)


def _powers(value: Value) -> list[tuple[Value, Value]]:
    """The ways to read p log2 t: (p, t)."""
    if value.kind != "ptx" or value.source.instruction is not Ptx.mul_ftz_f32:
        return []
    pairs = [value.arguments, value.arguments[::-1]]
    return [
        (exponent, logarithm.arguments[0])
        for exponent, logarithm in pairs
        if logarithm.kind == "ptx" and logarithm.source.instruction is Ptx.lg2_approx_ftz_f32
    ]


Addend = tuple[int, list[Value]]  # a sign and factors


def addends(value: Value, state: str) -> list[Addend] | None:
    """value = state + the sum of these products, if it is such a sum; none of them reads state."""
    if is_register(value, state):
        return []
    if value.kind != "ptx":
        return None
    instruction, operands = value.source.instruction, value.arguments
    if instruction is Ptx.add_ftz_f32:
        sides = [(operands[0], (1, [operands[1]])), (operands[1], (1, [operands[0]]))]
    elif instruction is Ptx.sub_ftz_f32:
        sides = [(operands[0], (-1, [operands[1]]))]
    elif instruction is Ptx.fma_rn_ftz_f32:
        sides = [(operands[2], (1, [operands[0], operands[1]]))]
    else:
        return None
    for rest, addend in sides:
        if not any(state in factor.registers for factor in addend[1]):
            found = addends(rest, state)
            return None if found is None else [*found, addend]
    return None


def product(writer: Writer, addend: Addend) -> mc.Expr:
    sign, factors = addend
    result = writer.write(factors[0])
    if len(factors) == 2 and _same(*factors):
        result = mc.square(result)
    else:
        for factor in factors[1:]:
            result = result * writer.write(factor)
    return result if sign > 0 else -result


def accumulation(value: Value, state: str, registers: Mapping[str, mc.Expr]) -> tuple[Any, bool]:
    """The formula of a state that starts at 0 and becomes value at each feature.

    And whether it is known not to be negative.
    """
    found = addends(value, state)
    if found == []:  # the state is never written
        return _mercer.constant(0.0), True
    if found is not None:
        writer = Writer(registers)
        return mc.sum(_term(writer, found)), _is_positive(writer, found)
    return _ordered(value, state, registers, lambda e: e), False


def fold(
    value: Value, state: str, registers: Mapping[str, mc.Expr], end: Value, parameters: Any
) -> mc.Expr:
    """This state over the points of a field, as one reduction that ends with an epilogue."""
    writer, found = Writer(registers), addends(value, state)
    positive = found is not None and _is_positive(writer, found)

    def finish(e: mc.Expr) -> mc.Expr:
        not_negative = frozenset({state} if positive else ())
        return Writer({state: e, **parameters}, not_negative).write(end)

    if found is None:
        return _ordered(value, state, registers, finish)
    term = _term(writer, found) if found else mc.x * 0
    return mc.reduce(term, lambda s, t: s + t if found else s, 0.0, finish=finish)


def _term(writer: Writer, found: list[Addend]) -> mc.Expr:
    term = product(writer, found[0])
    for addend in found[1:]:
        term = term + product(writer, addend)
    return term


def _is_positive(writer: Writer, found: list[Addend]) -> bool:
    return all(
        sign > 0 and (
            (len(factors) == 2 and _same(*factors)) or all(map(writer.is_not_negative, factors))
        )
        for sign, factors in found
    )  # fmt: skip


def _ordered(
    value: Value,
    state: str,
    registers: Mapping[str, mc.Expr],
    finish: Callable[[mc.Expr], mc.Expr],
) -> mc.Expr:
    """A reduction whose terms are the largest parts without the state that read a point."""
    points = {name for name in registers if not name.startswith("hyper.")}
    parts: list[Value] = []
    seen: set[int] = set()

    def collect(one: Value) -> None:
        if state in one.registers:
            for argument in one.arguments:
                if id(argument) not in seen:
                    seen.add(id(argument))
                    collect(argument)
        elif points & one.registers and not any(_same(one, part) for part in parts):
            parts.append(one)

    collect(value)
    writer = Writer(registers)
    terms = [writer.write(part) for part in parts] or [mc.x * 0]

    def combine(states: Any, incoming: Any) -> Any:
        inner = Writer({**registers, state: states[0]})
        inner.know(parts, incoming[: len(parts)])
        return (inner.write(value), *incoming[1:])

    zeros = (0.0,) * len(terms)
    return mc.reduce(tuple(terms), combine, zeros, finish=lambda states: finish(states[0]))
