"""Grids of GPUs: on a stand-in for cuSOLVERMp anywhere, and on the library where there is a GPU."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
from fake_cusolvermp import INTERNAL_ERROR, Fake, FakeStream
from mercer.linalg import distributed
from mercer.linalg.distributed import _libraries

torch = pytest.importorskip("torch")
DTYPES = (np.float32, np.float64)


@pytest.fixture
def fake(monkeypatch):
    """Devices of the CPU, each with a thread, and the stand-in for both libraries."""
    from mercer.linalg.distributed import _cusolvermp, _gpus

    library = Fake()
    monkeypatch.setattr(_libraries, "cusolvermp", lambda: library)
    monkeypatch.setattr(_libraries, "nccl", lambda: library)
    monkeypatch.setattr(_cusolvermp, "Stream", FakeStream)
    monkeypatch.setattr(_gpus, "_device", lambda number: torch.device("cpu", number))
    return library


def points(n, k=3, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(size=(n, k)).astype(dtype)


def bound(n, dtype):
    """LAPACK's own bound."""
    return 30 * n * np.finfo(dtype).eps


def solved(grid, n, block, dtype):
    """Every verb of kernel matrices of n points, in shards of the grid."""
    x = points(n, dtype=dtype)
    f = mc.gauss(bandwidth=1.0)
    a = distributed.kernel_matrix(grid, f, x, block=block, ridge=0.5)
    whole = mc.pairwise(f, x.astype(float)) + 0.5 * np.eye(n)
    np.testing.assert_allclose(a.everywhere(), whole, rtol=1e-5, atol=1e-6)
    before, norm = a.everywhere(), np.linalg.norm(whole, 2)
    b = points(n, 3, dtype, 1)
    for solve in (distributed.solve_cholesky, distributed.solve_lu):
        for right in (b, b[:, 0]):
            y = solve(a, right)
            assert y.shape == right.shape
            assert np.abs(whole @ y - right).max() <= bound(n, dtype) * norm * np.abs(y).max()
    for subset in (None, (0, 0), (n // 2, n - 1)):
        w, v = distributed.eigh(a, subset_by_index=subset)
        columns = v.everywhere().astype(float)
        count = n if subset is None else subset[1] - subset[0] + 1
        assert columns.shape == (n, count)
        assert np.abs(whole @ columns - columns * w).max() <= bound(n, dtype) * norm
        assert np.abs(columns.T @ columns - np.eye(count)).max() <= bound(n, dtype)
        values = distributed.eigh(a, subset_by_index=subset, eigvals_only=True)
        np.testing.assert_array_equal(values, w)
    np.testing.assert_array_equal(a.everywhere(), before)


def refused(grid, pivot="12"):
    whole = np.eye(20)
    whole[11, 11] = -1
    a = distributed.scatter(grid, whole, block=4)
    with pytest.raises(mc.LinAlgError, match="order 12 "):
        distributed.solve_cholesky(a, np.ones(20))
    whole[11] = 0
    with pytest.raises(mc.LinAlgError, match=rf"singular.*pivot {pivot} "):
        distributed.solve_lu(distributed.scatter(grid, whole, block=4), np.ones(20))
    whole[11, 2] = np.nan
    a = distributed.scatter(grid, whole, block=4)
    for call in (distributed.solve_cholesky, distributed.solve_lu):
        with pytest.raises(mc.LinAlgError, match="finite"):
            call(a, np.ones(20))
    with pytest.raises(mc.LinAlgError, match="finite"):
        distributed.eigh(a)
    odd = distributed.scatter(grid, np.eye(20), block=3)
    with pytest.raises(ValueError, match="power of two"):
        distributed.eigh(odd)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 2), (1, 3)])
def test_threads_of_a_process(fake, shape):
    with distributed.Grid(devices=range(shape[0] * shape[1]), shape=shape) as grid:
        for n, block in ((1, 4), (5, 8), (41, 8)):
            for dtype in DTYPES:
                solved(grid, n, block, dtype)
        refused(grid)
        assert not [call for call in fake.calls if not isinstance(call, str)]
    assert fake.live == 0


