"""Points of several arrays by name, and features by number, against float64 NumPy."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
from conftest import to_numpy

RNG = np.random.default_rng(7)
BOTH = "exp(-sum((x.pos-z.pos)^2)/a) * exp(-sum(x.tag!=z.tag)/b)"


def side(count, dtype=np.float64):
    return {
        "pos": RNG.standard_normal((count, 3)).astype(dtype),
        "tag": RNG.integers(0, 3, (count, 4)).astype(np.uint8),
        "mass": RNG.random(count).astype(dtype),
        "age": RNG.random((count, 1)).astype(dtype),
    }


def array_of(library, array):
    if library == "torch":
        return pytest.importorskip("torch").from_numpy(array)
    return pytest.importorskip("jax.numpy").asarray(array) if library == "jax" else array


def wide(points):
    """Features of all pairs, by name: [M, 1, K], and as numbers [M, 1]."""
    points = {name: np.asarray(a, np.float64) for name, a in points.items()}
    return {name: a if a.ndim == 1 else a[..., None, :] for name, a in points.items()}


def both(x, z, a, b):
    x, z = wide(x), {name: np.asarray(v, np.float64) for name, v in z.items()}
    first = ((x["pos"] - z["pos"]) ** 2).sum(-1)
    return np.exp(-first / a) * np.exp(-(x["tag"] != z["tag"]).sum(-1) / b)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_a_formula_of_two_groups(library, dtype):
    if library == "jax" and dtype == "float64":
        pytest.skip("JAX has float32 without its 64-bit types")
    x, z, v = side(11, dtype), side(8, dtype), RNG.standard_normal((8, 2))
    expected = both(x, z, 1.5, 2.0)
    v = v.astype("float64" if dtype == "float64" else "float32")
    one, other = ({n: array_of(library, a) for n, a in p.items()} for p in (x, z))
    eps = np.finfo("float64" if dtype == "float64" else "float32").eps
    found = mc.pairwise(BOTH, one, other, a=1.5, b=2.0)
    np.testing.assert_allclose(to_numpy(found), expected, rtol=40 * eps)
    found = mc.kernel_product(BOTH, one, other, array_of(library, v), a=1.5, b=2.0)
    np.testing.assert_allclose(to_numpy(found), expected @ v, atol=40 * eps)


REDUCED = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean,
    "logsumexp": np.logaddexp.reduce,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_take_their_own_group(name):
    x, z = side(6), side(5)
    text = f"{name}(x.pos*z.pos) + 10*{name}(abs(x.pos[1:]-z.pos[:2])) + {name}(x.pos)"
    one = x["pos"][:, None]
    terms = (one * z["pos"], abs(one[..., 1:] - z["pos"][:, :2]), one)
    expected = sum(f * REDUCED[name](t, axis=-1) for f, t in zip((1, 10, 1), terms, strict=True))
    np.testing.assert_allclose(mc.pairwise(text, x, z), expected, rtol=1e-12)


def test_numbers_of_a_point_alone_and_in_reductions():
    x, z = side(6), side(5)
    text = (
        "s = x.age + z.mass; d = (x.pos - z.pos)/s; "
        "x.mass*sum(d*d) + max(d) + sum(x.age) + min(x.age, z.age, z.pos[1]) + x.pos[2]"
    )
    s = x["age"] + z["mass"]
    d = (x["pos"][:, None] - z["pos"]) / s[..., None]
    least = np.minimum(np.minimum(x["age"], z["age"].T), z["pos"][:, 1])
    expected = x["mass"][:, None] * (d * d).sum(-1) + d.max(-1) + x["age"] + least
    found = mc.pairwise(text, x, z)
    np.testing.assert_allclose(found, expected + x["pos"][:, 2:], rtol=1e-12)


def test_features_by_number():
    x, z = RNG.standard_normal((6, 5)), RNG.standard_normal((4, 5))
    found = mc.pairwise("sum((x-z)^2) + sin(x[0]-z[3])*sum(x[1:3]*z[2:4])", x, z)
    one = x[:, None]
    expected = ((one - z) ** 2).sum(-1)
    expected += np.sin(x[:, :1] - z[:, 3]) * (one[..., 1:3] * z[:, 2:4]).sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_haversine_by_number():
    x, z = RNG.uniform(-1.5, 1.5, (6, 2)), RNG.uniform(-1.5, 1.5, (4, 2))
    text = "2*asin(sqrt(sin((x[0]-z[0])/2)^2 + cos(x[0])*cos(z[0])*sin((x[1]-z[1])/2)^2))"
    expected = mc.cdist(x, z, metric="haversine")
    np.testing.assert_allclose(mc.pairwise(text, x, z), expected, rtol=1e-12)


def test_every_verb_takes_groups():
    x, z = side(9), side(7)
    k, given = both(x, z, 1.0, 2.0), {"a": 1.0, "b": 2.0}
    row, col = np.array([0, 3, 3, 8]), np.array([6, 2, 0, 1])
    np.testing.assert_allclose(mc.kernel_reduce(BOTH, x, z, "max", **given), k.max(-1))
    np.testing.assert_array_equal(mc.knn(BOTH, x, z, 3, **given)[1], np.argsort(k, -1)[:, :3])
    np.testing.assert_allclose(mc.edges(BOTH, x, z, row, col, **given), k[row, col])
    near = mc.radius_neighbors(BOTH, x, z, 0.1, **given)
    np.testing.assert_array_equal(mc.csr_rows(near[0]), np.nonzero(k <= 0.1)[0])
    least = mc.edge_reduce(BOTH, x, z, row, col, "min", **given)
    np.testing.assert_allclose(least[[0, 3]], [k[0, 6], k[3, [2, 0]].min()])
    v = RNG.standard_normal(7)
    ranges = ([[0, 9]], [2], [[0, 2], [5, 7]])
    kept = np.array([1, 1, 0, 0, 0, 1, 1])
    found = mc.kernel_product(BOTH, x, z, v, ranges=ranges, **given)
    np.testing.assert_allclose(found, (k * kept) @ v, atol=1e-13)
    square = mc.kernel_matrix("x.mass*z.mass*" + BOTH, x, **given)
    expected = both(x, x, 1.0, 2.0) * np.outer(x["mass"], x["mass"])
    np.testing.assert_allclose(square, expected, rtol=1e-12)
    np.testing.assert_array_equal(square, square.T)


@pytest.mark.parametrize("normalize", ["softmax", "sum"])
def test_normalized_products_of_groups(normalize):
    x, z, v = side(6), side(5), RNG.standard_normal((5, 2))
    text = "x.mass*z.mass*sum(x.pos*z.pos) + sum(x.tag*z.tag)"
    f = np.outer(x["mass"], z["mass"]) * (x["pos"] @ z["pos"].T)
    f += x["tag"].astype(float) @ z["tag"].T
    weights = np.exp(f) if normalize == "softmax" else f
    found = mc.kernel_product(text, x, z, v, normalize=normalize)
    np.testing.assert_allclose(found, weights @ v / weights.sum(-1, keepdims=True), rtol=1e-10)


def test_rows_and_columns_of_one_set_may_differ():
    x = side(6)
    found = mc.pairwise("sum(x.pos*z.pos) + 10*x.mass - z.age", x)
    expected = x["pos"] @ x["pos"].T + 10 * x["mass"][:, None] - x["age"].T
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_row_col_and_weights_stay_the_caller_s():
    x, z, row, w = side(6), side(4), RNG.random(6), RNG.random(3)
    found = mc.pairwise("row*z.mass*sum(w*x.pos*z.pos)", x, z, row=row, w=w)
    expected = row[:, None] * z["mass"] * ((x["pos"] * w) @ z["pos"].T)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_batches_of_groups_broadcast():
    x = {"a": RNG.standard_normal((2, 1, 5, 3)), "b": RNG.standard_normal((3, 5, 2))}
    z = {"a": RNG.standard_normal((4, 3)), "b": RNG.standard_normal((4, 2))}
    found = mc.pairwise("sum(x.a*z.a) + max(x.b*z.b)", x, z)
    expected = x["a"] @ z["a"].T + (x["b"][..., None, :] * z["b"]).max(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_whole_numbers_with_floats_are_exact():
    x = {"a": np.array([[1.5]], "float32"), "b": np.array([[2**24 + 1, 3]]), "c": [[True, False]]}
    found = mc.pairwise("sum(x.b*z.b) + x.a + sum(x.c)", x)
    assert found.dtype == np.float64
    assert found[0, 0] == (2**24 + 1) ** 2 + 9 + 1.5 + 1
    with pytest.raises(ValueError, match=r"2\*\*53"):
        mc.pairwise("sum(x.b) + sum(x.a)", {"a": np.ones((1, 2)), "b": np.array([[2**53 + 1, 0]])})


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_numbers_of_points_count_for_the_dtype(library):
    place, mass = RNG.standard_normal((4, 3)).astype("float32"), 1 + 2.0**-40 * np.arange(4)
    x = {"place": array_of(library, place), "mass": array_of(library, mass)}
    x["unread"] = array_of(library, np.ones((4, 2), "int64"))
    z = {"place": x["place"], "mass": array_of(library, place[:, 0])}
    for text in ("x.mass*sum(x.place*z.place)", "z.mass*0 + x.mass*sum(x.place)"):
        found = to_numpy(mc.pairwise(text, x, z))
        assert found.dtype == np.float64
        wide = place.astype(np.float64)
        factor = wide @ wide.T if "z.place" in text else wide.sum(-1, keepdims=True) + np.zeros(4)
        np.testing.assert_allclose(found, mass[:, None] * factor, rtol=1e-15)
    assert to_numpy(mc.pairwise("i + j", x, z)).shape == (4, 4)


def test_nan_of_one_group_is_not_in_another():
    x = {"a": np.array([[np.nan, 1.0]]), "b": np.array([[np.inf, 2.0]])}
    assert np.isnan(mc.pairwise("sum(x.a)", x)).all()
    assert (mc.pairwise("where(sum(x.b) > 0, 1, 0*sum(x.a))", x) == 1).all()
    assert (mc.pairwise("min(x.b) + 0*max(z.b[1:])", x) == 2).all()
    x["c"] = np.array([[3.0, 4.0]])
    assert (mc.pairwise("sum(x.c) + where(0 > 1, sum(z.a) + sum(x.b), 0)", x) == 7).all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_gradients_by_each_group(library):
    torch = pytest.importorskip("torch")
    x, z, coef = side(6), side(5), RNG.standard_normal((2, 5))
    x["tag"], z["tag"] = x["tag"] / 3, z["tag"] / 3
    x["unread"] = np.ones((6, 2))
    text = "x.mass*exp(-sum((x.pos-z.pos)^2)) + sum((x.tag-z.tag)^2*z.mass)^2 + x.pos[1]*x.age"
    one, other = ({n: array_of(library, a) for n, a in p.items()} for p in (x, z))
    found = mc.kernel_gradient(text, one, other, array_of(library, coef))
    followed = {n: torch.from_numpy(a).requires_grad_() for n, a in x.items()}
    values = mc.pairwise(text, followed, {n: torch.from_numpy(a) for n, a in z.items()})
    for output in range(2):
        weights = torch.from_numpy(coef[output]).expand_as(values)
        expected = torch.autograd.grad(
            values, list(followed.values()), weights, retain_graph=True, allow_unused=True
        )
        for (name, array), wanted in zip(x.items(), expected, strict=True):
            wanted = np.zeros_like(array) if wanted is None else wanted.numpy()
            given = to_numpy(found[name])[output]
            np.testing.assert_allclose(given.reshape(array.shape), wanted, atol=1e-12)


def test_gradients_by_features_with_numbers():
    x, coef = RNG.standard_normal((5, 4)), RNG.standard_normal((1, 5))
    found = mc.kernel_gradient("x[1]*z[0] + sum(x[1:3]*z[2:])", x, None, coef)
    expected = np.zeros((5, 4))
    expected[:, 1:3] = coef @ x[:, 2:]
    expected[:, 1] += (coef @ x[:, 0]).item()
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)


def test_derivatives_of_groups():
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(RNG.standard_normal(s), requires_grad=True)
               for s in ((5, 3), (5, 2), (5,), (4, 3), (4, 2), (4,))]  # fmt: skip
    text = "x.mass*exp(-sum((x.pos-z.pos)^2) - sum(abs(x.tag-z.tag)*z.mass))"

    def values(*tensors):
        names = ("pos", "tag", "mass")
        x, z = (dict(zip(names, t, strict=True)) for t in (tensors[:3], tensors[3:]))
        return mc.pairwise(text, x, z)

    assert torch.autograd.gradcheck(values, tensors)
    assert torch.autograd.gradgradcheck(values, tensors)


X = {"pos": np.ones((3, 2)), "tag": np.ones((3, 4))}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("sum(x.place*z.pos)", "x has the groups x.pos, x.tag"),
        ("sum(x*z)", "'x' names nothing"),
        ("sum(x.pos*x.tag)", "one group of each side"),
        ("sum(x.pos*z.tag)", "one group of each side"),
        ("x.pos + 1", "must be in a reduction"),
        ("sum(x.pos[1:5])", "within the 2 features"),
        ("sum(2) + sum(x.pos)", "must read features"),
        ("sum(x.pos)/K", "write the number"),
        ("reduce(x.pos, a + t, 0)", "'reduce' is not offered"),
        ("sum(w*x.pos) + sum(x.tag)", "weights w"),
        ("sum(x.pos", "must be closed"),
        ("sum(x.pos) + param(a", "must be closed"),
        ("sqeuclidean", "by its name has no groups"),
        ("sum(x.pos) $", "unexpected character"),
        ("sum(x.pos);", "must be bindings"),
        ("s = ; sum(x.pos)", "must be bindings"),
        ("s = sum(x.pos);" + "s = s + s;" * 40 + "s", "too large"),
    ],
)
def test_what_a_formula_of_groups_cannot_have(text, match):
    with pytest.raises(ValueError, match=match):
        mc.pairwise(text, X)


def test_what_points_by_name_cannot_have():
    text = "sum(x.pos*z.pos)"
    with pytest.raises(NotImplementedError, match="offered by pairwise"):
        mc.kernel_agop(text, X, None, np.ones((1, 3)))
    with pytest.raises(NotImplementedError, match="out is not offered"):
        mc.kernel_gradient(text, X, None, np.ones((1, 3)), out=np.ones((1, 3, 6)))
    with pytest.raises(NotImplementedError, match="offered by pairwise"):
        mc.cdist(X["pos"], X["pos"], metric="sum(x[0]*z[0])")
    with pytest.raises(ValueError, match="must be a text"):
        mc.pairwise(lambda x, z: mc.sum(x * z), X)
    with pytest.raises(ValueError, match="both have groups"):
        mc.pairwise(text, X, X["pos"])
    with pytest.raises(ValueError, match="same number of points"):
        mc.pairwise(text, {**X, "tag": np.ones((4, 2))})
    with pytest.raises(ValueError, match="row must not be given"):
        mc.pairwise("x.m*sum(x.pos)", {**X, "m": np.ones(3)}, row=np.ones(3))
    with pytest.raises(ValueError, match="parameter"):
        mc.pairwise(text, X, h=2.0)
    with pytest.raises(mc.DtypeError, match="groups must have dtypes"):
        mc.pairwise(text + "+ sum(x.tag)", {**X, "tag": np.ones((3, 4), complex)})


def test_torch_compile_breaks_its_graph_at_groups():
    torch = pytest.importorskip("torch")

    def values(x):
        return mc.pairwise("sum(x[1:]*z[1:])", x)

    compiled = torch.compile(values, fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?s).*features by number"):
        compiled(torch.ones(3, 2))


@pytest.mark.parametrize("reduce", ["max", "min", "sum", "logsumexp"])
def test_pytorch_differentiates_reductions_of_numbers_alone(reduce):
    torch = pytest.importorskip("torch")
    x, z = (torch.tensor(RNG.standard_normal((n, 2)), requires_grad=True) for n in (5, 6))
    values = x[:, None, 0] * z[:, 1]
    known = {"max": values.amax(1), "min": values.amin(1), "sum": values.sum(1)}
    expected = known.get(reduce, values.logsumexp(1))
    found = mc.kernel_reduce("x[0]*z[1]", x, z, reduce)
    torch.testing.assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad(found.sin().sum(), (x, z)),
        torch.autograd.grad(expected.sin().sum(), (x, z)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
