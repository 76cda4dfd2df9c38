"""kernel_sum: formulas with vector values, against NumPy in float64 and PyTorch's autograd.

A sum of terms is within 64 roundings of the sum of the terms' sizes, each of at most the spread of
the points times the numbers of the pairs.
"""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
from mercer._vectors import sums, text
from mercer._vectors.nodes import OPERATIONS, REDUCTIONS

M, N, K = 13, 17, 3
rng = np.random.default_rng(7)
X, Z = rng.normal(size=(M, K)), rng.normal(size=(N, K))
U, V = rng.normal(size=(M, K)), rng.normal(size=(N, K))
MASS, A = rng.random(N) + 0.5, rng.normal(size=(4, K))
GAP = X[:, None] - Z[None]
SQUARE = (GAP**2).sum(-1)
S = np.exp(-SQUARE / 1.5)[..., None]
GAP_V = (GAP * V).sum(-1, keepdims=True)
GAUSS = "s = exp(-sum((x-z)^2)/1.5); "

#: A formula, and its values for each pair [M, N, D].
FORMULAS = {
    "matrix_valued": (GAUSS + "s*v + 0.3*s*(x-z)*sum((x-z)*v)", S * V + 0.3 * S * GAP_V * GAP),
    "two_scalars": ("exp(-sum((x-z)^2)/1.5)*v - sum(x*z)*(x-z)*dot(x-z, v)",
                    S * V - (X @ Z.T)[..., None] * GAP * GAP_V),
    "force": ("v.mass*(x-z)/(sum((x-z)^2) + 0.1)^1.5",
              MASS[:, None] * GAP / (SQUARE + 0.1)[..., None] ** 1.5),
    "other_points": ("where(i == j, 0, 1/sum((x-z)^2))*(z-x)",
                     np.where(np.eye(M, N) > 0, 0, 1 / SQUARE)[..., None] * -GAP),
    "square": (GAUSS + "s*(x-z)^2", S * GAP**2),
    "quotient": (GAUSS + "(x-z)/s/v", GAP / S / V),
    "outer": (GAUSS + "s*outer(x-z, v)", (S[..., None] * GAP[..., None] * V[:, None]).reshape(
        M, N, 9)),
    "outer_of_numbers": ("outer(v.mass, x-z)", MASS[:, None] * GAP),
    "concat": (GAUSS + "concat(s*(x-z), s, v, x)[1:]", np.concatenate(
        [S * GAP, S, V + 0 * GAP, X[:, None] + 0 * GAP], -1)[..., 1:]),
    "matrix": (GAUSS + "s*matvec(a, x-z)", S * (GAP @ A.T)),
    "matrix_by_components": (GAUSS + "s*matvec(a, tanh(x-z))", S * (np.tanh(GAP) @ A.T)),
    "vector": ("sum(vector(b)*(x-z)^2)*v*vector(b)", (GAP**2 @ A[0])[..., None] * V * A[0]),
    "vectors": ("sum(vector(b)*abs(x-z)/vector(c))*v",
                (abs(GAP) @ (A[0] / A[1]))[..., None] * V),
    "reductions_of_parameters": ("square(max(vector(b)) - x[0])*logsumexp(vector(c)*z)*v",
                                 (A[0].max() - X[:, None, :1]) ** 2 * V * np.log(
                                     np.exp(A[1] * Z).sum(-1))[:, None]),
    "weights_next_to_sums": ("matvec(a, tanh(z/(1.5 + sum(x*x))))",
                             np.tanh(Z / (1.5 + (X * X).sum(-1))[:, None, None]) @ A.T),
    "numbers_in_vectors": ("matvec(a, concat(0.7, v[1:]))*sum(x*z)", (X @ Z.T)[..., None] * (
        np.concatenate([np.full((N, 1), 0.7), V[:, 1:]], -1) @ A.T)),
    "components": ("t = x - z; concat(t[1]*v[2] - t[2]*v[1], t[0])",
                   np.stack([GAP[..., 1] * V[:, 2] - GAP[..., 2] * V[:, 1], GAP[..., 0]], -1)),
    "values_of_both": ("sum(u*v)*(x-z)", (U @ V.T)[..., None] * GAP),
    "three_vectors": ("prod(x-z+v+u)*v", (GAP + V + U[:, None]).prod(-1, keepdims=True) * V),
    "largest_of_three": ("max((x-z)*v)*x", (GAP * V).max(-1, keepdims=True) * X[:, None]),
    "not_separable": (GAUSS + "s*tanh(x-z)*v", S * np.tanh(GAP) * V),
    "choice": ("where(x < z, x, v)", np.where(GAP < 0, X[:, None], V[None])),
    "one_side": ("v", np.broadcast_to(V, (M, N, K))),
    "other_side": ("2^x", np.broadcast_to(2 ** X[:, None], (M, N, K))),
    "one_side_unknown_to_numpy": ("sum(x*z)*erf(v)", (X @ Z.T)[..., None] * np.array(
        mc.pairwise("sum(erf(x))", V.reshape(-1, 1), np.zeros((1, 1)))).reshape(N, K)),
    "number": ("exp(-sum((x-z)^2)/1.5)", S),
    "number_of_a_column": ("v.mass", np.broadcast_to(MASS[:, None], (M, N, 1))),
    "scores": (GAUSS + "s*v - 2/1.5*s*(z-x)", S * V - 2 / 1.5 * S * -GAP),
    "reduction_in_a_sum": ("sum((x-z)*sum(x*z)*v)*x", (X @ Z.T)[..., None] * GAP_V * X[:, None]),
}  # fmt: skip


def arguments(formula: str) -> dict:
    given = {"a": A, "b": A[0], "c": A[1]}
    found = {n: given[n] for n in given if f"({n}" in formula}
    values = {"": V} if "mass" not in formula else {"mass": MASS}
    if "v" in formula:
        found["v"] = V if "" in values else values
    if "u*" in formula or "+u" in formula:
        found["u"] = U
    return found


