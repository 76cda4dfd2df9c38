"""How a primitive of JAX is made: compiled for calls outside of jit, its rules registered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from mercer import _jax_sharding


def primitive(
    name: str,
    *,
    abstract: Callable,
    lowered: Callable,
    jvp: Callable,
    batched: Callable,
    transposed: Callable | None = None,
    several: bool = False,
    is_partitioned: bool = False,
) -> Any:
    """The primitive ``mercer_<name>`` with these rules.

    Settings are hashable. ``several``: results are a tuple; ``is_partitioned``: ``lowered`` calls
    ``_jax_sharding.partitioned``.
    """
    made: Any = Primitive(f"mercer_{name}")
    made.multiple_results = several

    @functools.lru_cache(maxsize=256)
    def program(settings: tuple) -> Any:
        return jax.jit(functools.partial(made.bind, **dict(settings)))

    if is_partitioned:
        _jax_sharding.register(made)
    made.def_impl(lambda *operands, **settings: program(tuple(settings.items()))(*operands))
    made.def_abstract_eval(abstract)
    mlir.register_lowering(made, mlir.lower_fun(lowered, multiple_results=several))
    ad.primitive_jvps[made] = jvp
    batching.primitive_batchers[made] = batched
    if transposed is not None:
        ad.primitive_transposes[made] = transposed
    return made
