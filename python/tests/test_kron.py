"""mercer.kron against Kronecker products written out in float64, and against reshaped products.

The bound is that of mercer/kron.h: (P1 + ... + PN + 2 N + 2) u times the same product of
magnitudes, u the rounding unit of the computing type, and one rounding to 16 bits.
"""

from __future__ import annotations

import functools
import math

import mercer as mc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

kron = mc.kron
FLOATS = ["float32", "float64", "float16"]
WHOLE = ["int32", "int64"]
UNITS = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-24, "int32": 0, "int64": 0}


def written_out(factors):
    return functools.reduce(np.kron, factors)


def reshaped(x, factors):
    """The product by one reshaped matrix product for each factor."""
    sizes = [f.shape[0] for f in factors]
    y = x.reshape(x.shape[0], *sizes)
    for axis, f in enumerate(factors, 1):
        y = np.moveaxis(np.tensordot(y, f, ([axis], [0])), -1, axis)
    return y.reshape(x.shape[0], -1)


def bound_of(dtype, factors, size, wanted):
    steps = sum(max(f.shape[-2:]) + 2 for f in factors) + 2
    bound = steps * UNITS[dtype] * size
    if dtype == "float16":
        bound = bound + 2.0**-11 * np.abs(wanted) * 1.01 + 2.0**-24
    return bound


@st.composite
def strided(draw, shape, dtype):
    """An array of this shape in some layout of memory."""
    seed = draw(st.integers(0, 2**31))
    random = np.random.default_rng(seed)
    layout = draw(st.sampled_from(["packed", "turned", "gaps", "backwards"]))
    wide = tuple(2 * n + 1 for n in shape) if layout in ("gaps", "backwards") else shape
    if layout == "turned":
        wide = wide[::-1]
    values = random.integers(-5, 6, wide) if dtype in WHOLE else random.normal(size=wide)
    array = values.astype(dtype)
    if layout == "turned":
        return array.T
    step = {"packed": 1, "gaps": 2, "backwards": -2}[layout]
    return array[tuple(slice(None, None, step) for _ in shape)][tuple(slice(n) for n in shape)]


@st.composite
def calls(draw):
    dtype = draw(st.sampled_from([*FLOATS, *WHOLE]))
    sizes = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4))
    while math.prod(p for p, _ in sizes) > 400 or math.prod(q for _, q in sizes) > 400:
        sizes.pop()
    batch = draw(st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((2,), (2,))]))
    left, turn_x = draw(st.booleans()), draw(st.booleans())
    turns = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    rows = draw(st.sampled_from([0, 1, 2, 5, 33]))
    k = math.prod(q if left else p for p, q in sizes)
    shape = (k, rows) if left != turn_x else (rows, k)
    x = draw(strided((*batch[0], *shape), dtype))
    factors = [
        draw(strided((*batch[1], *((q, p) if turned else (p, q))), dtype))
        for (p, q), turned in zip(sizes, turns, strict=True)
    ]
    alpha = draw(st.sampled_from([1, -2, 0, 3] if dtype in WHOLE else [1, 0.5, 0, -3]))
    beta = draw(st.sampled_from([0, 0, 1, -2]))
    return dtype, left, turn_x, turns, x, factors, alpha, beta


def swapped(array, turn):
    return np.swapaxes(array, -1, -2) if turn else array


