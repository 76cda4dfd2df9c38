"""Distances at the ends of the range and of points close together, on every target of the CPU."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

CONTRACT = 1e-6  # docs/guide/precision.md, float32
EXTENDED = np.longdouble


@pytest.fixture(params=["x86_avx512", "x86_avx2", "interpreter"])
def target(request):
    try:
        options = mc.options(target=request.param)
    except (RuntimeError, ValueError, NotImplementedError):
        pytest.skip("this processor lacks it")
    with options:
        yield request.param


def gaps(x, z):
    return np.abs(x.astype(EXTENDED)[:, None] - z.astype(EXTENDED)[None])


def largest_gap(gap):
    """For gaps of which some powers leave the range of long double too; 1 of equal points."""
    largest = gap.max(-1, keepdims=True)
    return np.where(largest == 0, 1, largest)


def norm(x, z, p, w=1):
    gap, p = gaps(x, z), EXTENDED(p)
    largest = largest_gap(gap)
    return largest[..., 0] * (w * (gap / largest) ** p).sum(-1) ** (1 / p)


def norm_slopes(x, z, p, w=1):
    """w (|d| / D)^(p - 1) sign(d) [m, n, k]; 0 of equal features."""
    d, p = x.astype(EXTENDED)[:, None] - z.astype(EXTENDED)[None], EXTENDED(p)
    gap = np.abs(d) / largest_gap(np.abs(d))
    size = (w * gap**p).sum(-1, keepdims=True) ** (1 / p)
    ratio = np.where(gap == 0, 1, gap / np.where(size == 0, 1, size))
    return w * np.sign(d) * ratio ** (p - 1)


def assert_relative(result, expected, bound=CONTRACT):
    """Within `bound` of values that are normal numbers; others as near as these."""
    result = np.asarray(result)
    least = float(np.finfo(result.dtype).smallest_normal)
    error = np.abs(result.astype(EXTENDED) - expected) / np.maximum(expected, least)
    assert np.all(error <= bound), float(np.nanmax(error))


def mixed(rng, scale, near, shape=(29, 11)):
    """Points, half of the second ones close to the first."""
    x = (scale * rng.normal(size=shape)).astype("f")
    z = (scale * rng.normal(size=shape)).astype("f")
    z[::2] = x[::2] + (near * scale * rng.normal(size=x[::2].shape)).astype("f")
    return x, z


@pytest.mark.parametrize("p", [10, 12.5, 16, 20])
def test_high_powers_of_small_differences(target, p):
    x, z = np.zeros((3, 4), "f"), np.full((70, 4), 0.1, "f")
    assert_relative(mc.cdist(x, z, p), norm(x, z, p))


@pytest.mark.parametrize("scale", [1, 1e-3, 3e-23, 1e3, 1e18])
@pytest.mark.parametrize("p", [1.3, 2, 3, 7, 10])
def test_powers_that_leave_the_range_before_the_root(target, rng, p, scale):
    x, z = mixed(rng, scale, 1e-5)
    expected = norm(x, z, p)
    assert_relative(mc.cdist(x, z, p), expected)
    if p == 2 and scale in (3e-23, 1e18):
        values, _ = mc.knn("euclidean", x, z, k=3)
        assert_relative(values, np.sort(expected, axis=1)[:, :3])
        assert_relative(mc.kernel_reduce("euclidean", x, z, "max"), expected.max(1))
        w = np.ones(z.shape[1], "f")
        assert_relative(mc.cdist(x, z, 2, w=w), expected)


def test_ends_of_the_range_by_hand(target):
    far = np.array([[3e4, 1]], "f")
    assert_relative(mc.cdist(np.zeros((1, 2), "f"), far, 10), EXTENDED(3e4))
    assert mc.cdist(far, far, 10) == 0
    huge = np.array([[3e19, -3e19]], "f")
    assert_relative(mc.cdist(huge, -huge), norm(huge, -huge, 2))
    for value in (np.inf, np.nan):
        point = np.array([[value, 1]], "f")
        np.testing.assert_equal(mc.cdist(point, far), [[value]])


SCALES = {
    "f": [1e-36, 1e-23, 1e-6, 1, 1e6, 1e19, 1e36],
    "d": [1e-305, 1e-200, 1e-60, 1, 1e60, 1e200, 1e305],
}


def norm_bound(dtype):
    """The bound for norms: float64 shows the rounding of 1/p times log(sum), which is below 712."""
    return CONTRACT if dtype == "f" else 1e-13


@pytest.mark.parametrize("p", [1.3, 2, 2.5, 3, 7, 10, 20, 100])
@pytest.mark.parametrize("dtype", ["f", "d"])
def test_norms_of_any_size(target, rng, dtype, p):
    for scale in SCALES[dtype]:
        x, z = (points.astype(dtype) for points in mixed(rng, 1, 1e-3))
        x, z = x * x.dtype.type(scale), z * z.dtype.type(scale)
        z[1] = x[1]
        expected = norm(x, z, p)
        result = mc.cdist(x, z, p)
        assert_relative(result, expected, norm_bound(dtype))
        assert result[1, 1] == 0


@pytest.mark.parametrize(
    ("dtype", "scale"), [("f", 1e-20), ("f", 1e30), ("d", 1e-200), ("d", 1e200)]
)
@pytest.mark.parametrize("p", [2, 10])
def test_every_verb_takes_norms_of_any_size(target, rng, dtype, scale, p):
    x, z = (points.astype(dtype) for points in mixed(rng, 1, 1e-3))
    x, z = x * x.dtype.type(scale), z * z.dtype.type(scale)
    bound, expected = norm_bound(dtype), norm(x, z, p)
    f = mc.kernel(f"sum(abs(x-z)^{p})^(1/{p})")
    assert_relative(mc.pairwise(f, x, z), expected, bound)
    assert_relative(mc.pairwise(f, x, x), norm(x, x, p), bound)
    assert_relative(mc.knn(f, x, z, k=3)[0], np.sort(expected, axis=1)[:, :3], bound)
    assert_relative(mc.kernel_reduce(f, x, z, "max"), expected.max(1), bound)
    w = rng.uniform(0.1, 4, x.shape[1]).astype(dtype)
    assert_relative(mc.cdist(x, z, p, w=w), norm(x, z, p, w.astype(EXTENDED)), bound)
    laplace = np.exp(-expected / EXTENDED(5 * scale))
    v = rng.random((29, 2)).astype(dtype)
    k = mc.kernel(f"exp(-sum(abs(x-z)^{p})^(1/{p})/h)")
    assert_relative(
        mc.kernel_product(k, x, z, v, h=5 * scale), laplace @ v.astype(EXTENDED), 4 * bound
    )
    logarithm = mc.pairwise(f"log(sum(abs(x-z)^{p}))", x, z)
    np.testing.assert_allclose(logarithm, (p * np.log(expected)).astype("d"), rtol=bound)


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_weights_and_length_scales_of_any_size(target, rng, dtype):
    x, z = (points.astype(dtype) for points in mixed(rng, 1, 1e-3))
    least = {"f": 1e-25, "d": 1e-170}[dtype]
    for size in (least, 1 / least):
        w = (size * rng.uniform(0.1, 4, x.shape[1])).astype(dtype)
        exact = w.astype(EXTENDED)
        assert_relative(mc.cdist(x, z, 2, w=w), norm(x, z, 2, exact), norm_bound(dtype))
        scaled = mc.pairwise("sqrt(sum(((x-z)/w)^2))", x, z, w=w)
        assert_relative(scaled, norm(x, z, 2, 1 / (exact * exact)), norm_bound(dtype))
        by_number = mc.pairwise("sqrt(sum(((x-z)/h)^2))", x, z, h=float(w[0]))
        assert_relative(by_number, norm(x, z, 2) / exact[0], norm_bound(dtype))
    x[:, 0], w = x[:, 0] + x.dtype.type(1e30 if dtype == "f" else 1e300), np.ones(x.shape[1], dtype)
    w[0] = 0  # of an infinite power
    assert_relative(mc.cdist(x, z, 2, w=w), norm(x[:, 1:], z[:, 1:], 2), norm_bound(dtype))


def test_kernels_and_products_of_such_distances(target, rng):
    x, z = mixed(rng, 3e4, 1e-4)
    v = rng.random((29, 2)).astype("f")
    expected = np.exp(-norm(x, z, 10) / EXTENDED(1e5))
    laplace = mc.kernel("exp(-sum(abs(x-z)^10)^0.1/h)")
    assert_relative(mc.pairwise(laplace, x, z, h=1e5), expected, 3 * CONTRACT)
    product = mc.kernel_product(laplace, x, z, v, h=1e5)
    assert_relative(product, expected @ v.astype(EXTENDED), 3 * CONTRACT)


@pytest.mark.parametrize("scale", [3e-23, 1e20])
def test_gradients_of_euclidean_distances(target, rng, scale):
    x, z = mixed(rng, scale, 1e-3)
    coef = rng.normal(size=29).astype("f")
    d = x.astype(EXTENDED)[:, None] - z.astype(EXTENDED)[None]
    unit = d / np.sqrt((d * d).sum(-1, keepdims=True))
    expected = np.einsum("n,mnk->mk", coef.astype(EXTENDED), unit)
    error = np.abs(mc.kernel_gradient("euclidean", x, z, coef) - expected)
    assert error.max() <= 1e-6 * np.abs(coef).sum()


def slope_bound(dtype, p):
    """The bound relative to a row's norm. In float64 a norm that is rounded has the power p - 1."""
    return CONTRACT * (max(1, p / 20) + 1 / p) if dtype == "f" else 1e-13 + 1e-15 * p


