"""Kernel operators of JAX: parts, preconditioners, minres, sap, eigh_top, both parts of a
likelihood, and parameter_gradient; against stored float64 matrices, under transforms too."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from conftest import rest_long

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import mercer as mc  # noqa: E402

linalg = mc.linalg
N = 40
RNG = np.random.default_rng(0)
X, B = RNG.normal(size=(N, 2)), RNG.normal(size=(N, 2))
ROW, RIDGES, WEIGHTS = RNG.normal(size=N), RNG.uniform(0.1, 1, N), RNG.uniform(0.1, 1, N)
SIDED = "row*col*exp(-sum(w*(x-z)^2)/h)"
EPS = np.finfo("d").eps


@pytest.fixture(autouse=True)
def float64():
    """64-bit types; programs are compiled quickly, since each serves a few small calls."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.config.update("jax_enable_x64", before)


def made(array):
    """One operator of NumPy's or of JAX's arrays, with all that one may have."""
    row = array(ROW)
    return linalg.KernelOperator(
        SIDED, array(X), ridge=array(RIDGES), weights=array(WEIGHTS), w=array(np.array([0.5, 2])),
        row=row, col=row, h=1.5,
    )  # fmt: skip


def gauss(h=1.0, ridge=0.1, x=X):
    return linalg.KernelOperator("gauss", jnp.asarray(x), ridge=ridge, bandwidth=h)


def dense(operator):
    return np.asarray(operator @ jnp.eye(operator.shape[0], dtype=operator.dtype))


def test_parts():
    whole = made(np.asarray) @ np.eye(N)
    operator = made(jnp.asarray)
    tolerance = {"rtol": 0, "atol": 64 * EPS * abs(whole).max()}
    np.testing.assert_allclose(dense(operator), whole, **tolerance)
    np.testing.assert_allclose(jnp.asarray(B).T @ operator, B.T @ whole, atol=1e-12)
    np.testing.assert_allclose(operator.diagonal(), np.diag(whole), **tolerance)
    for i in (3, -1, slice(1, 20, 3), [5, -2, 5], np.array([0, 7]), jnp.asarray([2])):
        np.testing.assert_allclose(operator.rows(i), whole[i], **tolerance)
    rows = jax.jit(lambda a, i: a.rows(i))(operator, jnp.asarray([4, N, -1]))
    np.testing.assert_allclose(rows[::2], whole[[4, -1]], **tolerance)
    assert np.isnan(rows[1]).all()  # nothing can be raised there
    assert operator.shape == (N, N)
    assert operator.T is operator
    assert operator.dtype == jnp.float64
    copied = pickle.loads(pickle.dumps(operator))
    np.testing.assert_array_equal(copied @ jnp.asarray(B), operator @ jnp.asarray(B))


