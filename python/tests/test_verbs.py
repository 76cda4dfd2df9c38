"""Each verb against NumPy, by its definition in the documentation."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close, differences, minkowski, to_library

pytestmark = pytest.mark.quick

M, N, K = 13, 9, 6
GAUSS = "exp(-sum(square(x-z))/h)"


@pytest.fixture
def points(rng, library):
    """x [M, K] and z [N, K] in the library, and in NumPy."""
    x, z = rng.normal(size=(M, K)).astype("f"), rng.normal(size=(N, K)).astype("f")
    return to_library(library, x), to_library(library, z), x, z


def gauss(x, z, h):
    return np.exp(-(differences(x, z) ** 2).sum(-1) / h)


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.3, 1.5, 2, 3, np.inf])
def test_cdist(points, p):
    x, z, x_exact, z_exact = points
    assert_close(mc.cdist(x, z, p), minkowski(x_exact, z_exact, p))
    assert_close(mc.cdist(x, z, p=p), minkowski(x_exact, z_exact, p))
    assert_close(mc.cdist(x, z, metric="minkowski", p=p), minkowski(x_exact, z_exact, p))


def test_cdist_is_euclidean_when_nothing_is_said(points):
    x, z, x_exact, z_exact = points
    assert_close(mc.cdist(x, z), minkowski(x_exact, z_exact, 2))


def test_cdist_with_weights(rng, points, library):
    x, z, x_exact, z_exact = points
    w = rng.random(K).astype("f")
    for p in (1, 1.3, 2):
        result = mc.cdist(x, z, p, w=to_library(library, w))
        assert_close(result, minkowski(x_exact, z_exact, p, w.astype(np.float64)))


def test_cdist_by_metric_formula_and_function(points):
    x, z, x_exact, z_exact = points
    exact = minkowski(x_exact, z_exact, 1)
    for metric in (
        "cityblock",
        "l1",
        "sum(abs(x-z))",
        lambda x, z: mc.sum(abs(x - z)),
        mc.cityblock(),
    ):
        assert_close(mc.cdist(x, z, metric=metric), exact)
    assert_close(mc.cdist(x, z, metric="sum(abs(x-z))*s", s=2.0), 2 * exact)


def test_pairwise_and_its_parameters(points, library):
    x, z, x_exact, z_exact = points
    assert_close(mc.pairwise(GAUSS, x, z, h=2), gauss(x_exact, z_exact, 2))
    stacked = np.stack([gauss(x_exact, z_exact, h) for h in (1.0, 2.0, 5.0)])
    widths = to_library(library, np.array([1.0, 2.0, 5.0]))
    assert_close(mc.pairwise(GAUSS, x, z, h=[1.0, 2.0, 5.0]), stacked)
    assert_close(mc.pairwise(GAUSS, x, z, h=widths), stacked)
    assert_close(mc.pairwise(GAUSS, x, z, h=np.float32(2)), gauss(x_exact, z_exact, 2))
    with_default = mc.kernel(lambda x, z, h=3.0: mc.exp(-mc.sum((x - z) ** 2) / h))
    assert_close(mc.pairwise(with_default, x, z), gauss(x_exact, z_exact, 3))
    assert_close(mc.pairwise(with_default, x, z, h=2.0), gauss(x_exact, z_exact, 2))


def test_an_outer_product_of_batch_and_parameters(rng):
    x = rng.normal(size=(4, M, K)).astype("f")
    widths = np.array([[1.0], [2.0], [5.0]])
    result = mc.pairwise(GAUSS, x, x, h=widths)
    assert result.shape == (3, 4, M, M)
    assert_close(result, np.stack([gauss(x, x, h) for h in (1.0, 2.0, 5.0)]))


def test_values_per_point_weights_and_offsets(rng, points, library):
    x, z, x_exact, z_exact = points
    row, col, w = (rng.normal(size=s).astype("f") for s in (M, N, K))
    result = mc.pairwise(
        "row + 2*col + sum(w*x*z) + where(i == j, 100, 0)", x, z, i_offset=3, j_offset=1,
        row=to_library(library, row), col=to_library(library, col), w=to_library(library, w),
    )  # fmt: skip
    diagonal = 100 * (np.arange(M)[:, None] + 3 == np.arange(N) + 1)
    exact = row[:, None] + 2 * col + (w * x_exact) @ z_exact.T + diagonal
    assert_close(result, exact)


def test_kernel_matrix(points):
    x, z, *_ = points
    f = mc.gauss(bandwidth=1.5)
    np.testing.assert_array_equal(mc.kernel_matrix(f, x, z), mc.pairwise(f, x, z))
    np.testing.assert_array_equal(mc.kernel_matrix(f, x), mc.pairwise(f, x, None))


@pytest.mark.parametrize("columns", [None, 1, 5])
def test_kernel_product(rng, points, library, columns):
    x, z, x_exact, z_exact = points
    v = rng.normal(size=N if columns is None else (N, columns)).astype("f")
    result = mc.kernel_product(GAUSS, x, z, to_library(library, v), h=2.0)
    assert tuple(result.shape) == ((M,) if columns is None else (M, columns))
    assert_close(result, gauss(x_exact, z_exact, 2) @ v)


@pytest.mark.parametrize("name", ["sum", "max", "min", "argmax", "argmin", "logsumexp"])
def test_kernel_reduce(points, name):
    x, z, x_exact, z_exact = points
    exact = minkowski(x_exact, z_exact, 1)
    expected = {
        "logsumexp": lambda: np.log(np.exp(exact).sum(-1)),
    }.get(name, lambda: getattr(np, name)(exact, -1))()
    assert_close(mc.kernel_reduce("cityblock", x, z, name), expected)
    assert_close(mc.kernel_reduce("cityblock", x, z, reduce=name), expected)


def test_knn(points):
    x, z, x_exact, z_exact = points
    values, indices = mc.knn("euclidean", x, z, 4)
    exact = minkowski(x_exact, z_exact, 2)
    np.testing.assert_array_equal(indices, np.argsort(exact, -1)[:, :4])
    assert_close(values, np.sort(exact, -1)[:, :4])


def test_knn_into_given_arrays(points, library):
    x, z, *_ = points
    values, indices = (
        library.empty((M, 2), dtype=library.float32),
        library.empty((M, 2), dtype=library.int64),
    )
    result = mc.knn("euclidean", x, z, k=2, out=(values, indices))
    assert result[0] is values
    assert result[1] is indices
    np.testing.assert_array_equal(indices, mc.knn("euclidean", x, z, 2)[1])


@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_kernel_gradient(rng, points, library, outputs):
    x, z, x_exact, z_exact = points
    coef = rng.normal(size=N if outputs is None else (outputs, N)).astype("f")
    result = mc.kernel_gradient(GAUSS, x, z, to_library(library, coef), h=2.0)
    derivative = gauss(x_exact, z_exact, 2)[..., None] * -differences(x_exact, z_exact)
    exact = np.einsum("...n,mnk->...mk", coef, derivative)
    assert tuple(result.shape) == exact.shape
    assert_close(result, exact)


def test_gradient_field(rng, points, library):
    x, z, x_exact, z_exact = points
    amplitude, coef = rng.normal(size=(M, N)).astype("f"), rng.normal(size=(2, N)).astype("f")
    result = mc.gradient_field(
        "sign(x-z)*abs(x-z)^(p-1)",
        x,
        z,
        to_library(library, amplitude),
        to_library(library, coef),
        p=1.5,
    )
    gaps = differences(x_exact, z_exact)
    phi = np.sign(gaps) * np.abs(gaps) ** 0.5
    assert_close(result, np.einsum("on,mn,mnk->omk", coef, amplitude, phi))


def test_a_field_with_values_of_the_pair(rng, points, library):
    x, z, x_exact, z_exact = points
    amplitude, coef = rng.normal(size=(M, N)).astype("f"), rng.normal(size=(2, N)).astype("f")
    phi = mc.differentiate(GAUSS, "x") + mc.where(mc.i == mc.j, mc.x, 0.0)
    arrays = to_library(library, amplitude), to_library(library, coef)
    result = mc.gradient_field(phi, x, z, *arrays, h=2.0, j_offset=1)
    derivative = gauss(x_exact, z_exact, 2)[..., None] * -differences(x_exact, z_exact)
    diagonal = np.arange(M)[:, None] == np.arange(N) + 1
    derivative += diagonal[..., None] * x_exact[:, None]
    assert_close(result, np.einsum("on,mn,mnk->omk", coef, amplitude, derivative))


def logsumexp(t):
    top = t.max(0)
    return top + np.log(np.exp(t - top).sum(0))


def smoothed(t):
    state = np.zeros_like(t[0])
    for term in t:
        state = 0.5 * state + term
    return np.tanh(state)


COEF, AMPLITUDE = mc.param("coef"), mc.param("amplitude")
FOLDS = {
    # phi, combine, the terms by c[o, n], a[m, n] and the gaps, and what becomes of them over n
    "max": ("coef*amplitude*sign(x-z)*h", "max",
            lambda c, a, d: c * a * np.sign(d) * 2, lambda t: t.max(0)),
    "min": ("coef + amplitude*(x-z)/h", "min", lambda c, a, d: c + a * d / 2, lambda t: t.min(0)),
    "prod": ("1 + coef*amplitude*(x-z)/h", "prod",
             lambda c, a, d: 1 + c * a * d / 2, lambda t: t.prod(0)),
    "logsumexp": ("coef*abs(x-z)*amplitude/h", "logsumexp",
                  lambda c, a, d: c * a * abs(d) / 2, logsumexp),
    "sum": ("h*coef*amplitude*(x-z)", "sum", lambda c, a, d: 2 * c * a * d, lambda t: t.sum(0)),
    "sum of others": ("exp(-abs(coef*amplitude*(x-z)/h))", "sum",
                      lambda c, a, d: np.exp(-abs(c * a * d / 2)), lambda t: t.sum(0)),
    "in order": (
        mc.reduce(COEF * AMPLITUDE * (mc.x - mc.z) / mc.param("h"), lambda s, t: 0.5 * s + t, 0.0,
                  finish=lambda s: mc.tanh(s)), "reduce",
        lambda c, a, d: c * a * d / 2, smoothed,
    ),
    "of text": ("reduce(coef*amplitude*(x-z)/h, 0.5*a + t, 0, finish=tanh(a))", "reduce",
                lambda c, a, d: c * a * d / 2, smoothed),
    "of a function": (lambda x, z, coef, amplitude, h: coef * amplitude * (x - z) / h, "max",
                      lambda c, a, d: c * a * d / 2, lambda t: t.max(0)),
    "two states": (
        mc.reduce((COEF * mc.x * mc.param("h"), abs(AMPLITUDE)),
                  lambda s, t: (s[0] + t[0], mc.max(s[1], t[1])), (0.0, 0.0),
                  finish=lambda s: s[0] / s[1]), "reduce", None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
def test_a_field_with_points_combined(rng, points, library, name):
    x, z, x_exact, z_exact = points
    amplitude, coef = rng.normal(size=(M, N)).astype("f"), rng.normal(size=(2, N)).astype("f")
    phi, combine, terms, fold = FOLDS[name]
    arrays = to_library(library, amplitude), to_library(library, coef)
    result = mc.gradient_field(phi, x, z, *arrays, combine=combine, h=2.0)
    if terms is None:
        sums = 2 * (coef.astype("d") @ np.ones(N))[:, None, None] * x_exact
        expected = sums / abs(amplitude.astype("d")).max(1)[:, None]
    else:
        c, a = coef.astype("d")[:, None, :, None], amplitude.astype("d")[None, :, :, None]
        all_terms = terms(c, a, differences(x_exact, z_exact)) + np.zeros((2, M, N, K))
        expected = fold(np.moveaxis(all_terms, 2, 0))
    assert_close(result, expected)
    out = to_library(library, np.empty((2, M, K), "f"))
    assert mc.gradient_field(phi, x, z, *arrays, combine=combine, h=2.0, out=out) is out
    assert_close(out, expected)


def test_a_fold_need_not_read_the_arrays(rng, points, library):
    x, z, x_exact, z_exact = points
    gaps = abs(differences(x_exact, z_exact))
    result = mc.gradient_field("abs(x-z)", x, z, None, None, combine="max")
    assert_close(result, gaps.max(1))
    coef = rng.random((3, N)).astype("f")
    result = mc.gradient_field(
        "coef*abs(x-z)", x, z, None, to_library(library, coef), combine="min"
    )
    assert_close(result, (coef[:, None, :, None] * gaps).min(2))
    assert_close(mc.gradient_field("abs(x-z)", x, None, None, None, combine="min"), 0 * x_exact)
    near = mc.gradient_field("where(sum(abs(x-z)) < 6, z, -9)", x, z, None, None, combine="max")
    inside = gaps.sum(-1)[..., None] < 6
    assert_close(near, np.where(inside, z_exact, -9).max(1))


def test_folds_that_are_refused(points):
    x, z, *_ = points
    ones = x @ z.T
    for phi, arrays, combine, words in (
        ("abs(x-z)", (ones, None), "max", "amplitude was given, but the term does not read it"),
        ("coef*x", (None, None), "max", "the formula reads coef; give it"),
        ("x", (None, None), "median", "combine must be sum, prod, max, min or logsumexp"),
        ("x-z", (None, None), "reduce", "outermost operation is a reduction"),
        (
            "reduce(x, 0.5*a + t, 0, finish=a*col)",
            (None, None),
            "reduce",
            "finish reads the states",
        ),
        ("x-z", (None, None), None, "the formula reads amplitude; give it"),
    ):
        with pytest.raises(ValueError, match=words):
            mc.gradient_field(phi, x, z, *arrays, combine=combine)


def test_a_function_for_each_verb(rng, points, library):
    x, z, x_exact, z_exact = points

    def f(x, z, h=2.0):
        return mc.exp(-mc.sum((x - z) ** 2) / h)

    assert_close(mc.pairwise(f, x, z), gauss(x_exact, z_exact, 2))
    v = to_library(library, np.ones(N, "f"))
    assert_close(mc.kernel_product(f, x, z, v, h=3.0), gauss(x_exact, z_exact, 3).sum(-1))


def test_a_user_s_reduction(points):
    x, z, x_exact, z_exact = points
    gap = mc.x - mc.z
    spread = mc.reduce(
        (gap, gap),
        combine=lambda s, t: (mc.maximum(s[0], t[0]), mc.minimum(s[1], t[1])),
        identity=(-np.inf, np.inf),
        finish=lambda s: s[0] - s[1],
    )
    gaps = differences(x_exact, z_exact)
    assert_close(mc.pairwise(spread, x, z), gaps.max(-1) - gaps.min(-1))


def test_explain_shows_the_formula():
    text = mc.explain("sum(abs(x-z))", shape=(100, 200, 30), dtype="float32")
    assert "abs" in text


def test_explain_says_which_way_a_call_on_a_gpu_takes():
    call = {"shape": (10000, 10000, 64), "target": "sm_90", "verb": "kernel_product"}
    few, many = (mc.explain("laplace", columns=columns, **call) for columns in (3, 300))
    assert "\n* direct: at least" in few
    assert "\n* materialised: at least" in many
    assert "mma_rhs: refused, more than 16 features" in many
    with pytest.raises(ValueError, match="the verb must be one of pairwise, kernel_product"):
        mc.explain("laplace", target="sm_90", verb="kernel_mean")


def test_explain_says_which_way_a_call_on_a_cpu_takes():
    few, many = (mc.explain("sum(abs(x-z))", shape=(n, n, 300)) for n in (3, 3000))
    assert "\n* few_points: about" in few
    assert "\n* packed_tile: about" in many
    assert "gemm: refused, the only reduction must be a sum of x z" in many
    assert "amx_digits: refused, the only reduction must be a sum of x z or (x - z)^2" in many
    assert "\n* packed_tile: about" in mc.explain("laplace", verb="knn")
    with pytest.raises(ValueError, match="the verb must be one of pairwise, kernel_product"):
        mc.explain("laplace", verb="kernel_agop")


def test_results_do_not_depend_on_the_threads(rng):
    x = rng.normal(size=(200, 30)).astype("f")
    with mc.options(threads=1):
        single = mc.kernel_product("laplace", x, None, x)
    with mc.options(threads=3):
        assert mc.get_num_threads() == 3
        np.testing.assert_array_equal(mc.kernel_product("laplace", x, None, x), single)


def test_the_interpreter_serves_too(rng):
    x = rng.normal(size=(20, 30)).astype("f")
    before = mc.get_target()
    with mc.options(target="interpreter"):
        assert mc.get_target() == "interpreter"
        assert_close(mc.cdist(x, None, p=1.3), minkowski(x, x, 1.3))
    assert mc.get_target() == before


def test_precision_holds_for_a_block():
    assert mc.get_precision() == "fp32"
    with mc.options(precision="tf32"):
        assert mc.get_precision() == "tf32"
    assert mc.get_precision() == "fp32"
    with pytest.raises(ValueError, match="must be fp32, direct, tf32, bf16 or fp64"):
        mc.set_precision("fp8")
    with mc.options(precision="fp64"):
        assert mc.get_precision() == "fp32"


def test_info_names_the_version():
    assert mc.info().startswith(f"mercer {mc.__version__}")
