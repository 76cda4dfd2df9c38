"""mercer.parameter_gradient against float64 sums over all pairs and central differences."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

ARD = "a*exp(-sum(w*abs(x-z)^p)/b) + row*col*sum(x*z)"
EPS = {"float32": 6e-8, "float64": 1.2e-16}


def arrays(m=23, n=17, k=5, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    made = {
        "x": rng.normal(size=(m, k)), "z": rng.normal(size=(n, k)), "w": rng.uniform(0.5, 2, k),
        "row": rng.normal(size=m), "col": rng.normal(size=n), "g": rng.normal(size=(m, n)),
    }  # fmt: skip
    return {name: values.astype(dtype) for name, values in made.items()}


def value(f, x, z, weights, **options):
    return float((weights * mc.pairwise(f, x, z, **options)).sum())


def difference(function, at, step=1e-6):
    """Central differences by each element."""
    at = np.asarray(at, dtype="d")
    found = np.empty_like(at)
    for index in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        found[index] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return found


@pytest.mark.parametrize("as_pair", [False, True])
def test_every_name_against_differences(as_pair):
    t = arrays()
    numbers = {"a": 1.3, "b": 4.0, "p": np.float64(1.6)}
    g, weights = t["g"], t["g"]
    if as_pair:
        u, v = t["g"][:, :3].copy(), t["g"][:17, 3:6].copy()
        g, weights = u @ v.T, (u, v)
    sides = {name: t[name] for name in ("w", "row", "col")}
    names = ["b", "x", "row", "w", "z", "col", "a", "p"]
    found = mc.parameter_gradient(ARD, t["x"], t["z"], weights, by=names, **sides, **numbers)
    assert list(found) == names
    given = {"x": t["x"], "z": t["z"], **sides, **numbers}

    def total(**changed):
        rest = given | changed
        return value(ARD, rest.pop("x"), rest.pop("z"), g, **rest)

    for name in names:
        expected = difference(lambda moved, name=name: total(**{name: moved}), given[name])
        assert np.shape(found[name]) == np.shape(given[name])
        assert found[name].dtype == np.float64
        scale = np.abs(g).sum() * 10
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-8 * scale)
        alone = mc.parameter_gradient(ARD, t["x"], t["z"], weights, by=name, **sides, **numbers)
        np.testing.assert_allclose(alone[name], found[name], rtol=1e-9, atol=1e-12 * scale)
    for group in (["z", "w", "b"], ["col", "a", "p"], ["row", "col"], ["w", "x"]):
        some = mc.parameter_gradient(ARD, t["x"], t["z"], weights, by=group, **sides, **numbers)
        assert list(some) == group
        for name in group:
            np.testing.assert_allclose(some[name], found[name], rtol=1e-9, atol=1e-10 * scale)
    default = mc.parameter_gradient(ARD, t["x"], t["z"], weights, **sides, **numbers)
    assert default == {name: found[name] for name in ("a", "b", "p")}


@pytest.mark.parametrize("f", ["exp(-sum(square(x-z))/b)", "sum(square(x)*z)*b + sum(x)"])
@pytest.mark.parametrize("as_pair", [False, True])
def test_points_that_are_both_sides(f, as_pair):
    """A symmetric formula and one that is not: by x means by both sides."""
    t = arrays(15, 15)
    u, v = t["g"][:, :2].copy(), t["g"][:, 2:4].copy()
    g = u @ v.T if as_pair else t["g"]
    weights = (u, v) if as_pair else g
    found = mc.parameter_gradient(f, t["x"], None, weights, by=["x", "b"], b=3.0)
    expected = difference(lambda x: value(f, x, x, g, b=3.0), t["x"])
    np.testing.assert_allclose(found["x"], expected, rtol=1e-6, atol=1e-6)
    by_b = difference(lambda b: value(f, t["x"], t["x"], g, b=float(b)), 3.0)
    np.testing.assert_allclose(found["b"], by_b, rtol=1e-6)
    alone = mc.parameter_gradient(f, t["x"], None, weights, b=3.0)
    np.testing.assert_allclose(alone["b"], found["b"], rtol=1e-12)


@pytest.mark.parametrize("by", [["x", "row"], ["x", "row", "col"], ["x", "col"]])
def test_row_and_col_are_results_of_their_own(by):
    """One array may be on both sides, where the weights are those of no symmetric matrix."""
    t = arrays(m=19, n=19)
    f, weights = "row*col*exp(-sum((x-z)^2))", (t["g"][:, :2].copy(), t["z"][:, :2].copy())
    sides = {"row": t["row"], "col": t["row"]}
    found = mc.parameter_gradient(f, t["x"], None, weights, by=by, **sides)
    for name in by:
        alone = mc.parameter_gradient(f, t["x"], None, weights, by=[name], **sides)[name]
        np.testing.assert_allclose(found[name], alone, rtol=1e-12, atol=1e-13)


def test_weights_of_both_sides_with_w():
    """What symmetric passes have twice is halved: w and the parameters, as well as x."""
    t = arrays(20, 20)
    u, v = t["g"][:, :2].copy(), t["g"][:, 5:7].copy()
    f = "a*exp(-sum(w*square(x-z)))"
    names = ["x", "w", "a"]
    pair = mc.parameter_gradient(f, t["x"], None, (u, v), by=names, w=t["w"], a=2.0)
    stored = mc.parameter_gradient(f, t["x"], None, u @ v.T, by=names, w=t["w"], a=2.0)
    for name in names:
        np.testing.assert_allclose(pair[name], stored[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accuracy(dtype):
    """Sums of M N terms: those of a row in the dtype, the rest in float64."""
    t = arrays(400, 300, 8, dtype)
    f = "exp(-sum(w*square(x-z))/b)"
    double = {name: values.astype("d") for name, values in t.items()}
    options = {"by": ["b", "w", "x"], "b": 6.0}
    found = mc.parameter_gradient(f, t["x"], t["z"], t["g"], w=t["w"], **options)
    exact = mc.parameter_gradient(
        f, double["x"], double["z"], double["g"], w=double["w"], **options
    )
    size = mc.parameter_gradient(
        f, double["x"], double["z"], abs(double["g"]), w=double["w"], **options
    )
    for name in options["by"]:
        assert found[name].dtype == ("float64" if name == "b" else dtype)
        # Terms differ in sign by g alone (b, w): their sum of magnitudes bounds the rounding.
        scale = np.abs(size[name]) if name != "x" else np.abs(double["g"]).sum(1)[:, None]
        assert (
            np.abs(found[name] - exact[name]) <= 64 * EPS[dtype] * (scale + 1e-3 * scale.max())
        ).all()


def test_many_names_and_exponents_that_are_numbers():
    """More than eight names, and one in an exponent, which no pass takes."""
    t = arrays(9, 8, 3)
    numbers = {f"c{i}": 0.1 * (i + 1) for i in range(11)}
    f = (
        "+".join(f"c{i}*sum(abs(x-z)^{i % 3 + 1})^{i // 3 + 1}" for i in range(11))
        + "+sum(abs(x-z)^q)"
    )
    found = mc.parameter_gradient(f, t["x"], t["z"], t["g"], q=1.5, **numbers)
    assert len(found) == 12
    gaps = np.abs(t["x"][:, None] - t["z"])
    for i in range(11):
        expected = (t["g"] * (gaps ** (i % 3 + 1)).sum(-1) ** (i // 3 + 1)).sum()
        np.testing.assert_allclose(found[f"c{i}"], expected, rtol=1e-10)
    np.testing.assert_allclose(
        found["q"], (t["g"][..., None] * gaps**1.5 * np.log(gaps)).sum(), rtol=1e-10
    )


def test_batches_and_array_parameters():
    rng = np.random.default_rng(3)
    x, z, g = rng.normal(size=(3, 6, 4)), rng.normal(size=(7, 4)), rng.normal(size=(3, 6, 7))
    b = np.array([1.0, 2.0, 4.0])
    f = "exp(-sum(square(x-z))/b)*c"
    found = mc.parameter_gradient(f, x, z, g, by=["b", "z", "x", "c"], b=b, c=2.0)
    assert [np.shape(found[name]) for name in found] == [(3,), (7, 4), (3, 6, 4), ()]
    parts = [
        mc.parameter_gradient(f, x[i], z, g[i], by=["b", "z", "x", "c"], b=b[i], c=2.0)
        for i in range(3)
    ]
    np.testing.assert_allclose(found["b"], [part["b"] for part in parts], rtol=1e-12)
    np.testing.assert_allclose(found["x"], [part["x"] for part in parts], rtol=1e-12)
    np.testing.assert_allclose(found["z"], sum(part["z"] for part in parts), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found["c"], sum(part["c"] for part in parts), rtol=1e-12)


def test_zoo_names_vectors_and_no_weights():
    t = arrays()
    u, v = t["g"][:, 0].copy(), t["g"][0].copy()
    pair = mc.parameter_gradient("gauss", t["x"], t["z"], (u, v), bandwidth=2.0)
    stored = mc.parameter_gradient(mc.gauss(), t["x"], t["z"], np.outer(u, v), bandwidth=2.0)
    assert list(pair) == list(stored) == ["bandwidth"]
    np.testing.assert_allclose(pair["bandwidth"], stored["bandwidth"], rtol=1e-12)
    ones = mc.parameter_gradient("gauss", t["x"], t["z"], bandwidth=2.0)
    all_ones = mc.parameter_gradient("gauss", t["x"], t["z"], np.ones_like(t["g"]), bandwidth=2.0)
    np.testing.assert_allclose(ones["bandwidth"], all_ones["bandwidth"], rtol=1e-12)
    assert mc.parameter_gradient("sum(square(x-z))", t["x"], t["z"]) == {}


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 3), (4, 0, 3), (4, 5, 0)])
@pytest.mark.parametrize("as_pair", [False, True])
def test_empty(m, n, k, as_pair):
    x, z, w = np.ones((m, k)), np.ones((n, k)), np.ones(k)
    weights = (np.ones((m, 1)), np.ones((n, 1))) if as_pair else np.ones((m, n))
    f = "exp(-sum(w*square(x-z)))*c"
    found = mc.parameter_gradient(f, x, z, weights, by=["c", "x", "z", "w"], w=w, c=2.0)
    assert found["c"] == m * n
    for name, like in (("x", x), ("z", z), ("w", w)):
        np.testing.assert_array_equal(found[name], np.zeros_like(like))


def test_strided_weights_and_offsets():
    t = arrays(8, 8)
    wide = np.full((16, 24), np.nan)
    wide[::2, ::3] = t["g"]
    f = "where(i < j, b*sum(x*z), 0)"
    found = mc.parameter_gradient(
        f, t["x"], t["z"], wide[::2, ::3], b=1.0, i_offset=3, by=["b", "z"]
    )
    above = np.arange(8)[:, None] + 3 < np.arange(8)
    np.testing.assert_allclose(found["b"], (t["g"] * above * (t["x"] @ t["z"].T)).sum(), rtol=1e-12)
    np.testing.assert_allclose(found["z"], (t["g"] * above).T @ t["x"], rtol=1e-12)


def test_likelihood_of_a_gaussian_process():
    """0.5 (y^T a^-1 y + log det a) by all hyper-parameters, from a factor and one pass."""
    t = arrays(40, 40)
    y, f = t["row"], mc.kernel("a*exp(-0.5*sum(w*square(x-z)))")

    def likelihood(a, w):
        k = mc.pairwise(f, t["x"], w=w, a=float(a)) + 0.1 * np.eye(40)
        quad, logdet = mc.linalg.inv_quad_logdet(k, y)
        return 0.5 * (quad + logdet)

    factor = mc.linalg.cholesky(mc.pairwise(f, t["x"], w=t["w"], a=1.5) + 0.1 * np.eye(40))
    alpha = mc.linalg.cho_solve(factor, y)
    weights = 0.5 * (mc.linalg.cho_inverse(factor) - np.outer(alpha, alpha))
    found = mc.parameter_gradient(f, t["x"], None, weights, by=["a", "w"], w=t["w"], a=1.5)
    np.testing.assert_allclose(
        found["a"], difference(lambda a: likelihood(a, t["w"]), 1.5), rtol=1e-5
    )
    np.testing.assert_allclose(
        found["w"], difference(lambda w: likelihood(1.5, w), t["w"]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("k", [5, 40, 200])
def test_tensors(device, k):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    t = arrays(60, 50, k)
    f, names = "a*exp(-sum(w*square(x-z))/b)", ["a", "w", "x", "z", "b"]
    moved = {name: torch.from_numpy(values).to(device) for name, values in t.items()}
    options = {"a": 1.5, "b": 2.0 * k}
    for weights, own in (
        (t["g"], moved["g"]),
        ((t["g"][:, :2].copy(), t["x"][:50, :2].copy()), (moved["g"][:, :2], moved["x"][:50, :2])),
    ):
        expected = mc.parameter_gradient(f, t["x"], t["z"], weights, by=names, w=t["w"], **options)
        found = mc.parameter_gradient(
            f, moved["x"], moved["z"], own, by=names, w=moved["w"], **options
        )
        for name in names:
            assert isinstance(found[name], torch.Tensor)
            assert found[name].device.type == device
            np.testing.assert_allclose(found[name].cpu(), expected[name], rtol=1e-9, atol=1e-10)
    tensors = [moved[name].requires_grad_() for name in ("x", "z")]
    total = (moved["g"] * mc.pairwise(f, *tensors, w=moved["w"], **options)).sum()
    by_autograd = torch.autograd.grad(total, tensors)
    found = mc.parameter_gradient(
        f,
        tensors[0].detach(),
        tensors[1].detach(),
        moved["g"],
        by=["x", "z"],
        w=moved["w"],
        **options,
    )
    for own, other in zip(found.values(), by_autograd, strict=True):
        torch.testing.assert_close(own, other)
    with pytest.raises(NotImplementedError, match="parameter_gradient: "):
        mc.parameter_gradient(f, *tensors, moved["g"], w=moved["w"], **options)


def test_what_is_refused():
    t = arrays()
    call = {"b": 2.0}
    f = "exp(-sum(square(x-z))/b)"
    with pytest.raises(ValueError, match=r'by must name parameters of the formula \("b"\)'):
        mc.parameter_gradient(f, t["x"], t["z"], t["g"], by=["c"], **call)
    with pytest.raises(ValueError, match='by names "w", which is not read by the formula'):
        mc.parameter_gradient(f, t["x"], t["z"], t["g"], by=["w"], **call)
    with pytest.raises(ValueError, match='by names "row", which is not given'):
        mc.parameter_gradient("row*sum(x*z)", t["x"], t["z"], t["g"], by="row")
    with pytest.raises(ValueError, match="with z=None the points are both sides"):
        mc.parameter_gradient(f, t["x"], None, by=["z"], **call)
    with pytest.raises(ValueError, match=r"weights must be a matrix .* or a pair"):
        mc.parameter_gradient(f, t["x"], t["z"], (t["g"],), **call)
    with pytest.raises(ValueError, match=r"^parameter_gradient: "):
        mc.parameter_gradient(f, t["x"], t["z"], t["g"].T.copy(), **call)
    with pytest.raises(ValueError, match=r"^parameter_gradient: "):
        mc.parameter_gradient(f, t["x"][0], t["z"], t["g"], **call)
    with pytest.raises(ValueError, match=r"^parameter_gradient: "):
        mc.parameter_gradient(f, t["x"], t["z"], (t["x"], t["z"][:, :2]), **call)
    for wrong in (
        {"x": t["x"].tolist()}, {"z": t["z"].tolist()}, {"weights": t["g"].tolist()},
        {"weights": (t["g"][:, 0].tolist(), t["g"][0])}, {"weights": (1.0, 2.0)}, {"z": t["z"][0]},
    ):  # fmt: skip
        given = {"x": t["x"], "z": t["z"], "weights": t["g"]} | wrong
        with pytest.raises(ValueError, match=r"^parameter_gradient: "):
            mc.parameter_gradient(f, **given, **call)
    with pytest.raises((ValueError, TypeError), match=r"^parameter_gradient: .*b"):
        mc.parameter_gradient(f, t["x"], t["z"], t["g"])
    with pytest.raises(ValueError, match=r"^parameter_gradient: "):
        mc.parameter_gradient(f, t["x"], t["z"], t["g"], unknown=3.0, **call)


@pytest.mark.parametrize("features", [2, 20])
def test_weights_of_other_shapes_and_dtypes_are_refused_alike(features):
    x = np.random.default_rng(0).normal(size=(6, features))
    for weights in (np.ones((6, 1)), np.ones((1, 6)), 3.0):
        with pytest.raises(ValueError, match=r"weights must be a matrix \[..., 6, 6\]"):
            mc.parameter_gradient("gauss", x, None, weights, bandwidth=1.3)
    ones = np.ones((6, 1))
    for weights in (np.ones((6, 6), int), (ones, ones.astype("f")), (ones.astype("f"), ones)):
        with pytest.raises(mc.DtypeError, match="weights must be float64"):
            mc.parameter_gradient("gauss", x, None, weights, bandwidth=1.3)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_matrices_of_numpy_mean_arrays():
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(6, 20)), rng.normal(size=(6, 6))
    found = mc.parameter_gradient("gauss", np.matrix(x), None, np.matrix(g), bandwidth=6.0)
    assert found == mc.parameter_gradient("gauss", x, None, g, bandwidth=6.0)
    operator = mc.linalg.KernelOperator("gauss", x, ridge=0.5)
    found, wanted = (mc.linalg.inv_quad_logdet(operator, b) for b in (np.matrix(g), g))
    np.testing.assert_array_equal(found.inv_quad, wanted.inv_quad)


@pytest.mark.parametrize("followed", ["x", "weights", "bandwidth"])
def test_tensors_that_track_gradients_are_refused(followed):
    torch = pytest.importorskip("torch")
    given = {
        "x": torch.randn(4, 3), "weights": (torch.randn(4, 1), torch.randn(4, 1)),
        "bandwidth": torch.tensor(1.3),
    }  # fmt: skip
    target = given[followed]
    (target[0] if isinstance(target, tuple) else target).requires_grad_()
    with pytest.raises(NotImplementedError, match="must not track gradients"):
        mc.parameter_gradient("gauss", given["x"], None, given["weights"],
                              bandwidth=given["bandwidth"])  # fmt: skip