@settings(max_examples=300, deadline=None)
@given(calls())
def test_of_any_shape(call):
    dtype, left, turn_x, turns, x, factors, alpha, beta = call
    exact = np.int64 if dtype in WHOLE else np.float64
    wide = [swapped(f.astype(exact), t) for f, t in zip(factors, turns, strict=True)]
    wide_x = swapped(x.astype(exact), turn_x)
    shape = np.broadcast_shapes(*(f.shape[:-2] for f in wide))
    wide = [np.broadcast_to(f, (*shape, *f.shape[-2:])) for f in wide]
    k = np.array([written_out([f[i] for f in wide]) for i in np.ndindex(shape)])
    k = k.reshape(*shape, *k.shape[1:])
    product = (lambda a, b: np.matmul(b, a)) if left else np.matmul
    wanted, size = alpha * product(wide_x, k), abs(alpha) * product(abs(wide_x), abs(k))
    y = None
    if beta:
        y = (np.arange(wanted.size) % 7 - 3).reshape(wanted.shape).astype(dtype)
        wanted, size = wanted + beta * y.astype(exact), size + abs(beta * y.astype(exact))
    options = {"alpha": alpha, "beta": beta, "y": y, "transpose_x": turn_x}
    options["transpose_factors"] = turns
    result = kron.kron_matmul(factors, x, **options) if left else kron.matmul(x, factors, **options)
    assert (result.dtype, result.shape) == (x.dtype, wanted.shape)
    if dtype in WHOLE:
        np.testing.assert_array_equal(result, wanted.astype(dtype))
    else:
        assert (abs(result - wanted) <= bound_of(dtype, wide, size, wanted)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (128, 128), (52, 50, 51), (2,) * 15, (300, 7)])
def test_large(sizes, dtype):
    random = np.random.default_rng(0)
    factors = [random.normal(size=(n, n)).astype(dtype) for n in sizes]
    x = random.normal(size=(3, math.prod(sizes))).astype(dtype)
    wide = [f.astype("float64") for f in factors]
    wanted = reshaped(x.astype("float64"), wide)
    size = reshaped(abs(x).astype("float64"), [abs(f) for f in wide])
    slack = 2 if dtype == "float64" else 1  # the reference rounds as well
    bound = slack * bound_of(dtype, factors, size, wanted)
    assert (abs(kron.matmul(x, factors) - wanted) <= bound).all()
    turned = kron.kron_matmul(factors, np.ascontiguousarray(x.T), transpose_factors=True)
    assert (abs(turned.T - wanted) <= bound).all()


def libraries():
    yield lambda a: a, np.asarray
    torch = pytest.importorskip("torch")
    yield torch.from_numpy, np.asarray
    jax = pytest.importorskip("jax")
    yield jax.numpy.asarray, np.asarray


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("turns", [(False, False, False), (True, False, True)])
def test_factors_that_are_vectors(left, turns):
    """As numpy.matmul takes them on that side; transposed the other way."""
    random = np.random.default_rng(2)
    v, f, u = (random.normal(size=s).astype("f") for s in (3, (4, 5), 2))
    sides = [a if a.ndim == 2 else a[None] if left else a[:, None] for a in (v, f, u)]
    product = written_out([swapped(a, t).astype("d") for a, t in zip(sides, turns, strict=True)])
    x = random.normal(size=(product.shape[1], 7) if left else (7, product.shape[0])).astype("f")
    wanted = product @ x if left else x @ product
    for to, back in libraries():
        given, factors = to(x), [to(a) for a in (v, f, u)]
        arguments = (factors, given) if left else (given, factors)
        verb = kron.kron_matmul if left else kron.matmul
        result = verb(*arguments, transpose_factors=list(turns))
        np.testing.assert_allclose(back(result), wanted, rtol=1e-5, atol=1e-5)


def test_gradients_of_factors_that_are_vectors():
    torch = pytest.importorskip("torch")
    v, f, x = (
        torch.randn(s, dtype=torch.float64, requires_grad=True) for s in (3, (4, 2), (5, 12))
    )
    assert kron.matmul(x, [v, f]).shape == (5, 2)
    assert torch.autograd.gradcheck(lambda x, v, f: kron.matmul(x, [v, f]), (x, v, f))
    assert torch.autograd.gradcheck(lambda x, v, f: kron.kron_matmul([v, f.mT], x.mT), (x, v, f))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("turns", [(False, False, False), (True, False, True)])
