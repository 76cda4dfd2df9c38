"""mercer.sklearn against scikit-learn's own kernels of Gaussian processes."""

from __future__ import annotations

import pickle

import mercer as mc
import numpy as np
import pytest

kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
base = pytest.importorskip("sklearn.base")
processes = pytest.importorskip("sklearn.gaussian_process")
mercer_sklearn = pytest.importorskip("mercer.sklearn")

FormulaKernel = mercer_sklearn.FormulaKernel
SCALES = [0.5, 1.0, 2.0]
RBF = "exp(-sum(square(x-z))/2)"
RATIONAL = "exp(-a*log1p(sum(square(x-z))/(2*a)))"

#: A kernel of ours, the one of scikit-learn, and the order of its hyper-parameters there.
PAIRS = {
    "rbf": (FormulaKernel(RBF, 0.7), kernels.RBF(0.7), [0]),
    "rbf of one feature": (FormulaKernel(RBF, [0.7]), kernels.RBF([0.7]), [0]),
    "rbf ard": (FormulaKernel(RBF, SCALES), kernels.RBF(SCALES), [0, 1, 2]),
    "matern 1/2": (FormulaKernel(mc.matern12(), 0.7), kernels.Matern(0.7, nu=0.5), [0]),
    "matern 3/2": (
        FormulaKernel(mc.matern32(), SCALES), kernels.Matern(SCALES, nu=1.5), [0, 1, 2],
    ),
    "matern 5/2": (FormulaKernel(mc.matern52(), 0.7), kernels.Matern(0.7, nu=2.5), [0]),
    "rational": (
        FormulaKernel(RATIONAL, 0.7, params={"a": 1.3}), kernels.RationalQuadratic(0.7, 1.3),
        [1, 0],
    ),
    "linear": (
        FormulaKernel("s*s + sum(x*z)", None, params={"s": 1.3}), kernels.DotProduct(1.3), [0],
    ),
}  # fmt: skip


