"""What mercer.linalg's preconditioners say they are, by dense algebra in float64."""

from __future__ import annotations

import itertools
import pickle

import mercer as mc
import numpy as np
import pytest

linalg = mc.linalg
GAUSS = "exp(-sum(square(x-z))/4)"
RIDGE = 0.05
MADE = {
    "rpcholesky": lambda a, rank: linalg.rpcholesky(a, rank, seed=3),
    "nystrom": lambda a, rank: linalg.nystrom(a, rank),
    "pivoted_cholesky": lambda a, rank: linalg.pivoted_cholesky(a, rank),
}
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}


def points(n, dtype="float64", features=3):
    return np.random.default_rng(n).normal(size=(n, features)).astype(dtype)


def kernel(x):
    return mc.kernel_matrix(GAUSS, x.astype("d"))


def dense(p):
    """P from its inverse, whose columns are those of solve."""
    inverse = p.solve(np.eye(p.shape[0], dtype=p.diagonal().dtype)).astype("d")
    return np.linalg.inv((inverse + inverse.T) / 2)


def part_of_rank(p):
    """P less its ridge: U diag(l) U^T."""
    return dense(p) - p.ridge * np.eye(p.shape[0])


def close(got, wanted, p, times=1.0):
    """Up to what inverting P in its dtype loses: its condition times the rounding of sums of n."""
    whole = np.linalg.norm(wanted, 2)
    lost = 64 * np.sqrt(len(wanted)) * UNIT[str(p.diagonal().dtype)] * whole
    assert np.linalg.norm(got - wanted, 2) <= times * lost * max(1, whole / np.min(p.ridge))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MADE)
def test_solve_sqrt_logdet_and_diagonal_are_of_one_matrix(name, dtype):
    n, rank = 120, 40
    operator = linalg.KernelOperator(GAUSS, points(n, dtype), ridge=RIDGE)
    p = MADE[name](operator, rank)
    assert p.shape == (n, n)
    assert 0 < p.rank <= rank
    assert p.ridge == RIDGE
    whole = dense(p)
    root = p.sqrt(np.eye(n, dtype=dtype)).astype("d")
    np.testing.assert_allclose(root, root.T, atol=64 * UNIT[dtype] * np.abs(root).max() * rank)
    close(root @ root, whole, p)
    assert isinstance(p.logdet(), float)
    values = np.linalg.eigvalsh(whole)
    lost = 64 * np.sqrt(n) * UNIT[dtype] * values[-1] / values[0]
    assert abs(p.logdet() - np.log(values).sum()) <= n * lost
    assert p.diagonal().dtype == dtype
    close(np.diag(p.diagonal().astype("d")), np.diag(np.diag(whole)), p)
    v = np.random.default_rng(1).normal(size=(n, 5)).astype(dtype)
    for vector in (v, np.asfortranarray(v), np.repeat(v, 2, axis=1)[::1, ::2], v[:, 1]):
        wanted = np.linalg.solve(whole, vector.astype("d"))
        solved = p.solve(vector)
        assert solved.shape == vector.shape
        assert solved.dtype == dtype
        assert np.linalg.norm(solved - wanted) <= lost * np.linalg.norm(wanted) * 4


@pytest.mark.parametrize("name", ["rpcholesky", "pivoted_cholesky"])
def test_what_is_left_of_k_is_positive_semi_definite(name):
    """k - U diag(l) U^T is a Schur complement: from 0 to k, with the trace that was left."""
    n = 150
    k = kernel(points(n))
    p = MADE[name](linalg.KernelOperator(GAUSS, points(n), ridge=RIDGE), 50)
    part = part_of_rank(p)
    left = np.linalg.eigvalsh(k - part)
    assert left.min() >= -1e-10
    assert np.linalg.eigvalsh(part)[: n - 50].max() <= 1e-10
    # The best of rank 50 leaves the tail of the spectrum; these no more than 3 times that of 25.
    tail = np.sort(np.linalg.eigvalsh(k))[: n - 25].sum()
    assert left.sum() <= 3 * tail


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_full_rank_gives_the_matrix(dtype):
    n = 60
    x = 1.3 * np.arange(n)[:, None].astype(dtype)
    k = kernel(x)
    operator = linalg.KernelOperator(GAUSS, x, ridge=0.5)
    for p in (
        linalg.rpcholesky(operator, n),
        linalg.rpcholesky(operator, 3 * n, block=1),
        linalg.rpcholesky((k + 0.5 * np.eye(n)).astype(dtype), n, ridge=0.5, block=n),
        linalg.pivoted_cholesky(operator, n),
    ):
        assert p.rank == n
        close(dense(p), k + 0.5 * np.eye(n), p)
    nystrom = linalg.nystrom(operator, n)
    least = np.linalg.eigvalsh(k)[0]
    close(dense(nystrom) * (least + 0.5), k + 0.5 * np.eye(n), nystrom)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MADE)