def test_parts_of_a_formula_that_reads_indices():
    f = "exp(-sum((x-z)^2))*(1+(i==j))"
    operator = linalg.KernelOperator(f, jnp.asarray(X), ridge=0.5)
    whole = mc.kernel_matrix(f, X) + 0.5 * np.eye(N)
    np.testing.assert_allclose(operator.rows([3, -1]), whole[[3, -1]], atol=1e-14)
    with pytest.raises(NotImplementedError, match="diagonal is not offered for formulas that read"):
        operator.diagonal()
    with pytest.raises(NotImplementedError, match="rpcholesky: is not offered for formulas that"):
        linalg.rpcholesky(operator, 3)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda a: a.rows(N), IndexError, f"rows must be from -{N} to {N - 1}"),
    (lambda a: a.rows([True]), TypeError, "rows are whole numbers. Received True"),
    (lambda a: a @ B, ValueError, "v must come from the library of the points, jax"),
    (lambda a: a @ jnp.ones(3), ValueError, r"v must have the shape \[n, k\] or \[n\], n = 40"),
    (lambda a: a @ jnp.ones(N, "float32"), mc.DtypeError, "v must be float64. Received float32"),
    (lambda a: linalg.rpcholesky(a, 0), ValueError, "rpcholesky: rank must be positive"),
    (lambda a: linalg.rpcholesky(a, 3, ridge=0.0), ValueError, "rpcholesky: ridge must be posit"),
    (lambda a: linalg.rpcholesky(a, 3, block=0), ValueError, "rpcholesky: block must be positive"),
    (lambda a: linalg.rpcholesky(-jnp.eye(3), 2, ridge=0.1), mc.LinAlgError, "positive semi-defi"),
    (lambda a: linalg.rpcholesky(jnp.nan * jnp.eye(3), 2, ridge=0.1), mc.LinAlgError, "finite"),
    (lambda a: linalg.nystrom(-jnp.eye(3), 2), mc.LinAlgError, "positive semi-definite"),
    (lambda a: linalg.pivoted_cholesky(jnp.eye(3), 2), TypeError, "a must be a KernelOperator"),
    (lambda a: linalg.nystrom(a, 5).solve(jnp.ones(3)), ValueError, "v must be an array of jax of"),
    (lambda a: linalg.nystrom(a, 5).with_ridge(-1.0), ValueError, "ridge must be positive and"),
    (lambda a: linalg.eigh_top(a, N + 1), ValueError, "eigh_top: k must be from 1 to n, 40"),
    (lambda a: linalg.eigh_top(a, 1, which="all"), ValueError, 'which must be "largest"'),
    (lambda a: linalg.minres(a, jnp.ones(N), x0=jnp.ones(N)), NotImplementedError, "minres: x0"),
    (lambda a: linalg.inv_quad_logdet(a, jnp.ones(N), n_probes=0), ValueError, "n_probes must be"),
    (lambda a: linalg.sap(a, jnp.ones(N), rank=3), NotImplementedError, "sap: rank is not offered"),
    (lambda a: linalg.sap(a, jnp.ones(N), block=0), ValueError, "sap: block must be positive"),
    (lambda a: linalg.sap(gauss(ridge=0.0), jnp.ones(N)), ValueError, "ridges must be positive"),
    (lambda a: linalg.sap(linalg.KernelOperator("exp(-sum((x-z)^2))*(i+j)", a.points, ridge=0.1),
                          jnp.ones(N)), NotImplementedError, "sap: is not offered for formulas"),
    (lambda a: linalg.cg(a, jnp.ones(N), preconditioner=linalg.nystrom(made(np.asarray), 3)),
     ValueError, "cg: preconditioner must be made by .* of the library of a, jax"),
])  # fmt: skip
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(gauss())


MAKERS = {
    "rpcholesky": lambda a: linalg.rpcholesky(a, 15, block=4),
    "pivoted_cholesky": lambda a: linalg.pivoted_cholesky(a, 15),
    "nystrom": lambda a: linalg.nystrom(a, 15),
}


@pytest.mark.parametrize("name", rest_long(MAKERS, "nystrom", "pivoted_cholesky"))
def test_preconditioners(name):
    """P is one matrix in all of its parts, near the operator, and makes cg shorter."""
    operator = made(jnp.asarray)
    p = MAKERS[name](operator)
    inverse = np.asarray(p.solve(jnp.eye(N)))
    matrix = np.linalg.inv(inverse)
    close = {"rtol": 1e-10, "atol": 1e-11}
    root = np.asarray(p.sqrt(jnp.eye(N)))
    np.testing.assert_allclose(root @ root, matrix, **close)
    np.testing.assert_allclose(p.diagonal(), np.diag(matrix), **close)
    np.testing.assert_allclose(p.logdet(), np.linalg.slogdet(matrix)[1], rtol=1e-12)
    whole = dense(operator)
    assert np.linalg.cond(inverse @ whole) < 0.3 * np.linalg.cond(whole)
    b = jnp.asarray(B)
    x, info, count = linalg.cg(operator, b, preconditioner=p, check=False)
    assert (info == 0).all()
    assert (count < linalg.cg(operator, b, check=False)[2]).all()
    gap = np.linalg.norm(whole @ x - B, axis=0) / np.linalg.norm(B, axis=0)
    assert (gap <= 1.01e-10).all()
    ridges = jnp.asarray([0.2, 3.0])
    several = p.with_ridge(ridges)
    for column, ridge in enumerate(ridges):
        one = p.with_ridge(ridge)
        np.testing.assert_allclose(several.solve(b)[:, column], one.solve(b[:, column]), **close)
        np.testing.assert_allclose(several.sqrt(b)[:, column], one.sqrt(b[:, column]), **close)
        np.testing.assert_allclose(several.logdet()[column], one.logdet(), rtol=1e-14)
        np.testing.assert_allclose(several.diagonal()[:, column], one.diagonal(), **close)