@pytest.fixture
def rows(rng):
    return rng.random((30, 3))


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_gradients_are_those_of_scikit_learn(name, rows):
    ours, theirs, order = PAIRS[name]
    rows = rows[:, :1] if name == "rbf of one feature" else rows
    matrix, gradient = ours(rows, eval_gradient=True)
    expected, slopes = theirs(rows, eval_gradient=True)
    np.testing.assert_allclose(matrix, expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(gradient, slopes[..., order], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(ours(rows, rows[:4]), theirs(rows, rows[:4]), rtol=1e-13)
    np.testing.assert_allclose(ours.diag(rows), theirs.diag(rows), rtol=1e-14)
    np.testing.assert_allclose(ours.theta, theirs.theta[order])
    np.testing.assert_allclose(ours.bounds, theirs.bounds[order])
    assert ours.is_stationary() == theirs.is_stationary()


def test_the_gradient_of_any_formula_is_the_slope(rows):
    kernel = FormulaKernel(
        "exp(-sum(abs(x-z)^p)/b) + c*sum(x*z)/(1+max(abs(x-z)))", SCALES,
        params={"p": 1.3, "b": 0.8, "c": 0.1}, params_bounds={"c": "fixed"},
    )  # fmt: skip
    gradient = kernel(rows, eval_gradient=True)[1]
    assert gradient.shape == (30, 30, 5)
    for at in range(5):
        step = np.zeros(5)
        step[at] = 1e-6
        more, less = (kernel.clone_with_theta(kernel.theta + s)(rows) for s in (step, -step))
        np.testing.assert_allclose(gradient[..., at], (more - less) / 2e-6, atol=1e-8)


def test_a_process_finds_the_hyperparameters_of_scikit_learn(rows):
    y = np.sin(6 * rows[:, 0]) + rows[:, 1]
    noise = kernels.WhiteKernel(0.1, "fixed")
    regressor = processes.GaussianProcessRegressor
    ours = regressor(1.0 * FormulaKernel(RBF, [1.0] * 3, (0.1, 10)) + noise).fit(rows, y)
    theirs = regressor(1.0 * kernels.RBF([1.0] * 3, (0.1, 10)) + noise).fit(rows, y)
    np.testing.assert_allclose(ours.kernel_.theta, theirs.kernel_.theta, rtol=1e-4, atol=1e-4)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(
        theirs.log_marginal_likelihood_value_, abs=1e-7
    )
    for one, other in zip(
        ours.predict(rows, return_std=True), theirs.predict(rows, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_estimators_ask_for_whole_matrices(rows):
    ridge = pytest.importorskip("sklearn.kernel_ridge")
    asked = []

    class Watched(FormulaKernel):
        def __call__(self, X, Y=None, eval_gradient=False):
            asked.append(np.shape(X))
            return super().__call__(X, Y, eval_gradient)

    model = ridge.KernelRidge(kernel=Watched(RBF, 0.5)).fit(rows, rows[:, 0])
    expected = ridge.KernelRidge(kernel="rbf", gamma=2.0).fit(rows, rows[:, 0])
    np.testing.assert_allclose(model.predict(rows), expected.predict(rows), atol=1e-10)
    assert asked == [(30, 3), (30, 3)]


def test_kernels_of_scikit_learn_are_cloned_compared_and_searched(rows):
    kernel = FormulaKernel(RATIONAL, SCALES, params={"a": 1.3})
    for other in (base.clone(kernel), pickle.loads(pickle.dumps(kernel))):
        assert other == kernel
        np.testing.assert_array_equal(other(rows), kernel(rows))
    moved = kernel.clone_with_theta(kernel.theta + 1)
    assert moved.params["a"] == pytest.approx(1.3 * np.e)
    assert kernel.params == {"a": 1.3}
    assert "length_scale=[0.5 1.  2. ]" in repr(kernel)
    joined = 2.0 * kernel + kernels.WhiteKernel()
    assert joined.set_params(k1__k2__length_scale=[1.0, 1.0, 1.0]).theta.shape == (6,)


def test_bounds_by_name(rows):
    default = FormulaKernel(RATIONAL, params={"a": 1.3})
    for bounds in ({}, {"a": (1e-5, 1e5)}):
        kernel = FormulaKernel(RATIONAL, params={"a": 1.3}, params_bounds=bounds)
        np.testing.assert_array_equal(kernel.bounds, default.bounds)
    assert FormulaKernel(RBF, params_bounds={}).theta.shape == (1,)
    fixed = FormulaKernel(RATIONAL, params={"a": 1.3}, params_bounds={"a": "fixed"})
    assert fixed.theta.shape == (1,)


STATIONARY = [
    "exp(-sum(abs(x-z)^p)/b)", "exp(-square(sum(z - x)))", "sum(abs(x-z-1)) + sum(abs(x-z+1))",
    "exp(-sum(min(x - z, z - x)))", "r = x-z; exp(-sum(r*r))", "b + 0*sum(1-(x-z))",
]  # fmt: skip
MOVING = [
    "exp(-square(sum(2*x - z)))", "exp(-square(sum(x - z*2)))", "exp(-square(sum(x - z^2)))",
    "exp(-square(sum(1 - x - z)))", "exp(-square(sum(-x - z)))", "exp(-sum(abs(x/2 - z/2)) - i*j)",
    "sum(x*z)", "exp(-square(sum(sin(x) - z)))", "exp(-square(sum((x - z)*x)))",
]  # fmt: skip


@pytest.mark.parametrize("text", STATIONARY + MOVING)
def test_formulas_of_differences_alone_are_stationary(text):
    assert FormulaKernel(text).is_stationary() == (text in STATIONARY)


def test_formulas_without_a_whole_text_are_not_called_stationary():
    formula = mc.kernel("exp(-b*sum(abs(x-z)))").bind(b=np.array([2.0]))
    assert FormulaKernel(formula).is_stationary() is False


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: FormulaKernel(RBF, [1.0, 2.0])(x), ValueError, "each of the 3 features"),
        (lambda x: FormulaKernel(RBF)(x, x, eval_gradient=True), ValueError, "when Y is None"),
        (lambda x: FormulaKernel(RBF, params={"b": 1.0})(x), ValueError, 'no parameter "b"'),
        (lambda x: FormulaKernel(RATIONAL)(x), ValueError, 'parameter "a" needs a value'),
        (lambda x: setattr(FormulaKernel(RBF), "theta", [0.0, 1.0]), ValueError, "1 numbers"),
        (
            lambda x: FormulaKernel("exp(-sum(w*square(x-z)))")(x, eval_gradient=True), ValueError,
            "w",
        ),
        (
            lambda x: FormulaKernel("exp(-length_scale*sum(abs(x-z)))",
                                    params={"length_scale": 1.0}).theta, ValueError,
            "not be named length_scale",
        ),
        (
            lambda x: FormulaKernel(RATIONAL, params={"a": 1.0}, params_bounds={"b": (1, 2)}).theta,
            ValueError, r"parameters among \['a'\]. Received \['b'\]",
        ),
        (
            lambda x: FormulaKernel(RBF, params_bounds={"a": "fixed"}).bounds, ValueError,
            r"Received \['a'\]",
        ),
        (
            lambda x: FormulaKernel(mc.kernel("exp(-b*sum(abs(x-z)))").bind(b=np.array([2.0])))(
                x, eval_gradient=True),
            NotImplementedError, "without arrays",
        ),
    ],
)  # fmt: skip
def test_rules(call, error, words, rows):
    with pytest.raises(error, match=words):
        call(rows)
