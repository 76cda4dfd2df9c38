"""mercer.linalg on arrays of JAX: values, errors, transforms and derivatives to the second order.

Values are compared with the same functions of NumPy's arrays, which test_linalg.py proves, and
derivatives with finite differences in float64, to the tolerance of check_grads for its steps.
"""

from __future__ import annotations

import numpy as np
import pytest
from conftest import rest_long

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import mercer as mc  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

linalg = mc.linalg
N = 3


@pytest.fixture(autouse=True)
def float64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape)


def positive(*shape, seed=0):
    a = normal(*shape, seed=seed)
    return a @ np.swapaxes(a, -1, -2) / shape[-1] + np.eye(shape[-1])


def up_to_signs(pair):
    return pair[0], pair[1] ** 2


CASES = {
    "cholesky": (lambda a: linalg.cholesky(symmetric(a)), (positive(2, N, N),)),
    "cholesky with jitter": (lambda a: linalg.cholesky(symmetric(a), lower=False, jitter=0.2),
                             (positive(N, N) - 1.1 * np.eye(N),)),
    "solve_cholesky": (lambda a, b: linalg.solve_cholesky(symmetric(a), b),
                       (positive(2, N, N), normal(N, 2))),
    "solve_cholesky of a vector": (lambda a, b: linalg.solve_cholesky(symmetric(a), b, lower=False),
                                   (positive(N, N), normal(N))),
    "cho_solve": (lambda a, b: linalg.cho_solve(a, b), (positive(N, N), normal(2, N, 2))),
    "cho_solve, upper": (lambda a, b: linalg.cho_solve(a, b, lower=False),
                         (positive(N, N), normal(N))),
    "cho_inverse": (linalg.cho_inverse, (positive(N, N),)),
    "cho_inverse_diagonal": (lambda a: linalg.cho_inverse_diagonal(a, lower=False),
                             (positive(2, N, N),)),
    "solve_triangular": (lambda a, b: linalg.solve_triangular(a, b), (positive(N, N), normal(N))),
    "solve_triangular, upper": (
        lambda a, b: linalg.solve_triangular(a, b, lower=False, unit_diagonal=True),
        (positive(N, N), normal(2, N, 1))),
    "solve_triangular, transposed": (
        lambda a, b: linalg.solve_triangular(a, b, transposed=True), (positive(N, N), normal(N))),
    "solve_triangular, upper transposed": (
        lambda a, b: linalg.solve_triangular(a, b, lower=False, transposed=True),
        (positive(N, N), normal(N))),
    "inv_quad_logdet": (lambda a, b: linalg.inv_quad_logdet(symmetric(a), b),
                        (positive(2, N, N), normal(N, 2))),
    "lu_factor": (lambda a: linalg.lu_factor(a)[0], (normal(N, N),)),
    "lu_factor of tall ones": (lambda a: linalg.lu_factor(a)[0], (normal(4, 2),)),
    "lu_factor of wide ones": (lambda a: linalg.lu_factor(a)[0], (normal(2, 4),)),
    "lu_solve": (lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b, transposed=True),
                 (normal(N, N), normal(N, 2))),
    "solve_lu": (lambda a, b: linalg.solve_lu(a, b), (normal(2, N, N), normal(N, 2))),
    "eigh": (lambda a: up_to_signs(linalg.eigh(symmetric(a), subset_by_index=(1, 2))),
             (positive(N, N),)),
    "eigenvalues": (lambda a: linalg.eigh(symmetric(a), eigvals_only=True), (positive(N, N),)),
    "kron.solve": (lambda a, c, b: mc.kron.solve([symmetric(a), symmetric(c)], b),
                   (positive(2, 2), positive(2, N, N), normal(2 * N))),
    "kron.solve with a shift": (
        lambda a, c, b, s: mc.kron.solve([symmetric(a), symmetric(c)], b, shift=s),
        (np.eye(2), positive(2, N, N), normal(2 * N, 1), np.array(0.3))),
    "kron.logdet": (lambda a, c: mc.kron.logdet([symmetric(a), symmetric(c)]),
                    (positive(2, 2), positive(2, N, N))),
    "kron.logdet with a shift": (
        lambda a, c, s: mc.kron.logdet([symmetric(a), symmetric(c)], shift=s),
        (positive(2, 2), positive(N, N), np.array(0.3))),
}  # fmt: skip
COMPILED = ("cholesky with jitter", "solve_cholesky", "lu_solve", "eigh", "kron.solve with a shift")


