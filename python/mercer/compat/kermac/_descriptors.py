"""Descriptors of kernels, and the formulas that they are."""

from __future__ import annotations

import functools
from enum import Enum, auto

import mercer as mc


class _Choice(Enum):
    """One of a few, each of which is there once; Enum's own hash is that of the name, in Python."""

    __hash__ = object.__hash__


class InnerOperator(_Choice):
    """What is made of two features: their difference or their product."""

    DIFF = auto()
    DOT = auto()


class PowerType(_Choice):
    """A function of one value. EXP_POW_SCALED is exp(bandwidth |t|^p) - 1, of features alone."""

    NOOP = auto()
    ABS = auto()
    SQUARE = auto()
    SQRT = auto()
    POW = auto()
    EXP_POW_SCALED = auto()


class KernelType(_Choice):
    """A function of the distance d: itself, exp(-d / bandwidth) or exp(-d / (2 bandwidth^2))."""

    NONE = auto()
    LAPLACE = auto()
    GAUSSIAN = auto()


class Symmetry(Enum):
    """Not used by kermac either."""

    NonSymmetric = auto()
    Symmetric = auto()


class KernelDescriptor:
    """A kernel in four choices: kernel(outer(sum over k of inner(operator(a_mk, b_nk))))."""

    __slots__ = ("_inner_operator", "_inner_power", "_kernel_type", "_outer_power")

    def __init__(
        self,
        inner_operator: InnerOperator = InnerOperator.DIFF,
        inner_power: PowerType = PowerType.SQUARE,
        outer_power: PowerType = PowerType.SQRT,
        kernel_type: KernelType = KernelType.LAPLACE,
    ) -> None:
        self._inner_operator = inner_operator
        self._inner_power = inner_power
        self._outer_power = outer_power
        self._kernel_type = kernel_type

    @property
    def choices(self) -> tuple[InnerOperator, PowerType, PowerType, KernelType]:
        return self._inner_operator, self._inner_power, self._outer_power, self._kernel_type


_DIFF, _ABS, _SQUARE, _POW = InnerOperator.DIFF, PowerType.ABS, PowerType.SQUARE, PowerType.POW
kernel_descriptor_laplace_l1 = KernelDescriptor(_DIFF, _ABS, PowerType.NOOP, KernelType.LAPLACE)
kernel_descriptor_laplace_l2 = KernelDescriptor(_DIFF, _SQUARE, PowerType.SQRT, KernelType.LAPLACE)
kernel_descriptor_p_norm = KernelDescriptor(_DIFF, _POW, _POW, KernelType.NONE)
kernel_descriptor_l1_norm = KernelDescriptor(_DIFF, _ABS, PowerType.NOOP, KernelType.NONE)
kernel_descriptor_l2_norm = KernelDescriptor(_DIFF, _SQUARE, PowerType.SQRT, KernelType.NONE)
kernel_descriptor_mma = KernelDescriptor(
    InnerOperator.DOT, PowerType.NOOP, PowerType.NOOP, KernelType.NONE
)

# t is a difference or a product of features, s the sum of what is made of it.
_INNER = {
    PowerType.NOOP: "t",
    PowerType.ABS: "abs(t)",
    PowerType.SQUARE: "square(t)",
    PowerType.SQRT: "sqrt(t)",
    PowerType.POW: "abs(t)^inner_p",
    PowerType.EXP_POW_SCALED: "expm1(bandwidth*abs(t)^inner_p)",
}
_OUTER = {
    PowerType.NOOP: "s",
    PowerType.ABS: "abs(s)",
    PowerType.SQUARE: "square(s)",
    PowerType.SQRT: "sqrt(s)",
    PowerType.POW: "s^outer_p",
}
_KERNEL = {
    KernelType.NONE: "d",
    KernelType.LAPLACE: "d = where(d < epsilon, 0, d); exp(-d/bandwidth)",
    KernelType.GAUSSIAN: "d = where(d < epsilon, 0, d); exp(-d/(2*square(bandwidth)))",
}


@functools.cache
def formula_of(
    choices: tuple[InnerOperator, PowerType, PowerType, KernelType],
    one_power: bool,
    regularized: bool,
    by_columns: bool,
) -> mc.Expr:
    """The formula of a descriptor's choices.

    one_power: the parameter p gives both powers, p and 1 / p. regularized: values at i = j are
    1 + regularization. by_columns: the sign of a difference of an output that lies by columns.
    """
    operator, inner, outer, kernel = choices
    if outer not in _OUTER:
        raise ValueError(f"outer_power must not be {outer.name}: it is a function of features")
    dot = operator is InnerOperator.DOT
    pair = "x*z" if dot else "z - x" if by_columns else "x - z"
    *bindings, value = _KERNEL[kernel].split("; ")
    text = [f"t = {pair}", f"s = sum({_INNER[inner]})", f"d = {_OUTER[outer]}", *bindings]
    if regularized:
        value = f"where(i == j && regularization != 0, 1 + regularization, {value})"
    formula = "; ".join((*text, value))
    if one_power:
        formula = formula.replace("inner_p", "p").replace("outer_p", "(1/p)")
    return mc.kernel(formula)


def reads_power(power: PowerType) -> bool:
    return power is PowerType.POW or power is PowerType.EXP_POW_SCALED