@pytest.mark.parametrize("name", ["Potrf", "Potrs", "Getrf", "Getrs"])
def test_the_library_fails_where_the_matrix_is_right(fake, name):
    fake.statuses[name] = INTERNAL_ERROR
    solve = distributed.solve_cholesky if name.startswith("Po") else distributed.solve_lu
    with distributed.Grid(devices=[0, 1], shape=(2, 1)) as grid:
        a = distributed.scatter(grid, np.eye(41) + 1, block=8)
        with pytest.raises(mc.DeviceError, match=f"{name} failed on .* with status 7"):
            solve(a, np.ones(41))
        fake.statuses.clear()
        np.testing.assert_allclose(solve(a, np.ones(41)), 1 / 42)
    assert fake.live == 0


def test_whole_numbers_make_matrices_of_float64(fake):
    x = (2**24 + np.arange(12)).astype(np.int32).reshape(6, 2)
    with distributed.Grid(devices=[0, 1], shape=(2, 1)) as grid:
        a = distributed.kernel_matrix(grid, "sum(x*z)", x, block=4)
        assert a.dtype == np.float64
        np.testing.assert_array_equal(a.everywhere(), x.astype(float) @ x.T.astype(float))


def test_pivots_of_every_column_have_room(fake):
    with distributed.Grid(devices=[0, 1], shape=(2, 1)) as grid:
        a = distributed.scatter(grid, np.eye(41) + 1, block=8)
        distributed.solve_lu(a, np.ones(41))
        for worker, shard in zip(grid.engine()._workers, a.shards, strict=True):
            assert shard.shape[1] == 41
            assert worker.pivots.numel() >= 41


def test_matrices_of_one_process(fake):
    with distributed.Grid(devices=[0, 1, 2, 3]) as grid:
        whole = torch.from_numpy(points(30, 17))
        a = distributed.scatter(grid, whole, block=4)
        assert [tuple(shard.shape) for shard in a.shards] == [(16, 9), (16, 8), (14, 9), (14, 8)]
        assert torch.equal(a.gather(), whole)
        again = distributed.from_local(grid, (30, 17), a.shards, block=4)
        assert torch.equal(again.everywhere(), whole)
        with pytest.raises(ValueError, match="must be"):
            distributed.from_local(grid, (30, 17), a.shards[::-1], block=4)
        with pytest.raises(ValueError, match="one shard a rank"):
            distributed.from_local(grid, (30, 17), a.shards[:2], block=4)
        indexed = "100*i + j + sum(x*z)"
        made = distributed.kernel_matrix(grid, indexed, points(30), points(17), block=4)
        expected = mc.pairwise(indexed, points(30), points(17))
        np.testing.assert_allclose(made.everywhere(), expected, rtol=1e-13)
        square = distributed.scatter(grid, np.eye(9))
    with pytest.raises(ValueError, match="closed"):
        distributed.solve_lu(square, np.ones(9))


def test_wrong_vectors_are_found_out(fake):
    def spoil(values, vectors):
        vectors[:, 3] *= 1.01

    fake.spoil = spoil
    with distributed.Grid(devices=[0, 1]) as grid:
        a = distributed.kernel_matrix(grid, mc.gauss(bandwidth=1.0), points(40), block=8)
        with pytest.raises(mc.LinAlgError, match="fail their check"):
            distributed.eigh(a)


@pytest.mark.parametrize("solve", [distributed.solve_cholesky, distributed.solve_lu])
def test_wrong_solutions_are_found_out(fake, solve, monkeypatch):
    with distributed.Grid(devices=range(2)) as grid:
        a = distributed.kernel_matrix(grid, mc.gauss(bandwidth=1.0), points(40), block=8, ridge=0.5)
        engine = grid.engine()
        sound = engine.solve

        def spoiled(verb, matrix, x):
            info = sound(verb, matrix, x)
            x.shards[0][:1] += 1e-6
            return info

        monkeypatch.setattr(engine, "solve", spoiled)
        with pytest.raises(np.linalg.LinAlgError, match="solution fails its check"):
            solve(a, points(40, 3, seed=1))


