"""Arrays of JAX: every verb as a call through XLA's foreign function interface.

It works under ``jax.jit``, and under ``jax.vmap`` without a loop: all arrays get as many leading
axes as the output has, so the axis that vmap adds is one more leading axis of each.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer import _mercer

_TARGET = "mercer_pairs"
# Axes of each operand behind the leading ones; of a parameter ("p:name") there are none.
_TRAILING = {"x": 2, "z": 2, "row": 1, "col": 1, "v": 2, "coef": 2, "amplitude": 2}


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
    batch: tuple[int, ...],
) -> Any:
    """Runs an operation with checked arguments; `batch` are the leading axes of its output."""
    texts = (("verb", verb), ("operation", operation), ("formula", formula))
    attributes = (*texts, *numbers.items(), *settings.items())
    return _compiled(tuple(arrays), attributes, len(numbers), batch)(*arrays.values())


@functools.lru_cache(maxsize=256)
def _compiled(
    names: tuple[str, ...],
    attributes: tuple[tuple[str, Any], ...],
    numbers: int,
    batch: tuple[int, ...],
) -> Any:
    """The call as a function of its arrays alone, which JAX compiles once for each of their shapes.

    The attributes are three texts, then the parameters that are numbers, then the settings."""
    settings = dict(attributes[:3] + attributes[3 + numbers :])
    values = {f"n:{name}": np.float64(v) for name, v in attributes[3 : 3 + numbers]}

    @jax.jit
    def run(*operands: jax.Array) -> Any:
        return _call(dict(zip(names, operands, strict=True)), settings, values, batch)

    return run


def _call(
    arrays: dict[str, jax.Array],
    settings: dict[str, Any],
    numbers: dict[str, np.float64],
    batch: tuple[int, ...],
) -> Any:
    operation = settings["operation"]
    single = False
    for name in ("v", "coef"):  # [N] as [N, 1] or [1, N], so that leading axes stay apart
        if name in arrays and arrays[name].ndim == 1:
            arrays[name] = arrays[name][:, None] if name == "v" else arrays[name][None]
            single = True
    outputs = _outputs(operation, arrays, settings, batch)
    settings = {k: v if isinstance(v, str) else np.int64(v) for k, v in settings.items()}
    results = ffi_call(
        [_declared(shape, dtype) for shape, dtype in outputs],
        # Weights [K] take no leading axis.
        vmap_method="sequential" if "w" in arrays else "expand_dims",
    )(
        *(_aligned(name, array, len(batch)) for name, array in arrays.items()),
        operands=" ".join(arrays),
        **settings,
        **numbers,
    )
    results = [_received(r, dtype) for r, (_, dtype) in zip(results, outputs, strict=True)]
    if single and operation != "kernel_agop":
        results = [r[..., 0] if operation == "kernel_product" else r[..., 0, :, :] for r in results]
    return tuple(results) if operation == "knn" else results[0]


def _outputs(
    operation: str, arrays: dict[str, jax.Array], settings: dict[str, Any], batch: tuple[int, ...]
) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of each result."""
    x = arrays["x"]
    z = arrays.get("z", x)
    m, k = x.shape[-2:]
    computing = "float64" if x.dtype == np.float64 else "float32"
    if operation == "kernel_product":
        return [((*batch, m, arrays["v"].shape[-1]), computing)]
    if operation == "kernel_reduce":
        return [((*batch, m), "int64" if settings["reduce"].startswith("arg") else computing)]
    if operation == "knn":
        neighbours, points = settings["k"], z.shape[-2]
        if not 1 <= neighbours <= points:
            raise ValueError(
                f"knn: k must be from 1 to the number of points of z ({points}). "
                f"Received {neighbours}."
            )
        shape = (*batch, m, neighbours)
        return [(shape, computing), (shape, "int64")]
    if operation in ("kernel_gradient", "gradient_field"):
        return [((*batch, arrays["coef"].shape[-2], m, k), computing)]
    if operation == "kernel_agop":
        return [((*batch, k, k), computing)]
    return [((*batch, m, z.shape[-2]), computing)]


def _aligned(name: str, array: jax.Array, leading: int) -> jax.Array:
    """The array with this many leading axes."""
    if name == "w":
        return array
    missing = leading + _TRAILING.get(name, 0) - array.ndim
    return jnp.expand_dims(array, tuple(range(missing))) if missing > 0 else array


def _declared(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    """A result; without 64-bit types its int64 are pairs of int32, the low half first."""
    if dtype == "int64" and not jax.config.jax_enable_x64:
        return jax.ShapeDtypeStruct((*shape, 2), np.int32)
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))


def _received(result: jax.Array, dtype: str) -> jax.Array:
    return result[..., 0] if dtype == "int64" and result.dtype == np.int32 else result