def test_ridges_and_weights(name, dtype):
    n = 100
    x = points(n, dtype)
    p = MADE[name](linalg.KernelOperator(GAUSS, x, ridge=RIDGE), 30)
    v = np.random.default_rng(2).normal(size=(n, 3)).astype(dtype)
    ridges = [0.05, 1.0, 30.0]
    path = p.with_ridge(ridges)
    np.testing.assert_array_equal(path.ridge, ridges)
    same = p.with_ridge(np.asarray(ridges, dtype))
    assert path.logdet().shape == (3,)
    assert path.diagonal().shape == (n, 3)
    assert same.rank == path.rank == p.rank
    for j, ridge in enumerate(ridges):
        alone = p.with_ridge(ridge)
        assert alone.ridge == ridge
        if name != "nystrom":
            close(dense(alone) - dense(p), (ridge - RIDGE) * np.eye(n), p, times=20)
        for verb in ("solve", "sqrt"):
            wanted = getattr(alone, verb)(v)[:, j]
            got = getattr(path, verb)(v)[:, j]
            limit = 64 * UNIT[dtype] * np.abs(wanted).max() * n
            np.testing.assert_allclose(got, wanted, atol=limit)
        assert path.logdet()[j] == alone.logdet()
        np.testing.assert_array_equal(path.diagonal()[:, j], alone.diagonal())
    if name == "nystrom":
        return
    w = np.random.default_rng(3).uniform(size=n).astype(dtype)
    w[::7] = 0
    root = np.sqrt(w.astype("d"))
    weighted = p.weighted(w)
    assert weighted.ridge == RIDGE
    close(dense(weighted), root[:, None] * part_of_rank(p) * root + RIDGE * np.eye(n), p, times=20)
    few = np.zeros(n, dtype)
    few[3] = 4
    assert p.weighted(few).rank == 1
    few[5] = 1  # fewer weights than columns of U
    part = np.sqrt(few.astype("d"))[:, None] * part_of_rank(p) * np.sqrt(few.astype("d"))
    close(dense(p.weighted(few)), part + RIDGE * np.eye(n), p, times=20)
    assert p.weighted(np.zeros(n, dtype)).rank == 0
    close(dense(p.weighted(np.zeros(n, dtype))), RIDGE * np.eye(n), p)
    close(dense(p.weighted(np.ones(n, dtype))), dense(p), p, times=20)


def test_weighted_operators():
    """Rows of the operator have the weights: the same as weighing P, up to other pivots."""
    n = 80
    x, w = points(n), np.random.default_rng(4).uniform(size=n)
    operator = linalg.KernelOperator(GAUSS, x, ridge=RIDGE, weights=w)
    whole = np.sqrt(w)[:, None] * kernel(x) * np.sqrt(w) + RIDGE * np.eye(n)
    for p in (linalg.rpcholesky(operator, n), linalg.pivoted_cholesky(operator, n)):
        assert np.linalg.norm(dense(p) - whole, 2) <= 1e-9


