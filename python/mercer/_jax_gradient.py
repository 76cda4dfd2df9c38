"""mercer.parameter_gradient for arrays of JAX: its own backward of the verbs, by name.

It works under jit, vmap and grad as they do. The weights go through pairwise where they are a
matrix, and through kernel_product where they are a pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import mercer

if TYPE_CHECKING:
    from mercer._parameter_gradient import _Pairs, _Weights


def gradients(pairs: _Pairs, weights: _Weights, names: list[str]) -> dict[str, Any]:
    """Each with the shape of its operand; of a number a scalar in the dtype of sums."""
    operands = {"x": pairs.x, "z": pairs.z, **pairs.arrays, **pairs.params}
    sums = jax.dtypes.canonicalize_dtype("float64")
    by = {n: v if hasattr(v, "dtype") else jnp.asarray(v, sums) for n in names
          for v in [operands[n]]}  # fmt: skip

    def total(values: dict[str, Any]) -> Any:
        given = {**pairs.options(), **{n: v for n, v in values.items() if n not in ("x", "z")}}
        given = {name: value for name, value in given.items() if value is not None}
        points = values.get("x", pairs.x), values.get("z", pairs.z)
        if weights.matrix is not None:
            return (weights.matrix * mercer.pairwise(pairs.f, *points, **given)).sum(dtype=sums)
        product = mercer.kernel_product(pairs.f, *points, weights.v, **given)
        return (weights.u * product).sum(dtype=sums)

    return jax.grad(total)(by)
