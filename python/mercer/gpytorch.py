"""Kernels of GPyTorch and operators of linear_operator that compute through Mercer.

Imported as ``mercer.gpytorch``; GPyTorch must be installed. The kernels have the names, parameters,
priors and constraints of GPyTorch's, and take their place in a model. What they return is a
``LinearOperator`` that never stores the matrix unless it is asked for as one: GPyTorch asks up to
``gpytorch.settings.max_cholesky_size`` points and multiplies beyond. Gradients reach points and
hyper-parameters.

``linear_operator(f, x1, x2)`` is such an operator of any formula, ``FormulaKernel`` a kernel of
any. The product of two kernels of this module is one again, one formula over the features of all
factors; a sum is GPyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from linear_operator import to_dense
from linear_operator.operators import DenseLinearOperator, KernelLinearOperator, LinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor

import mercer as mc
from mercer import _mercer
from mercer._types import FormulaLike

__all__ = [
    "FormulaKernel", "LaplaceKernel", "MaternKernel", "MercerKernel", "MercerLinearOperator",
    "PeriodicKernel", "ProductKernel", "RBFKernel", "RQKernel", "linear_operator",
]  # fmt: skip


class _Formula:
    """A formula as the function of points and parameters that KernelLinearOperator carries.

    Equal where the formulas are; it pickles.
    """

    def __init__(self, f: FormulaLike) -> None:
        self.f = mc.kernel(f)
        read = [leaf for leaf in ("i", "j", "row", "col") if leaf in _mercer.leaves(self.f)]
        if read:
            raise ValueError(
                "mercer.gpytorch: a formula must not read i, j, row or col, since slices of an "
                f"operator know their points alone. Received {self.f}, which reads {read[0]}"
            )

    def swapped(self) -> _Formula:
        """The formula of the transpose."""
        return self if self.f.symmetric else _Formula(_mercer.swap_sides(self.f))

    def carried(self) -> dict[str, Tensor]:
        """The tensors that the formula brings along, by the names of their parameters."""
        return {name: v for name, v in self.f.parameters.items() if torch.is_tensor(v)}

    def __call__(self, x1: Tensor, x2: Tensor, **params: Any) -> Tensor:
        return mc.pairwise(self.f, x1, x2, **_arguments(params))

    def product(self, x1: Tensor, x2: Tensor, v: Tensor, params: dict[str, Any]) -> Tensor:
        return mc.kernel_product(self.f, x1, x2, v, **_arguments(params))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Formula) and self.f == other.f

    def __hash__(self) -> int:
        return hash(self.f)


def _arguments(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters, with weights [K] of all items of a batch that have them in common."""
    w = params.get("w")
    while w is not None and w.ndim > 1:
        if w.shape[0] != 1 and w.stride(0) != 0:
            raise NotImplementedError(
                f"mercer.gpytorch: weights w must be the same for all items of a batch. "
                f"Received the shape {tuple(w.shape)}"
            )
        w = w[0]
    return params if w is None else {**params, "w": w}


class MercerLinearOperator(KernelLinearOperator):
    """The matrix [..., M, N] of a formula, known by its products: see ``linear_operator``."""

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs.unsqueeze(-1) if rhs.ndim == 1 else rhs
        params = {**self.tensor_params, **self.nontensor_params}
        found = self.covar_func.product(self.x1, self.x2, columns, params)
        return found.squeeze(-1) if rhs.ndim == 1 else found

    def _transpose_nonbatch(self) -> MercerLinearOperator:
        return self.__class__(
            self.x2, self.x1, covar_func=self.covar_func.swapped(),
            num_nonbatch_dimensions=self.num_nonbatch_dimensions,
            **self.tensor_params, **self.nontensor_params,
        )  # fmt: skip

    @cached
    def to_dense(self) -> Tensor:
        """The matrix [..., M, N] as a tensor."""
        return self.covar_mat


