"""Kernels and distances as modules of PyTorch, with parameters that are trained.

Imported as ``mercer.nn``; PyTorch must be installed. A module is called with points [..., M, K] and
[..., N, K], or with one set alone, and gives the matrix [..., M, N]; ``product`` multiplies it with
vectors without storing it. Gradients reach points and parameters, as often as wanted.

Parameters that are positive are stored by their logarithm, as ``log_lengthscale``, so that any step
of an optimiser keeps them positive; ``module.lengthscale`` is the value. With
``trainable=False`` they are buffers: part of the state, without gradients. A length scale for each
feature is a list or tensor [K].

dtypes: float32 and float64 are computed in themselves. 16-bit points are computed in float32 and
give their own dtype back, as a module after ``half()`` does; under ``torch.autocast`` 16-bit points
give float32, as those of ``torch.cdist``. Parameters are computed in the dtype of the matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import mercer as mc
from mercer._types import FormulaLike

__all__ = [
    "RBF",
    "CDist",
    "Formula",
    "Laplace",
    "Linear",
    "Matern",
    "Periodic",
    "Polynomial",
    "RationalQuadratic",
]  # fmt: skip

_SHORT = (torch.float16, torch.bfloat16)


class Formula(nn.Module):
    """A formula as a module; its parameters are the module's.

    f: a formula, as verbs take it. params: its parameters, numbers or tensors, by name; the formula
    may have other ones with values of their own. w: weights [K] of the formula. Names in
    ``positive`` are stored by their logarithm; ``positive=True`` are all. trainable: whether they
    get gradients. Raises ValueError for a positive one that is not, and for names that the formula
    does not read.

    >>> kernel = mercer.nn.Formula("s*exp(-sum(abs(x-z)^p)/b)", s=1.0, b=2.0, p=1.3)
    >>> kernel(x, z).sum().backward()
    """

    def __init__(
        self, f: FormulaLike, *, w: Any = None, positive: bool | tuple[str, ...] = True,
        trainable: bool = True, **params: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.formula = mc.kernel(f)
        given = params if w is None else {**params, "w": w}
        self._logs = tuple(given) if positive is True else tuple(positive or ())
        if unknown := set(self._logs) - set(given):
            raise ValueError(
                f"{type(self).__name__}: positive must name parameters that are given. "
                f"Received {sorted(unknown)}"
            )
        self._names = tuple(given)
        for name, value in given.items():
            self._store(name, value, trainable)
        self._check(params, w)

    def _store(self, name: str, value: Any, trainable: bool) -> None:
        tensor = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
        stored = name
        if name in self._logs:
            stored, tensor = f"log_{name}", self._logarithm(name, tensor)
        if hasattr(self, stored) or hasattr(type(self), name):
            raise ValueError(
                f"{type(self).__name__}: a parameter must not have the name of an attribute of "
                f"modules. Received {name!r}"
            )
        if trainable:
            self.register_parameter(stored, nn.Parameter(tensor))
        else:
            self.register_buffer(stored, tensor)

    def _logarithm(self, name: str, value: Tensor) -> Tensor:
        if not bool((value > 0).all()):
            raise ValueError(
                f"{type(self).__name__}: {name} must be positive. Received {value.tolist()}"
            )
        return value.log()

    def _check(self, params: dict[str, Any], w: Any) -> None:
        """Raises what verbs raise for parameters and weights that the formula does not read."""
        features = 1 if w is None or torch.as_tensor(w).ndim == 0 else len(w)
        numbers: dict[str, Any] = dict.fromkeys(params, 1.0)
        weights = None if w is None else torch.ones(features)
        mc.pairwise(self.formula, torch.empty(0, features), w=weights, **numbers)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_logs", ()):
            return super().__getattr__(f"log_{name}").exp()
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_logs", ()):
            stored = super().__getattr__(f"log_{name}")
            with torch.no_grad():
                stored.copy_(self._logarithm(name, torch.as_tensor(value, dtype=stored.dtype)))
            return
        super().__setattr__(name, value)

    def _values(self, like: Tensor) -> dict[str, Tensor]:
        """The parameters in the computing type."""
        values = {}
        for name in self._names:
            stored = getattr(self, f"log_{name}" if name in self._logs else name).to(like.dtype)
            values[name] = stored.exp() if name in self._logs else stored
        return values

    def _prepared(self, x: Tensor, z: Tensor | None) -> tuple[Any, ...]:
        """Formula, points and options of the verb."""
        return self.formula, x, z, self._values(x)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """The matrix [..., M, N] of x [..., M, K] with z [..., N, K], or with itself."""
        points, dtype = _computed(x, z)
        f, x, z, options = self._prepared(*points)
        return mc.pairwise(f, x, z, **options).to(dtype)

    def product(self, x: Tensor, z: Tensor | None, v: Tensor) -> Tensor:
        """The matrix times v [..., N, E] or [N], without the matrix: [..., M, E] or [M]."""
        points, dtype = _computed(x, z)
        f, x, z, options = self._prepared(*points)
        return mc.kernel_product(f, x, z, v.to(x.dtype), **options).to(dtype)

    def extra_repr(self) -> str:
        return f"{str(self.formula)!r}"


def _computed(x: Tensor, z: Tensor | None) -> tuple[tuple[Tensor, Tensor | None], torch.dtype]:
    """Points in the type that is computed in, and the type of the result."""
    for name, points in (("x", x), ("z", z)):
        if points is not None and not points.is_floating_point():
            raise mc.DtypeError(
                f"mercer.nn: {name} must be of a floating-point type; write {name}.float(). "
                f"Received {points.dtype}"
            )
    short = x.dtype in _SHORT
    wide = (
        x.float() if short else x,
        z.float() if z is not None and z.dtype in _SHORT else z,
    )
    autocast = torch.is_autocast_enabled(x.device.type)
    if z is not None and z.dtype != x.dtype and not autocast:
        raise mc.DtypeError(
            f"mercer.nn: x and z must have one dtype outside of torch.autocast. "
            f"Received {x.dtype} and {z.dtype}"
        )
    keeps = short and not autocast
    return wide, x.dtype if keeps else wide[0].dtype


class CDist(nn.Module):
    """torch.cdist as a module: distances of the norm p, or of a metric of mercer.cdist by name.

    p: a number. With ``trainable=True`` it is a parameter, stored by its logarithm, and the
    distances are (sum |x - z|^p)^(1/p) for it. Other options, as ``V``, are those of mercer.cdist;
    tensors among them are buffers of the module, and ``nn.Parameter`` its parameters.
    """

    def __init__(
        self, p: float | None = None, *, metric: FormulaLike | None = None, trainable: bool = False,
        **params: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if trainable and (metric is not None or not 0 < (2.0 if p is None else p) < float("inf")):
            raise ValueError(
                f"CDist: a trainable p must be positive and finite, without a metric. "
                f"Received p = {p}, metric = {metric!r}"
            )
        self.metric, self.options = metric, {}
        self._tensors = tuple(n for n, value in params.items() if isinstance(value, Tensor))
        for name, value in params.items():
            if not isinstance(value, Tensor):
                self.options[name] = value
            elif isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)
        self.trained = (
            Formula("r = sum(abs(x-z)^p); where(r == 0, 0, r^(1/p))", p=2.0 if p is None else p)
            if trainable else None
        )  # fmt: skip
        self.p = p

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Distances [..., M, N] of x [..., M, K] and z [..., N, K]."""
        if self.trained is not None:
            return self.trained(x, z)
        points, dtype = _computed(x, z)
        kind = points[0].dtype
        tensors = {name: getattr(self, name).to(kind) for name in self._tensors}
        options = {**self.options, **tensors}
        return mc.cdist(*points, self.p, metric=self.metric, **options).to(dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}" if self.metric is None else f"metric={self.metric!r}"