@pytest.mark.parametrize("name", rest_long(["rpcholesky", "nystrom"], "nystrom"))
def test_preconditioners_within_programs(name):
    """Under jit, vmap and grad: what they divide by has no part in a solution."""

    def solution(h):
        operator = gauss(h)
        return linalg.cg(operator, jnp.asarray(B), preconditioner=MAKERS[name](operator), tol=1e-13)

    def exact(h):
        a = mc.kernel_matrix("gauss", jnp.asarray(X), bandwidth=h) + 0.1 * jnp.eye(N)
        return jnp.linalg.solve(a, jnp.asarray(B))

    close = {"rtol": 1e-8, "atol": 1e-8}  # the condition, 400, times the tolerance and what adds up
    if name == "nystrom":
        widths = jnp.asarray([0.7, 1.5])
        for one, h in zip(jax.vmap(solution)(widths), widths, strict=True):
            np.testing.assert_allclose(one, exact(h), **close)
        return
    program = jax.jit(jax.value_and_grad(lambda h: jnp.sin(solution(h)).sum()))
    wanted = jax.value_and_grad(lambda h: jnp.sin(exact(h)).sum())(1.0)
    for one, other in zip(program(1.0), wanted, strict=True):
        np.testing.assert_allclose(one, other, **close)


def test_seeds_and_weights_of_points():
    p = linalg.rpcholesky(gauss(), 12, seed=1)
    matrix = np.linalg.inv(p.solve(jnp.eye(N))) - 0.1 * np.eye(N)
    s = np.sqrt(WEIGHTS)
    found = np.linalg.inv(p.weighted(jnp.asarray(WEIGHTS)).solve(jnp.eye(N)))
    np.testing.assert_allclose(found, s[:, None] * matrix * s + 0.1 * np.eye(N), atol=1e-10)
    same, other = (linalg.rpcholesky(gauss(), 12, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(same.diagonal(), p.diagonal())
    assert not np.array_equal(other.diagonal(), p.diagonal())


# ---- minres. ------------------------------------------------------------------------------------


def indefinite(h, r):
    """Gauss' matrix with some of its eigenvalues moved below 0."""
    return mc.kernel_matrix("gauss", jnp.asarray(X), bandwidth=h) - r * jnp.eye(N)


def test_minimal_residuals():
    a = indefinite(1.0, 0.7)
    values = np.linalg.eigvalsh(a)
    assert values[0] < 0 < values[-1]
    x, info, count = linalg.minres(a, jnp.asarray(B), check=False)
    assert (info == 0).all()
    assert (count <= N + 5).all()
    gap = np.linalg.norm(a @ x - B, axis=0) / np.linalg.norm(B, axis=0)
    assert (gap <= 1.01e-10).all()
    b = jnp.stack([jnp.full(N, jnp.nan), jnp.zeros(N)], -1)
    x, info, _ = linalg.minres(a, b, check=False)
    assert info.tolist() == [-1, 0]
    assert np.isnan(x[:, 0]).all()
    assert not x[:, 1].any()
    singular = jnp.diag(jnp.asarray([1.0, -1.0, 0.0]))
    assert linalg.minres(singular, jnp.ones(3), check=False)[1] == -2
    with pytest.raises(mc.LinAlgError, match="minres: a must be symmetric and residuals"):
        linalg.minres(singular, jnp.ones(3))


def test_derivatives_of_minimal_residuals():
    def ours(h, r, b):
        return jnp.sin(linalg.minres(indefinite(h, r), b, tol=1e-14, check=False)[0]).sum()

    def theirs(h, r, b):
        return jnp.sin(jnp.linalg.solve(indefinite(h, r), b)).sum()

    where = (1.0, 0.7, jnp.asarray(B))
    bound = 1e-9 * np.linalg.cond(indefinite(1.0, 0.7))
    for mine, exact in zip(jax.jit(jax.grad(ours, (0, 1, 2)))(*where),
                           jax.grad(theirs, (0, 1, 2))(*where), strict=True):  # fmt: skip
        np.testing.assert_allclose(mine, exact, rtol=bound, atol=bound)
    operator = jax.grad(lambda h: linalg.minres(gauss(h), where[2], tol=1e-13).sum())(1.0)
    exact = jax.grad(lambda h: jnp.linalg.solve(indefinite(h, -0.1), where[2]).sum())(1.0)
    np.testing.assert_allclose(operator, exact, rtol=1e-8)


def test_sketch_and_project():
    """Residuals as promised, and derivatives to the tolerance times the condition of 400."""
    operator = made(jnp.asarray)
    whole, b = dense(operator), jnp.asarray(B)
    x, info, sweeps = linalg.sap(operator, b, block=12, tol=1e-6, check=False)
    assert (info == 0).all()
    assert (sweeps > 1).all()
    gap = np.linalg.norm(whole @ x - B, axis=0) / np.linalg.norm(B, axis=0)
    assert (gap <= 1.01e-6).all()
    lost = linalg.sap(operator, b.at[0, 0].set(jnp.nan), block=12, tol=1e-6, check=False)
    assert lost[1].tolist() == [-1, 0]
    assert np.isnan(lost[0][:, 0]).all()
    with pytest.raises(mc.LinAlgError, match="sap: residuals must be at most 1e-06 of b"):
        linalg.sap(operator, b, block=12, tol=1e-6, max_iter=1)

    def ours(h):
        return jnp.sin(linalg.sap(gauss(h), b, block=20, tol=1e-12, max_iter=500)).sum()

    def theirs(h):
        return jnp.sin(jnp.linalg.solve(indefinite(h, -0.1), b)).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(ours))(1.0), jax.grad(theirs)(1.0), rtol=1e-7)