def size(values: np.ndarray) -> float:
    """How large terms may be with the spread of the points in the place of each difference."""
    spread = max(abs(X - Z.mean(0)).max(), abs(Z - Z.mean(0)).max())
    return float(abs(values).max() * N * (2 * spread) ** 3 + 1)


@pytest.mark.parametrize("name", FORMULAS)
def test_sums_of_vectors(name):
    formula, values = FORMULAS[name]
    given = arguments(formula)
    out = mc.kernel_sum(formula, X, Z, **given)
    assert out.shape == (M, values.shape[-1])
    np.testing.assert_allclose(out, values.sum(1), rtol=0, atol=64 * 2.3e-16 * size(values))
    mean = mc.kernel_sum(formula, X, Z, reduce="mean", **given)
    np.testing.assert_allclose(mean, values.mean(1), rtol=0, atol=64 * 2.3e-16 * size(values))
    whole = mc.kernel_sum(formula, X, Z, separate=False, **given)
    terms = abs(values).sum(1)
    np.testing.assert_array_less(abs(whole - values.sum(1)), 64 * 2.3e-16 * terms + 1e-13)


@pytest.mark.parametrize("name", ["matrix_valued", "force", "outer", "not_separable", "concat"])
@pytest.mark.parametrize("reduce", ["var", "max", "min", "argmax", "argmin", "logsumexp"])
def test_reductions_of_components(name, reduce):
    formula, values = FORMULAS[name]
    out = mc.kernel_sum(formula, X, Z, reduce=reduce, **arguments(formula))
    known = {"logsumexp": lambda t, axis: np.log(np.exp(t).sum(axis))}
    expected = known.get(reduce, getattr(np, reduce, None))(values, axis=1)
    assert out.shape == expected.shape
    np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["matrix_valued", "one_side", "concat", "not_separable"])
def test_weighted_means(name):
    formula, values = FORMULAS[name]
    given = arguments(formula)
    weights = np.exp(30 * (X @ Z.T))
    weights = (weights / weights.sum(1, keepdims=True))[..., None]
    out = mc.kernel_sum(formula, X, Z, reduce="softmax", weight="30*sum(x*z)", **given)
    np.testing.assert_allclose(out, (weights * values).sum(1), atol=2e-13 * size(values))
    far = mc.kernel_sum(formula, X, Z, reduce="softmax", weight="30*sum(x*z) + h", h=1e4, **given)
    np.testing.assert_allclose(far, (weights * values).sum(1), atol=2e-9 * size(values))
    weights = S / S.sum(1, keepdims=True)
    mean = (weights * values).sum(1)
    weight = "exp(-sum((x-z)^2)/1.5)"
    out = mc.kernel_sum(formula, X, Z, reduce="mean", weight=weight, **given)
    np.testing.assert_allclose(out, mean, atol=2e-14 * size(values))
    out = mc.kernel_sum(formula, X, Z, reduce="var", weight=weight, **given)
    expected = (weights * (values - mean[:, None]) ** 2).sum(1)
    np.testing.assert_allclose(out, expected, atol=2e-13 * size(values))


#: The weights of pairs, the sizes of the terms and the terms for differences d, their squares r,
#: values v and a width h.
CLOSE = {
    "matrix_valued": lambda d, r, v, h: (
        np.exp(-r / h), np.abs(v) + 0.3 * abs(d) * (abs(d) * abs(v)).sum(-1, keepdims=True),
        v + 0.3 * d * (d * v).sum(-1, keepdims=True)),
    "force": lambda d, r, v, h: ((r + 0.1 * h) ** -1.5, abs(d), d),
    "matrix": lambda d, r, v, h: (np.exp(-r / h), abs(d) @ abs(A.T), d @ A.T),
    "largest": lambda d, r, v, h: (np.exp(-r / h), abs(d) @ abs(A.T), d @ A.T),
    "square": lambda d, r, v, h: (np.exp(-r / h), d**2, d**2),
    "fourth_power": lambda d, r, v, h: (np.exp(-r / h), d**4, d**4),
    "cube": lambda d, r, v, h: (np.exp(-r / h), abs(d) ** 3, d**3),
    "cube_of_numbers": lambda d, r, v, h: (
        np.exp(-r / h), abs(d) * d[..., :1] ** 2, d * d[..., :1] ** 2),
    "outer": lambda d, r, v, h: (
        np.exp(-r / h), abs(d[..., [0, 1]] * d[..., [1, 2]]), d[..., [0, 1]] * d[..., [1, 2]]),
    "values_twice": lambda d, r, v, h: (np.exp(-r / h), abs(d) * v**2, d * v**2),
    "summed_values": lambda d, r, v, h: (
        np.exp(-r / h), abs(d[..., :1] * v) * abs(v).sum(-1, keepdims=True),
        d[..., :1] * v * v.sum(-1, keepdims=True)),
    "sums_of_differences": lambda d, r, v, h: (
        np.exp(-r / h), d[..., 1:] ** 2 + d[..., :2] ** 2, d[..., 1:] ** 2 - d[..., :2] ** 2),
}  # fmt: skip
CLOSE_TEXTS = {
    "matrix_valued": "s = exp(-sum((x-z)^2)/h); s*v + 0.3*s*(x-z)*sum((x-z)*v)",
    "force": "(x-z)/(sum((x-z)^2) + 0.1*h)^1.5",
    "matrix": "exp(-sum((x-z)^2)/h)*matvec(a, x-z)",
    "largest": "exp(-sum((x-z)^2)/h)*matvec(a, x-z)",
    "square": "exp(-sum((x-z)^2)/h)*(x-z)^2",
    "fourth_power": "exp(-sum((x-z)^2)/h)*square(square(x-z))",
    "cube": "exp(-sum((x-z)^2)/h)*(x-z)*(x-z)*(x-z)",
    "cube_of_numbers": "exp(-sum((x-z)^2)/h)*(x-z)*(x[0]-z[0])^2",
    "outer": "t = outer(x-z, x-z); exp(-sum((x-z)^2)/h)*concat(t[1], t[5])",
    "values_twice": "exp(-sum((x-z)^2)/h)*(x-z)*v*v",
    "summed_values": "exp(-sum((x-z)^2)/h)*sum((x[0]-z[0])*v)*v",
    "sums_of_differences": "t = x - z; exp(-sum(t^2)/h)*(t[1:] - t[:2])*(t[1:] + t[:2])",
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSE)
@pytest.mark.parametrize("separate", [None, False])
@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
def test_float32_keeps_its_digits_where_points_are_close(name, separate, library):
    xp = pytest.importorskip(library)
    z = rng.normal(size=(200, 3)).astype(np.float32)
    x = (z[:50] + 1e-3 * rng.normal(size=(50, 3))).astype(np.float32)
    v = rng.normal(size=(200, 3)).astype(np.float32)
    gap = x[:, None].astype(np.float64) - z
    wide = v.astype(np.float64)
    weights, sizes, terms = CLOSE[name](gap, (gap**2).sum(-1, keepdims=True), wide, 1e-5)
    a = A.astype(np.float32)
    given = {"v": xp.asarray(v)} if "v" in CLOSE_TEXTS[name] else {}
    given |= {"a": xp.asarray(a)} if "(a" in CLOSE_TEXTS[name] else {}
    reduce = "max" if name == "largest" else "sum"
    out = mc.kernel_sum(
        CLOSE_TEXTS[name], xp.asarray(x), xp.asarray(z), separate=separate, reduce=reduce, h=1e-5,
        **given,
    )  # fmt: skip
    assert str(out.dtype).endswith("float32")
    if name == "matrix" or name == "largest":
        terms = gap @ a.astype(np.float64).T
    error = abs(np.asarray(out) - getattr(np, reduce)(weights * terms, axis=1))
    # The contract of products, and what rounding the exponent adds.
    assert (error / (weights * sizes).sum(1)).max() < 2e-6


