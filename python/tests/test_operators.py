"""KernelOperator with ridges, weights, row and col; foreign operators; cg with ridges."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings

import mercer as mc
import numpy as np
import pytest

linalg = mc.linalg
GAUSS = "exp(-sum(square(x-z))/4)"
FORMULAS = {
    "plain": (GAUSS, ()),
    "weighted features": ("exp(-sum(w*square(x-z))/4)", ("w",)),
    "sided": (GAUSS + "*(row+col)", ("row", "col")),
    "all": ("exp(-sum(w*square(x-z))/4)*row*col", ("w", "row", "col")),
}
N = 83


@functools.cache
def numbers(dtype):
    rng = np.random.default_rng(3)
    row = rng.uniform(0.5, 2, size=N).astype(dtype)
    return {
        "x": rng.normal(size=(N, 3)).astype(dtype),
        "b": rng.normal(size=(N, 4)).astype(dtype),
        "ridge": rng.uniform(0.3, 2, size=N).astype(dtype),
        "weights": np.where(rng.uniform(size=N) < 0.2, 0, rng.uniform(size=N)).astype(dtype),
        "w": np.array([0.5, 2.0, 0.0], dtype),
        "row": row,
        "col": row.copy(),
    }


def matrix(form, ridge, weights, dtype):
    """The matrix in float64, of the numbers as they were rounded."""
    given = {name: value.astype("d") for name, value in numbers(dtype).items()}
    formula, reads = FORMULAS[form]
    a = mc.pairwise(formula, given["x"], **{name: given[name] for name in reads})
    if weights:
        roots = np.sqrt(given["weights"])
        a = roots[:, None] * a * roots
    return a + np.diag(given["ridge"] if ridge == "points" else np.full(N, ridge))


def made(form, ridge, weights, dtype, array=np.asarray):
    formula, reads = FORMULAS[form]
    given = {name: array(value) for name, value in numbers(dtype).items()}
    options = {name: given[name] for name in reads}
    if weights:
        options["weights"] = given["weights"]
    ridge = given["ridge"] if ridge == "points" else ridge
    return linalg.KernelOperator(formula, given["x"], ridge=ridge, **options)


def bound(dtype):
    """Kernel values of float32 keep 1e-6 of themselves, of float64 a few of their last bits."""
    return 4e-6 if dtype == "float32" else 1e-13


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("form", FORMULAS)
def test_products_rows_and_diagonals(form, library, dtype):
    array = np.asarray if library == "numpy" else pytest.importorskip("torch").from_numpy
    for ridge, weights in ((0.0, False), (0.5, True), ("points", False), ("points", True)):
        a = matrix(form, ridge, weights, dtype)
        operator = made(form, ridge, weights, dtype, array)
        assert operator.shape == (N, N)
        assert str(operator.dtype).endswith(dtype)
        assert str(operator.device) == "cpu"
        assert operator.T is operator
        b = numbers(dtype)["b"]
        lost = bound(dtype) * (np.abs(a) @ np.abs(b.astype("d")))
        for v in (b, np.asfortranarray(b), b[:, 1], b[:, :0]):
            product = operator @ array(v)
            assert type(product) is type(array(b))
            assert product.shape == v.shape
            gap = np.abs(np.asarray(product) - a @ v.astype("d"))
            columns = lost[:, 1] if v.ndim == 1 else lost[:, : v.shape[1]]
            assert (gap <= columns).all()
        left = array(np.ascontiguousarray(b.T)) @ operator
        np.testing.assert_array_equal(np.asarray(left), np.asarray(operator @ array(b)).T)
        size = bound(dtype) * np.abs(a).max()
        np.testing.assert_allclose(np.asarray(operator.diagonal()), np.diag(a), atol=size)
        for i in (0, -1, 5, [4, 4, 0], slice(10, 3, -2), np.array([1, -3]), [], slice(0, 0)):
            rows = np.asarray(operator.rows(i))
            expected = a[np.asarray(i, int) if isinstance(i, list) else i]
            assert rows.shape == expected.shape
            assert str(rows.dtype) == dtype
            np.testing.assert_allclose(rows, expected, atol=size)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_vectors_from_the_left(library):
    name = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy"}[library]
    xp = pytest.importorskip(name)
    x = xp.asarray(numbers("float32")["x"])
    operator = linalg.KernelOperator(GAUSS, x, ridge=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left = x[:, 0] @ operator
        assert type(left) is type(x)
        np.testing.assert_array_equal(np.asarray(left), np.asarray(operator @ x[:, 0]))
        np.testing.assert_array_equal(np.asarray(x.T @ operator), np.asarray(operator @ x).T)
        for shape in ((), (2, 3, N), (N, 2), (N + 1,)):
            with pytest.raises(ValueError, match=r"v.* must .* shape"):
                xp.ones(shape, dtype=x.dtype) @ operator
    with pytest.raises(ValueError, match=r"v must be an array|v on the left must be an array"):
        [1.0] * N @ operator


def test_rows_of_formulas_of_indices():
    x = numbers("float64")["x"]
    text = GAUSS + "*exp(-abs(i-j)/9)"
    operator = linalg.KernelOperator(text, x, ridge=0.5, weights=np.full(N, 4.0))
    a = 4 * mc.pairwise(text, x) + 0.5 * np.eye(N)
    np.testing.assert_allclose(operator.rows([7, 2]), a[[7, 2]], rtol=1e-13)
    np.testing.assert_allclose(operator @ x, a @ x, rtol=1e-12)
    with pytest.raises(NotImplementedError, match="diagonal is not offered for formulas that rea"):
        operator.diagonal()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_pickles(again, library):
    array = np.asarray if library == "numpy" else pytest.importorskip("torch").from_numpy
    operator = made("all", "points", True, "float64", array)
    b = array(numbers("float64")["b"])
    np.testing.assert_array_equal(again(operator) @ b, operator @ b)


def test_points_of_weight_zero_and_none():
    x = numbers("float64")["x"]
    operator = linalg.KernelOperator(GAUSS, x, ridge=2.0, weights=[0.0] * N)
    np.testing.assert_allclose(operator @ x, 2 * x, rtol=0)
    np.testing.assert_allclose(linalg.cg(operator, x), x / 2, rtol=1e-12)
    empty = linalg.KernelOperator(GAUSS, x[:0], ridge=np.empty(0), weights=np.empty(0))
    assert (empty @ x[:0]).shape == (0, 3)
    assert empty.diagonal().shape == (0,)
    assert linalg.cg(empty, x[:0]).shape == (0, 3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMULAS)
def test_weighted_systems(form, dtype):
    a = matrix(form, "points", True, dtype)
    operator = made(form, "points", True, dtype)
    b = numbers(dtype)["b"]
    tol = 1e-4 if dtype == "float32" else 1e-10
    extra = [0.0, 0.1, 1.0, 30.0]
    for inverse in (None, linalg.nystrom(operator, 30)):
        x = linalg.cg(operator, b, ridge=extra, preconditioner=inverse, tol=tol).astype("d")
        gap = np.linalg.norm(b - a @ x - extra * x, axis=0)
        lost = bound(dtype) * np.linalg.norm(np.abs(a) @ np.abs(x), axis=0)
        assert (gap <= 1.01 * tol * np.linalg.norm(b.astype("d"), axis=0) + lost).all()
    w = linalg.eigh_top(operator, 3)[0]
    expected = np.linalg.eigvalsh(a)[-3:]
    np.testing.assert_allclose(w, expected, atol=4e-6 * expected[-1])


X = numbers("float64")["x"]
ONES = np.ones(N)
UNMADE = {
    "ridge of a point": (lambda: linalg.KernelOperator(GAUSS, X, ridge=-ONES), ValueError,
                         "KernelOperator: ridge must be from 0 on and finite. Received -1"),
    "infinite ridge": (lambda: linalg.KernelOperator(GAUSS, X, ridge=ONES * np.inf), ValueError,
                       "ridge must be from 0 on and finite. Received inf"),
    "short ridge": (lambda: linalg.KernelOperator(GAUSS, X, ridge=ONES[:3]), ValueError,
                    r"KernelOperator: ridge must have shape \(83,\). Received \(3,\)"),
    "matrix of ridges": (lambda: linalg.KernelOperator(GAUSS, X, ridge=np.eye(N)), ValueError,
                         "ridge must have shape"),
    "dtype of ridges": (lambda: linalg.KernelOperator(GAUSS, X, ridge=ONES.astype("f")), ValueError,
                        "ridge must be float64. Received float32"),
    "ridge of text": (lambda: linalg.KernelOperator(GAUSS, X, ridge="a"), TypeError, "ridge"),
    "weights": (lambda: linalg.KernelOperator(GAUSS, X, weights=-ONES), ValueError,
                "KernelOperator: weights must be from 0 on and finite. Received -1"),
    "NaN weights": (lambda: linalg.KernelOperator(GAUSS, X, weights=ONES * np.nan), ValueError,
                    "weights must be from 0 on and finite"),
    "one weight": (lambda: linalg.KernelOperator(GAUSS, X, weights=2.0), ValueError,
                   r"KernelOperator: weights must have shape \(83,\). Received \(\)"),
    "short weights": (lambda: linalg.KernelOperator(GAUSS, X, weights=ONES[1:]), ValueError,
                      r"weights must have shape \(83,\)"),
    "w that is not read": (lambda: linalg.KernelOperator(GAUSS, X, w=ONES[:3]), ValueError,
                           "w"),
    "w that is missing": (lambda: linalg.KernelOperator("exp(-sum(w*abs(x-z)))", X), ValueError,
                          "w"),
    "row alone": (lambda: linalg.KernelOperator("sum(x*z)*row*col", X, row=ONES), ValueError,
                  "KernelOperator: row and col must be one array, since the matrix is symmetric"),
    "row and another col": (
        lambda: linalg.KernelOperator("sum(x*z)*row*col", X, row=ONES, col=2 * ONES), ValueError,
        "row and col must be one array"),
    "short row": (
        lambda: linalg.KernelOperator("sum(x*z)*row*col", X, row=ONES[1:], col=ONES[1:]),
        ValueError, "row"),
    "row that is not read": (lambda: linalg.KernelOperator(GAUSS, X, row=ONES, col=ONES),
                             ValueError, "row"),
    "asymmetric": (lambda: linalg.KernelOperator("sum(x*z)*row", X, row=ONES, col=ONES),
                   ValueError, "must be symmetric"),
    "offset": (lambda: linalg.KernelOperator(GAUSS, X, i_offset=1), NotImplementedError,
               "i_offset is not offered in operators, which are of the points x with themselves"),
    "columns": (lambda: linalg.KernelOperator(GAUSS, X) @ X[1:], ValueError,
                r"KernelOperator: v must have the shape \[n, k\] or \[n\], n = 83"),
    "dtype": (lambda: linalg.KernelOperator(GAUSS, X) @ X.astype("f"), mc.DtypeError,
              "v must be float64. Received float32"),
    "row beyond": (lambda: linalg.KernelOperator(GAUSS, X).rows(N), IndexError,
                   "rows must be from -83 to 82. Received 83"),
    "fraction of a row": (lambda: linalg.KernelOperator(GAUSS, X).rows([0.5]), TypeError,
                          "rows are whole numbers"),
    "mask": (lambda: linalg.KernelOperator(GAUSS, X).rows(ONES > 0), TypeError,
             "rows are whole numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNMADE)
def test_refused(case):
    call, error, words = UNMADE[case]
    with pytest.raises(error, match=words):
        call()


# ---- operators of other libraries ----------------------------------------------------------------


def test_scipy_takes_operators():
    sparse = pytest.importorskip("scipy.sparse.linalg")
    a = matrix("plain", "points", True, "float64")
    operator = made("plain", "points", True, "float64")
    b = numbers("float64")["b"]
    as_scipy = sparse.aslinearoperator(operator)
    np.testing.assert_allclose(as_scipy @ b, a @ b, rtol=1e-12)
    np.testing.assert_allclose(as_scipy.rmatvec(b[:, 0]), a @ b[:, 0], rtol=1e-12)
    np.testing.assert_allclose((as_scipy.T @ b), a @ b, rtol=1e-12)
    w = sparse.eigsh(operator, k=3)[0]
    np.testing.assert_allclose(np.sort(w), np.linalg.eigvalsh(a)[-3:], rtol=1e-9)
    x, info = sparse.cg(operator, b[:, 0], rtol=1e-10)
    assert info == 0
    np.testing.assert_allclose(a @ x, b[:, 0], atol=1e-8)
    for solve in (sparse.minres, sparse.gmres):
        x, info = solve(operator, b[:, 0], rtol=1e-10)
        assert info == 0
        np.testing.assert_allclose(a @ x, b[:, 0], atol=1e-7)
    start = np.random.default_rng(0).normal(size=(N, 2))
    w = sparse.lobpcg(operator, start, maxiter=200, tol=1e-8)[0]
    np.testing.assert_allclose(np.sort(w), np.linalg.eigvalsh(a)[-2:], rtol=1e-9)
    s = sparse.svds(operator, k=2)[1]
    np.testing.assert_allclose(np.sort(s), np.linalg.eigvalsh(a)[-2:], rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cg_of_scipy_operators_and_functions(dtype):
    sparse = pytest.importorskip("scipy.sparse.linalg")
    a = matrix("plain", 0.5, False, dtype).astype(dtype)
    b = numbers(dtype)["b"]
    tol = 1e-4 if dtype == "float32" else 1e-10
    seen = []

    def multiply(v):
        seen.append((v.shape, v.dtype.name, type(v)))
        return a @ v

    plain = linalg.cg(a, b, tol=tol)
    columns = sparse.LinearOperator((N, N), matvec=lambda v: a @ v, dtype=dtype)
    for operator in (multiply, sparse.aslinearoperator(a), columns):
        x, info, _ = linalg.cg(operator, b, tol=tol, check=False)
        assert (info == 0).all()
        gap = np.linalg.norm(b - a.astype("d") @ x, axis=0)
        assert (gap <= 2 * tol * np.linalg.norm(b, axis=0)).all()
    assert set(seen) == {((N, 4), dtype, np.ndarray)}
    np.testing.assert_allclose(linalg.cg(multiply, b[:, 0], tol=tol), plain[:, 0], atol=1e-2)
    assert seen[-1][0] == (N, 1)
    inverse = linalg.nystrom(sparse.aslinearoperator(a), 20, ridge=0.5)
    assert linalg.cg(multiply, b, preconditioner=inverse, tol=tol, check=False)[2].max() < 20
    top = linalg.eigh_top(sparse.aslinearoperator(a), 2)[0]
    np.testing.assert_allclose(top, np.linalg.eigvalsh(a.astype("d"))[-2:], rtol=1e-5)
    warm = linalg.cg(multiply, b, x0=plain, tol=2 * tol, check=False)
    assert (warm[2] <= 2).all()
    path = linalg.cg(multiply, np.repeat(b[:, :1], 3, axis=1), ridge=[0.0, 1.0, 9.0], tol=tol)
    for j, ridge in enumerate((0, 1, 9)):
        exact = np.linalg.solve(a.astype("d") + ridge * np.eye(N), b[:, 0].astype("d"))
        np.testing.assert_allclose(path[:, j], exact, atol=30 * tol * np.linalg.norm(b[:, 0]))


def test_functions_of_tensors():
    torch = pytest.importorskip("torch")
    a = torch.from_numpy(matrix("plain", 0.5, False, "float64"))
    b = torch.from_numpy(numbers("float64")["b"])
    x = linalg.cg(lambda v: a @ v, b)
    assert isinstance(x, torch.Tensor)
    torch.testing.assert_close(a @ x, b, atol=1e-8, rtol=0)
    followed = a.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="product must not"):
        linalg.cg(lambda v: followed @ v, b)
    with torch.no_grad():
        torch.testing.assert_close(linalg.cg(lambda v: followed @ v, b), x)


def test_linear_operator_both_ways():
    torch = pytest.importorskip("torch")
    linear_operator = pytest.importorskip("linear_operator")
    a = torch.from_numpy(matrix("plain", "points", True, "float64"))
    b = torch.from_numpy(numbers("float64")["b"])
    operator = made("plain", "points", True, "float64", torch.from_numpy)
    theirs = operator.to_linear_operator()
    assert isinstance(theirs, linear_operator.LinearOperator)
    torch.testing.assert_close(theirs @ b, a @ b)
    torch.testing.assert_close(theirs.diagonal(), a.diagonal())
    torch.testing.assert_close(linear_operator.to_dense(theirs), a)
    ours = linear_operator.to_linear_operator(a)
    torch.testing.assert_close(linalg.cg(ours, b), torch.linalg.solve(a, b), atol=1e-8, rtol=0)


SQUARE = np.eye(4)
BAD = {
    "shape": (lambda v: v[:3], "a product with a must be float64\\[4, 2\\] on cpu. Received float"),
    "dtype": (lambda v: v.astype("f"), r"Received float32\[4, 2\]"),
    "no array": (lambda v: "text", "product"),
    "none": (lambda v: None, "product"),
}


@pytest.mark.parametrize("case", BAD)
def test_products_are_checked(case):
    function, words = BAD[case]
    with pytest.raises((ValueError, TypeError), match=words):
        linalg.cg(function, np.ones((4, 2)))


def test_functions_that_raise_and_what_is_no_operator():
    def fail(v):
        raise RuntimeError("the function fails")

    with pytest.raises(RuntimeError, match="the function fails"):
        linalg.cg(fail, np.ones(4))
    with pytest.raises(TypeError, match=r"nystrom: a function must say its shape and dtype; write"):
        linalg.nystrom(fail, 2)
    with pytest.raises(ValueError, match=r"cg: b must have the shape \[n, k\] or \[n\]"):
        linalg.cg(fail, np.ones((2, 4, 2)))
    with pytest.raises(ValueError, match=r"cg: b must have the shape \[n, k\] or \[n\]"):
        linalg.cg(fail, 3.0)
    with pytest.raises(ValueError, match="cg: a must be an array of NumPy"):
        linalg.cg("text", np.ones(4))
    sparse = pytest.importorskip("scipy.sparse.linalg")
    with pytest.raises(ValueError, match=r"cg: a must have the shape \[n, n\]. Received \(4, 2\)"):
        linalg.cg(sparse.aslinearoperator(np.ones((4, 2))), np.ones(4))
    with pytest.raises(mc.DtypeError, match="complex"):
        linalg.cg(sparse.aslinearoperator(np.eye(4) + 0j), np.ones(4))


# ---- ridges of columns ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("of", ["kernel", "matrix", "function"])
def test_a_path_of_ridges_is_one_call(of, dtype):
    a = matrix("plain", 0.0, False, dtype)
    stored = a.astype(dtype)
    operator = {
        "kernel": made("plain", 0.0, False, dtype),
        "matrix": stored,
        "function": lambda v: stored @ v,
    }[of]
    path = np.array([1e-1, 1.0, 10.0, 1e3])
    b = np.repeat(numbers(dtype)["b"][:, :1], 4, axis=1)
    tol = 1e-4 if dtype == "float32" else 1e-10
    for ridge in (path, list(path), tuple(path), path.astype("f"), np.repeat(path, 2)[::2]):
        x, info, products = linalg.cg(operator, b, ridge=ridge, tol=tol, check=False)
        assert (info == 0).all()
        assert (np.diff(products) <= 0).all()
        exact = x.astype("d")
        gap = np.linalg.norm(b - a @ exact - np.asarray(ridge, "d") * exact, axis=0)
        lost = 4e-6 * np.linalg.norm(np.abs(a) @ np.abs(exact), axis=0) * (dtype == "float32")
        assert (gap <= 1.01 * tol * np.linalg.norm(b.astype("d"), axis=0) + lost).all()
    single = linalg.cg(operator, b, ridge=1.0, tol=tol)
    np.testing.assert_array_equal(single[:, 1], x[:, 1])
    vector = linalg.cg(operator, b[:, 0], ridge=np.float64(1.0), tol=tol)
    np.testing.assert_allclose(vector, x[:, 1], rtol=1e-3, atol=1e-4)


RIDGES = {
    "negative": (-1.0, ValueError, "cg: ridge must be from 0 on and finite. Received -1"),
    "one negative": ([0.0, -1.0], ValueError, "ridge must be from 0 on and finite. Received -1"),
    "NaN": ([0.0, np.nan], ValueError, "ridge must be from 0 on and finite. Received nan"),
    "too few": ([1.0], ValueError, r"one for each column of b, shape \(2,\). Received \(1,\)"),
    "whole numbers": (np.array([1, 2]), ValueError, "ridge must be float32 or float64"),
    "text": ("a", TypeError, "ridge"),
}


@pytest.mark.parametrize("case", RIDGES)
def test_ridges_are_checked(case):
    ridge, error, words = RIDGES[case]
    with pytest.raises(error, match=words):
        linalg.cg(SQUARE, np.ones((4, 2)), ridge=ridge)


def test_stagnation_has_its_own_code():
    """A residual that the dtype cannot reach is told from max_iter that ran out."""
    rng = np.random.default_rng(5)
    q = np.linalg.qr(rng.normal(size=(60, 60)))[0]
    a = ((q * np.logspace(0, -3, 60)) @ q.T).astype("f")
    a = (a + a.T) / 2
    b = rng.normal(size=(60, 2)).astype("f")
    x, info, products = linalg.cg(a, b, tol=1e-12, max_iter=5000, check=False)
    assert (info == -2).all()
    assert (products < 2000).all()
    lost = 60 * 2.0**-24 * np.linalg.norm(x, axis=0) * 60
    assert (np.linalg.norm(b - a.astype("d") @ x, axis=0) <= lost).all()
    with pytest.raises(mc.LinAlgError, match=r"it stagnated: float32 gets no closer; .* float64"):
        linalg.cg(a, b, tol=1e-12, max_iter=5000)
    assert (linalg.cg(a, b, tol=1e-12, max_iter=5, check=False)[1] == 5).all()
    with pytest.raises(mc.LinAlgError, match="after 5 products, which were all of them; a larger"):
        linalg.cg(a, b, tol=1e-12, max_iter=5)


# ---- CUDA devices --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMULAS)
def test_on_cuda(cuda, form, dtype):
    def array(values):
        return cuda.from_numpy(np.array(values)).cuda()

    a = matrix(form, "points", True, dtype)
    operator = made(form, "points", True, dtype, array)
    assert operator.device.type == "cuda"
    b = numbers(dtype)["b"]
    product = operator @ array(b)
    assert product.is_cuda
    lost = bound(dtype) * (np.abs(a) @ np.abs(b.astype("d")))
    assert (np.abs(product.cpu().numpy() - a @ b.astype("d")) <= lost).all()
    size = bound(dtype) * np.abs(a).max()
    np.testing.assert_allclose(operator.diagonal().cpu().numpy(), np.diag(a), atol=size)
    np.testing.assert_allclose(operator.rows([5, 0, 5]).cpu().numpy(), a[[5, 0, 5]], atol=size)
    ridges = cuda.tensor([0.0, 0.1, 1.0, 30.0], dtype=cuda.float64, device="cuda")
    tol = 1e-4 if dtype == "float32" else 1e-10
    solved = linalg.cg(operator, array(b), ridge=ridges, tol=tol)
    of_function = linalg.cg(lambda v: operator @ v, array(b), ridge=ridges, tol=tol)
    for found in (solved, of_function):
        assert found.is_cuda
        x = found.cpu().numpy().astype("d")
        gap = np.linalg.norm(b - a @ x - ridges.cpu().numpy() * x, axis=0)
        rest = bound(dtype) * np.linalg.norm(np.abs(a) @ np.abs(x), axis=0)
        assert (gap <= 1.01 * tol * np.linalg.norm(b.astype("d"), axis=0) + rest).all()
    ridges[1] = -1
    assert linalg.cg(operator, array(b), ridge=ridges, check=False)[1][1] == -1
    for name in ("ridge", "weights"):
        bad = {name: array(-np.ones(N, dtype))}
        with pytest.raises(ValueError, match=f"{name} must be from 0 on and finite. Received -1"):
            linalg.KernelOperator(GAUSS, array(numbers(dtype)["x"]), **bad)
    options = {"tol": tol, "max_iter": 60, "check": False, "ridge": cuda.ones_like(ridges)}
    right = array(b)
    cuda.cuda.synchronize()
    stream = cuda.cuda.Stream()
    with cuda.cuda.stream(stream):
        linalg.cg(operator, right, **options)
    cuda.cuda.synchronize()
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph, stream=stream):
        captured = linalg.cg(operator, right, **options)
    graph.replay()
    cuda.cuda.synchronize()
    for got, wanted in zip(captured, linalg.cg(operator, right, **options), strict=True):
        assert cuda.equal(got, wanted)