def assert_rows(result, exact, sizes, bound):
    """exact, sizes [m, n, k]: the terms of a row's sum, and their sizes."""
    row = np.linalg.norm(sizes.sum(1).astype("d"), axis=-1, keepdims=True)
    error = np.abs(np.asarray(result).astype(EXTENDED) - exact.sum(1)) / row
    assert np.all(error <= bound), float(np.nanmax(error))


@pytest.mark.parametrize("p", [0.3, 0.7, 1.3, 2, 2.5, 3, 4, 7, 10, 20, 100])
@pytest.mark.parametrize("dtype", ["f", "d"])
def test_slopes_of_norms_of_any_size(target, rng, dtype, p):
    f = mc.kernel("sum(abs(x-z)^p)^(1/p)")
    for scale in SCALES[dtype]:
        x, z = (points.astype(dtype) for points in mixed(rng, 1, 1e-1))
        x, z = x * x.dtype.type(scale), z * z.dtype.type(scale)
        z[1], z[3, :4] = x[1], x[2, :4]
        coef = rng.normal(size=29).astype(dtype)
        terms = coef.astype(EXTENDED)[:, None] * norm_slopes(x, z, p)
        assert_rows(
            mc.kernel_gradient(f, x, z, coef, p=p), terms, np.abs(terms), slope_bound(dtype, p)
        )


