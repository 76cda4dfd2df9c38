"""mercer.compat.pyfastkron: PyFastKron's contract, against dense Kronecker products in float64."""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from compat_oracles import assert_close, wide  # noqa: E402
from mercer.compat.pyfastkron import fastkronnumpy, fastkrontorch  # noqa: E402

SHAPES = [[(2, 3)], [(4, 4), (4, 4)], [(3, 2), (1, 4), (5, 5)], [(8, 8)] * 3]
M = 7


def two(a, b):
    joined = torch.einsum("...ij,...kl->...ikjl", a, b)
    return joined.flatten(-4, -3).flatten(-2, -1)


def dense(fs):
    """The Kronecker product as a matrix, [..., P, Q], in float64."""
    return functools.reduce(two, [wide(f) for f in fs])


def factors(draw, shapes, *lead):
    return [draw(*lead, *shape) for shape in shapes]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products(draw, shapes, dtype):
    dtype = getattr(torch, dtype)
    fs = [f.to(dtype) for f in factors(draw, shapes)]
    k = dense(fs)
    x, z = draw(M, k.shape[0]).to(dtype), draw(k.shape[1], M).to(dtype)
    for result, expected in (
        (fastkrontorch.gemkm(x, fs), wide(x) @ k), (fastkrontorch.gekmm(tuple(fs), z), k @ wide(z))
    ):  # fmt: skip
        assert result.dtype is dtype
        assert_close(result, expected)


def test_alpha_beta_and_y(draw):
    fs = factors(draw, SHAPES[2])
    k = dense(fs)
    x, z = draw(3, M, k.shape[0]), draw(3, k.shape[1], M)
    for shape in ((3, M, k.shape[1]), (M, k.shape[1]), (1, k.shape[1]), (1,)):
        y = draw(*shape)
        result = fastkrontorch.gemkm(x, fs, 2.0, -0.5, y)
        assert_close(result, 2 * wide(x) @ k - 0.5 * wide(y))
    y = draw(k.shape[0], M)
    result = fastkrontorch.gekmm(fs, z, alpha=0.25, beta=3, y=y)
    assert_close(result, 0.25 * k @ wide(z) + 3 * wide(y))


@pytest.mark.parametrize(("lx", "lf"), [((5,), ()), ((), (5,)), ((5,), (5,)), ((2, 1), (1, 3))])
def test_batches_broadcast(draw, lx, lf):
    fs = factors(draw, SHAPES[1], *lf)
    k = dense(fs)
    x = draw(*lx, M, 16)
    assert_close(fastkrontorch.gemkm(x, fs), wide(x) @ k)
    assert_close(fastkrontorch.gekmm(fs, x.mT), k @ wide(x).mT)


def test_transposed_and_strided_tensors(draw):
    fs = [draw(3, 2).mT, draw(4, 10)[:, ::2]]
    k = dense(fs)
    x = draw(k.shape[0], M).mT
    assert_close(fastkrontorch.gemkm(x, fs), wide(x) @ k)
    assert_close(fastkrontorch.gekmm([f.mT for f in fs], x.mT), k.mT @ wide(x).mT)


