"""How calls on sharded arrays of JAX are divided over a mesh: rules for XLA's partitioner.

Each axis of an operand or a result has a factor: m and n, the points of the two sides, k the
features, e and o the columns and outputs, b0, b1, … the leading axes. Shards along a factor of the
result give shards of the result, with no exchange. Along a factor that the call sums over each
device has a part of the sum, and these are added up. Other factors are gathered.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.interpreters import ad
from jax.sharding import NamedSharding, PartitionSpec

try:  # JAX has no public name for it; without it primitives cannot be partitioned from within
    from jax._src.dispatch import prim_requires_devices_during_lowering as _with_devices
except ImportError:
    _with_devices = None

_type_of = jax.typeof if hasattr(jax, "typeof") else jax.core.get_aval
_COMBINE = {"sum": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}


def register(primitive: Any) -> None:
    """Its lowering calls ``partitioned``."""
    if _with_devices is not None:
        _with_devices.add(primitive)


@dataclasses.dataclass(frozen=True)
class Rule:
    operands: tuple[tuple[str, ...], ...]  # a factor for each axis
    results: tuple[tuple[str, ...], ...]
    folded: tuple[str, ...] = ()  # over which shards' results are combined
    whole: tuple[str, ...] = ("k",)  # never divided
    combine: str = "sum"

    def text(self) -> str:
        def side(mappings: Sequence[Sequence[str]]) -> str:
            return ", ".join(" ".join(factors) for factors in mappings)

        return f"{side(self.operands)} -> {side(self.results)}"


def _varying(aval: Any) -> frozenset[str]:
    """Under shard_map: along which axes of the mesh it varies."""
    found = getattr(aval, "mat", None)
    return getattr(aval, "vma", frozenset()) if found is None else found.varying


def result_type(shape: Sequence[int], dtype: Any, operands: Sequence[Any]) -> Any:
    """A result's type; the operands all vary along the same axes, as those of ``bind`` do."""
    for aval in operands:
        if _varying(aval):
            spec = PartitionSpec(*(None for _ in shape))
            sharding = NamedSharding(aval.sharding.mesh, spec)
            return aval.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)
    return jax.core.ShapedArray(shape, dtype)


def zero(value: Any) -> Any:
    """The tangent of a value that does not move."""
    return ad.Zero(_type_of(value).to_tangent_aval())


def _spread(operand: Any, axes: frozenset[str]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(operand, tuple(axes), to="varying")
    return jax.lax.pvary(operand, tuple(axes))


def bind(call: Callable[..., Any], rule: Rule, operands: Sequence[Any]) -> Any:
    """A primitive's call. Under shard_map its operands vary alike; where the types of arrays have
    shardings, that of the result is what the rule says."""
    types = [_type_of(operand) for operand in operands]
    along = [_varying(aval) for aval in types]
    every = frozenset().union(*along)
    operands = [
        _spread(o, every - own) if every - own else o
        for o, own in zip(operands, along, strict=True)
    ]
    mesh = getattr(getattr(types[0], "sharding", None), "mesh", None)
    if not getattr(mesh, "explicit_axes", ()):
        return call(*operands)
    axes = _assigned(rule, mesh, types, [])
    spec = _spec(rule.results[0], axes)
    return jax.sharding.auto_axes(call, out_sharding=NamedSharding(mesh, spec))(*operands)


def factors(shape: Sequence[int], batch: Sequence[int], own: Sequence[str], place: int) -> tuple:
    """The factors of an array, its own leading axes before `own`; one that is broadcast along an
    axis has a factor that nobody else has. `place` is its place among the operands."""
    leading = len(shape) - len(own)
    skipped = len(batch) - leading
    return (
        *(
            f"b{axis + skipped}" if shape[axis] == batch[axis + skipped] else f"u{place}x{axis}"
            for axis in range(leading)
        ),
        *own,
    )


def partitioned(
    rule: Rule, whole: Callable[..., Any], apart: Callable[..., Any], *operands: Any
) -> Any:
    """whole(*operands), in shards where the operands are sharded: there `apart` computes, of shards
    of the operands, shards of the results (a tuple where the rule has several)."""
    if jax.device_count() == 1 or _with_devices is None:
        return whole(*operands)
    from jax.experimental.custom_partitioning import custom_partitioning

    call = custom_partitioning(whole)
    folded = {f for f in rule.folded if f not in rule.whole}

    def partition(mesh: Any, shapes: Any, results: Any) -> Any:
        of_results = jax.tree.leaves(results)
        axes = _assigned(rule, mesh, shapes, of_results)
        shardings = [NamedSharding(mesh, _spec(f, axes)) for f in rule.operands]
        combined = tuple(a for f in sorted(folded) for a in axes.get(f, ()))
        divided = any(axes.get(f) for f in "mn")

        def shard(*parts: Any) -> Any:
            with _without_mesh():
                found = (apart if divided else whole)(*parts)
                if not combined:
                    return found
                return jax.tree.map(lambda part: _COMBINE[rule.combine](part, combined), found)

        given = [NamedSharding(mesh, _spec(f, axes)) for f in rule.results]
        tree = jax.tree.structure(results)
        return mesh, shard, jax.tree.unflatten(tree, given), tuple(shardings)

    def infer(mesh: Any, shapes: Any, results: Any) -> Any:
        axes = _assigned(rule, mesh, shapes, [])
        given = [NamedSharding(mesh, _spec(f, axes)) for f in rule.results]
        return jax.tree.unflatten(jax.tree.structure(results), given)

    # Shardy wants them in the order of their first appearance.
    used = dict.fromkeys(f for mapping in rule.operands for f in mapping)
    call.def_partition(
        partition=partition,
        infer_sharding_from_operands=infer,
        sharding_rule=rule.text(),
        reduction_factors=tuple(f for f in used if f in folded),
        need_replication_factors=tuple(f for f in used if f in rule.whole),
    )
    return call(*operands)


def _without_mesh() -> contextlib.AbstractContextManager[Any]:
    """JAX 0.11 gives what is lowered under a mesh with explicit axes shardings, also the function
    that a collective reduces by, which XLA's CPU back end refuses."""
    use = getattr(jax.sharding, "use_abstract_mesh", None)
    return use(jax.sharding.AbstractMesh((), ())) if use else contextlib.nullcontext()


def _assigned(rule: Rule, mesh: Any, shapes: Any, results: Any) -> dict[str, tuple[str, ...]]:
    """The axes of the mesh along which each factor is divided: those of a result first."""
    found: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for factor, size, axes in (*_wanted(rule.results, results), *_wanted(rule.operands, shapes)):
        parts = 1
        for axis in axes:
            parts *= mesh.shape[axis]
        free = axes and not taken.intersection(axes) and factor not in found
        if free and factor not in rule.whole and size % parts == 0:
            found[factor] = axes
            taken.update(axes)
    return found


def _wanted(
    mappings: Sequence[Sequence[str]], shapes: Sequence[Any]
) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    for mapping, shape in zip(mappings, shapes, strict=False):
        spec = getattr(shape.sharding, "spec", ())
        for factor, size, axes in zip(mapping, shape.shape, spec, strict=False):
            if axes is not None and axes is not PartitionSpec.UNCONSTRAINED:
                yield factor, size, axes if isinstance(axes, tuple) else (axes,)


def _spec(mapping: Sequence[str], axes: dict[str, tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(axes.get(factor) or None for factor in mapping))
