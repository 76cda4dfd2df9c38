"""Sharded arrays of JAX, on four CPU devices of one process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax")

CHECKS = r'''
import sys

import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import mercer as mc

rng = np.random.default_rng(0)
M, N, K, E = 16, 8, 3, 2
X, Z, V = (rng.normal(size=s).astype("f") for s in ((M, K), (N, K), (N, E)))
ROW, COL = rng.normal(size=M).astype("f"), rng.normal(size=N).astype("f")
F = "exp(-sum((x-z)^2)/h)"
VERBS = {
    "pairwise": lambda x, z, v: mc.pairwise(F, x, z, h=2.0),
    "cdist": lambda x, z, v: mc.cdist(x, z, 1.3),
    "kernel_product": lambda x, z, v: mc.kernel_product(F, x, z, v, h=2.0),
    "kernel_gradient": lambda x, z, v: mc.kernel_gradient(F, x, z, v.T, h=2.0),
    "kernel_reduce sum": lambda x, z, v: mc.kernel_reduce(F, x, z, "sum", h=2.0),
    "kernel_reduce max": lambda x, z, v: mc.kernel_reduce(F, x, z, "max", h=2.0),
    "kernel_reduce argmin": lambda x, z, v: mc.kernel_reduce(F, x, z, "argmin", h=2.0),
    "kernel_reduce logsumexp": lambda x, z, v: mc.kernel_reduce(F, x, z, "logsumexp", h=2.0),
    "knn": lambda x, z, v: mc.knn(F, x, z, 3, h=2.0),
    "kernel_agop": lambda x, z, v: mc.kernel_agop(F, x, z, v.T, h=2.0),
}
# Verbs of which z may stay in shards: what they sum over n is added up.
KEEPS_Z = ("pairwise", "cdist", "kernel_product", "kernel_gradient", "kernel_reduce sum",
           "kernel_reduce max")
ROWS = {name for name in VERBS if name != "kernel_agop"}


def meshes():
    for kind in ("Auto", "Explicit"):
        types = (getattr(jax.sharding.AxisType, kind),)
        yield kind, jax.make_mesh((4,), ("a",), axis_types=types)
        yield kind, jax.make_mesh((2, 2), ("a", "b"), axis_types=types * 2)


def put(array, mesh, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def close(found, expected, exact=False):
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, *((0, 0) if exact else (2e-6, 2e-6)))


def first(spec):
    return spec[0] if len(spec) else None


def check_verbs(kind, mesh):
    two = len(mesh.axis_names) == 2
    for name, verb in VERBS.items():
        expected = jax.jit(verb)(*map(jnp.asarray, (X, Z, V)))
        close(expected, verb(X, Z, V))
        for rows, columns in (("a", None), (None, "a"), ("a", "b"), (("a", "b"), None)):
            if "b" in str((rows, columns)) and not two:
                continue
            x, z, v = put(X, mesh, rows), put(Z, mesh, columns), put(V, mesh, columns)
            with jax.set_mesh(mesh):
                call = jax.jit(verb).lower(x, z, v).compile()
                found = call(x, z, v)
            close(found, expected, exact=columns is None and name in ROWS)
            gathers = "all-gather" in call.as_text()
            assert not gathers or (columns is not None and name not in KEEPS_Z), (kind, name, rows)
            if rows is not None and name in ROWS:
                axis = 1 if name == "kernel_gradient" else 0
                for leaf in jax.tree.leaves(found):
                    assert leaf.sharding.spec[axis] == rows, (kind, name, leaf.sharding)


def check_same_points(kind, mesh):
    expected = mc.pairwise(F, X, h=2.0)
    with jax.set_mesh(mesh):
        found = jax.jit(lambda x: mc.pairwise(F, x, None, h=2.0))(put(X, mesh, "a"))
    close(found, expected)
    assert first(found.sharding.spec) == "a"
    np.testing.assert_array_equal(np.diag(found), np.ones(M, "f"))


def check_rows_columns_and_indices(kind, mesh):
    f = "row*col*sum(x*z) + (i == j) + 0.1*i"
    expected = mc.pairwise(f, X, Z, row=ROW, col=COL)
    with jax.set_mesh(mesh):
        call = jax.jit(lambda x, z, r, c: mc.pairwise(f, x, z, row=r, col=c))
        close(call(put(X, mesh, "a"), put(Z, mesh), put(ROW, mesh, "a"), put(COL, mesh)), expected)
    f = "row*col*sum(x*z)"
    expected = mc.pairwise(f, X, Z, row=ROW, col=COL)
    with jax.set_mesh(mesh):
        call = jax.jit(lambda x, z, r, c: mc.pairwise(f, x, z, row=r, col=c))
        arrays = put(X, mesh, "a"), put(Z, mesh), put(ROW, mesh, "a"), put(COL, mesh)
        found = call(*arrays)
    close(found, expected, exact=True)
    assert first(found.sharding.spec) == "a"


def loss(x, z, v):
    return (mc.kernel_product(F, x, z, v, h=2.0) ** 2).sum()


def second(x, z, v):
    return sum((g**2).sum() for g in jax.grad(loss, (0, 1, 2))(x, z, v))


def check_derivatives(kind, mesh):
    for f in (loss, second):
        gradient = jax.grad(f, (0, 1, 2))
        expected = gradient(*map(jnp.asarray, (X, Z, V)))
        scale = max(float(jnp.abs(g).max()) for g in expected)
        for rows, columns in (("a", None), (None, "a")):
            arrays = put(X, mesh, rows), put(Z, mesh, columns), put(V, mesh, columns)
            with jax.set_mesh(mesh):
                found = jax.jit(gradient)(*arrays)
            for got, wanted in zip(found, expected, strict=True):
                np.testing.assert_allclose(got, wanted, 1e-5, 2e-6 * scale)


def check_batch(kind, mesh):
    """Leading axes in shards need no exchange."""
    xs, zs = rng.normal(size=(4, M, K)).astype("f"), rng.normal(size=(4, N, K)).astype("f")
    with jax.set_mesh(mesh):
        arrays = put(xs, mesh, "a"), put(zs, mesh, "a")
        call = jax.jit(lambda x, z: mc.pairwise(F, x, z, h=2.0)).lower(*arrays).compile()
        found = call(*arrays)
        mapped = jax.jit(jax.vmap(lambda x, z: mc.knn("l2", x, z, 2)[0]))(*arrays)
    assert "all-gather" not in call.as_text() and first(found.sharding.spec) == "a"
    close(found, mc.pairwise(F, xs, zs, h=2.0), exact=True)
    close(mapped, mc.knn("l2", xs, zs, 2)[0], exact=True)


def check_shard_map():
    mesh = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))

    def shard(x, z, v):
        return jax.lax.psum(mc.kernel_product(F, x, z, v, h=2.0), "a")

    call = jax.shard_map(shard, mesh=mesh, in_specs=(P(), P("a"), P("a")), out_specs=P())
    close(jax.jit(call)(X, Z, V), mc.kernel_product(F, X, Z, V, h=2.0))
    mine = jax.jit(jax.grad(lambda *a: (call(*a) ** 2).sum(), (0, 1, 2)))
    plain = jax.grad(loss, (0, 1, 2))
    for got, wanted in zip(mine(X, Z, V), plain(*map(jnp.asarray, (X, Z, V))), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
    rows = jax.shard_map(
        lambda x, z: mc.knn("l2", x, z, 2)[0], mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a")
    )
    close(jax.jit(rows)(X, Z), mc.knn("l2", X, Z, 2)[0], exact=True)


for kind, mesh in meshes():
    for check in (check_verbs, check_same_points, check_rows_columns_and_indices,
                  check_derivatives, check_batch):
        check(kind, mesh)
check_shard_map()
print("all checked")
'''


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="JAX before 0.7 has no jax.set_mesh")
def test_four_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    run = subprocess.run(
        [sys.executable, "-c", CHECKS],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert "all checked" in run.stdout