def symmetric(a):
    return (a + a.swapaxes(-1, -2)) / 2


def taken(name):
    function, inputs = CASES[name]
    return function, [jnp.asarray(array) for array in inputs]


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numpy(name):
    """Both come from one function of the engine, but for the jitter, which is added apart."""
    function, inputs = taken(name)
    wanted = jax.tree.leaves(function(*map(np.asarray, inputs)))
    results = [function(*inputs)]
    if name in COMPILED:
        results.append(jax.jit(function)(*inputs))
    for found in results:
        for ours, theirs in zip(jax.tree.leaves(found), wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [n for n in CASES if "triangular" not in n])  # JAX's own
def test_derivatives(name):
    function, inputs = taken(name)
    twice = name in (
        "cholesky",
        "solve_cholesky",
        "cho_solve",
        "inv_quad_logdet",
        "solve_lu",
        "eigh",
    )
    check_grads(jax.jit(function), inputs, order=2 if twice else 1, modes=["rev"])


@pytest.mark.parametrize("name", ["solve_cholesky", "inv_quad_logdet", "lu_solve", "eigh"])
def test_mapped(name):
    function, (first, *rest) = taken(name)
    stack = jnp.stack([first, 2 * first])
    found = jax.vmap(function, (0, *[None] * len(rest)))(stack, *rest)
    if rest:
        turned = jax.vmap(function, (None, -1))(first, jnp.stack([rest[0], 3 * rest[0]], -1))
        wanted = function(first, 3 * rest[0])
        for ours, theirs in zip(jax.tree.leaves(turned), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(ours[1], theirs, rtol=1e-12)
    for ours, theirs in zip(
        jax.tree.leaves(found), jax.tree.leaves(function(2 * first, *rest)), strict=True
    ):
        np.testing.assert_allclose(ours[1], theirs, rtol=1e-12)


# ---- Conjugate gradients. -----------------------------------------------------------------------

POINTS, RIGHT = normal(6, 2), normal(6, 2, seed=3)
OPERATORS = {
    "points, width, ridge and b": (
        lambda x, h, r, b: linalg.KernelOperator("gauss", x, ridge=r, bandwidth=h),
        lambda x, h, r, b: mc.kernel_matrix("gauss", x, bandwidth=h) + r * jnp.eye(6),
        (POINTS, np.array(1.5), np.array(0.5), RIGHT)),
    "weights and ridges of points": (
        lambda x, s, r, b: linalg.KernelOperator(mc.gauss(bandwidth=1.5), x, ridge=r, weights=s),
        lambda x, s, r, b: jnp.sqrt(s)[:, None] * jnp.sqrt(s) * mc.kernel_matrix(
            "gauss", x, bandwidth=1.5) + jnp.diag(r),
        (POINTS, 0.5 + abs(normal(6)), 0.5 + abs(normal(6, seed=5)), RIGHT[:, 0])),
    "weights of features, and row": (
        lambda x, w, r, b: linalg.KernelOperator(
            "row*col*exp(-sum(w*(x-z)^2))", x, w=w, row=r, col=r, ridge=0.5),
        lambda x, w, r, b: mc.kernel_matrix(
            "row*col*exp(-sum(w*(x-z)^2))", x, w=w, row=r, col=r) + 0.5 * jnp.eye(6),
        (POINTS, np.array([0.7, 1.2]), normal(6), RIGHT)),
    "a matrix": (lambda a, b: symmetric(a), lambda a, b: symmetric(a), (positive(N, N), normal(N))),
}  # fmt: skip


def both(name):
    """A number that cg's solution gives, and a stored matrix's."""
    made, matrix, inputs = OPERATORS[name]

    def ours(*inputs):
        return jnp.sin(linalg.cg(made(*inputs), inputs[-1], tol=1e-13)).sum()

    def theirs(*inputs):
        return jnp.sin(jnp.linalg.solve(matrix(*inputs), inputs[-1])).sum()

    return ours, theirs, tuple(map(jnp.asarray, inputs))


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_conjugate_gradients(name):
    ours, theirs, inputs = both(name)
    places = tuple(range(len(inputs)))
    found = jax.jit(jax.grad(ours, places))(*inputs)
    for mine, exact in zip(found, jax.grad(theirs, places)(*inputs), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-8, atol=1e-9)


def test_second_derivatives_of_conjugate_gradients():
    ours, theirs, (x, h, r, b) = both("points, width, ridge and b")

    def by_width(function):
        return jax.grad(jax.grad(lambda h: function(x, h, r, b)))

    np.testing.assert_allclose(by_width(ours)(h), by_width(theirs)(h), rtol=1e-8)


def test_columns_of_conjugate_gradients_end_on_their_own():
    a = jnp.asarray(positive(N, N))
    b = jnp.asarray(np.stack([normal(N), np.full(N, np.nan), np.zeros(N)], -1))
    x, info, _ = linalg.cg(a, b, check=False)
    assert info.tolist() == [0, -1, 0]
    np.testing.assert_allclose(x[:, 0], np.linalg.solve(a, b[:, 0]), rtol=1e-8)
    assert np.isnan(x[:, 1]).all()
    assert not x[:, 2].any()
    x = linalg.cg(a, b[:, :1], ridge=jnp.asarray([0.5]))
    np.testing.assert_allclose((a + 0.5 * jnp.eye(N)) @ x, b[:, :1], rtol=1e-8)
    with pytest.raises(mc.LinAlgError, match="cg: a must be positive definite"):
        linalg.cg(-a, b[:, 0])
    assert np.isnan(jax.jit(lambda a, b: linalg.cg(-a, b))(a, b[:, 0])).all()
    assert linalg.cg(a, b[:, 0], max_iter=1, tol=1e-14, check=False)[1] == 1
    narrow = a.astype("float32"), b[:, 0].astype("float32")
    assert linalg.cg(*narrow, tol=1e-12, check=False)[1] == -2


REFUSED_BY_CG = {
    "a preconditioner": (lambda x, b: linalg.cg(x @ x.T, b, preconditioner=1), ValueError,
                         "cg: preconditioner must be made by rpcholesky, nystrom or"),
    "a first guess": (lambda x, b: linalg.cg(x @ x.T, b, x0=b), NotImplementedError,
                      "cg: x0 is not offered for arrays of jax"),
    "a shape": (lambda x, b: linalg.cg(linalg.KernelOperator("l1", x), b[1:]), ValueError,
                r"cg: b must be an array of jax of the shape \[n, k\]"),
    "a dtype": (lambda x, b: linalg.cg(linalg.KernelOperator("l1", x), b.astype("float32")),
                mc.DtypeError, "cg: b must be float64, the dtype of a. Received float32"),
    "no symmetry": (lambda x, b: linalg.KernelOperator("sum(x)", x), ValueError, "symmetric"),
    "a negative ridge": (lambda x, b: linalg.KernelOperator("l1", x, ridge=-1.0), ValueError,
                         "ridge must be from 0 on and finite"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_BY_CG)
def test_refused_by_conjugate_gradients(case):
    call, error, words = REFUSED_BY_CG[case]
    with pytest.raises(error, match=words):
        call(jnp.asarray(POINTS), jnp.asarray(RIGHT[:, 0]))


def test_sums_are_of_float64():
    a, b = jnp.asarray(positive(N, N), "float32"), jnp.asarray(normal(N), "float32")
    wanted = b.astype("float64") @ linalg.solve_cholesky(a, b).astype("float64")
    quad, logdet = linalg.inv_quad_logdet(a, b)
    assert quad.dtype == logdet.dtype == jnp.float64
    np.testing.assert_allclose(quad, wanted, rtol=1e-14)
    by_a = jax.grad(lambda a: sum(linalg.inv_quad_logdet(a, b)))(a)
    assert by_a.dtype == jnp.float32


def test_without_float64():
    jax.config.update("jax_enable_x64", False)
    a, b = jnp.asarray(positive(2, N, N)), jnp.asarray(normal(N))
    pair = linalg.lu_factor(a)
    assert pair[1].dtype == jnp.int32
    for x in (linalg.lu_solve(pair, b), linalg.solve_lu(a, b), linalg.solve_cholesky(a, b)):
        assert x.dtype == jnp.float32
        wanted = np.linalg.solve(np.asarray(a), np.asarray(b)[:, None])[..., 0]
        np.testing.assert_allclose(x, wanted, rtol=64 * N * 2.0**-24 * 10, atol=1e-6)
    info = linalg.cholesky(-a, check=False)[1]
    assert info.tolist() == [1, 1]


def test_errors_and_what_stands_for_them():
    a, b = jnp.asarray(np.stack([positive(N, N), -positive(N, N)])), jnp.asarray(normal(N))
    with pytest.raises(mc.LinAlgError, match=r"solve_cholesky: a must be positive.*item \(1,\)"):
        linalg.solve_cholesky(a, b)
    with pytest.raises(mc.LinAlgError, match="lu_factor: "):
        linalg.lu_factor(0 * a)
    x = jax.jit(linalg.solve_cholesky)(a, b)
    assert np.isfinite(x[0]).all()
    assert np.isnan(x[1]).all()
    _, info = linalg.solve_cholesky(a, b, check=False)
    assert info.tolist() == [0, 1]


REFUSED = {
    "out": (lambda a, b: linalg.cholesky(a, out=b), NotImplementedError,
            "cholesky: out is not offered for arrays of jax"),
    "overwrite_a": (lambda a, b: linalg.solve_lu(a, b, overwrite_a=True), NotImplementedError,
                    "solve_lu: overwrite_a is not offered for arrays of jax"),
    "a shape": (lambda a, b: linalg.solve_lu(a, b[1:]), ValueError, "b must have the shape"),
    "a dtype": (lambda a, b: linalg.solve_lu(a, b.astype("float32")), mc.DtypeError,
                "solve_lu: b must have the dtype of a, float64. Received float32"),
    "another library": (lambda a, b: linalg.solve_lu(a, np.asarray(b)), ValueError,
                        "solve_lu: b must come from the library of a, jax"),
    "jitter": (lambda a, b: linalg.cholesky(a, jitter=-1.0), ValueError, "jitter must be positive"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call(jnp.asarray(positive(N, N)), jnp.asarray(normal(N, N)))


def test_on_cuda():
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("no GPU for JAX")
    for name in CASES:
        function, inputs = taken(name)
        wanted = jax.tree.leaves(function(*inputs))
        found = jax.tree.leaves(jax.jit(function)(*(jax.device_put(t, device) for t in inputs)))
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "mode", rest_long(["hessian", "jacrev of jacrev", "jacfwd of jacfwd"], "jacfwd of jacfwd")
)
def test_second_derivatives_of_a_shifted_kronecker_solution(mode):
    rng = np.random.default_rng(0)
    m = rng.normal(size=(2, 2))
    a, c, b = jnp.asarray(m @ m.T + 2 * np.eye(2)), 3 * jnp.eye(3), jnp.arange(6.0)
    twice = {
        "hessian": jax.hessian,
        "jacrev of jacrev": lambda f, argnums: jax.jacrev(jax.jacrev(f, argnums), argnums),
        "jacfwd of jacfwd": lambda f, argnums: jax.jacfwd(jax.jacfwd(f, argnums), argnums),
    }[mode]

    def ours(a, shift):
        return mc.kron.solve([(a + a.T) / 2, c], b, shift=shift).sum()

    def dense(a, shift):
        whole = jnp.kron((a + a.T) / 2, c) + shift * jnp.eye(6)
        return jnp.linalg.solve(whole, b).sum()

    found, wanted = (twice(f, (0, 1))(a, 0.4) for f in (ours, dense))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("change", "words"), [
    ({"ridge": jnp.ones((2, 1))}, r"cg: ridge must be a number or have shape \(3,\)"),
    ({"ridge": -0.5}, "cg: ridge must be from 0 on and finite"),
    ({"ridge": jnp.asarray([1.0, np.inf, 1.0])}, "cg: ridge must be from 0 on and finite"),
])  # fmt: skip
def test_ridges_of_conjugate_gradients_are_checked(change, words):
    with pytest.raises(ValueError, match=words):
        mc.linalg.cg(jnp.eye(2), jnp.ones((2, 3)), **change)
    with pytest.raises(ValueError, match="weights must be from 0 on"):
        mc.linalg.KernelOperator("gauss", jnp.ones((2, 1)), ridge=1.0, weights=-jnp.ones(2))