def test_a_thousand_calls_keep_nothing(fake):
    with distributed.Grid(devices=[0, 1]) as grid:
        live = fake.live
        a = distributed.scatter(grid, 2 * np.eye(6), block=2)
        for _ in range(1000):
            w, _ = distributed.eigh(a, overwrite_a=False)
            assert w[0] == 2
            assert fake.live == live


def test_old_libraries_are_refused(fake, monkeypatch):
    fake.version = 900
    with pytest.raises(mc.DeviceError, match=r"0\.9\.1 or newer.*wrong eigenvectors.*0\.9\.0"):
        distributed.Grid(devices=[0])
    fake.version = 10000
    distributed.Grid(devices=[0]).close()
    with pytest.raises(ImportError, match=r"NCCL 2\.29\.2 or newer.*Received 2\.28\.9"):
        _libraries.check_nccl(Fake(nccl=22809))


def test_devices_are_checked():
    with pytest.raises(ValueError, match="at least one GPU"):
        distributed.Grid(devices=[])
    with pytest.raises(ValueError, match="number of ranks"):
        distributed.Grid(devices=[0, 1], shape=(1, 3))


def test_kernel_tools_takes_all_gpus(fake, monkeypatch):
    from mercer.compat.kernel_tools import linalg

    monkeypatch.setattr(linalg, "_gpu_count", lambda: 4)
    a = torch.from_numpy(points(300, 300))
    a = a + a.mT
    w, v = linalg.cusolver_mg_eigh(a, max_num_devices=3)
    assert fake.calls == ["Syevd"]
    assert linalg._grid(3).size == 3
    torch.testing.assert_close(a @ v, v * w)
    rows = a.clone()
    again, u = linalg.cusolver_mg_eigh(rows, overwrite_a=True, max_num_devices=3)
    assert u.data_ptr() == rows.data_ptr()
    assert torch.equal(u, v)
    assert torch.equal(w, again)
    linalg._grid(3).close()
    linalg._grid.cache_clear()


def test_kernel_tools_takes_one_device_where_several_fail(fake, monkeypatch):
    from mercer.compat.kernel_tools import linalg

    monkeypatch.setattr(linalg, "_gpu_count", lambda: 2)

    monkeypatch.setattr(distributed, "eigh", failing)
    a = torch.from_numpy(points(300, 300))
    a = a + a.mT
    with pytest.warns(UserWarning, match="one device computes. the library"):
        w, v = linalg.cusolver_mg_eigh(a)
    torch.testing.assert_close(a @ v, v * w)
    linalg._grid(2).close()
    linalg._grid.cache_clear()


def failing(*_):
    raise mc.DeviceError("the library fails")


def library(needed):
    """The device of a test of the library itself."""
    if torch.cuda.device_count() < needed:
        pytest.skip(f"fewer than {needed} GPUs")
    try:
        _libraries.cusolvermp()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_cusolvermp(shape):
    count = shape[0] * shape[1]
    library(count)
    with distributed.Grid(devices=range(count), shape=shape) as grid:
        for n, block in ((41, 8), (300, 64), (1000, 128)):
            for dtype in DTYPES:
                solved(grid, n, block, dtype)
        # The library names another pivot of a singular matrix than the first on two rows of GPUs.
        refused(grid, pivot=r"\d+")


def test_cusolvermp_a_thousand_times():
    library(1)
    with distributed.Grid(devices=range(torch.cuda.device_count())) as grid:
        a = distributed.kernel_matrix(grid, mc.gauss(bandwidth=1.0), points(64), block=16, ridge=1)
        expected = distributed.eigh(a)[0]
        free = None
        for call in range(1000):
            w, _ = distributed.eigh(a)
            np.testing.assert_array_equal(w, expected)
            if call == 50:
                free = torch.cuda.mem_get_info()[0]
        assert torch.cuda.mem_get_info()[0] >= free - 2**24