def test_vectors_and_factors_with_one_axis(draw):
    fs = factors(draw, SHAPES[2])
    k, x = dense(fs), draw(dense(fs).shape[0])
    assert_close(fastkrontorch.gemkm(x, fs), wide(x) @ k)
    assert_close(fastkrontorch.gekmm([f.mT for f in fs], x), k.mT @ wide(x))
    ones = [draw(2, 1), draw(3, 1)]
    result = fastkrontorch.gemkm(draw(6), [f[None] for f in ones])
    assert result.shape == ()  # no axes of length 1 are left
    column, x = [draw(2), draw(3, 4)], draw(M, 6)
    assert_close(fastkrontorch.gemkm(x, column), wide(x) @ dense([column[0][:, None], column[1]]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_round_alpha_and_beta_one_after_the_other(draw, dtype):
    dtype = getattr(torch, dtype)
    fs = [f.to(dtype) for f in factors(draw, SHAPES[1])]
    x, y = draw(M, 16).to(dtype), draw(M, 16).to(dtype)
    z = fastkrontorch.gemkm(x, fs)
    assert z.dtype is dtype
    assert_close(z, wide(x) @ dense(fs), torch.finfo(dtype).eps)
    assert torch.equal(fastkrontorch.gemkm(x, fs, 0.3, 0.7, y), 0.3 * z + 0.7 * y)


def test_whole_numbers(device):
    fs = [torch.arange(6, device=device).reshape(2, 3), torch.ones(2, 2, dtype=int, device=device)]
    x = torch.arange(8, device=device).reshape(2, 4)
    assert torch.equal(wide(fastkrontorch.gemkm(x, fs)), wide(x) @ dense(fs))
    for dtype in (torch.int8, torch.uint8, torch.int16):
        short = [f.to(dtype) * 7 for f in (x, *fs)]
        result = fastkrontorch.gemkm(short[0], short[1:], 2, 3, short[0][:, :1])
        exact = 2 * wide(short[0]) @ dense(short[1:]) + 3 * wide(short[0])[:, :1]
        assert result.dtype is dtype
        assert torch.equal(result.cpu(), exact.long().to(dtype))  # wrapped around


@pytest.mark.parametrize("left", [False, True])
def test_gradients_by_every_tensor_alpha_and_beta_included(draw, left):
    tensors = [*factors(draw, SHAPES[2]), draw(15, M) if left else draw(M, 15), draw(1)]
    if left:
        tensors[:3] = [f.mT.contiguous() for f in tensors[:3]]

    def loss(tensors, exact):
        *fs, x, y = tensors
        if exact:
            k = functools.reduce(two, fs)
            z = 2 * (k @ x if left else x @ k) + 3 * y
        else:
            z = (fastkrontorch.gekmm(fs, x, 2.0, 3.0, y) if left else
                 fastkrontorch.gemkm(x, fs, 2.0, 3.0, y))  # fmt: skip
        return z.sin().sum()

    narrow = [t.clone().requires_grad_() for t in tensors]
    exact = [wide(t).requires_grad_() for t in tensors]
    for got, wanted in zip(
        torch.autograd.grad(loss(narrow, False), narrow),
        torch.autograd.grad(loss(exact, True), exact), strict=True,
    ):  # fmt: skip
        assert_close(got, wanted, 1e-4)


def test_autograd_functions_by_name(draw):
    fs = factors(draw, SHAPES[1])
    x = draw(M, 16).requires_grad_()
    z = fastkrontorch.MKM.apply(x, *fs)
    assert_close(z, wide(x) @ dense(fs))
    z.sum().backward()
    assert_close(x.grad, torch.ones(M, 16, dtype=torch.float64) @ dense(fs).mT)
    assert_close(fastkrontorch.KMM.apply(x.mT, *fs), dense(fs) @ wide(x).mT)


def test_refused(draw):
    fs, x = factors(draw, SHAPES[1]), draw(M, 16)
    for call in (
        lambda: fastkrontorch.gemkm(x.tolist(), fs),
        lambda: fastkrontorch.gemkm(x, fs[0]),
        lambda: fastkrontorch.gemkm(x, [fs[0], None]),
        lambda: fastkrontorch.gemkm(x, fs, 1.0, 1.0),
        lambda: fastkrontorch.gemkm(x, fs, 1.0, 1.0, 3.0),
        lambda: fastkrontorch.gemkm(x, []),
        lambda: fastkrontorch.gemkm(x[:, 1:], fs),
        lambda: fastkrontorch.gekmm(fs, x),
        lambda: fastkrontorch.gemkm(x.double(), fs),
        lambda: fastkrontorch.gemkm(x, [fs[0], fs[1].double()]),
        lambda: fastkrontorch.gemkm(x, [fs[0], fs[1][None]]),
        lambda: fastkrontorch.gemkm(x, fs, 1.0, 1.0, draw(M, 15)),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(RuntimeError, match="same device"):
        fastkrontorch.gemkm(x, [fs[0], torch.empty(4, 4, device="meta")])


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_numpy(rng, shapes):
    fs = [rng.normal(size=shape) for shape in shapes]
    k = functools.reduce(np.kron, fs)
    x, y = rng.normal(size=(M, k.shape[0])), rng.normal(size=k.shape[1])
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    close(fastkronnumpy.gemkm(x, fs, 2.0, 0.5, y), 2 * x @ k + 0.5 * y)
    close(fastkronnumpy.gemkm(x[0], fs), x[:1] @ k)
    close(fastkronnumpy.gekmm([f.T for f in fs], x[0]), k.T @ x[0][:, None])
    z = np.asfortranarray(rng.normal(size=(k.shape[1], 2 * M)))[:, ::2]  # no copy is asked for
    close(fastkronnumpy.gekmm(fs, z), k @ z)
    half = [f.astype(np.float16) for f in fs]
    result = fastkronnumpy.gemkm(x.astype(np.float16), half, 0.3)
    assert result.dtype == np.float16
    assert fastkronnumpy.gemkm(x[0].astype(np.float16), half).shape == (k.shape[1],)
    short = [f.astype(np.int8) for f in (x, *fs)]
    result = fastkronnumpy.gemkm(short[0], short[1:])
    np.testing.assert_array_equal(result, short[0] @ functools.reduce(np.kron, short[1:]))
    assert result.dtype == np.int8
    for wrong in (tuple(fs), fs[0], [torch.ones(2, 2)]):
        with pytest.raises(ValueError):
            fastkronnumpy.gemkm(x, wrong)
    with pytest.raises(ValueError, match="y should not be None"):
        fastkronnumpy.gekmm(fs, z, beta=1.0)