DUPLICATES = np.repeat(np.random.default_rng(5).normal(size=(6, 2)), 8, axis=0)
LOW = np.random.default_rng(6).normal(size=(50, 4))
ADVERSARIES = {
    "duplicates": (kernel(DUPLICATES), 6),
    "rank 4": (LOW @ LOW.T, 4),
    "zeros on the diagonal": (np.diag([0.0, 2.0, 0.0, 1.0, 0.0]), 2),
    "nothing": (np.zeros((9, 9)), 0),
    "one": (np.full((1, 1), 3.0), 1),
    "identity": (np.eye(33), 20),
    "a large one": (np.diag([1e6] + [1.0] * 30), 20),
    "ones": (np.ones((40, 40)), 1),
}


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ADVERSARIES)
def test_adversaries(case, dtype, scale):
    k, rank = ADVERSARIES[case]
    k = (k * scale).astype(dtype)
    n, ridge = len(k), 0.1 * scale
    for block in ("auto", 1, 7):
        p = linalg.rpcholesky(
            k + np.asarray(ridge, dtype) * np.eye(n, dtype=dtype), 20, ridge=ridge, block=block
        )
        assert p.rank == rank
        part = part_of_rank(p) / scale
        left = np.linalg.eigvalsh(k.astype("d") / scale - part)
        size = np.linalg.norm(k.astype("d"), 2) / scale + 0.1
        lost = 1000 * UNIT[dtype] * size * max(1, size)
        if case != "a large one":  # whose ridge float32 loses next to it
            assert left.min() >= -lost
            if rank < 20:
                assert left.max() <= lost
        b = np.random.default_rng(7).normal(size=n).astype(dtype)
        exact = k + np.asarray(ridge, dtype) * np.eye(n, dtype=dtype)
        info = linalg.cg(exact, b, preconditioner=p, tol=1e-3, check=False)[1]
        assert info == 0


def test_pivots_follow_the_law():
    """Pairs of pivots that are proposed together, against the law of pivots one by one."""
    random = np.random.default_rng(8)
    half = random.normal(size=(4, 4))
    k = half @ half.T
    law = {}
    for first, second in itertools.permutations(range(4), 2):
        left = np.diag(k) - k[:, first] ** 2 / k[first, first]
        chance = k[first, first] / np.trace(k) * left[second] / left.sum()
        pair = frozenset((first, second))
        law[pair] = law.get(pair, 0) + chance
    count, found = 1500, {}
    for seed in range(count):
        p = linalg.rpcholesky(k + 1e-3 * np.eye(4), 2, ridge=1e-3, seed=seed)
        left = np.abs(k - part_of_rank(p)).sum(axis=0)
        pair = frozenset(np.argsort(left)[:2].tolist())
        found[pair] = found.get(pair, 0) + 1
    distance = sum((found.get(p, 0) - count * c) ** 2 / (count * c) for p, c in law.items())
    assert distance < 27  # 5 degrees of freedom: one seed list in 1e4 would be farther off


def test_chance_serves_where_size_does_not():
    """Points far from all others are pivots by size, and tell nothing of those together."""
    random = np.random.default_rng(9)
    x = np.concatenate(
        [random.normal(size=(300, 2)), 100 * np.arange(1, 41)[:, None] + np.zeros((40, 2))]
    )
    operator = linalg.KernelOperator(GAUSS, x, ridge=0.01)
    b = random.normal(size=len(x))
    products = {
        name: int(linalg.cg(operator, b, preconditioner=MADE[name](operator, 40), check=False)[2])
        for name in MADE
    }
    assert products["rpcholesky"] < products["pivoted_cholesky"]
    assert products["rpcholesky"] <= 1.5 * products["nystrom"] + 3


def test_seeds():
    x = points(90, "float32")
    operator = linalg.KernelOperator(GAUSS, x, ridge=RIDGE)
    v = np.eye(90, dtype="float32")
    first = linalg.rpcholesky(operator, 30, seed=1).solve(v)
    np.testing.assert_array_equal(linalg.rpcholesky(operator, 30, seed=1).solve(v), first)
    assert (linalg.rpcholesky(operator, 30, seed=2).solve(v) != first).any()