# ---- Spectra. -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("which", "basis"), [
    ("largest", None), ("smallest", 48), ("magnitude", 48),
])  # fmt: skip
def test_the_end_of_a_spectrum(which, basis):
    """The whole matrix gives it, or Krylov's method where n is above the vectors of its basis."""
    half = np.random.default_rng(3).normal(size=(100, 100))
    a = (half + half.T) / 2
    values, k = np.linalg.eigvalsh(a), 3
    order = {"largest": np.argsort(-values), "smallest": np.argsort(values),
             "magnitude": np.argsort(-abs(values))}[which]  # fmt: skip
    w, v = linalg.eigh_top(jnp.asarray(a), k, which=which, max_basis=basis)
    bound = 1.01e-10 * abs(values).max()
    np.testing.assert_allclose(w, np.sort(values[order[:k]]), rtol=0, atol=bound)
    assert (np.linalg.norm(a @ v - v * w, axis=0) <= bound).all()
    np.testing.assert_allclose(v.T @ v, np.eye(k), atol=1e-12)


def test_the_end_of_a_spectrum_of_an_operator():
    wanted = np.linalg.eigvalsh(dense(gauss()))[-2:]
    program = jax.jit(lambda h: linalg.eigh_top(gauss(h), 2)[0])
    np.testing.assert_allclose(program(1.0), wanted, rtol=1e-12)
    with pytest.raises(NotImplementedError, match="eigh_top: is not differentiated"):
        jax.grad(lambda h: linalg.eigh_top(gauss(h), 2)[0].sum())(1.0)
    (_, _), missed = linalg.eigh_top(gauss(), 2, tol=1e-17, check=False)
    assert missed == 2
    with pytest.raises(mc.LinAlgError, match="eigh_top: residuals must be at most 1e-17"):
        linalg.eigh_top(gauss(), 2, tol=1e-17)


@pytest.mark.parametrize("rank", rest_long([0, 10], 0))
def test_both_parts_of_a_likelihood(rank):
    """Within a program without a preconditioner, and eagerly with one."""
    operator = gauss()
    inverse = linalg.nystrom(operator, rank) if rank else None

    def parts(a, b):
        return linalg.inv_quad_logdet(a, b, preconditioner=inverse, n_probes=32)

    whole = dense(operator)
    found = (parts if rank else jax.jit(parts))(operator, jnp.asarray(B))
    np.testing.assert_allclose(found.inv_quad, (B * np.linalg.solve(whole, B)).sum(0), rtol=1e-8)
    assert 0 < found.error < 0.2 * N
    assert abs(found.logdet - np.linalg.slogdet(whole)[1]) < 5 * found.error