@pytest.mark.parametrize(
    "number", ["z[0] + 0*j", "copysign(z[0], z[0])", "2/2*z[0]", "z[0]*(5 - 4)"]
)
def test_vectors_less_numbers_keep_their_digits(number):
    """The first features are 1e-3 apart, and numbers that NumPy does not have are no points."""
    z = rng.normal(size=(200, 3)).astype(np.float32)
    x = (z[:50] + 1e-3 * rng.normal(size=(50, 3))).astype(np.float32)
    gap = x[:, None].astype(np.float64) - z[:, :1]
    weights = np.exp(-((x[:, None].astype(np.float64) - z) ** 2).sum(-1) * 1e5)[..., None]
    out = mc.kernel_sum(f"exp(-sum((x-z)^2)*1e5)*(x - ({number}))", x, z)
    error = abs(out - (weights * gap).sum(1))
    assert (error / (weights * abs(gap)).sum(1)).max() < 2e-6  # as above


@pytest.mark.parametrize("name", sorted(CLOSE.keys() - {"matrix", "largest"}))
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_float64_loses_the_digits_of_one_difference(name, library):
    """Points at a distance of 1e-6 of their spread, in float64. The error of a sum is within 64
    roundings of its terms, and of as many more as the exponents of the weights are large. The
    spread replaces a difference that is taken apart; products of several differences stay whole."""
    xp, h = pytest.importorskip(library), 1e-11
    z = rng.normal(size=(200, 3))
    x, v = z[:50] + 1e-6 * rng.normal(size=(50, 3)), rng.normal(size=(200, 3))
    gap = x[:, None].astype(np.longdouble) - z
    squares = (gap**2).sum(-1, keepdims=True)
    weights, sizes, terms = CLOSE[name](gap, squares, v, h)
    given = {"v": xp.asarray(v)} if "v" in CLOSE_TEXTS[name] else {}
    out = mc.kernel_sum(CLOSE_TEXTS[name], xp.asarray(x), xp.asarray(z), h=h, **given)
    error = abs(np.asarray(out) - (weights * terms).sum(1))
    largest = abs(gap).max(-1, keepdims=True)
    spread = abs(x[:, None] - z.mean(0)).max(-1, keepdims=True) + abs(z - z.mean(0)).max()
    if name == "matrix_valued":  # v has no difference
        whole = sizes + 0.3 * largest * spread * abs(v).sum(-1, keepdims=True)
    elif name in ("force", "values_twice", "summed_values"):
        whole = CLOSE[name](spread + 0 * gap, squares, v, h)[1]
    elif name == "cube_of_numbers":
        whole = spread * gap[..., :1] ** 2 + 0 * gap
    else:
        whole = sizes
    bound = 64 * 2.3e-16 * (weights * (1 + squares / h) * whole).sum(1)
    np.testing.assert_array_less(error, bound)


def test_products_of_sums_over_features_keep_their_digits():
    """Points of z are orthogonal to those of x up to 1e-6, so that sums of products cancel. Two
    such sums have 64 roundings of their terms, which are 3 at most, times the other sum."""
    x, z = np.array([1.0, 1, 1]), np.array([1.0, 1, -2])
    x, z = x + 1e-6 * rng.random((50, 3)), z + 1e-6 * rng.random((90, 3))
    inner = np.einsum("mk,nk->mn", x.astype(np.longdouble), z)[..., None]
    out = mc.kernel_sum("sum(x*z)*sum(x*z)*z", x, z)
    bound = 64 * 2.3e-16 * 3 * (abs(inner) * abs(z)).sum(1)
    np.testing.assert_array_less(abs(out - (inner**2 * z).sum(1)), bound)