def test_a_path_of_ridges_shares_its_products():
    n = 400
    x = points(n)
    k = kernel(x)
    b = np.random.default_rng(10).normal(size=(n, 4))
    ridges = [0.01, 0.1, 1.0, 10.0]
    operator = linalg.KernelOperator(GAUSS, x)
    p = linalg.rpcholesky(operator, 100, ridge=1.0).with_ridge(ridges)
    solved, info, iterations = linalg.cg(operator, b, ridge=ridges, preconditioner=p, check=False)
    plain = linalg.cg(operator, b, ridge=ridges, check=False)[2]
    assert (info == 0).all()
    assert 3 * iterations.max() < plain.max()
    for j, ridge in enumerate(ridges):
        wanted = np.linalg.solve(k + ridge * np.eye(n), b[:, j])
        assert np.linalg.norm(solved[:, j] - wanted) <= 1e-7 * np.linalg.norm(wanted) / ridge
    guess = np.ones((n, 3))  # the number of columns is checked before the first product
    for given in ({}, {"x0": guess, "max_iter": 1, "check": False}):
        with pytest.raises(ValueError, match=r"cg: .* must have as many as b, 3\. Received 4"):
            linalg.cg(operator, b[:, :3], ridge=1.0, preconditioner=p, **given)
    with pytest.raises(ValueError, match=r"as many as b, 0\. Received 4"):
        linalg.cg(operator, b[:, :0], preconditioner=p, check=False)


def test_ridges_are_normal_numbers_of_the_dtype():
    x = points(50, "float32")
    p = linalg.rpcholesky(linalg.KernelOperator(GAUSS, x, ridge=1.0), 10)
    for ridge in (1e-39, 1e-60, 1e60, [1.0, 1e-42]):
        with pytest.raises(ValueError, match="normal numbers of float32"):
            p.with_ridge(ridge)
    assert np.isfinite(p.with_ridge(1e-37).solve(np.ones(50, "f"))).all()


def test_a_ridge_that_was_added_in_another_precision():
    a = np.eye(40) * np.float64(np.float32(0.1))
    assert linalg.rpcholesky(a * (1 - 1e-9), 30, ridge=float(np.float32(0.1))).rank == 0


def test_libraries_and_pickles():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(points(50))
    p = linalg.rpcholesky(linalg.KernelOperator(GAUSS, x, ridge=RIDGE), 10)
    v = torch.from_numpy(points(50, features=2))
    for one in (
        p.with_ridge(torch.tensor([0.1, 0.2])),
        p.weighted(torch.ones(50, dtype=x.dtype)),
        p,
    ):
        again = pickle.loads(pickle.dumps(one))
        assert isinstance(again.diagonal(), torch.Tensor)
        assert isinstance(again.solve(v), torch.Tensor)
        for verb in ("solve", "sqrt"):
            assert torch.equal(getattr(again, verb)(v), getattr(one, verb)(v))
        np.testing.assert_array_equal(again.logdet(), one.logdet())
        np.testing.assert_array_equal(again.ridge, one.ridge)
        assert torch.equal(again.diagonal(), one.diagonal())
    np.testing.assert_array_equal(p.solve(v.numpy()), p.solve(v).numpy())
    empty = linalg.rpcholesky(np.empty((0, 0)), 3, ridge=1.0)
    assert (empty.rank, empty.logdet(), empty.diagonal().shape) == (0, 0.0, (0,))
    assert empty.solve(np.empty((0, 2))).shape == (0, 2)
    assert empty.weighted(np.empty(0)).with_ridge([1.0, 2.0]).shape == (0, 0)


def test_a_pickle_of_a_device_that_is_not_there():
    rows, values, ridges, *rest = P.__reduce__()[1]
    for like in ("torch", "cupy"):
        with pytest.raises(NotImplementedError, match=r"CUDA device 99, which it was made on, mu"):
            linalg._restored_preconditioner(rows, values, ridges, *rest[:3], like, 99)


class Products:
    shape, dtype, ridge = (9, 9), np.dtype("d"), 0.0

    def _mercer_multiply(self, v):
        return v