def test_intermediates(left, turns):
    """x times the Kronecker product of identities and of the factors from one on."""
    random = np.random.default_rng(3)
    sides = [random.normal(size=s) for s in ((3, 2), (4, 5), (2, 3))]
    x = random.normal(size=(3, math.prod(s.shape[left] for s in sides), 7))
    x = x if left else x.swapaxes(-1, -2)
    given = [np.ascontiguousarray(swapped(s, t)) for s, t in zip(sides, turns, strict=True)]
    for to, back in libraries():
        kept = kron.intermediates(
            to(x), [to(f) for f in given], verb="kron_matmul" if left else "matmul",
            transpose_factors=list(turns),
        )  # fmt: skip
        for i, result in enumerate(kept):
            before = [np.eye(s.shape[left]) for s in sides[:i]]
            product = written_out([*before, *sides[i:]])
            wanted = product @ x if left else x @ product
            np.testing.assert_allclose(back(result), wanted, rtol=1e-5, atol=1e-5)
    turned = kron.intermediates(
        x.swapaxes(-1, -2), given, verb="kron_matmul" if left else "matmul", transpose_x=True,
        transpose_factors=list(turns),
    )  # fmt: skip
    np.testing.assert_allclose(turned[1], np.asarray(
        kron.intermediates(x, given, verb="kron_matmul" if left else "matmul",
                           transpose_factors=list(turns))[1]), rtol=1e-12)  # fmt: skip


def test_intermediates_of_batches_vectors_and_nothing():
    random = np.random.default_rng(4)
    f, g = random.normal(size=(2, 3, 2)), random.normal(size=4)
    x = random.normal(size=12)
    first, last = kron.intermediates(x, [f, g])
    assert (first.shape, last.shape) == ((2, 1, 2), (1, 3))
    np.testing.assert_allclose(first[:, 0], kron.matmul(x, [f, g]))
    np.testing.assert_allclose(last[0], x.reshape(3, 4) @ g)
    shapes = [
        a.shape for a in kron.intermediates(np.ones((5, 0)), [np.ones((3, 2)), np.ones((0, 4))])
    ]
    assert shapes == [(5, 8), (5, 12)]
    torch = pytest.importorskip("torch")
    a, b = torch.randn(2, 2, requires_grad=True), torch.randn(3, 3)
    first, _ = kron.intermediates(torch.randn(4, 6), [a, b])
    first.sum().backward()
    assert a.grad is not None
    for arguments, options, words in (
        ((np.ones((2, 5)), [np.ones((2, 2))]), {}, "product of the extents"),
        ((np.ones((2, 2)), []), {}, "1 to 64 factors"),
        ((np.ones((2, 2)), [np.ones((2, 2))]), {"verb": "solve"}, "matmul or kron_matmul"),
    ):
        with pytest.raises(ValueError, match=words):
            kron.intermediates(*arguments, **options)


def test_vectors_and_places():
    random = np.random.default_rng(1)
    f, g, v = random.normal(size=(3, 3)), random.normal(size=(4, 4)), random.normal(size=12)
    k = np.kron(f, g)
    np.testing.assert_allclose(kron.matmul(v, [f, g]), v @ k, rtol=1e-13)
    np.testing.assert_allclose(kron.kron_matmul((f, g), v), k @ v, rtol=1e-13)
    x = random.normal(size=(5, 12))
    wanted = x @ k
    out = np.empty_like(x)
    assert kron.matmul(x, [f, g], out=out) is out
    np.testing.assert_allclose(out, wanted, rtol=1e-12)
    bytes_ = mc.workspace_size("kron.matmul", x, [f, g], out=x)
    assert kron.matmul(x, [f, g], out=x, workspace=np.empty(bytes_, "u1")) is x
    np.testing.assert_array_equal(x, out)
    y = np.array(x)
    kron.matmul(x, [f, g], beta=2, y=y, out=y)
    np.testing.assert_allclose(y, x @ k + 2 * x, rtol=1e-12)