class _Scaled(Formula):
    """A formula of points that are divided by a length scale, one for all features or one each."""

    def __init__(
        self, f: FormulaLike, lengthscale: Any, trainable: bool, **params: Any
    ) -> None:  # fmt: skip
        super().__init__(f, trainable=trainable, **params)
        self._logs += ("lengthscale",)
        self._store("lengthscale", lengthscale, trainable)
        if self.log_lengthscale.ndim > 1:
            raise ValueError(
                f"{type(self).__name__}: lengthscale must be a number or have the shape [K]. "
                f"Received {tuple(self.log_lengthscale.shape)}"
            )

    def _prepared(self, x: Tensor, z: Tensor | None) -> tuple[Any, ...]:
        scale = self.log_lengthscale.to(x.dtype).exp()
        if scale.ndim and scale.shape[0] != x.shape[-1]:
            raise ValueError(
                f"{type(self).__name__}: lengthscale must have one number for each of the "
                f"{x.shape[-1]} features. Received {scale.shape[0]}"
            )
        return self.formula, x / scale, None if z is None else z / scale, self._values(x)


class RBF(_Scaled):
    """exp(-r²/2) of the Euclidean distance r of points divided by ``lengthscale``."""

    def __init__(self, lengthscale: Any = 1.0, *, trainable: bool = True) -> None:
        super().__init__("exp(-sum(square(x-z))/2)", lengthscale, trainable)