@pytest.mark.parametrize("features", [9, 70])
@pytest.mark.parametrize("separate", [None, True])
def test_sums_over_many_features_of_several_vectors(features, separate):
    x, z, v = (rng.normal(size=(n, features)) for n in (M, N, N))
    gap = x[:, None] - z
    formula = "exp(-sum((x-z)^2)/20)*(x-z)*sum(3*(x-z)*v - 0.5*z)"
    out = mc.kernel_sum(formula, x, z, v=v, separate=separate)
    values = np.exp(-(gap**2).sum(-1, keepdims=True) / 20) * gap
    values = values * (3 * gap * v - 0.5 * z).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, values.sum(1), atol=64 * 2.3e-16 * features * size(values))
    far = mc.kernel_sum("sum((x-z)*v)*concat(x[0], z[1:])*sum(x*z)", x, z, v=v, separate=separate)
    values = np.concatenate(
        [x[:, None, :1] + 0 * gap[..., :1], z[None, :, 1:] + 0 * gap[..., 1:]], -1
    )
    values = values * (gap * v).sum(-1, keepdims=True) * (x @ z.T)[..., None]
    np.testing.assert_allclose(far, values.sum(1), atol=64 * 2.3e-16 * features**2 * size(values))


def test_dtypes_and_kinds_of_arrays():
    formula, values = FORMULAS["matrix_valued"]
    out = mc.kernel_sum(formula, *(a.astype(np.float32) for a in (X, Z)), v=V.astype(np.float32))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, values.sum(1), atol=64 * 6e-8 * size(values))
    whole = rng.integers(0, 200, (N, K))
    for kind, computed in ((np.uint8, np.float32), (np.int8, np.float32), (np.int64, np.float64)):
        points = (whole // 2).astype(kind)
        out = mc.kernel_sum("x-z", points[:5], points)
        assert out.dtype == computed  # differences of uint8 do not wrap round
        wide = points.astype(np.float64)
        np.testing.assert_allclose(out, (wide[:5, None] - wide).sum(1), rtol=1e-5, atol=1e-3)
    mixed = mc.kernel_sum("x-v", X.astype(np.float32), Z.astype(np.float16), v=V)
    assert mixed.dtype == np.float64
    listed = mc.kernel_sum("sum(x*z)*v", X.tolist(), Z.tolist(), v=MASS.tolist())
    np.testing.assert_allclose(listed, X @ Z.T @ MASS[:, None], atol=1e-12)


def test_groups_rows_columns_and_weights():
    row, col, w = rng.random(M), rng.random(N), rng.random(K)
    x, z = {"place": X, "size": row}, {"place": Z, "size": col}
    out = mc.kernel_sum("x.size*z.size*(x.place-z.place)", x, z)
    np.testing.assert_allclose(out, (row[:, None, None] * col[:, None] * GAP).sum(1), atol=1e-12)
    out = mc.kernel_sum("row*col*sum(w*(x-z)^2)*(x-z)*w", X, Z, row=row, col=col, w=w)
    values = row[:, None, None] * col[:, None] * (GAP**2 @ w)[..., None] * GAP * w
    np.testing.assert_allclose(out, values.sum(1), atol=1e-11)
    out = mc.kernel_sum("i*x + j*z + K", X, Z, i_offset=3, j_offset=5)
    i, j = np.arange(M)[:, None, None] + 3, np.arange(N)[:, None] + 5
    np.testing.assert_allclose(out, (i * X[:, None] + j * Z + K).sum(1), rtol=1e-13)
    np.testing.assert_allclose(
        mc.kernel_sum("where(i == j, 0, 1/sum((x-z)^2))*(x-z)", X, None).sum(0), 0, atol=1e-9
    )


def test_expressions_of_symbols():
    v, gap = mc.param("v"), mc.x - mc.z
    f = mc.exp(-mc.sum(gap**2) / mc.param("h")) * v + mc.dot(gap, v) * gap
    out = mc.kernel_sum(f, X, Z, v=V, h=1.5)
    np.testing.assert_allclose(out, (S * V + GAP_V * GAP).sum(1), atol=1e-11)

    def stokes(x, z, v, h, scale=2.0):
        return mc.exp(-mc.sum((x - z) ** 2) / h) * v * scale + mc.dot(x - z, v) * (x - z)

    out = mc.kernel_sum(stokes, X, Z, v=V, h=1.5)
    np.testing.assert_allclose(out, (2 * S * V + GAP_V * GAP).sum(1), atol=1e-11)
    carried = mc.kernel_sum(mc.param("c", 2.0) * gap, X, Z)
    np.testing.assert_allclose(carried, 2 * GAP.sum(1), atol=1e-12)


def test_batches_and_strides():
    x, v = rng.normal(size=(2, 1, M, K)), rng.normal(size=(3, N, 2 * K))[..., ::2]
    h = np.array([0.5, 1.0, 2.0])
    out = mc.kernel_sum("exp(-sum((x-z)^2)/h)*(x-z)*sum((x-z)*v)", x, Z, v=v, h=h)
    gap = x[..., :, None, :] - Z
    values = np.exp(-(gap**2).sum(-1) / h[:, None, None])[..., None] * gap
    values = values * (gap * v[:, None]).sum(-1, keepdims=True)
    assert out.shape == (2, 3, M, K)
    np.testing.assert_allclose(out, values.sum(-2), atol=1e-12 * size(values))
    u = rng.normal(size=(2, 1, M, K))
    out = mc.kernel_sum(
        "concat(h, u[0], tanh(x*v)[1:], outer(concat(1, v[:2]), u))", X, Z, u=u, v=v, h=h
    )
    values = np.concatenate(
        np.broadcast_arrays(
            *(part[..., None] for part in (
                h[:, None, None], u[..., :, None, 0],
                *np.moveaxis(np.tanh(X[:, None] * v[:, None])[..., 1:], -1, 0),
                *(a * u[..., :, None, k] for a in (1, v[:, None, :, 0], v[:, None, :, 1])
                  for k in range(K)),
            ))
        ), -1,
    )  # fmt: skip
    np.testing.assert_allclose(out, values.sum(-2), atol=1e-12)
    matrices = rng.normal(size=(2, 1, 4, K))
    out = mc.kernel_sum("sum(x*z)*matvec(a, x-z)", x, Z, a=matrices)
    values = (x @ Z.T)[..., None] * (gap @ np.swapaxes(matrices, -1, -2)[..., None, :, :])
    np.testing.assert_allclose(out, values.sum(-2), atol=1e-12 * size(values))


@pytest.mark.parametrize("name", ["matrix_valued", "not_separable", "one_side"])
def test_ranges(name):
    formula, values = FORMULAS[name]
    ranges = (np.array([[0, 5], [5, 9]]), np.array([2, 3]), np.array([[0, 4], [9, 12], [2, 17]]))
    kept = np.zeros((M, N, 1))
    kept[:5, :4], kept[:5, 9:12], kept[5:9, 2:] = 1, 1, 1
    out = mc.kernel_sum(formula, X, Z, ranges=ranges, **arguments(formula))
    np.testing.assert_allclose(out, (kept * values).sum(1), atol=1e-12)
    mean = mc.kernel_sum(formula, X, Z, ranges=ranges, reduce="mean", **arguments(formula))
    np.testing.assert_allclose(mean[:9], (kept * values)[:9].sum(1) / kept[:9].sum(1), atol=1e-12)
    assert np.isnan(mean[9:]).all()


def test_results_have_all_batches_and_memory_of_their_own():
    x, v = rng.normal(size=(2, 1, M, K)), rng.normal(size=(3, N, K))
    for formula in ("v", "z", "x", "exp(-sum(z*v))*v", "2"):
        for reduce in ("sum", "mean", "max", "argmin"):
            out = mc.kernel_sum(formula, x, Z, v=v, reduce=reduce)
            assert out.shape == (2, 3, M, 1 if formula == "2" else K)
            out[...] = 1
    torch = pytest.importorskip("torch")
    mc.kernel_sum("v", torch.tensor(x), torch.tensor(Z), v=torch.tensor(v)).add_(1)


def test_no_points_and_values_beyond_numbers():
    assert mc.kernel_sum("x-z", X[:0], Z).shape == (0, K)
    out = mc.kernel_sum("exp(-sum((x-z)^2))*(x-z) + v", X, Z[:0], v=V[:0])
    assert out.shape == (M, K)
    assert not out.any()
    assert np.isnan(mc.kernel_sum("x-z", X, Z[:0], reduce="mean")).all()
    x = X.copy()
    x[2, 1] = np.nan
    out = mc.kernel_sum("exp(-sum((x-z)^2))*(x-z)*sum((x-z)*v)", x, Z, v=V)
    assert np.isnan(out[2]).all()
    assert np.isfinite(np.delete(out, 2, 0)).all()
    far = X + 1e6  # a centre is taken out, so that far points lose no more digits than they have
    out = mc.kernel_sum("exp(-sum((x-z)^2)/1.5)*(x-z)", far, Z + 1e6)
    exact = mc.kernel_sum("exp(-sum((x-z)^2)/1.5)*(x-z)", far - 1e6, (Z + 1e6) - 1e6)
    np.testing.assert_allclose(out, exact, atol=1e-13)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_beyond_numbers_leaves_the_centre(library, value):
    """Points 1e6 from 0, whose differences are exact: without a centre 1e-10 of them is lost."""
    xp = pytest.importorskip(library)
    x, z = X + 1e6, Z + 1e6
    x[2, 1] = value
    kept = np.arange(M) != 2
    gap = z - x[kept][:, None]
    square = (gap**2).sum(-1, keepdims=True)
    with np.errstate(all="raise"):
        out = np.asarray(
            mc.kernel_sum("exp(-sum((x-z)^2)/1.5)*(z-x)", xp.asarray(x), xp.asarray(z))
        )
        squares = np.asarray(
            mc.pairwise("sum(matvec(a, z-x)^2)", xp.asarray(x), xp.asarray(z), a=xp.asarray(A))
        )
    assert np.isnan(out[2]).any()
    # 64 roundings of the terms, with the spread of the points in the place of each difference.
    spread = 2 * max(abs(X).max(), abs(Z).max())
    bound = 64 * 2.3e-16 * N * spread * 2
    np.testing.assert_array_less(abs(out[kept] - (np.exp(-square / 1.5) * gap).sum(1)), bound)
    expected = ((gap @ A.T) ** 2).sum(-1)
    np.testing.assert_array_less(abs(squares[kept] - expected), bound * (abs(A).sum() ** 2 + 1))


@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
def test_numbers_next_to_arrays_of_one_side(library):
    xp = pytest.importorskip(library)
    x, z, b = (xp.asarray(t.astype(np.float32)) for t in (X, Z, A[:, :1]))
    x0, z0 = np.asarray(x, np.float64), np.asarray(z, np.float64)
    expected = {
        "atan2(x, 1)*z": np.arctan2(x0, 1) * z0.sum(0),
        "where(h, x, 0)*z": x0 * z0.sum(0),
        "where(z, 1, 2)*x": N * x0,
        "max(x, 0.5)*min(2, z)": np.maximum(x0, 0.5) * np.minimum(z0, 2).sum(0),
        "sum(x*z)*matvec(a, 2)": (x0 @ z0.sum(0))[:, None] * 2 * A[:, 0],
        "sum(x*z)*2/3*z": 2 / 3 * (x0 @ z0.T) @ z0,
        "sum(x*z)*(2/3*exp(-1/2))*z": 2 / 3 * np.exp(-0.5) * (x0 @ z0.T) @ z0,
        "sum(x*z)*atan2(1, where(0, 1, 2))*z": np.arctan2(1, 2) * (x0 @ z0.T) @ z0,
    }
    for f, values in expected.items():
        given = {"a": b} if "(a" in f else {"h": 2.0} if "h," in f else {}
        for separate in (None, True):
            out = np.asarray(mc.kernel_sum(f, x, z, separate=separate, **given))
            # 64 roundings of float32 of the terms, which are 40 at most
            np.testing.assert_array_less(abs(out - values), 64 * 6e-8 * N * 40, err_msg=f)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
def test_libraries_take_nan_as_formulas_do(library):
    xp = pytest.importorskip(library)
    x = np.array([[np.nan, -2, 0], [np.inf, 3, -np.inf]], np.float32)
    z = xp.asarray(np.ones((1, 3), np.float32))
    for f in ("sign(x)", "max(x, 0.5)", "min(0.5, x)", "abs(x)", "where(x, 1, 2)", "round(x)"):
        by_library = np.asarray(mc.kernel_sum(f"{f} + 0*z", xp.asarray(x), z))
        by_engine = np.asarray(mc.kernel_sum(f"{f} + 0*z", xp.asarray(x), z, reduce="max"))
        np.testing.assert_array_equal(by_library, by_engine, err_msg=f)


@pytest.mark.parametrize(
    "formula", ["2/3*z*sum(x*z)", "sum(x*z)*(z - 1/3*z)", "exp(1)^2*z*sum(x*z)"]
)
def test_quotients_of_numbers_are_numbers(formula, monkeypatch):
    calls = []
    monkeypatch.setattr(sums, "by_components", lambda *given: calls.append(given))
    factor = 2 / 3 if "/" in formula else np.e**2
    np.testing.assert_allclose(
        mc.kernel_sum(formula, X, Z), factor * (X @ Z.T) @ Z, atol=64 * 2.3e-16 * size(np.ones(1))
    )
    assert not calls


def test_the_words_of_the_grammar_are_operations():
    assert set(text._FUNCTIONS.values()) <= OPERATIONS.keys()
    assert set(text._REDUCTIONS.values()) <= REDUCTIONS.keys()
    numbers = "a = 2; b = -a^2 + a*3 < 1 && !(a > 4) || a - 1 - 1 == 2^-1; (b - 1e-3)*x"
    b = float((-(2**2) + 6 < 1 and not 2 > 4) or 2 - 1 - 1 == 0.5)
    np.testing.assert_allclose(mc.kernel_sum(numbers, X, Z), N * (b - 1e-3) * X, rtol=1e-13)
    written = ("max(x, z, 0)", "min(x, 0.5)", "fma(x, z, v)", "atan2(x, z)", "copysign(x, z)",
               "xlogy(abs(x), abs(z))", "round(x) + floor(z) + ceil(x)", "sign(x)*exp2(z)",
               "log1p(abs(x)) + log2(abs(z)) + expm1(x)", "sqrt(abs(x))*rcp(z)*rsqrt(abs(x))",
               "sin(x)*cos(z) + asin(x/9) + acos(z/9)", "logsumexp(x-z)*mean(x-z)")  # fmt: skip
    gap = GAP
    x, z, v = X[:, None] + 0 * gap, Z + 0 * gap, V + 0 * gap
    expected = (
        np.maximum(np.maximum(x, z), 0), np.minimum(x, 0.5), x * z + v, np.arctan2(x, z),
        np.copysign(x, z), abs(x) * np.log(abs(z)), np.round(x) + np.floor(z) + np.ceil(x),
        np.sign(x) * np.exp2(z), np.log1p(abs(x)) + np.log2(abs(z)) + np.expm1(x),
        1 / z, np.sin(x) * np.cos(z) + np.arcsin(x / 9) + np.arccos(z / 9),
        np.log(np.exp(gap).sum(-1, keepdims=True)) * gap.mean(-1, keepdims=True),
    )  # fmt: skip
    for formula, values in zip(written, expected, strict=True):
        given = {"v": V} if "v)" in formula else {}
        out = mc.kernel_sum(formula, X, Z, **given)
        np.testing.assert_allclose(out, values.sum(1), atol=1e-11, err_msg=formula)


REFUSED = [
    ("x-z", {"reduce": "median"}, ValueError, "reduce must be one of"),
    ("x-z", {"reduce": "softmax"}, ValueError, "weight must be given"),
    ("x-z", {"weight": "sum(x*z)"}, ValueError, "weight is offered with"),
    ("x-z", {"reduce": "mean", "weight": "x-z"}, ValueError, "a number for each pair"),
    ("x-z", {"h": 1.0}, ValueError, "must read each parameter. Received h"),
    ("x-z", {"separate": "never"}, ValueError, "separate must be"),
    ("x-z", {"separate": 0}, ValueError, "separate must be True, False or None. Received 0"),
    ("sum(1)*x", {}, ValueError, "a reduction must read features; 'sum' reads none"),
    ("sum(h)*x", {"h": 2.0}, ValueError, "a reduction must read features; 'sum' reads none"),
    ("sum(matvec(a, h*x))*sum(h)", {"a": A, "h": np.array(2.0)}, ValueError, "must read features"),
    ("prod(2)*x", {}, ValueError, "a reduction must read features; 'prod' reads none"),
    ("mean(j)*x", {}, ValueError, "a reduction must read features; 'mean' reads none"),
    ("dot(2, row)*x", {"row": U[:, 0]}, ValueError, "must read features; 'dot' reads none"),
    ("max(sum(x*z))*x", {}, ValueError, "a reduction must read features; 'max' reads none"),
    ("t = sum(x); prod(t*t)*x", {}, ValueError, "must read features; 'prod' reads none"),
    ("(" * 400 + "x-z" + ")" * 400, {}, ValueError, "at most 150 levels may be nested"),
    ("-" * 400 + "x", {}, ValueError, "at most 150 levels may be nested"),
    ("tanh(" * 400 + "x" + ")" * 400, {}, ValueError, "at most 150 levels may be nested"),
    ("*".join(["(x-z)"] * 400), {}, ValueError, "at most 150 operations deep"),
    ("t = x - z; " + "t = tanh(t); " * 400 + "t", {}, ValueError, "at most 150 operations deep"),
    ("h*(x-z)", {}, ValueError, "the parameter 'h' must be given"),
    ("x-v", {}, ValueError, "'v' must be given"),
    ("x-v.mass", {"v": V}, ValueError, "v has no groups"),
    ("x-v", {"v": {"mass": MASS}}, ValueError, "v has the groups v.mass"),
    ("w*x", {}, ValueError, "'w' must be given"),
    ("col*x", {}, ValueError, "'col' must be given"),
    ("x-v", {"v": V[:4]}, ValueError, "the same number N of points"),
    ("x-u", {"u": V}, ValueError, "the same number M of points"),
    ("row*x", {"row": MASS}, ValueError, "the same number M of points"),
    ("x-v", {"v": V[:, :2]}, ValueError, "'-' takes vectors of equal numbers of features"),
    ("x[3]", {}, ValueError, "must lie within the 3 features"),
    ("matvec(a, x)", {"a": A.T}, ValueError, "as many columns as the vector has features"),
    ("matvec(a, x)", {"a": A[0]}, ValueError, "must have 2 axes of features"),
    ("matvec(x, x)", {}, ValueError, "the parameter 'x' must be given"),
    ("vector(b)*x", {"b": 1.0}, ValueError, "must have 1 axes of features"),
    ("x-z)", {}, ValueError, "follows a finished formula"),
    ("(x-z", {}, ValueError, "must stand where"),
    ("x-", {}, ValueError, "an expression must stand where the end is"),
    ("x $ z", {}, ValueError, "is not text of a formula"),
    ("1 < 2 < x", {}, ValueError, "do not chain"),
    (";".join(["a = x - z", *(f"a = a*a{k}"[:7] for k in [""] * 20), "a"]), {}, ValueError,
     "too large"),
    ("y = x", {}, ValueError, "';' must stand where the end"),
    ("reduce(x, z)", {}, ValueError, "'reduce' is not offered"),
    ("exp(x, z)", {}, ValueError, "'exp' takes 1 argument"),
    ("x-z", {"w": np.ones((2, 3))}, ValueError, "w must have the shape"),
    ("x-v", {"v": V * 1j}, mc.DtypeError, "real numbers"),
    ("x-v", {"v": np.ma.masked_array(V, V > 0)}, NotImplementedError, "no mask"),
    (lambda x, z: mc.x - mc.param("y"), {}, ValueError, "the parameter 'y' must be given"),
    (3.0, {}, ValueError, "must be a text, an expression of symbols, or a function"),
    ("logsumexp((x-z)*v)*x", {"v": V}, NotImplementedError, "several vectors of one side"),
    ("x-v", {"v": rng.random((3, N, K)), "u": rng.random((2, M, K))}, ValueError, "broadcast"),
]  # fmt: skip


@pytest.mark.parametrize(("f", "given", "error", "message"), REFUSED)
def test_what_is_refused(f, given, error, message):
    with pytest.raises(error, match=message):
        mc.kernel_sum(f, X, Z, **given)


def test_reductions_of_one_feature():
    column, one = rng.normal(size=(M, 1)), A[:1]
    close = {"rtol": 0, "atol": 1e-12}
    out = mc.kernel_sum("sum(v)*x", X, Z, v=MASS)
    np.testing.assert_allclose(out, MASS.sum() * X, **close)
    out = mc.kernel_sum("max(x[1])*prod(u)*z", X, Z, u=column)
    np.testing.assert_allclose(out, X[:, 1:2] * column * Z.sum(0), **close)
    for inner, of_pairs in (("x-z", GAP), ("tanh(x-z)", np.tanh(GAP))):
        for reduction in ("sum", "mean", "logsumexp"):
            out = mc.kernel_sum(f"{reduction}(matvec(a, {inner})^2)*z", X, Z, a=one)
            values = (of_pairs @ one.T) ** 2 * Z
            np.testing.assert_allclose(out, values.sum(1), rtol=0, atol=1e-11)


def test_separate_takes_booleans_of_numpy():
    f = "exp(-sum((x-z)^2))*(x-z)*sum((x-z)*z)"
    for value in (True, False):
        np.testing.assert_array_equal(
            mc.kernel_sum(f, X, Z, separate=np.bool_(value)), mc.kernel_sum(f, X, Z, separate=value)
        )


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_many_terms_and_levels(reduce):
    """Sums of 600 terms with signs, and 140 levels."""
    signs = ["+-"[k % 3 == 1] for k in range(600)]
    f = "0*x" + "".join(f" {sign} sum(x*z)*z" for sign in signs)
    values = (X @ Z.T)[..., None] * Z * (600 - 2 * signs.count("-"))
    # 64 roundings of the sums of the terms' sizes, of which there are three times as many.
    bound = 64 * 2.3e-16 * 3 * abs(values).sum(1)
    out = mc.kernel_sum(f, X, Z, reduce=reduce)
    np.testing.assert_array_less(abs(out - getattr(np, reduce)(values, axis=1)), bound)
    deep = mc.kernel_sum("(" * 140 + "x-z" + ")" * 140, X, Z, reduce=reduce)
    np.testing.assert_allclose(deep, getattr(np, reduce)(GAP, axis=1), atol=1e-13)
    deep = mc.kernel_sum("abs(" * 140 + "x-z" + ")" * 140, X, Z, reduce=reduce)
    np.testing.assert_allclose(deep, getattr(np, reduce)(abs(GAP), axis=1), atol=1e-13)


# Derivatives -------------------------------------------------------------------------------------

TORCH = {
    "matrix_valued": lambda x, z, v, h: (
        lambda d: (-(d * d).sum(-1, True) / h).exp() * (v + 0.3 * d * (d * v).sum(-1, True))
    )(x[:, None] - z),
    "not_separable": lambda x, z, v, h: (
        lambda d: (-(d * d).sum(-1, True) / h).exp() * d.tanh() * v
    )(x[:, None] - z),
    "outer": lambda x, z, v, h: (
        lambda d: ((-(d * d).sum(-1, True) / h).exp()[..., None] * d[..., None] * v[:, None])
        .flatten(-2)
    )(x[:, None] - z),
}  # fmt: skip
TEXTS = {
    "matrix_valued": "s = exp(-sum((x-z)^2)/h); s*v + 0.3*s*(x-z)*sum((x-z)*v)",
    "not_separable": "exp(-sum((x-z)^2)/h)*tanh(x-z)*v",
    "outer": "exp(-sum((x-z)^2)/h)*outer(x-z, v)",
}
REDUCED = {
    "sum": lambda t: t.sum(1), "var": lambda t: t.var(1, correction=0),
    "softmax": lambda t: (t[..., :1].softmax(1) * t).sum(1),
}  # fmt: skip


# PyTorch reads its compiler when the first derivative is recorded.
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    "reduce", ["sum", *(pytest.param(name, marks=pytest.mark.long) for name in ("var", "softmax"))]
)
def test_pytorch_differentiates_twice(name, reduce):
    torch = pytest.importorskip("torch")
    inputs = [torch.tensor(a, requires_grad=True) for a in (X[:5], Z[:6], V[:6], np.array(1.5))]
    weight = {"weight": TEXTS[name].replace("; ", "; (") + ")[0]"} if reduce == "softmax" else {}
    if reduce == "softmax" and ";" not in TEXTS[name]:
        weight = {"weight": f"({TEXTS[name]})[0]"}

    def ours(x, z, v, h):
        return mc.kernel_sum(TEXTS[name], x, z, v=v, h=h, reduce=reduce, **weight)

    def theirs(x, z, v, h):
        return REDUCED[reduce](TORCH[name](x, z, v, h))

    results = []
    for f in (ours, theirs):
        out = f(*inputs)
        first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
        total = sum((g * g).sum() for g in first)
        results.append([out, *first, *torch.autograd.grad(total, inputs)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_pytorch_differentiates_by_matrices_and_vectors():
    torch = pytest.importorskip("torch")
    x, z, a, b = (torch.tensor(t, requires_grad=True) for t in (X[:4], Z[:5], A, A[0]))

    def summed(x, z, a, b):
        return mc.kernel_sum("sum(x*z)*matvec(a, x-z) + sum(vector(b)*(x-z)^2)", x, z, a=a, b=b)

    assert torch.autograd.gradcheck(summed, (x, z, a, b))
    assert torch.autograd.gradgradcheck(summed, (x, z, a, b))


def test_torch_compile_runs_calls_as_they_are():
    torch = pytest.importorskip("torch")
    x, z, v, a = (torch.tensor(t) for t in (X, Z, V, A))

    def moved(x, z, v, a):
        flow = mc.kernel_sum("exp(-sum((x-z)^2)/1.5)*(x-z) + v", 2 * x, z, v=v)
        return flow.sum() * mc.pairwise("sum(matvec(a, x-z)^2)", x, z, a=a) + 1

    compiled = torch.compile(moved, backend="eager")
    torch.testing.assert_close(compiled(x, z, v, a), moved(x, z, v, a))

    def whole(x, z, a):
        return mc.pairwise("sum(matvec(a, x-z)^2)", x, z, a=a)

    with pytest.raises(Exception, match=r"words of vectors|compiler\.disable|graph break"):
        torch.compile(whole, backend="eager", fullgraph=True)(x, z, a)


def test_jax_refuses_float64_where_it_has_none():
    jax = pytest.importorskip("jax")
    if jax.config.jax_enable_x64:
        pytest.skip("JAX has float64")
    whole = jax.numpy.ones((4, 3), "int32")
    with pytest.raises(mc.DtypeError, match="jax_enable_x64"):
        mc.kernel_sum("x-z", whole, whole)


# JAX compiles first derivatives for some seconds, second ones for half a minute.
@pytest.mark.parametrize("order", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_jax_differentiates_and_compiles(order):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    wide = jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()
    with wide:
        x, z, v = (jnp.asarray(a) for a in (X[:5], Z[:6], V[:6]))

        def ours(x, z, v, h):
            return mc.kernel_sum(TEXTS["matrix_valued"], x, z, v=v, h=h)

        def theirs(x, z, v, h):
            d = x[:, None] - z
            s = jnp.exp(-(d * d).sum(-1, keepdims=True) / h)
            return (s * (v + 0.3 * d * (d * v).sum(-1, keepdims=True))).sum(1)

        def first(f):
            return jax.grad(lambda *t: jnp.sin(f(*t)).sum(), argnums=(0, 1, 2, 3))

        def second(f):
            return jax.grad(lambda *t: sum((g * g).sum() for g in first(f)(*t)), argnums=(0, 2, 3))

        given = (x, z, v, jnp.asarray(1.5))
        kind = (lambda f: f, first, second)[order]
        found, expected = jax.jit(kind(ours))(*given), kind(theirs)(*given)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
