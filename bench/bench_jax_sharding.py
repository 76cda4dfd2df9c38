"""Sharded arrays of JAX on all devices of one process, compared with one device.

    python bench/bench_jax_sharding.py [--part 4] [--only words]

Each line is the best of three calls, of one device and of all, then their ratio. ``--part`` divides
the sizes. CPUs show several devices with XLA_FLAGS=--xla_force_host_platform_device_count=2.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the library needs memory too

import jax
import jax.numpy as jnp
import mercer as mc
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def best(call: Callable[..., Any], arrays: Sequence[Any], rounds: int = 3) -> tuple[float, Any]:
    """Milliseconds, and the result."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        result = jax.block_until_ready(call(*arrays))
        times.append(time.perf_counter() - began)
    return min(times[1:]) * 1e3, result


def product(x: Any, z: Any, v: Any) -> Any:
    return mc.kernel_product("gauss", x, z, v, bandwidth=8.0)


def cases(part: int) -> dict[str, tuple[Callable[..., Any], list[Any], list[Any]]]:
    """A function, its arrays, and what each is sharded by."""
    n, few = 200000 // part, 10**6 // part
    keys = iter(jax.random.split(jax.random.key(0), 8))
    x, z = (jax.random.normal(next(keys), (n, 64)) for _ in range(2))
    v = jax.random.normal(next(keys), (n, 16))
    queries = jax.random.normal(next(keys), (few, 64))
    gradient = jax.grad(lambda *a: jnp.sum(product(*a)), argnums=(0, 1, 2))
    rows = [P("a"), P(), P()]
    return {
        f"Gauss product {n} x {n} x 64, 16 columns": (product, [x, z, v], rows),
        "its gradients by x, z and v": (gradient, [x, z, v], rows),
        f"knn of {few} in {n} x 64, k = 10": (
            lambda q, p: mc.knn("l2", q, p, 10), [queries, z], rows[:2],
        ),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=int, default=1, help="divides the sizes")
    parser.add_argument("--only", nargs="*", default=[""], help="lines with one of these words")
    options = parser.parse_args()
    mesh = jax.make_mesh((jax.device_count(),), ("a",))
    print(f"JAX {jax.__version__}, one of {jax.device_count()} {jax.devices()[0].device_kind}, all")
    for name, (call, arrays, specs) in cases(options.part).items():
        if not any(word in name for word in options.only):
            continue
        alone, expected = best(jax.jit(call), arrays)
        sharded = [
            jax.device_put(a, NamedSharding(mesh, spec))
            for a, spec in zip(arrays, specs, strict=True)
        ]
        shared, found = best(jax.jit(call), sharded)
        largest = max(
            float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(np.asarray(b))))
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
        )
        print(
            f"{name:42} {alone:10.2f} ms {shared:10.2f} ms {alone / shared:6.2f}x"
            f"  difference {largest:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