def linear_operator(
    f: FormulaLike, x1: Tensor, x2: Tensor | None = None, *, w: Tensor | None = None, **params: Any
) -> LinearOperator:
    """The matrix f(x1_m, x2_n) as a LinearOperator, which GPyTorch computes with.

    f: a formula, as verbs take it, that reads neither i, j, row nor col. x1: [..., M, K], x2:
    [..., N, K], or None for x1, with leading axes that broadcast, of float32 or float64. params:
    parameters of the formula, numbers or tensors of the shape of the batch; w: weights [K].
    Gradients reach all tensors, those that the formula carries too, through products without the
    matrix. Raises what ``mercer.pairwise`` raises of such a call.

    >>> operator = mercer.gpytorch.linear_operator("exp(-sum(abs(x-z))/b)", x, b=torch.tensor(2.0))
    >>> operator.add_jitter(0.1).solve(y)
    """
    x2 = x1 if x2 is None else x2
    formula = _Formula(f)
    formula(x1[..., :0, :], x2[..., :0, :], **params, **({} if w is None else {"w": w}))
    return _operator(formula, x1, x2, params if w is None else {**params, "w": w})


def _operator(formula: _Formula, x1: Tensor, x2: Tensor, params: dict[str, Any]) -> LinearOperator:
    params = {**formula.carried(), **params}
    axes = {name: 1 if name == "w" else 0 for name, v in params.items() if torch.is_tensor(v)}
    return MercerLinearOperator(
        x1, x2, covar_func=formula, num_nonbatch_dimensions=axes, **params
    )  # fmt: skip


#: Wraps what a formula sums over the features; says the name of a parameter in the formula.
_Wrap = Callable[[str], str]


