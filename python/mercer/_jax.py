"""Arrays of JAX: every verb as a call through XLA's foreign function interface.

It works under ``jax.jit``, and under ``jax.vmap`` without a loop: all arrays get as many leading
axes as the output has, so the axis that vmap adds is one more leading axis of each. Matrices,
products and fields are primitives with derivatives (``_jax_pairs``).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from mercer import _mercer

_TARGET = "mercer_pairs"


@functools.cache
def _register() -> None:
    if not hasattr(jax, "ffi"):
        raise NotImplementedError(
            f"mercer: JAX must be 0.5 or newer, with jax.ffi. Received {jax.__version__}"
        )
    for platform in ("cpu", "CUDA"):
        jax.ffi.register_ffi_target(_TARGET, _mercer.jax_handler(platform), platform=platform)


def ffi_call(results: Any, **options: Any) -> Any:
    """A call of Mercer's handler; its attributes say of what."""
    _register()
    return jax.ffi.ffi_call(_TARGET, results, **options)


def parameter(value: Any, computing: str) -> jax.Array:
    """The array of a parameter; whole numbers get the computing type."""
    array = jnp.asarray(value) if hasattr(value, "dtype") else jnp.asarray(value, computing)
    return array.astype(computing) if jnp.issubdtype(array.dtype, jnp.integer) else array


def call(
    verb: str,
    operation: str,
    formula: str,
    arrays: dict[str, jax.Array],
    numbers: dict[str, float],
    settings: dict[str, Any],
) -> Any:
    """Runs an operation with checked arguments."""
    texts = (("verb", verb), ("operation", operation), ("formula", formula))
    attributes = (*texts, *numbers.items(), *settings.items())
    return _compiled(tuple(arrays), attributes, len(numbers))(*arrays.values())


@functools.lru_cache(maxsize=256)
def _compiled(
    names: tuple[str, ...],
    attributes: tuple[tuple[str, Any], ...],
    numbers: int,
) -> Any:
    """The call as a function of its arrays alone, which JAX compiles once for each of their shapes.

    The attributes are three texts, then the parameters that are numbers, then the settings."""
    settings = dict(attributes[:3] + attributes[3 + numbers :])
    values = dict(attributes[3 : 3 + numbers])

    @jax.jit
    def run(*operands: jax.Array) -> Any:
        return _call(dict(zip(names, operands, strict=True)), settings, values)

    return run


def _call(
    arrays: dict[str, jax.Array],
    settings: dict[str, Any],
    numbers: dict[str, float],
) -> Any:
    from mercer import _jax_folds, _jax_pairs

    operation = settings["operation"]
    single = False
    for name in ("v", "coef"):  # [N] as [N, 1] or [1, N], so that leading axes stay apart
        if name in arrays and arrays[name].ndim == 1:
            arrays[name] = arrays[name][:, None] if name == "v" else arrays[name][None]
            single = True
    matrices: dict[str, Any] = {n: arrays.pop(n) for n in ("v", "amplitude", "coef") if n in arrays}
    pairs = _jax_pairs.Pairs(
        f=settings["formula"],
        arrays=arrays,
        numbers=tuple((name, float(value)) for name, value in numbers.items()),
        i_offset=int(settings["i_offset"]),
        j_offset=int(settings["j_offset"]),
        options=settings["options"],
        verb=settings["verb"],
    )
    match operation:
        case "pairwise":
            return _jax_pairs.pairwise(pairs)
        case "kernel_product":
            result = _jax_pairs.product(pairs, matrices["v"])
            return result[..., 0] if single else result
        case "kernel_reduce":
            return _jax_folds.reduce(pairs, settings["reduce"])
        case "knn":
            return _jax_folds.knn(pairs, int(settings["k"]))
        case "kernel_agop":
            return _jax_folds.agop(pairs, matrices["coef"])
        case "gradient_fold":
            result = _jax_folds.fold(pairs, matrices)
            return result[..., 0, :, :] if single else result
    wrt = "x" if operation == "kernel_gradient" else "t"
    result = _jax_pairs.field(pairs, wrt, matrices["coef"], matrices.get("amplitude"))
    return result[..., 0, :, :] if single else result