def test_nan_in_what_is_not_read():
    x, f, bad = np.ones((2, 4)), np.ones((2, 2)), np.full((2, 4), np.nan)
    np.testing.assert_array_equal(kron.matmul(x, [f, f], beta=0, y=bad), np.full((2, 4), 4.0))
    np.testing.assert_array_equal(kron.matmul(bad, [f, f], alpha=0), np.zeros((2, 4)))


X, F = np.ones((2, 4), "f4"), np.ones((2, 2), "f4")
REFUSED = {
    "no sequence": (lambda: kron.matmul(X, F), TypeError, "factors must be a list or tuple"),
    "no factors": (lambda: kron.matmul(X, []), ValueError, "there must be 1 to 64 factors"),
    "dtypes": (lambda: kron.matmul(X, [F, F.astype("f8")]), ValueError, "the dtype of x, float32"),
    "bytes": (lambda: kron.matmul(X.astype("u1"), [F, F]), ValueError, "Received uint8"),
    "shapes": (lambda: kron.matmul(X, [F]), ValueError, "product of the rows of op.factors., 2"),
    "flags": (lambda: kron.matmul(X, [F, F], transpose_factors=[True]), ValueError,
              "one entry for each of 2 factors"),
    "a flag": (lambda: kron.matmul(X, [F, F], transpose_factors=1), TypeError, "must be a bool"),
    "y": (lambda: kron.matmul(X, [F, F], beta=1), ValueError, "y must be given"),
    "scalars": (lambda: kron.matmul(X.astype("i4"), [F.astype("i4")] * 2, alpha=0.5), ValueError,
                "alpha must be a whole number"),
    "a factor as out": (lambda: kron.matmul(F, [F], out=F.T), ValueError, "must not overlap"),
    "workspace": (lambda: kron.matmul(X, [F, F], workspace=np.empty(1, "u1")), ValueError,
                  "workspace must have at least"),
    "workspace within x": (lambda: kron.matmul(X, [F, F], workspace=X.reshape(-1).view("u1")),
                           ValueError, "workspace must not overlap x"),
    "order of solve": (lambda: kron.solve([F], X.T), ValueError, "b must have the shape"),
    "a factor that is not square": (lambda: kron.eigh([X]), ValueError, r"factors\[0\] must have"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    call, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        call()


# ---- What is solved with them. ------------------------------------------------------------------


def positive_factors(sizes, batch=()):
    random = np.random.default_rng(2)
    roots = [random.normal(size=(*batch, n, n)) for n in sizes]
    return [r @ np.swapaxes(r, -1, -2) + n * np.eye(n) for r, n in zip(roots, sizes, strict=True)]


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("shift", [0.0, 0.7])
@pytest.mark.parametrize("columns", [None, 3])
def test_solve(batch, shift, columns):
    factors = positive_factors((3, 4, 5), batch)
    b = np.random.default_rng(3).normal(size=(60,) if columns is None else (60, columns))
    x = kron.solve(factors, b, shift=shift)
    back = kron.kron_matmul(factors, x if columns else x[..., None]) if columns or batch else None
    back = kron.kron_matmul(factors, x) if back is None else back
    back = back[..., 0] if columns is None and batch else back
    # Backward stable along each axis: n u per factor, times the condition of the others' product.
    condition = math.prod(np.linalg.cond(f).max() for f in factors)
    error = abs(back + shift * x - b).max() / abs(b).max()
    assert error <= 64 * 60 * 2.0**-53 * condition


def test_solve_of_general_factors():
    random = np.random.default_rng(4)
    factors = [random.normal(size=(n, n)) + 4 * np.eye(n) for n in (3, 6)]
    b = random.normal(size=(18, 2))
    wanted = np.linalg.solve(written_out(factors), b)
    np.testing.assert_allclose(
        kron.solve(factors, b, positive=False), wanted, rtol=1e-9, atol=1e-12
    )
    with pytest.raises(mc.LinAlgError, match=r"kron.solve: factors\[0\]: "):
        kron.solve([-np.eye(3), np.eye(6)], b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_shift_that_leaves_no_inverse(library, dtype):
    """Exactly, and to the rounding of the eigenvalues."""
    module = pytest.importorskip(library)
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    turned = (q * [1.0, 2, 3, 5]) @ q.T
    for factors, shift in (
        ([np.eye(3)], -1),
        ([np.eye(2), np.diag([1.0, 2.0])], -2.0),
        ([turned, np.eye(3)], -3.0),
        ([np.stack([np.eye(3), 2 * np.eye(3)])], -1.0),  # one of a batch
    ):
        given = [module.asarray(f.astype(dtype)) for f in factors]
        b = module.ones(int(np.prod([f.shape[-1] for f in factors])), dtype=getattr(module, dtype))
        with pytest.raises(mc.LinAlgError, match=r"kron\.solve: no eigenvalue and the shift may"):
            kron.solve(given, b, shift=shift)
        with pytest.raises(
            mc.LinAlgError, match=r"kron\.logdet: every eigenvalue and the shift must"
        ):
            kron.logdet(given, shift=shift - 0.5)


def test_a_shift_of_an_indefinite_product_is_solved():
    factors, b = [np.diag([1.0, -2.0]), np.diag([1.0, 3.0])], np.ones(4)
    np.testing.assert_allclose(kron.solve(factors, b, shift=0.5) * ([1.5, 3.5, -1.5, -5.5]), b)
    with pytest.raises(mc.LinAlgError):
        kron.logdet(factors, shift=0.5)
    with pytest.raises(mc.LinAlgError):
        kron.logdet(factors)
    with pytest.raises(mc.LinAlgError):
        kron.solve([np.ones((2, 2)), np.eye(2)], b, positive=False)
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="shift must be finite"):
            kron.solve(factors, b, shift=wrong)
        with pytest.raises(ValueError, match="shift must be finite"):
            kron.logdet(factors, shift=wrong)
    with pytest.raises(TypeError, match=r"kron\.solve: shift must be a number or an array of one"):
        kron.solve(factors, b, shift=np.ones(2))


def test_a_shift_takes_no_jitter():
    with pytest.raises(ValueError, match=r"jitter must be None where shift is not 0. Received 0.1"):
        kron.solve([np.eye(3)], np.ones(3), shift=0.5, jitter=0.1)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_eigh_and_logdet(batch):
    factors = positive_factors((2, 5, 3), batch)
    w, v = kron.eigh(factors)
    vectors = [written_out([each[i] for each in v]) for i in np.ndindex(batch)]
    products = [written_out([each[i] for each in factors]) for i in np.ndindex(batch)]
    for i, (q, a) in enumerate(zip(vectors, products, strict=True)):
        values = w.reshape(-1, 30)[i]
        assert np.linalg.norm(q * values @ q.T - a) <= 300 * 2.0**-53 * np.linalg.norm(a)
    for shift in (0.0, 0.5):
        wanted = [np.linalg.slogdet(a + shift * np.eye(30))[1] for a in products]
        found = kron.logdet(factors, shift=shift)
        np.testing.assert_allclose(np.reshape(found, -1), wanted, rtol=1e-12)


# ---- PyTorch. -----------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def tensors(torch, *shapes, grad=True):
    torch.manual_seed(0)
    return [torch.randn(s, dtype=torch.float64, requires_grad=grad) for s in shapes]


DERIVED = {
    "one factor": ([(3, 4), (4, 2)], lambda x, a: kron.matmul(x, [a])),
    "three factors": ([(2, 12), (2, 1), (3, 2), (2, 3)],
                      lambda x, a, b, c: kron.matmul(x, [a, b, c], alpha=2)),
    "batches": ([(2, 1, 2, 6), (3, 2, 2), (2, 1, 3, 1)], lambda x, a, b: kron.matmul(x, [a, b])),
    "from the left": ([(6, 4), (3, 2), (1, 3)], lambda x, a, b: kron.kron_matmul([a, b], x)),
    "a vector": ([(6,), (3, 2), (1, 3)], lambda x, a, b: kron.kron_matmul([a, b], x)),
    "transposes": ([(6, 2), (2, 2), (1, 3)], lambda x, a, b: kron.matmul(
        x, [a, b], transpose_x=True, transpose_factors=[False, True])),
    "y": ([(2, 6), (2, 2), (3, 1), (2, 2)],
          lambda x, a, b, y: kron.matmul(x, [a, b], beta=3, y=y)),
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives(torch, name):
    shapes, function = DERIVED[name]
    inputs = tensors(torch, *shapes)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs)
    for kept in range(len(inputs)):  # gradients that nobody wants are not needed for the others
        alone = [t.detach().requires_grad_(i == kept) for i, t in enumerate(inputs)]
        assert torch.autograd.gradcheck(function, alone)


def test_refusals_of_followed_tensors(torch):
    x, a, y = tensors(torch, (2, 4), (2, 2), (3, 2, 4))
    for options, message in (
        ({"beta": 1, "y": y}, "y must broadcast to the shape of out"),
        ({"beta": 1, "y": y[0, :, :3]}, "y must broadcast to the shape of out"),
        ({"beta": 1}, "y must be given"),
        ({"transpose_x": True}, "the product of the extents"),
    ):
        with pytest.raises(ValueError, match=message):
            kron.matmul(x, [a, a], **options)
    with pytest.raises(NotImplementedError, match="out is not offered"):
        kron.matmul(x, [a, a], out=torch.empty(2, 4, dtype=x.dtype))


def test_scalars_of_followed_tensors(torch):
    x, a, y = tensors(torch, (2, 4), (2, 2), (2, 4))
    bad = torch.full_like(x, torch.nan)
    found = kron.matmul(bad, [a, a], alpha=0, beta=2, y=y)
    torch.testing.assert_close(found, 2 * y, rtol=0, atol=0)
    (by_y,) = torch.autograd.grad(found.sum(), [y])
    torch.testing.assert_close(by_y, torch.full_like(y, 2), rtol=0, atol=0)

    def compiled(function):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    def whole(x, a, y):
        return kron.matmul(x, [a, a], alpha=2.0, beta=-3.0, y=y)

    arrays = [torch.arange(t.numel(), dtype=torch.int32).reshape(t.shape) for t in (x, a, y)]
    # The dtypes are the same too.
    torch.testing.assert_close(compiled(whole)(*arrays), whole(*arrays), rtol=0, atol=0)
    with pytest.raises(Exception, match="alpha must be a whole number"):
        compiled(lambda x, a, y: kron.matmul(x, [a, a], alpha=0.5))(*arrays)


def test_opcheck(torch):
    x, a, b = tensors(torch, (2, 3, 6), (2, 3), (2, 1, 3, 2))
    kron.matmul(x, [a, b])
    torch.library.opcheck(torch.ops.mercer.kron.default, (x, [a, b], False))
    torch.library.opcheck(torch.ops.mercer.kron.default, (x.mT, [a.mT, b.mT], True))


@pytest.mark.parametrize("name", DERIVED)
def test_compile(torch, name):
    shapes, function = DERIVED[name]
    inputs = tensors(torch, *shapes)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=0, atol=0)
    wanted = torch.autograd.grad(function(*inputs).square().sum(), inputs)
    found = torch.autograd.grad(compiled(*inputs).square().sum(), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_vmap(torch):
    x, a, b = tensors(torch, (5, 2, 6), (5, 2, 3), (3, 2), grad=False)
    found = torch.vmap(lambda x, a: kron.matmul(x, [a, b]))(x, a)
    wanted = torch.stack([kron.matmul(x[i], [a[i], b]) for i in range(5)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    found = torch.vmap(lambda a: kron.matmul(x[0], [a, b]), in_dims=1)(a.movedim(0, 1))
    wanted = torch.stack([kron.matmul(x[0], [a[i], b]) for i in range(5)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    jacobian = torch.func.jacrev(lambda a: kron.matmul(x[0], [a, b]))(a[0])
    forward = torch.func.jacfwd(lambda a: kron.matmul(x[0], [a, b]))(a[0])
    torch.testing.assert_close(jacobian, forward)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(torch, dtype):
    kind = getattr(torch, dtype)
    x, a, b = (t.to(kind) for t in tensors(torch, (4, 30), (5, 7), (6, 3), grad=False))
    wide = torch.kron(a.double(), b.double())
    wanted = x.double() @ wide
    size = x.double().abs() @ wide.abs()
    bound = 21 * 2.0**-24 * size + torch.finfo(kind).eps * wanted.abs() * 0.51 + 2.0**-24
    assert ((kron.matmul(x, [a, b]).double() - wanted).abs() <= bound).all()


def test_linear_operator(torch):
    operators = pytest.importorskip("linear_operator.operators")
    factors = [torch.from_numpy(f).requires_grad_() for f in positive_factors((3, 4, 2))]
    v = tensors(torch, (24, 2), grad=False)[0]
    plain = operators.KroneckerProductLinearOperator(*factors)
    for ours in (kron.linear_operator(*factors), kron.linear_operator(plain)):
        assert isinstance(ours, operators.KroneckerProductLinearOperator)
        torch.testing.assert_close(ours @ v, plain @ v)
        torch.testing.assert_close(ours.mT @ v, plain.mT @ v)
        torch.testing.assert_close(ours.add_jitter(0.1).solve(v), plain.add_jitter(0.1).solve(v))
        found = torch.autograd.grad((ours @ v).square().sum(), factors)
        torch.testing.assert_close(found, torch.autograd.grad((plain @ v).square().sum(), factors))


# ---- CUDA devices. ------------------------------------------------------------------------------


def expect_on_cuda(found, x, factors, alpha=1, added=None):
    """Within the bound of mercer/kron.h of the product written out in float64 on the CPU."""
    dtype = str(x.dtype).removeprefix("torch.")
    wide = [f.cpu().double().numpy() for f in factors]
    x = x.cpu().double().numpy()
    wanted = alpha * reshaped(x, wide)
    size = abs(alpha) * reshaped(abs(x), [abs(f) for f in wide])
    if added is not None:
        wanted, size = wanted + added, size + abs(added)
    steps = sum(max(f.shape) + 2 for f in wide) + 2
    slack = 2 if dtype == "float64" else 1  # the reference rounds as well
    bound = slack * steps * (2.0**-53 if dtype == "float64" else 2.0**-24) * size
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 0)
    bound = bound + unit * abs(wanted) * 1.01 + (2.0**-24 if unit else 0)
    assert (abs(found.cpu().double().numpy() - wanted) <= bound).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "sizes",
    [((8, 8),) * 4, ((16, 16),) * 3, ((52, 50),) * 2, ((3, 5), (1, 2), (300, 7)), ((2, 200),)],
)
def test_on_cuda(cuda, sizes, dtype):
    kind = getattr(cuda, dtype)
    cuda.manual_seed(0)
    factors = [(cuda.randn(p, q) / p**0.5).to(kind).cuda() for p, q in sizes]
    k, j = (math.prod(s[i] for s in sizes) for i in (0, 1))
    for rows in (1, 37):
        x = cuda.randn(rows, k).to(kind).cuda()
        y = cuda.randn(rows, j).to(kind).cuda()
        expect_on_cuda(kron.matmul(x, factors), x, factors)
        added = -2 * y.cpu().double().numpy()
        expect_on_cuda(kron.matmul(x, factors, alpha=3, beta=-2, y=y), x, factors, 3, added)
        turned = kron.kron_matmul(factors, x.T.contiguous(), transpose_factors=True)
        expect_on_cuda(turned.T, x, factors)
        wide = cuda.zeros(rows, 2 * k, dtype=kind, device="cuda")
        wide[:, ::2] = x
        expect_on_cuda(kron.matmul(wide[:, ::2], factors), x, factors)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_whole_numbers_on_cuda(cuda, dtype):
    x, a, b = (cuda.randint(-(2**20), 2**20, s, dtype=getattr(cuda, dtype))
               for s in ((3, 2, 12), (3, 3, 5), (4, 2)))  # fmt: skip
    found = kron.matmul(x.cuda(), [a.cuda(), b.cuda()], alpha=-3).cpu()
    assert cuda.equal(found, kron.matmul(x, [a, b], alpha=-3))


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_on_cuda(cuda, name):
    shapes, function = DERIVED[name]
    inputs = [t.detach().cuda().requires_grad_() for t in tensors(cuda, *shapes)]
    assert cuda.autograd.gradcheck(function, inputs, check_forward_ad=True)


# Eights in float32 are one pass, forties in float64 several that replace what they read, which
# those of rectangles cannot.
@pytest.mark.parametrize(
    ("sizes", "dtype", "scratches"),
    [
        ([(8, 8)] * 3, "float32", False),
        ([(40, 40)] * 3, "float64", False),
        ([(100, 64), (64, 100), (40, 40)], "float64", True),
    ],
)
def test_streams_and_graphs_on_cuda(cuda, sizes, dtype, scratches):
    dtype = getattr(cuda, dtype)
    columns = math.prod(size[0] for size in sizes)
    x, out = (cuda.randn(16, columns, device="cuda", dtype=dtype) for _ in range(2))
    factors = [cuda.randn(size, device="cuda", dtype=dtype) for size in sizes]
    bytes_ = mc.workspace_size("kron.matmul", x, factors, out=out)
    assert (bytes_ > 0) == scratches
    scratch = cuda.empty(bytes_, dtype=cuda.uint8, device="cuda")
    stream = cuda.cuda.Stream()
    stream.wait_stream(cuda.cuda.current_stream())
    with cuda.cuda.stream(stream):
        kron.matmul(x, factors, out=out, workspace=scratch)
    stream.synchronize()
    expect_on_cuda(out, x, factors)
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph):
        kron.matmul(x, factors, out=out, workspace=scratch)
    for _ in range(2):
        x.copy_(cuda.randn_like(x))
        out.zero_()
        graph.replay()
        cuda.cuda.synchronize()
        expect_on_cuda(out, x, factors)
    wanted = out.clone()
    assert kron.matmul(x, factors, out=x) is x
    assert cuda.equal(x, wanted)


# ---- Benchmarks. --------------------------------------------------------------------------------


def test_benchmark_rows(monkeypatch):
    from mercer.benchmarks import kron as rows
    from mercer.benchmarks import runs
    from mercer.benchmarks.settings import Settings

    settings_ = Settings(quick=True)
    settings_.repeats = 1
    monkeypatch.setattr(rows, "KRON", (rows.Kron(32, 3, 4, 3),))
    names = [name for name in runs.all_rows() if name.startswith("kron")]
    assert names == ["kron", "kron-fp64", "kron-threads"]
    for line in rows.lines(settings_):
        assert (line.row, line.shape) == ("kron (3->4)^3", (2, 27, 64))
        assert line.seconds > 0
        assert line.gelem == pytest.approx(2 * 3 * (36 + 48 + 64) / line.seconds / 1e9)
        assert "error" not in line.misses()
    assert [line.row for line in rows.fp64_lines(settings_)] == ["fp64 kron (3->4)^3"]