HOLED = np.eye(9)
HOLED[2, 5] = HOLED[5, 2] = np.nan
INDEFINITE = np.full((9, 9), 2.0) - np.eye(9)
A = np.eye(9)
P = linalg.rpcholesky(A, 3, ridge=0.5)
REFUSED = {
    "no ridge": (lambda: linalg.rpcholesky(A, 3), ValueError, "rpcholesky: ridge must be positive"),
    "rank": (lambda: linalg.rpcholesky(A, 0, ridge=1.0), ValueError, "rank must be positive"),
    "block": (lambda: linalg.rpcholesky(A, 3, ridge=1.0, block=0), ValueError, "block must be pos"),
    "a word": (lambda: linalg.rpcholesky(A, 3, ridge=1.0, block="all"), ValueError, 'be "auto" or'),
    "too much": (lambda: linalg.rpcholesky(A, 3, ridge=9.0), mc.LinAlgError, "a matrix with -8 on"),
    "indefinite": (lambda: linalg.rpcholesky(INDEFINITE, 9, ridge=1e-3), mc.LinAlgError,
                   "must be positive semi-definite. Received a matrix with .* left on its diag"),
    "NaN": (lambda: linalg.rpcholesky(HOLED, 9, ridge=0.5), mc.LinAlgError, "must be finite"),
    "products": (lambda: linalg.rpcholesky(Products(), 3, ridge=0.5), NotImplementedError,
                 "whose rows and diagonal it reads. Received another operator"),
    "indices": (lambda: linalg.pivoted_cholesky(
                    linalg.KernelOperator("exp(-abs(i-j))*sum(x*z)", A, ridge=1.0), 3),
                NotImplementedError, "that read no indices"),
    "shape": (lambda: P.solve(np.ones(8)), ValueError, r"v must have shape \(9,\)"),
    "axes": (lambda: P.sqrt(np.ones((9, 1, 1))), ValueError, r"v must have the shape \[n, k\]"),
    "dtype": (lambda: P.solve(np.ones(9, "f")), mc.DtypeError, "v must be float64"),
    "columns": (lambda: P.with_ridge([1.0, 2.0]).solve(np.ones((9, 3))), ValueError, r"\(9, 2\)"),
    "a vector": (lambda: P.with_ridge([1.0, 2.0]).solve(np.ones(9)), ValueError, "each of the 2 r"),
    "zero": (lambda: P.with_ridge(0.0), ValueError, "ridge must be positive, and it"),
    "one of two": (lambda: P.with_ridge([1.0, -1.0]), ValueError, "Received -1"),
    "none": (lambda: P.with_ridge([]), ValueError, "Received none"),
    "infinite": (lambda: P.with_ridge(float("inf")), ValueError, "1 / ridge normal"),
    "weights": (lambda: P.weighted(-np.ones(9)), ValueError, "weights must be from 0 on and fin"),
    "no weights": (lambda: P.weighted(np.ones(8)), ValueError, r"w must have shape \(9,\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


# ---- CUDA devices --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MADE)
def test_on_cuda(cuda, name, dtype):
    n, ridges = 700, [0.05, 1.0, 30.0]
    x = cuda.from_numpy(points(n, dtype)).cuda()
    p = MADE[name](linalg.KernelOperator(GAUSS, x, ridge=RIDGE), 90)
    v = np.random.default_rng(2).normal(size=(n, 70)).astype(dtype)
    whole = dense_on_cuda(cuda, p, n, dtype)
    lost = 64 * np.sqrt(n) * UNIT[dtype] * np.linalg.cond(whole)
    for few in (v[:, :3], v, v[:, 0]):
        solved = p.solve(cuda.from_numpy(few).cuda())
        assert solved.device == x.device
        wanted = np.linalg.solve(whole, few.astype("d"))
        assert np.linalg.norm(solved.cpu().numpy() - wanted) <= 4 * lost * np.linalg.norm(wanted)
    root = p.sqrt(cuda.eye(n, dtype=x.dtype, device="cuda")).cpu().numpy().astype("d")
    assert np.linalg.norm(root @ root - whole, 2) <= lost * np.linalg.norm(whole, 2)
    assert abs(p.logdet() - np.linalg.slogdet(whole)[1]) <= n * lost
    assert p.diagonal().device == x.device
    np.testing.assert_allclose(p.diagonal().cpu(), np.diag(whole), atol=lost * np.abs(whole).max())
    path, b = p.with_ridge(ridges), cuda.from_numpy(np.ascontiguousarray(v[:, :3])).cuda()
    assert path.diagonal().shape == (n, 3)
    for j, ridge in enumerate(ridges):
        wanted = p.with_ridge(ridge).solve(b)[:, j].cpu().numpy()
        got = path.solve(b)[:, j].cpu().numpy()
        np.testing.assert_allclose(got, wanted, atol=64 * UNIT[dtype] * np.abs(wanted).max() * n)
    assert cuda.equal(pickle.loads(pickle.dumps(path)).solve(b), path.solve(b))
    if name == "nystrom":
        return
    w = np.random.default_rng(3).uniform(size=n).astype(dtype)
    s = np.sqrt(w.astype("d"))
    wanted = s[:, None] * (whole - RIDGE * np.eye(n)) * s + RIDGE * np.eye(n)
    got = dense_on_cuda(cuda, p.weighted(cuda.from_numpy(w).cuda()), n, dtype)
    assert np.linalg.norm(got - wanted, 2) <= 20 * lost * np.linalg.norm(whole, 2)


@pytest.mark.parametrize("verb", ["solve", "sqrt"])
def test_captured_on_cuda(cuda, verb):
    n = 700
    x = cuda.from_numpy(points(n, "float32")).cuda()
    p = linalg.rpcholesky(linalg.KernelOperator(GAUSS, x, ridge=RIDGE), 90)
    for one, columns in ((p, 70), (p.with_ridge([0.05, 1.0, 30.0]), 3)):
        call = getattr(one, verb)
        v = cuda.randn(n, columns, device="cuda")
        cuda.cuda.synchronize()
        stream = cuda.cuda.Stream()
        refused = cuda.cuda.CUDAGraph()
        with (
            pytest.raises(ValueError, match="call once before a CUDA graph is captured"),
            cuda.cuda.graph(refused, stream=stream),
        ):
            call(v)
        call(v)
        graph = cuda.cuda.CUDAGraph()
        with cuda.cuda.graph(graph, stream=stream):
            found = call(v)
        for _ in range(2):
            v.copy_(cuda.randn(n, columns, device="cuda"))
            graph.replay()
            wanted = call(v)
            cuda.cuda.synchronize()
            gap = (found - wanted).abs().max() / wanted.abs().max()
            assert gap <= (64 * np.sqrt(n) * UNIT["float32"] if columns > 64 else 0)


def dense_on_cuda(cuda, p, n, dtype):
    inverse = p.solve(cuda.eye(n, dtype=getattr(cuda, dtype), device="cuda")).cpu().numpy()
    return np.linalg.inv(inverse.astype("d"))


def test_cuda_makes_the_factor_of_the_host(cuda):
    """The host draws the pivots: in float64 what differs from the CPU is rounding."""
    x = points(500)
    device = linalg.KernelOperator(GAUSS, cuda.from_numpy(x).cuda(), ridge=RIDGE)
    host = linalg.KernelOperator(GAUSS, x, ridge=RIDGE)
    v = np.random.default_rng(1).normal(size=(500, 4))
    for make in (linalg.rpcholesky, linalg.pivoted_cholesky):
        wanted = make(host, 60).solve(v)
        got = make(device, 60).solve(cuda.from_numpy(v).cuda()).cpu().numpy()
        np.testing.assert_allclose(got, wanted, atol=1e-7 * np.abs(wanted).max())


def test_captured_calls_have_a_ridge_for_each_column(cuda):
    n, ridges = 700, cuda.tensor([0.5, 1.0, 2.0, 4.0], device="cuda")
    x = cuda.from_numpy(points(n, "float32")).cuda()
    operator = linalg.KernelOperator(GAUSS, x)
    inverse = linalg.rpcholesky(operator, 100, ridge=1.0).with_ridge(ridges)
    options = {"tol": 1e-3, "max_iter": 40, "check": False, "preconditioner": inverse}
    b = cuda.randn(n, 4, device="cuda")
    cuda.cuda.synchronize()
    stream = cuda.cuda.Stream()
    with cuda.cuda.stream(stream):
        linalg.cg(operator, b, ridge=ridges, **options)
    cuda.cuda.synchronize()
    graph = cuda.cuda.CUDAGraph()
    with cuda.cuda.graph(graph, stream=stream):
        solved, info, _ = linalg.cg(operator, b, ridge=ridges, **options)
    b.copy_(cuda.randn(n, 4, device="cuda"))
    cuda.cuda.synchronize()
    graph.replay()
    cuda.cuda.synchronize()
    assert (info == 0).all()
    assert cuda.equal(solved, linalg.cg(operator, b, ridge=ridges, **options)[0])
