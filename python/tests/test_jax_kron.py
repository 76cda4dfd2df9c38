"""Kronecker products of JAX's arrays: traced, mapped and differentiated, against the whole product.

Values and derivatives are compared exactly: with small whole numbers no sum rounds.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import mercer as mc
import numpy as np
import pytest
from conftest import rest_long, spread
from mercer import kron

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

SHAPES = ((2, 3), (3, 1), (2, 2))  # of op(F)
P, Q = 12, 6  # their products


def whole(rng, *shape, dtype="f"):
    return jnp.asarray(rng.integers(-3, 4, size=shape).astype("f")).astype(dtype)


class Case:
    """Arguments of a call, and the same with the product written out."""

    def __init__(self, rng, left=False, turn_x=False, turns=False, alpha=1, beta=0, batch=((), ()),
                 vector=False, dtype="f"):  # fmt: skip
        inner, outer = (Q, P) if left else (P, Q)
        shape = (inner,) if vector else (inner, 4) if left else (4, inner)
        self.left, self.vector, self.turn_x = left, vector, turn_x
        self.turns = [turns] * 3 if isinstance(turns, bool) else turns
        x = whole(rng, *batch[0], *(shape[::-1] if turn_x else shape), dtype=dtype)
        factors = [
            whole(rng, *batch[1], *(s[::-1] if t else s), dtype=dtype)
            for s, t in zip(SHAPES, self.turns, strict=True)
        ]
        out = (outer,) if vector else (outer, 4) if left else (1, outer)
        self.y = whole(rng, *out, dtype=dtype) if beta else None
        self.scalars = {"alpha": alpha, "beta": beta}
        self.operands = (x, *factors, *([self.y] if beta else []))

    def mercer(self, x, *rest):
        factors, y = list(rest[:3]), (rest[3] if len(rest) > 3 else None)
        options = {"transpose_x": self.turn_x, "transpose_factors": self.turns, "y": y}
        if self.left:
            return kron.kron_matmul(factors, x, **options, **self.scalars)
        return kron.matmul(x, factors, **options, **self.scalars)

    def written_out(self, x, *rest):
        whole_product = jnp.ones((1, 1), x.dtype)
        for factor, turn in zip(rest[:3], self.turns, strict=True):
            f = factor.mT if turn else factor
            grown = whole_product[..., :, None, :, None] * f[..., None, :, None, :]
            rows, columns = grown.shape[-4] * grown.shape[-3], grown.shape[-2] * grown.shape[-1]
            whole_product = grown.reshape(*grown.shape[:-4], rows, columns)
        x = x.mT if self.turn_x else x
        sides = (whole_product, x) if self.left else (x, whole_product)
        out = self.scalars["alpha"] * jnp.matmul(*sides, precision="highest")
        return out + self.scalars["beta"] * rest[3] if len(rest) > 3 else out


CASES = {
    "plain": {},
    "left": {"left": True},
    "transposed": {"turn_x": True, "turns": [True, False, True]},
    "left transposed": {"left": True, "turn_x": True, "turns": True},
    "scaled": {"alpha": -2, "beta": 3},
    "left scaled": {"left": True, "alpha": 2, "beta": -1, "turns": [False, True, False]},
    "batch": {"batch": ((2, 1), (3,)), "alpha": 2, "beta": 1},
    "left batch": {"left": True, "batch": ((3,), (2, 1))},
    "batch of factors": {"batch": ((), (2,)), "turns": True, "turn_x": True},
    "vector": {"vector": True, "alpha": 3, "beta": 2},
    "left vector": {"left": True, "vector": True, "beta": 1},
}
ALL = pytest.mark.parametrize(
    "name", rest_long(CASES, "plain", "left scaled", "batch", "left batch", "vector")
)


def equal(got, wanted):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert isinstance(g, jax.Array)
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g, w)


def scalar(f, weights):
    """A function whose derivatives are not those of a sum: of the square, with weights."""
    return lambda *operands: (weights * f(*operands) ** 2).sum()


@ALL
@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_values(rng, name, how):
    case = Case(rng, **CASES[name])
    equal(how(case.mercer)(*case.operands), case.written_out(*case.operands))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_dtypes(rng, dtype):
    case = Case(rng, alpha=2, beta=-3, dtype=dtype)
    equal(case.mercer(*case.operands), case.written_out(*case.operands).astype(dtype))


@ALL
def test_gradients(rng, name):
    case = Case(rng, **CASES[name])
    places = tuple(range(len(case.operands)))
    weights = whole(rng, *case.written_out(*case.operands).shape)
    got, wanted = (
        jax.jit(jax.grad(scalar(f, weights), places))(*case.operands)
        for f in (case.mercer, case.written_out)
    )
    equal(got, wanted)


@pytest.mark.parametrize("place", range(5))
def test_the_gradient_by_one_operand(rng, place):
    case = Case(rng, **CASES["left scaled"])
    weights = whole(rng, *case.written_out(*case.operands).shape)
    got = jax.grad(scalar(case.mercer, weights), place)(*case.operands)
    equal(got, jax.jit(jax.grad(scalar(case.written_out, weights), place))(*case.operands))


@ALL
def test_tangents(rng, name):
    case = Case(rng, **CASES[name])
    directions = tuple(whole(rng, *o.shape) for o in case.operands)
    got, wanted = (
        jax.jit(lambda o, d, f=f: jax.jvp(f, o, d))(case.operands, directions)
        for f in (case.mercer, case.written_out)
    )
    equal(got, wanted)


@pytest.mark.parametrize("name", ["plain", "left batch"])
def test_second_derivatives(rng, name):
    """Both modes in every order, by all operands at once."""
    case = Case(rng, **CASES[name])
    weights = whole(rng, *case.written_out(*case.operands).shape)
    along = tuple(whole(rng, *o.shape) for o in case.operands)
    places = tuple(range(len(case.operands)))

    def derivatives(f):
        loss = lambda *operands: (weights * f(*operands)).sum()  # noqa: E731
        gradient = jax.grad(loss, places)
        forward = lambda *operands: jax.jvp(loss, operands, along)[1]  # noqa: E731
        dot = lambda *o: sum(  # noqa: E731
            (a * g).sum() for a, g in zip(along, gradient(*o), strict=True)
        )
        return jax.jit(
            lambda *operands: (
                jax.jvp(gradient, operands, along)[1],
                jax.grad(forward, places)(*operands),
                jax.jvp(forward, operands, along)[1],
                jax.grad(dot, places)(*operands),
            )
        )(*case.operands)

    equal(derivatives(case.mercer), derivatives(case.written_out))


def test_jacobians_and_hessians(rng):
    case = Case(rng, left=True)
    x, f, g, h = case.operands
    for of in (jax.jacfwd, jax.jacrev, jax.hessian):
        got, wanted = (
            jax.jit(of(lambda f, x, call=call: call(x, f, g, h), (0, 1)))(f, x)
            for call in (case.mercer, case.written_out)
        )
        equal(got, wanted)


def check_vmap(rng, name, mapped):
    case = Case(rng, **CASES[name])
    # Mapped axes come last, to see that they are moved.
    operands = [whole(rng, *o.shape, 3) if i in mapped else o for i, o in enumerate(case.operands)]
    axes = [-1 if i in mapped else None for i in range(len(operands))]
    places = tuple(range(len(operands)))

    def both(f, weights):
        gradient = jax.grad(scalar(f, weights), places)
        return jax.jit(lambda *o: (jax.vmap(f, axes)(*o), jax.vmap(gradient, axes)(*o)))(*operands)

    weights = whole(rng, *case.written_out(*case.operands).shape)
    equal(both(case.mercer, weights), both(case.written_out, weights))


@pytest.mark.parametrize(
    ("name", "mapped"),
    spread(
        ["plain", "left transposed", "batch", "left batch", "vector"],
        [(0,), (1,), (0, 1, 2, 3)],
    ),
    ids=str,
)
def test_vmap(rng, name, mapped):
    check_vmap(rng, name, mapped)


@pytest.mark.parametrize("mapped", [(4,), (2, 4), (0, 1, 2, 3, 4)], ids=str)
def test_vmap_over_y(rng, mapped):
    check_vmap(rng, "left scaled", mapped)
    check_vmap(rng, "vector", mapped)


def test_nested_vmap(rng):
    case = Case(rng, left=True, turns=[True, False, False])
    x, f, g, h = case.operands
    xs, fs = whole(rng, 5, *x.shape), whole(rng, 2, *f.shape)
    got, wanted = (
        jax.vmap(lambda f, call=call: jax.vmap(lambda x: call(x, f, g, h))(xs))(fs)
        for call in (case.mercer, case.written_out)
    )
    equal(got, wanted)


def test_a_linear_transpose(rng):
    case = Case(rng, turn_x=True)
    x, *factors = case.operands
    cotangent = whole(rng, 4, Q)
    got, wanted = (
        jax.linear_transpose(lambda x, call=call: call(x, *factors), x)(cotangent)
        for call in (case.mercer, case.written_out)
    )
    equal(got, wanted)


@pytest.mark.parametrize(
    "shapes",
    [((0, 6), (2, 2), (3, 3)), ((2, 0), (0, 2), (3, 3)), ((2, 6), (2, 0), (3, 3))],
)
def test_nothing(shapes):
    x, f, g = (jnp.ones(s) for s in shapes)
    loss = lambda x, f, g: kron.matmul(x, [f, g]).sum()  # noqa: E731
    assert loss(x, f, g) == 0
    equal(jax.grad(loss, (0, 1, 2))(x, f, g), tuple(jnp.zeros(s) for s in shapes))


def test_alpha_zero_reads_nothing(rng):
    x = jnp.full((2, 6), jnp.nan)
    y = whole(rng, 2, 6)
    scaled = lambda x, f, y: kron.matmul(x, [f, jnp.eye(3)], alpha=0, beta=2, y=y)  # noqa: E731
    equal(scaled(x, jnp.eye(2), y), 2 * y)
    gradients = jax.grad(lambda *o: scaled(*o).sum(), (0, 1, 2))(x, jnp.eye(2), y)
    equal(gradients, (jnp.zeros((2, 6)), jnp.zeros((2, 2)), jnp.full((2, 6), 2.0)))


def test_nothing_of_the_size_of_the_product(rng):
    """A matrix of four thousand million entries; by Euler, since the loss is linear in each."""
    operands = [jnp.asarray(rng.uniform(0.1, 1, size=s).astype("f")) for s in [(2, 65536)]]
    operands += [jnp.asarray(rng.uniform(0.1, 1, size=(16, 16)).astype("f")) for _ in range(4)]
    weights = jnp.asarray(rng.uniform(0.1, 1, size=(2, 65536)).astype("f"))
    loss = lambda *o: jnp.vdot(weights, kron.matmul(o[0], o[1:]))  # noqa: E731
    value, gradients = jax.jit(jax.value_and_grad(loss, tuple(range(5))))(*operands)
    for operand, gradient in zip(operands, gradients, strict=True):
        # All terms are positive: XLA's sums of 131072 of them, whatever their order, dominate.
        np.testing.assert_allclose(jnp.vdot(operand, gradient), value, rtol=131072 * 2.0**-24)


def test_training_converges(rng):
    """A factor is found again from products: the loop as it is used, jit of grad in a scan."""
    x, f, g = (jnp.asarray(rng.normal(size=s).astype("f")) for s in ((64, 6), (2, 2), (3, 3)))
    target = kron.matmul(x, [f, g])
    loss = lambda guess: ((kron.matmul(x, [guess, g]) - target) ** 2).mean()  # noqa: E731
    step = lambda guess, _: (guess - 0.02 * jax.grad(loss)(guess), None)  # noqa: E731
    found, _ = jax.lax.scan(step, jnp.zeros((2, 2), "f"), None, length=600)
    np.testing.assert_allclose(found, f, atol=1e-3)


X, F, G = np.ones((4, 6), "f"), np.ones((2, 2), "f"), np.ones((3, 3), "f")
REFUSED = {
    "out": (lambda x, f, g: kron.matmul(x, [f, g], out=x), NotImplementedError,
            "kron.matmul: out is not offered for arrays of JAX, which cannot be written"),
    "workspace": (lambda x, f, g: kron.matmul(x, [f, g], workspace=x), NotImplementedError,
                  "kron.matmul: workspace is not offered"),
    "workspace_size": (lambda x, f, g: mc.workspace_size("kron.matmul", x, [f, g]),
                       NotImplementedError, "workspace_size is not offered"),
    "another library": (lambda x, f, g: kron.matmul(x, [F, g]), ValueError,
                        r"factors\[0\] must come from the library of x, jax. Received numpy"),
    "y of another library": (lambda x, f, g: kron.matmul(x, [f, g], beta=1, y=X), ValueError,
                             "y must come from the library of x, jax. Received numpy"),
    "JAX in another library": (lambda x, f, g: kron.matmul(X, [f, g]), ValueError,
                               "Received an array of jax"),
    "a dtype": (lambda x, f, g: kron.matmul(x.astype("uint8"), [f, g]), ValueError,
                "x must be float16, .*, int32 or int64. Received uint8"),
    "complex numbers": (lambda x, f, g: kron.matmul(x.astype("complex64"), [f, g]), mc.DtypeError,
                        "x must be float16, .*, int32 or int64. Received complex64"),
    "two dtypes": (lambda x, f, g: kron.matmul(x, [f, g.astype("float16")]), ValueError,
                   r"factors\[1\] must have the dtype of x, float32. Received float16"),
    "extents": (lambda x, f, g: kron.kron_matmul([f, g], x), ValueError,
                r"the last but one axis of op\(x\) must have the product"),
    "no factors": (lambda x, f, g: kron.matmul(x, []), ValueError, "must be 1 to 64 factors"),
    "an array of factors": (lambda x, f, g: kron.matmul(x, f), TypeError,
                            "factors must be a list or tuple of arrays"),
    "flags": (lambda x, f, g: kron.matmul(x, [f, g], transpose_factors=[True]), ValueError,
              "transpose_factors must have one entry for each of 2 factors. Received 1"),
    "no y": (lambda x, f, g: kron.matmul(x, [f, g], beta=2), ValueError,
             "y must be given where beta is not 0. Received beta = 2"),
    "the shape of y": (lambda x, f, g: kron.matmul(x, [f, g], beta=2, y=g), ValueError,
                       r"y must broadcast to the shape of out, \(4, 6\). Received \(3, 3\)"),
    "half of a whole number": (
        lambda x, f, g: kron.matmul(*jax.tree.map(lambda a: a.astype(int), (x, [f, g])), alpha=0.5),
        ValueError, "alpha must be a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_refused(name, how):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        how(call)(*map(jnp.asarray, (X, F, G)))


# A program with 64-bit types, which JAX has for a whole process or not at all.
WIDE = """
    import jax, numpy as np
    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from mercer import kron
    rng = np.random.default_rng(0)
    x, f, g = rng.normal(size=(5, 12)), rng.normal(size=(3, 2)), rng.normal(size=(4, 5))
    out = kron.matmul(jnp.asarray(x), [jnp.asarray(f), jnp.asarray(g)])
    assert out.dtype == np.float64
    np.testing.assert_allclose(out, kron.matmul(x, [f, g]), rtol=0, atol=3e-14)  # of GPUs too
    whole = [a.astype("int64") for a in (10 * x, 10 * f, 10 * g)]
    out = jax.jit(lambda x, f, g: kron.matmul(x, [f, g], alpha=3))(*map(jnp.asarray, whole))
    assert out.dtype == np.int64
    np.testing.assert_array_equal(out, 3 * whole[0] @ np.kron(whole[1], whole[2]))
    loss = lambda x, f, g: jnp.sin(kron.matmul(x, [f, g])).sum()
    arrays = [jnp.asarray(a) for a in (x, f, g)]
    for place, a in enumerate(arrays):
        step = jnp.asarray(rng.normal(size=a.shape))
        near = [arrays[:place] + [a + h * step] + arrays[place + 1 :] for h in (1e-6, -1e-6)]
        slope = (loss(*near[0]) - loss(*near[1])) / 2e-6
        np.testing.assert_allclose((jax.grad(loss, place)(*arrays) * step).sum(), slope, rtol=1e-6)
"""


def test_64_bits():
    subprocess.run([sys.executable, "-c", textwrap.dedent(WIDE)], check=True)
