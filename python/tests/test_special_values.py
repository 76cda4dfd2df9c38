"""Values at the edges of a type: NaN of either sign, large angles, branches that are not taken."""

from __future__ import annotations

import contextlib

import mercer as mc
import numpy as np
import pytest

pytestmark = pytest.mark.quick


@pytest.fixture(params=["x86_avx512", "x86_avx2", "interpreter"], autouse=True)
def target(request):
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(mc.options(target=request.param))
        except mc.Error as error:  # a processor without it
            pytest.skip(str(error))
        yield request.param


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "formula",
    ["max(square(x-z))", "max(sqrt(abs(x-z)))", "max(exp(x-z))", "sum(max(square(x-z), z*z))"],
)
def test_maxima_keep_the_nan_of_inf_minus_inf(dtype, formula):
    x, z = np.ones((3, 5), dtype), np.ones((60, 5), dtype)
    x[1, 0], z[7, 0] = np.inf, np.inf  # inf - inf has a sign on x86
    result = mc.pairwise(formula, x, z)
    largest = mc.kernel_reduce(formula, x, z, "max")
    assert np.argwhere(np.isnan(result)).tolist() == [[1, 7]]
    assert np.isnan(largest).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sines_of_large_angles(dtype):
    angles = np.concatenate([np.geomspace(0.1, 3e38, 300), -np.geomspace(1e4, 1e30, 100)])
    angles = angles.astype(dtype)[:, None]
    one = np.ones((19, 1), dtype)
    for name, exact in (("sin", np.sin), ("cos", np.cos)):
        expected = np.broadcast_to(exact(angles.astype("float64")), (400, 19))
        for formula in (f"{name}(sum(x*z))", f"sum({name}(x*z))"):
            result = mc.pairwise(formula, angles, one)
            # 2 units of the last place; NumPy's own sine has one in float64.
            np.testing.assert_allclose(result, expected, rtol=3 * np.finfo(dtype).eps)
        assert np.isnan(mc.pairwise(f"{name}(sum(x*z))", one * np.inf, one)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_branches_that_are_not_taken_count_for_nothing(dtype):
    x = np.array([[-1, 0, 2], [0.5, 1, 2]], dtype)
    z = np.array([[1, 2, 3], [0.5, 0.25, 2]], dtype)
    formula = "where(min(x) > 0, sum(sqrt(x)*z), 0)"
    gradient = mc.kernel_gradient(formula, x, z, np.ones(2, dtype))
    expected = np.array([[0, 0, 0], 0.5 / np.sqrt([0.5, 1, 2]) * [1.5, 2.25, 5]])
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_gradients_of_saturated_functions():
    s = np.array([-95.0, -60, -20, 5.8, 9, 30, 43], "float32")[:, None]
    slopes = {
        "tanh(sum(x*z))": 1 / np.cosh(s.astype("float64")) ** 2,
        "1/(1 + exp(-sum(x*z)))": 1 / (4 * np.cosh(s.astype("float64") / 2) ** 2),
        "1/(exp(sum(x*z)) + exp(-sum(x*z)))": -np.tanh(s.astype("float64"))
        / np.cosh(s.astype("float64"))
        / 2,
    }
    one = np.ones((1, 1), "float32")
    for formula, expected in slopes.items():
        gradient = mc.kernel_gradient(formula, s, one, one[0])
        # The argument of an exponential is rounded: 2^-24 |2 s|. Below 1e-37 digits are lost.
        np.testing.assert_allclose(gradient, expected, rtol=2e-5, atol=1e-37)


@pytest.mark.parametrize("branch", ["sum(sqrt(x)*z*w)", "prod(log(x*w))", "logsumexp(log(x)*z*w)"])
def test_second_derivatives_of_branches_that_are_not_taken(branch):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape, shift=0.5):
        values = torch.rand(*shape, generator=generator, dtype=torch.float64) - shift
        return values.requires_grad_()

    leaves = drawn(4, 3, shift=1.5), drawn(5, 3), drawn(3, shift=-0.5), drawn(5)
    taken = "sum(w*x*z)"

    def derivatives(formula):
        x, z, w, v = leaves
        product = mc.kernel_product(formula, x, z, v, w=w)
        total = product.square().sum() + mc.pairwise(formula, x, z, w=w).sin().sum()
        first = torch.autograd.grad(total, leaves, create_graph=True)
        return first + torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    guarded = derivatives(f"where(sum(x) > 0, {branch}, {taken})")
    for result, expected in zip(guarded, derivatives(taken), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("written", ["exp2(p*log2(abs(x-z)))", "exp(-log(abs(x-z))*(-p))"])
def test_a_logarithm_times_a_number_in_an_exponential_is_a_power(rng, dtype, written):
    x, z = rng.normal(size=(5, 6)).astype(dtype), rng.normal(size=(70, 6)).astype(dtype)
    z[3], x[1, 0], z[9, 2] = x[2], np.inf, np.nan
    for p in (1.3, -0.7, 2, 2.5):
        power = mc.pairwise("sum(abs(x-z)^p)", x, z, p=p)
        np.testing.assert_array_equal(mc.pairwise(f"sum({written})", x, z, p=p), power)
    # 2^(0 log2 0) is NaN, and so is an infinity's; an array is no constant.
    for zero in (0, np.zeros(1)):
        nothing = np.squeeze(mc.pairwise(f"sum({written})", x, z, p=zero))
        assert np.isnan(nothing[2, 3])
        assert np.isnan(nothing[1]).all()
        np.testing.assert_allclose(nothing[0, :3], 6, 1e-6)


def test_subnormal_distances_where_others_flush_them():
    """PyTorch flushes subnormal numbers of the threads that call and start others, if asked to, as
    XLA does: distances stay what they are."""
    torch = pytest.importorskip("torch")
    x = np.full((300, 4), 2.0**-140, "f")
    x[::2] = 0
    expected = mc.cdist(x, None, 1)
    assert expected[0, 1] == 4 * 2.0**-140
    if not torch.set_flush_denormal(True):
        pytest.skip("the processor has no such mode")
    try:
        with mc.options(threads=1):
            np.testing.assert_array_equal(mc.cdist(x, None, 1), expected)
        mc.set_num_threads(7)  # more workers start here
        np.testing.assert_array_equal(mc.cdist(x, None, 1), expected)
    finally:
        mc.set_num_threads(0)
        torch.set_flush_denormal(False)