@pytest.mark.parametrize(
    ("dtype", "scale"), [("f", 1e-30), ("f", 1e30), ("d", 1e-250), ("d", 1e250)]
)
@pytest.mark.parametrize("p", [2, 3, 10])
def test_every_derivative_of_norms_of_any_size(target, rng, dtype, scale, p):
    x, z = (points.astype(dtype) for points in mixed(rng, 1, 1e-1))
    x, z = x * x.dtype.type(scale), z * z.dtype.type(scale)
    f, bound = mc.kernel(f"sum(abs(x-z)^{p})^(1/{p})"), slope_bound(dtype, p)
    amplitude = rng.normal(size=(29, 29)).astype(dtype)
    slopes = norm_slopes(x, z, p)
    terms = amplitude.astype(EXTENDED)[..., None] * slopes
    ones = np.ones(29, dtype)
    assert_rows(
        mc.gradient_field(mc.differentiate(f, "x"), x, z, amplitude, ones),
        terms,
        np.abs(terms),
        bound,
    )
    inner = mc.kernel_agop(f, x, z, ones)
    rows = slopes.sum(1).astype("d")
    assert np.abs(inner - rows.T @ rows).max() <= 8 * bound * np.linalg.norm(rows) ** 2
    laplace = np.exp(-norm(x, z, p) / EXTENDED(5 * scale))[..., None]
    terms = -laplace / EXTENDED(5) * slopes
    gradient = mc.kernel_gradient(f"exp(-sum(abs(x-z)^{p})^(1/{p})/h)*h", x, z, ones, h=5 * scale)
    assert_rows(gradient, 5 * terms, 5 * np.abs(terms), 3 * bound)


@pytest.mark.parametrize(
    ("dtype", "scale"), [("f", 1e-30), ("f", 1e30), ("d", 1e-200), ("d", 1e200)]
)
def test_slopes_of_few_features_by_products(target, rng, dtype, scale):
    x, z = (scale * rng.normal(size=(150, 2)) for _ in range(2))
    x, z = x.astype(dtype), z.astype(dtype)
    for p in (3, 10, 20):
        terms = norm_slopes(x, z, p)
        gradient = mc.kernel_gradient(f"sum(abs(x-z)^{p})^(1/{p})", x, z, np.ones(150, dtype))
        assert_rows(gradient, terms, np.abs(terms), slope_bound(dtype, p))


