"""Rules of parameters that several estimators have, as scikit-learn's ``_validate_params`` reads
them, and refusals of parameters that others make meaningless."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    StrOptions,
    validate_parameter_constraints,
)

import mercer as mc


class _Devices(StrOptions):
    """ "cpu", "cuda", or one of several by its number."""

    def __init__(self) -> None:
        super().__init__({"cpu", "cuda"})

    def is_satisfied_by(self, value: Any) -> bool:
        return isinstance(value, str) and bool(re.fullmatch(r"cpu|cuda(:\d+)?", value))

    def __str__(self) -> str:
        return "'cpu', 'cuda' or 'cuda:0', 'cuda:1' and so on"


POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
FRACTION = Interval(Real, 0, 1, closed="neither")
COUNT = Interval(Integral, 1, None, closed="left")
COUNT_OR_NONE = Interval(Integral, 0, None, closed="left")

DEVICE: list[Any] = [_Devices(), None]
KERNEL: list[Any] = [str, mc.Expr, callable]
BANDWIDTH: list[Any] = [POSITIVE, StrOptions({"scale", "median"})]
RANK: list[Any] = [COUNT_OR_NONE, StrOptions({"auto"})]
SOLVER: list[Any] = [StrOptions({"auto", "direct", "cg"})]

#: Rules of the models that solve kernel systems.
OF_KERNELS: dict[str, list[Any]] = {
    "kernel": KERNEL,
    "bandwidth": BANDWIDTH,
    "metric": ["array-like", None],
    "kernel_params": [Mapping, None],
    "rank": RANK,
    "device": DEVICE,
    "random_state": ["random_state"],
    "progress": ["boolean"],
}


def check(estimator: Any, *held: str) -> None:
    """InvalidParameterError, a ValueError, for a type or a range of a parameter that is wrong.

    held: names of parameters that are not read.
    """
    given = {k: v for k, v in estimator.get_params(deep=False).items() if k not in held}
    validate_parameter_constraints(
        estimator._parameter_constraints, given, type(estimator).__name__
    )


def refuse_ignored(estimator: Any, because: str, *names: str) -> None:
    """InvalidParameterError for parameters that are not their defaults, and would not be read."""
    defaults = inspect.signature(type(estimator).__init__).parameters
    for name in names:
        value, plain = getattr(estimator, name), defaults[name].default
        if value is plain or (isinstance(value, (str, Real)) and value == plain):
            continue
        raise InvalidParameterError(
            f"The {name!r} parameter of {type(estimator).__name__} must be {plain!r}, as it is "
            f"when nothing is said, with {because}, which does not read it. Got {value!r} instead."
        )
