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


def norm(x, z, p):
    p = EXTENDED(p)
    return (gaps(x, z) ** p).sum(-1) ** (1 / p)


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
    return lambda a: torch.from_numpy(np.asarray(a, "d")).to("cuda", dtype), lambda t: t.cpu().numpy()


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
