"""Masks that formulas spell: blocks of pairs are skipped, and results are those of all pairs."""

from __future__ import annotations

import re

import mercer as mc
import numpy as np
import pytest

pytestmark = pytest.mark.quick

GAUSS = "exp(-sum((x-z)^2)/8)"
M, N, K = 300, 1600, 3  # of calls with less work all pairs are computed
ROW, COL = np.ogrid[:M, :N]
MASKS = [
    ("j <= i", COL <= ROW),
    ("abs(i-j) < width", abs(ROW - COL) < 20),
    ("i == j", ROW == COL),
    ("floor(i/32) == floor(j/32)", ROW // 32 == COL // 32),
    ("row == col", ROW // 40 == COL // 50),
    ("row != col", ROW // 40 != COL // 50),
    ("!(i < 100 && j > 200)", ~((ROW < 100) & (COL > 200))),
]


def points(dtype: str = "float64") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, z, v = rng.normal(size=(M, K)), rng.normal(size=(N, K)), rng.normal(size=(N, 2))
    return x.astype(dtype), z.astype(dtype), v.astype(dtype)


def operands(condition: str, dtype: str = "float64") -> dict:
    given: dict = {"width": 20} if "width" in condition else {}
    if "row" in condition:
        given["row"] = (np.arange(M) // 40).astype(dtype)
        given["col"] = (np.arange(N) // 50).astype(dtype)
    return given


def gauss(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.exp(-np.square(x[:, None].astype(float) - z).sum(-1) / 8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("condition", "keeps"), MASKS)
def test_results_are_those_of_all_pairs(condition: str, keeps: np.ndarray, dtype: str) -> None:
    x, z, v = points(dtype)
    given, f = operands(condition, dtype), f"where({condition}, {GAUSS}, 0)"
    dense = np.where(keeps, gauss(x, z), 0)
    bound = 2e-6 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(mc.pairwise(f, x, z, **given), dense, rtol=4 * bound, atol=0)
    error = abs(mc.kernel_product(f, x, z, v, **given) - dense @ v.astype(float))
    assert np.all(error <= bound * (dense @ abs(v)) + 1e-300)
    sums = mc.kernel_reduce(f, x, z, "sum", **given)
    np.testing.assert_allclose(sums, dense.sum(1), rtol=bound, atol=0)
    first = mc.kernel_reduce(f"where({condition}, {GAUSS}, 2)", x, z, "argmax", **given)
    np.testing.assert_array_equal(first, np.where(keeps, gauss(x, z), 2).argmax(1))
    far = np.where(keeps, -np.log(gauss(x, z)), np.inf)
    values, indices = mc.knn(f"where({condition}, sum((x-z)^2)/8, inf)", x, z, 3, **given)
    np.testing.assert_allclose(values, np.sort(far, 1)[:, :3], rtol=1e-5)
    found = np.take_along_axis(far, np.asarray(indices), 1)
    np.testing.assert_allclose(found, np.sort(far, 1)[:, :3], rtol=1e-5)


def test_nan_counts_where_the_formula_has_it() -> None:
    x, z, v = points()
    z[300] = np.nan
    f = f"where(j <= i + 200, {GAUSS}, 0)"
    product = mc.kernel_product(f, x, z, v)
    np.testing.assert_array_equal(np.isnan(product).all(1), np.arange(M) >= 100)
    assert np.isnan(mc.kernel_product(f"(j <= i + 200)*{GAUSS}", x, z, v)).all()
    v[420, 0] = np.inf
    skipped = np.isnan(mc.kernel_product(f, x, points()[1], v))[:, 0]
    np.testing.assert_array_equal(skipped, np.arange(M) < 220)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("condition", "keeps"), MASKS)
def test_pytorch_differentiates_them(condition: str, keeps: np.ndarray, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    arrays = [torch.tensor(a, requires_grad=True) for a in points(dtype)]
    wide = [a.detach().double().requires_grad_() for a in arrays]
    given = {
        name: torch.tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in operands(condition, dtype).items()
    }
    f = f"where({condition}, {GAUSS}, 0)"
    mc.kernel_product(f, *arrays, **given).sin().sum().backward()
    mc.pairwise(f, arrays[0], arrays[1], **given).square().sum().backward()
    x, z, v = wide
    exact = torch.exp(-(x[:, None] - z).square().sum(-1) / 8) * torch.tensor(keeps)
    ((exact @ v).sin().sum() + exact.square().sum()).backward()
    for ours, theirs in zip(arrays, wide, strict=True):
        bound = 1e-12 if dtype == "float64" else 2e-5
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=bound, atol=20 * bound)


def test_explain_says_how_many_pairs_are_computed() -> None:
    text = mc.explain(f"where(j <= i, {GAUSS}, 0)", shape=(1000, 1000, 3), target="x86_avx2")
    assert "mask: tiles" in text
    assert re.search("about 50 % of 1000 x 1000 pairs are computed", text)
    assert "mask" not in mc.explain(
        f"where(i == j, 2, {GAUSS})", shape=(1000, 1000, 3), target="x86_avx2"
    )