class MercerKernel(gpytorch.kernels.Kernel):
    """A kernel of GPyTorch whose matrix is a formula: the base of those of this module.

    A subclass has ``formula`` and ``points``.
    """

    def formula(self, of: _Wrap, own: _Wrap) -> str:
        """The text of the formula: of(term) in sums over features, own(name) for parameters."""
        raise NotImplementedError

    def points(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Points and parameters that the formula is of."""
        return x1 / self.lengthscale, x2 / self.lengthscale, {}

    def operator(self, x1: Tensor, x2: Tensor) -> LinearOperator:
        """The matrix [..., M, N] of two sets of points."""
        first, second, params = self.points(x1, x2)
        return _operator(_Formula(self.formula(str, str)), first, second, params)

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any
    ) -> Tensor | LinearOperator:  # fmt: skip
        """The matrix [..., M, N] as an operator, or its diagonal [..., N] as a tensor."""
        self._refuse(last_dim_is_batch)
        operator = self.operator(x1, x2)
        return operator.diagonal(dim1=-1, dim2=-2) if diag else operator

    def _refuse(self, last_dim_is_batch: bool) -> None:
        if last_dim_is_batch:
            raise NotImplementedError(
                f"{type(self).__name__}: last_dim_is_batch is not offered; give points of one "
                "feature each. Received True"
            )

    def __mul__(self, other: gpytorch.kernels.Kernel) -> gpytorch.kernels.Kernel:
        kernels = [*_factors(self), *_factors(other)]
        if all(isinstance(kernel, MercerKernel) for kernel in kernels):
            return ProductKernel(*kernels)
        return super().__mul__(other)


def _factors(kernel: gpytorch.kernels.Kernel) -> list[gpytorch.kernels.Kernel]:
    """The factors of a product, of products among them too; a kernel that is none, alone."""
    is_product = type(kernel) in (ProductKernel, gpytorch.kernels.ProductKernel)
    if not is_product or kernel.active_dims is not None:
        return [kernel]
    return [factor for inner in kernel.kernels for factor in _factors(inner)]


class RBFKernel(MercerKernel):
    """gpytorch.kernels.RBFKernel: exp(-r²/2) of points divided by the length scale."""

    has_lengthscale = True

    def formula(self, of: _Wrap, own: _Wrap) -> str:
        return f"exp(-sum({of('square(x-z)')})/2)"


#: nu -> the formula of r, the distance times the root of 2 nu.
_MATERN = {0.5: "exp(-({r}))", 1.5: "(1+{r})*exp(-({r}))", 2.5: "(1+{r}+square({r})/3)*exp(-({r}))"}


class MaternKernel(MercerKernel):
    """gpytorch.kernels.MaternKernel, of nu 0.5, 1.5 or 2.5."""

    has_lengthscale = True

    def __init__(self, nu: float = 2.5, **kwargs: Any) -> None:
        if nu not in _MATERN:
            raise RuntimeError("nu expected to be 0.5, 1.5, or 2.5")
        super().__init__(**kwargs)
        self.nu = nu

    def formula(self, of: _Wrap, own: _Wrap) -> str:
        return _MATERN[self.nu].format(r=f"sqrt({2 * self.nu}*sum({of('square(x-z)')}))")


class LaplaceKernel(MercerKernel):
    """exp(-sum |x - z|) of points divided by the length scale."""

    has_lengthscale = True

    def formula(self, of: _Wrap, own: _Wrap) -> str:
        return f"exp(-sum({of('abs(x-z)')}))"


class RQKernel(MercerKernel, gpytorch.kernels.RQKernel):
    """gpytorch.kernels.RQKernel: (1 + r²/(2 alpha))^-alpha of points over the length scale."""

    def formula(self, of: _Wrap, own: _Wrap) -> str:
        alpha = own("alpha")
        return f"exp(-{alpha}*log1p(sum({of('square(x-z)')})/(2*{alpha})))"

    def points(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        first, second, _ = super().points(x1, x2)
        return first, second, {"alpha": self.alpha.squeeze(-1)}


class PeriodicKernel(MercerKernel, gpytorch.kernels.PeriodicKernel):
    """gpytorch.kernels.PeriodicKernel: exp(-2 sum sin²(pi (x - z)/period_length)/lengthscale).

    With ``ard_num_dims`` both are of each feature; then a ``batch_shape`` is refused.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._is_ard and self.batch_shape:
            raise NotImplementedError(
                "PeriodicKernel: ard_num_dims and batch_shape are not offered together. Received "
                f"{self.ard_num_dims} and {tuple(self.batch_shape)}"
            )

    @property
    def _is_ard(self) -> bool:
        return (self.ard_num_dims or 1) > 1

    def formula(self, of: _Wrap, own: _Wrap) -> str:
        if self._is_ard:
            return "exp(-2*sum(w*square(sin(x-z))))"
        return f"exp(-2*sum({of('square(sin(x-z))')})/{own('lengthscale')})"

    def points(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        turns, scale = math.pi / self.period_length, self.lengthscale
        own = {"w": 1 / scale[0]} if self._is_ard else {"lengthscale": scale[..., 0, 0]}
        return x1 * turns, x2 * turns, own


class FormulaKernel(MercerKernel):
    """A kernel of GPyTorch of any formula, of points divided by the length scale.

    f: a formula, symmetric and positive definite, as verbs take it. params: its parameters, all
    positive, with their first values; each becomes ``raw_<name>`` [*batch_shape, 1] under the
    constraint ``Positive()``, and is read and set as ``kernel.<name>``, and by
    ``kernel.initialize``. scaled: False for a kernel without a length scale. Other arguments are
    those of gpytorch.kernels.Kernel. Raises ValueError for a parameter named as an attribute that
    kernels have, such as ``lengthscale``.

    >>> kernel = FormulaKernel("exp(-sum(abs(x-z)^p)/b)", params={"p": 1.3, "b": 1.0})
    """

    def __init__(
        self, f: FormulaLike, *, params: dict[str, float] | None = None, scaled: bool = True,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self.has_lengthscale = scaled
        super().__init__(**kwargs)
        self._formula = _Formula(f)
        self._names: tuple[str, ...] = ()
        for name, value in (params or {}).items():
            self._add(name, value)
        self._formula(torch.empty(0, 1), torch.empty(0, 1), **dict.fromkeys(self._names, 1.0))

    def _add(self, name: str, value: Any) -> None:
        for taken in (name, f"raw_{name}", f"raw_{name}_constraint"):
            if hasattr(self, taken):
                raise ValueError(
                    "FormulaKernel: a parameter's <name>, raw_<name> and raw_<name>_constraint "
                    "must not be attributes that the kernel has; name the parameter otherwise. "
                    f'Received "{name}", and the kernel has {taken}'
                )
        raw = torch.nn.Parameter(torch.zeros(*self.batch_shape, 1))
        self.register_parameter(f"raw_{name}", raw)
        self.register_constraint(f"raw_{name}", Positive())
        self._names = (*self._names, name)
        setattr(self, name, value)

    def _value(self, name: str) -> Tensor:
        constraint = getattr(self, f"raw_{name}_constraint")
        return constraint.transform(getattr(self, f"raw_{name}"))

    def _is_own(self, name: str) -> bool:
        return name in self.__dict__.get("_names", ())

    def __getattr__(self, name: str) -> Any:
        return self._value(name) if self._is_own(name) else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._is_own(name):
            super().__setattr__(name, value)
            return
        stored = getattr(self, f"raw_{name}")
        value = torch.as_tensor(value, dtype=stored.dtype, device=stored.device)
        constraint = getattr(self, f"raw_{name}_constraint")
        self.initialize(**{f"raw_{name}": constraint.inverse_transform(value)})

    def operator(self, x1: Tensor, x2: Tensor) -> LinearOperator:
        if self.has_lengthscale:
            x1, x2 = x1 / self.lengthscale, x2 / self.lengthscale
        params = {name: self._value(name).squeeze(-1) for name in self._names}
        return _operator(self._formula, x1, x2, params)


class ProductKernel(gpytorch.kernels.ProductKernel, MercerKernel):
    """The product of kernels of this module, without the matrices and without GPyTorch's roots.

    It is what their ``*`` makes; products among the kernels bring their factors. The features of
    all factors stand side by side, and each factor sums over its own. A FormulaKernel, a
    PeriodicKernel with ``ard_num_dims`` and a kernel that is not of this module are multiplied by
    their matrices up to ``max_cholesky_size`` points, and beyond as GPyTorch does it.
    """

    def __init__(self, *kernels: gpytorch.kernels.Kernel) -> None:
        super().__init__(*(factor for kernel in kernels for factor in _factors(kernel)))

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Any:  # fmt: skip
        self._refuse(last_dim_is_batch)
        if diag:
            return gpytorch.kernels.ProductKernel.forward(self, x1, x2, diag=diag, **params)
        if all(_is_joined(kernel) for kernel in self.kernels):
            return self.operator(x1, x2)
        if max(x1.shape[-2], x2.shape[-2]) <= gpytorch.settings.max_cholesky_size.value():
            factors = [to_dense(kernel(x1, x2, **params)) for kernel in self.kernels]
            return DenseLinearOperator(math.prod(factors[1:], start=factors[0]))
        return gpytorch.kernels.ProductKernel.forward(self, x1, x2, **params)

    def operator(self, x1: Tensor, x2: Tensor) -> LinearOperator:
        firsts, seconds, texts, owners = [], [], [], []
        values: dict[str, Any] = {}
        for index, kernel in enumerate(self.kernels):
            dims = kernel.active_dims
            chosen = [x if dims is None else x.index_select(-1, dims) for x in (x1, x2)]
            if kernel.ard_num_dims not in (None, chosen[0].shape[-1]):
                raise RuntimeError(
                    f"{type(kernel).__name__}: points must have the {kernel.ard_num_dims} features "
                    f"of ard_num_dims. Received {chosen[0].shape[-1]}"
                )
            first, second, own = kernel.points(*chosen)
            firsts.append(first)
            seconds.append(second)
            owners += [float(index)] * first.shape[-1]
            values |= {f"{name}_{index}": value for name, value in own.items()}
            texts.append(_of_its_features(kernel, index))
        values["w"] = torch.tensor(owners, dtype=x1.dtype, device=x1.device)
        return _operator(_Formula("*".join(texts)), _joined(firsts), _joined(seconds), values)


def _is_joined(kernel: gpytorch.kernels.Kernel) -> bool:
    """Whether it has a text that sums over the features of its own."""
    has_text = isinstance(kernel, MercerKernel)
    has_text = has_text and not isinstance(kernel, FormulaKernel | ProductKernel)
    return has_text and not getattr(kernel, "_is_ard", False)


def _of_its_features(kernel: MercerKernel, index: int) -> str:
    """A factor's formula; w says which factor a feature belongs to."""
    text = kernel.formula(f"where(w == {index}, {{}}, 0)".format, f"{{}}_{index}".format)
    return f"({text})"


def _joined(parts: list[Tensor]) -> Tensor:
    batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], -1)