#: nu -> the zoo's Matern kernel of bandwidth 1.
_MATERN = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


class Matern(_Scaled):
    """The Matérn kernel of nu 0.5, 1.5 or 2.5, of points divided by ``lengthscale``."""

    def __init__(self, nu: float = 2.5, lengthscale: Any = 1.0, *, trainable: bool = True) -> None:
        if nu not in _MATERN:
            raise ValueError(f"Matern: nu must be 0.5, 1.5 or 2.5. Received {nu}")
        super().__init__(getattr(mc, _MATERN[nu])(), lengthscale, trainable)


class Laplace(_Scaled):
    """exp(-sum |x - z|) of points divided by ``lengthscale``."""

    def __init__(self, lengthscale: Any = 1.0, *, trainable: bool = True) -> None:
        super().__init__("exp(-sum(abs(x-z)))", lengthscale, trainable)


class RationalQuadratic(_Scaled):
    """(1 + r²/(2 alpha))^-alpha of points divided by ``lengthscale``."""

    def __init__(
        self, alpha: float = 1.0, lengthscale: Any = 1.0, *, trainable: bool = True
    ) -> None:
        text = "exp(-alpha*log1p(sum(square(x-z))/(2*alpha)))"
        super().__init__(text, lengthscale, trainable, alpha=alpha)


class Periodic(Formula):
    """exp(-2 sum sin²(pi (x - z)/period)/lengthscale²)."""

    def __init__(
        self, period: float = 1.0, lengthscale: float = 1.0, *, trainable: bool = True
    ) -> None:
        text = "exp(-2*sum(square(sin(3.141592653589793*(x-z)/period)))/square(lengthscale))"
        super().__init__(text, trainable=trainable, period=period, lengthscale=lengthscale)


class Linear(Formula):
    """variance x·z + offset."""

    def __init__(
        self, variance: float = 1.0, offset: float = 1.0, *, trainable: bool = True
    ) -> None:
        super().__init__(
            "variance*sum(x*z) + offset", trainable=trainable, variance=variance, offset=offset
        )


class Polynomial(Formula):
    """(scale x·z + offset)^degree for a whole degree, which is not trained."""

    def __init__(
        self, degree: int = 3, scale: float = 1.0, offset: float = 1.0, *, trainable: bool = True
    ) -> None:
        if degree != int(degree) or degree < 1:
            raise ValueError(
                f"Polynomial: degree must be a whole number from 1 on. Received {degree}"
            )
        super().__init__(
            f"(scale*sum(x*z) + offset)^{int(degree)}", trainable=trainable, scale=scale,
            offset=offset,
        )  # fmt: skip