@pytest.mark.parametrize(
    ("dtype", "scale"), [("f", 1e-30), ("f", 1e30), ("d", 1e-200), ("d", 1e200)]
)
@pytest.mark.parametrize("p", [2, 3, 10])
def test_backwards_of_norms_of_any_size(dtype, scale, p):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(p)
    x, z = (points.astype(dtype) for points in mixed(rng, 1, 1e-1))
    x, z = x * x.dtype.type(scale), z * z.dtype.type(scale)
    w = rng.uniform(0.5, 2, x.shape[1]).astype(dtype)
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, z, w)]
    cotangent = rng.normal(size=(29, 29)).astype(dtype)
    mc.cdist(leaves[0], leaves[1], p, w=leaves[2]).backward(torch.tensor(cotangent))
    exact, c, bound = (
        w.astype(EXTENDED),
        cotangent.astype(EXTENDED)[..., None],
        slope_bound(dtype, p),
    )
    terms = c * norm_slopes(x, z, p, exact)
    assert_rows(leaves[0].grad, terms, np.abs(terms), bound)
    terms = -np.swapaxes(terms, 0, 1)
    assert_rows(leaves[1].grad, terms, np.abs(terms), bound)
    size = norm(x, z, p, exact)[..., None]
    by_w = c * size / p * (gaps(x, z) / size) ** EXTENDED(p)
    error = np.abs(leaves[2].grad.numpy().astype(EXTENDED) - by_w.sum((0, 1)))
    assert np.all(error <= 20 * bound * np.abs(by_w).sum())