def test_derivatives_of_a_determinant():
    """Derivatives of the estimate are tr(a^-1 da) from its probes, with signs drawn here again."""
    few, eye = jnp.asarray(X[:10]), jnp.eye(10)
    z = jax.random.rademacher(jax.random.key(0), (10, 16), jnp.float64)

    def ours(h, r, x):
        return linalg.inv_quad_logdet(gauss(h, r, x), few[:, 0], tol=1e-13).logdet

    def slope(h, r, x):
        """u' da z, with u that moves too."""
        a, da = jax.jvp(lambda h: mc.kernel_matrix("gauss", x, bandwidth=h) + r * eye, (h,), (1.0,))
        return (jnp.linalg.solve(a, z) * (da @ z)).sum() / 16

    where = (1.0, 0.1, few)
    by_h, by_r, by_x = jax.grad(ours, (0, 1, 2))(*where)
    u = jnp.linalg.solve(mc.kernel_matrix("gauss", few, bandwidth=1.0) + 0.1 * eye, z)
    np.testing.assert_allclose(by_h, slope(*where), rtol=1e-8)
    np.testing.assert_allclose(by_r, (u * z).sum() / 16, rtol=1e-8)
    bilinear = jax.grad(
        lambda x: (u * (mc.kernel_matrix("gauss", x, bandwidth=1.0) @ z)).sum() / 16
    )
    np.testing.assert_allclose(by_x, bilinear(few), rtol=1e-7, atol=1e-9)
    twice = jax.jit(jax.grad(jax.grad(ours)))(*where)
    np.testing.assert_allclose(twice, jax.grad(slope)(*where), rtol=1e-7)


def test_without_float64():
    jax.config.update("jax_enable_x64", False)
    operator, b = gauss(), jnp.asarray(B)
    whole = dense(operator).astype("d")
    x = linalg.cg(operator, b, preconditioner=linalg.nystrom(operator, 15))
    gap = np.linalg.norm(whole @ x - B, axis=0) / np.linalg.norm(B, axis=0)
    assert (gap < 2e-5).all()
    found = linalg.inv_quad_logdet(gauss(x=X[:10]), b[:10, 0])
    assert abs(found.logdet - np.linalg.slogdet(whole[:10, :10])[1]) < 5 * found.error


def test_parameters_have_gradients_by_name():
    """The numbers are NumPy's, which test_parameter_gradient.py proves."""
    rng = np.random.default_rng(2)
    z, w, row, col = rng.normal(size=(5, 2)), np.array([0.5, 2]), ROW, rng.normal(size=5)
    u, v = rng.normal(size=(N, 3)), rng.normal(size=(5, 3))
    by = ["h", "x", "z", "w", "row", "col"]
    for weights in (None, u @ v.T, (u, v), (u[:, 0], v[:, 0])):
        given = jax.tree.map(jnp.asarray, weights)
        found = mc.parameter_gradient(
            SIDED, jnp.asarray(X), jnp.asarray(z), given, by=by, w=jnp.asarray(w),
            row=jnp.asarray(row), col=jnp.asarray(col), h=1.5,
        )  # fmt: skip
        wanted = mc.parameter_gradient(SIDED, X, z, weights, by=by, w=w, row=row, col=col, h=1.5)
        assert list(found) == by
        for name in by:
            scale = 256 * EPS * max(1, abs(wanted[name]).max())
            assert found[name].shape == wanted[name].shape
            np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=scale)
    wanted = mc.parameter_gradient("gauss", X, by=["x", "bandwidth"], bandwidth=1.5)
    program = jax.jit(
        lambda x, h: mc.parameter_gradient("gauss", x, by=["x", "bandwidth"], bandwidth=h)
    )
    found = program(jnp.asarray(X), 1.5)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="by must name parameters of the formula"):
        mc.parameter_gradient("gauss", jnp.asarray(X), by="h", bandwidth=1.0)


def test_on_cuda():
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("no GPU for JAX")
    operator = jax.device_put(made(jnp.asarray), device)
    b = jax.device_put(jnp.asarray(B), device)
    whole = made(np.asarray) @ np.eye(N)
    np.testing.assert_allclose(operator.rows([1, -1]), whole[[1, -1]], atol=1e-12)
    np.testing.assert_allclose(operator.diagonal(), np.diag(whole), atol=1e-12)
    for maker in MAKERS.values():
        x = linalg.cg(operator, b, preconditioner=maker(operator))
        np.testing.assert_allclose(whole @ np.asarray(x), B, atol=1e-8)
    np.testing.assert_allclose(whole @ np.asarray(linalg.minres(operator, b)), B, atol=1e-8)
    w, _ = linalg.eigh_top(operator, 2)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(whole)[-2:], rtol=1e-10)
    found = linalg.inv_quad_logdet(operator, b)
    assert abs(found.logdet - np.linalg.slogdet(whole)[1]) < 5 * found.error
    inner = jax.device_put(jnp.asarray(X), device)
    found = mc.parameter_gradient("gauss", inner, bandwidth=1.5)["bandwidth"]
    wanted = mc.parameter_gradient("gauss", X, bandwidth=1.5)["bandwidth"]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