@pytest.mark.parametrize("p", [0.1, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("scale", [1, 3e-34, 3e-36])
def test_fractional_powers_of_tiny_differences(target, rng, dtype, p, scale):
    x, z = mixed(rng, scale, 1e-1)
    x, z = x.astype(dtype), z.astype(dtype)
    bound = CONTRACT if dtype == "f" else 5e-15
    # A power 1/p > 1 of the sum.
    assert_relative(mc.cdist(x, z, p), norm(x, z, p), bound * (1 + 1 / p))
    power = EXTENDED(p)
    d = x.astype(EXTENDED)[:, None] - z.astype(EXTENDED)[None]
    expected = (power * np.sign(d) * np.abs(d) ** (power - 1)).sum(1)
    gradient = mc.kernel_gradient("sum(abs(x-z)^p)", x, z, np.ones(29, dtype), p=p)
    size = np.linalg.norm((power * np.abs(d) ** (power - 1)).sum(1).astype("d"), axis=-1)
    assert np.all(np.abs(gradient - expected) <= bound * size[:, None])


def tail(u):
    """atanh(u) - u for |u| <= 1/2."""
    return u**3 * series(u * u, [1 / EXTENDED(2 * j + 3) for j in range(36)])


def series(u, coefficients):
    """coefficients[0] + u (coefficients[1] + u (...)): powers in long double take long."""
    result = np.zeros_like(u)
    for c in reversed(coefficients):
        result = c + u * result
    return result


def unit(points):
    points = points.astype(EXTENDED)
    return points / np.sqrt((points * points).sum(-1, keepdims=True))


def chord(x, z):
    return ((unit(x)[:, None] - unit(z)[None]) ** 2).sum(-1)


def centred(points):
    points = points.astype(EXTENDED)
    return points - points.mean(-1, keepdims=True)


def sums_and_ratios(x, z):
    x, z = x.astype(EXTENDED)[:, None], z.astype(EXTENDED)[None]
    return x + z, (x - z) / (x + z), x, z


def kl_divergence(x, z):
    s, u, x, z = sums_and_ratios(x, z)
    near = s * (u * u + (1 + u) * tail(np.where(abs(u) < 0.5, u, 0)))
    return np.where(abs(u) < 0.5, near, x * np.log(x / z) - x + z).sum(-1)


def itakura_saito(x, z):
    _, u, x, z = sums_and_ratios(x, z)
    near = 2 * (u * u / (1 - u) - tail(np.where(abs(u) < 0.5, u, 0)))
    return np.where(abs(u) < 0.5, near, x / z - np.log(x / z) - 1).sum(-1)


def jensenshannon(x, z):
    x, z = x.astype(EXTENDED), z.astype(EXTENDED)
    s, u, _, _ = sums_and_ratios(x / x.sum(-1, keepdims=True), z / z.sum(-1, keepdims=True))
    small = np.where(abs(u) < 0.5, u, 0)
    square = small * small
    near = square * series(square, [1 / EXTENDED(j * (2 * j - 1)) for j in range(1, 36)])
    exact = (1 + u) * np.log1p(u) + (1 - u) * np.log1p(-u)
    return np.sqrt((s * np.where(abs(u) < 0.5, near, exact)).sum(-1) / 4)


def hellinger(x, z):
    roots = np.sqrt(x.astype(EXTENDED))[:, None] + np.sqrt(z.astype(EXTENDED))[None]
    return np.sqrt(((gaps(x, z) / roots) ** 2).sum(-1) / 2)


NEAR = {
    "cosine": lambda x, z: chord(x, z) / 2,
    "correlation": lambda x, z: chord(centred(x), centred(z)) / 2,
    "angular": lambda x, z: 2 * np.arcsin(np.sqrt(chord(x, z)) / 2) / EXTENDED(np.pi),
    "hellinger": hellinger,
    "jensenshannon": jensenshannon,
    "kl_divergence": kl_divergence,
    "itakura_saito": itakura_saito,
}


@pytest.mark.parametrize("name", NEAR)
def test_points_close_together(target, rng, name):
    x = rng.uniform(0.05, 1, (60, 21)).astype("f")
    z = np.empty_like(x)
    for row, near in enumerate(np.repeat([0.3, 0.1, 1e-2, 1e-3, 1e-4, 1e-5], 10)):
        z[row] = x[row] * (1 + near * rng.uniform(-1, 1, 21))
    z[59] = x[59]
    result = mc.cdist(x, z, metric=name)
    assert_relative(result, NEAR[name](x, z))
    assert result[59, 59] == 0
    if name == "cosine":
        w = rng.uniform(0.1, 1, 21).astype("f")
        scaled = (p.astype(EXTENDED) * np.sqrt(w.astype(EXTENDED)) for p in (x, z))
        assert_relative(mc.cdist(x, z, metric=name, w=w), chord(*scaled) / 2)
        values, _ = mc.knn(name, x, z, k=2)
        assert_relative(values, np.sort(chord(x, z) / 2, axis=1)[:, :2])
    x[0] = np.nan  # in the same tile as others
    assert np.isnan(mc.cdist(x, z, metric=name)[0]).all()
    assert_relative(mc.cdist(x, z, metric=name)[1:], NEAR[name](x, z)[1:])


@pytest.mark.parametrize("scale", [1e-37, 1e-22, 1, 1e20])
def test_cosine_similarity_of_points_of_any_size(target, rng, scale):
    x, z = mixed(rng, scale, 1e-2)
    expected = (unit(x)[:, None] * unit(z)[None]).sum(-1)
    assert np.abs(mc.pairwise("cosine_similarity", x, z) - expected).max() <= CONTRACT


def random_units(rng, m, n, features):
    """Points of few features, of which most tiles hold close pairs, and equal ones."""
    x, z = rng.normal(size=(m, features)).astype("f"), rng.normal(size=(n, features)).astype("f")
    z[5::16] = x[: len(z[5::16])]
    return x, z


CHORD = "sum((x/sqrt(sum(x^2))-z/sqrt(sum(z^2)))^2)"


def test_close_pairs_of_members_that_differ_in_parameters(target, rng):
    x, z = random_units(rng, 61, 107, 2)
    h = np.array([1e-6, 0.3, 7.0])
    expected = chord(x, z)
    result = mc.pairwise(f"{CHORD}/h", x, z, h=h)
    assert_relative(result, expected / h.astype(EXTENDED)[:, None, None])
    v = rng.random((107, 2)).astype("f")
    products = mc.kernel_product(f"sqrt({CHORD})*h", x, z, v, h=h)
    exact = h.astype(EXTENDED)[:, None, None] * (np.sqrt(expected) @ v.astype(EXTENDED))
    assert_relative(products, exact, 2 * CONTRACT)


def test_close_pairs_of_few_features_by_several_threads(target, rng):
    x, z = random_units(rng, 400, 300, 3)
    expected = chord(x, z) / 2
    results = []
    for threads in (1, 4):
        with mc.options(target=target, threads=threads):
            results.append(mc.cdist(x, z, metric="cosine"))
    assert_relative(results[0], expected)
    np.testing.assert_array_equal(*results)
    assert np.all(results[0][expected == 0] == 0)


def test_close_pairs_of_panels_too_large_to_be_kept(rng):
    z = rng.normal(size=(40, 250_000)).astype("f")  # a panel of 24 takes 48 MB in float64
    x = z[[3, 30]] + 1e-3 * rng.normal(size=(2, 250_000)).astype("f")
    size = lambda points: np.sqrt(np.einsum("nk,nk->n", points, points, dtype="d"))  # noqa: E731
    units = x / size(x)[:, None], z / size(z)[:, None]
    expected = np.array([((a - units[1]) ** 2).sum(-1) / 2 for a in units[0]])
    assert_relative(mc.cdist(x, z, metric="cosine"), expected)


@pytest.fixture(params=["float32", "float64"])
def on_cuda(request):
    """Arrays of this type on the first GPU, and back."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    dtype = getattr(torch, request.param)
    return lambda a: torch.from_numpy(np.asarray(a, "d")).to(
        "cuda", dtype
    ), lambda t: t.cpu().numpy()


def points_of_sizes(rng, to_device, to_host, shape):
    """Points of all sizes that the type has, on the device and as the type has them."""
    x = rng.normal(size=shape)
    wide = to_host(to_device(0)).dtype == np.float64
    sizes = 10.0 ** np.array([-250, -30, 0, 40, 250] if wide else [-30, -19.5, -6, 0, 4.3, 18, 30])
    x *= np.resize(sizes, len(x))[:, None]
    x[40:60] = x[:20]
    there = to_device(x)
    return there, to_host(there)


@pytest.mark.parametrize("shape", [(300, 3), (300, 20), (300, 70), (600, 300)])
@pytest.mark.parametrize("p", [0.5, 1.3, 2, 3, 10, 20])
def test_powers_that_leave_the_range_on_cuda(on_cuda, rng, p, shape):
    x, here = points_of_sizes(rng, *on_cuda, shape)
    z, other = points_of_sizes(rng, *on_cuda, (70, shape[1]))
    # Fractional powers have the errors of logarithms, a unit of the last place of numbers up to 32.
    bound = (CONTRACT if here.dtype == "f" else 2e-13) * {0.5: 3, 1.3: 2}.get(p, 1)
    expected = norm(here, other, p)
    assert_relative(on_cuda[1](mc.cdist(x, z, p)), expected, bound)
    formula = "sqrt(sum((x-z)^2))" if p == 2 else f"sum(abs(x-z)^{p})^(1/{p})"
    values, _ = mc.knn(formula, x, z, k=5)
    assert_relative(on_cuda[1](values), np.sort(expected, axis=1)[:, :5], 2 * bound)
    assert_relative(on_cuda[1](mc.kernel_reduce(formula, x, z, "max")), expected.max(1), bound)
    chosen = np.eye(70)[:, :9]
    for columns in (1, 9):
        product = mc.kernel_product(formula, x, z, on_cuda[0](chosen[:, :columns]))
        assert_relative(on_cuda[1](product), expected[:, :columns], bound)


@pytest.mark.parametrize(
    "others", ["max(abs(x+z)/h) + sum(abs(x+z)/h)", "min((x+z)/h)*prod(abs(x+z)/h)"]
)
def test_norms_out_of_range_with_other_reductions_on_cuda(on_cuda, rng, others):
    """Each reduction keeps a state of its own where the features of a pair are shared out."""
    to_device, to_host = on_cuda
    h = 1e-170 if to_host(to_device(0)).dtype == np.float64 else 1e-25
    f = f"sqrt(sum((x-z)^2))/h + {others}"
    x, z = rng.normal(size=(5, 33)) * h, rng.normal(size=(3, 33)) * h
    found = to_host(mc.pairwise(f, to_device(x), to_device(z), h=h))
    expected = mc.pairwise(f, *(to_host(to_device(a)) for a in (x, z)), h=h)
    np.testing.assert_allclose(found, expected, 2e-5, 1e-5)


def test_equal_points_with_sums_of_one_side_on_cuda(on_cuda, rng):
    """A norm that vanishes, in a formula that reads a sum of z within another sum."""
    f = "max(abs(x-z)^1.5*x)*(sqrt(sum((x-z)^2)) - sum(max(z*sum(z), (x-z)^2)))"
    x, z, coef = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), np.ones((1, 3))
    z[0] = x[0]
    to_device, to_host = on_cuda
    found = to_host(mc.kernel_gradient(f, *map(to_device, (x, z, coef))))
    expected = mc.kernel_gradient(f, *(to_host(to_device(a)) for a in (x, z, coef)))
    np.testing.assert_allclose(found, expected, 2e-5, 1e-5)
