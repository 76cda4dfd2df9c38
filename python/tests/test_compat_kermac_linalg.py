"""mercer.compat.kermac.linalg: batches of systems with int32 infos, on the CPU and on CUDA."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from compat_oracles import assert_close, wide  # noqa: E402
from mercer.compat.kermac import FillMode, linalg  # noqa: E402

L, C, N = 3, 4, 8
NAN = float("nan")


@pytest.fixture
def spd(draw):
    """Positive definite matrices, right-hand sides by rows, and the solutions of x a = b."""
    half = draw(L, N, N)
    a, b = half @ half.mT + 2 * torch.eye(N, device=half.device), draw(L, C, N)
    return a, b, torch.linalg.solve(wide(a).mT, wide(b).mT).mT


def one_triangle(a, fill_mode):
    """The matrix with NaN in the triangle that cuSOLVER, by columns, does not read."""
    upper = torch.triu(torch.ones_like(a, dtype=torch.bool), 1)
    return a.masked_fill(upper.mT if fill_mode is FillMode.LOWER else upper, NAN)


@pytest.mark.parametrize("fill_mode", FillMode)
def test_solve_cholesky_reads_one_triangle(spd, fill_mode):
    a, b, expected = spd
    x, factor, solve = linalg.solve_cholesky(one_triangle(a, fill_mode), b, fill_mode)
    assert_close(x, expected, 1e-4)
    for infos in (factor, solve):
        assert infos.dtype is torch.int32
        assert infos.tolist() == [0] * L


@pytest.mark.parametrize("solve", [linalg.solve_cholesky, linalg.solve_lu])
def test_inputs_stay_unless_overwritten(spd, solve):
    a, b, expected = spd
    before = a.clone(), b.clone()
    x, *_ = solve(a, b)
    assert x.is_contiguous()
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])
    assert solve(a, b, overwrite_a=True, overwrite_b=True)[0] is b
    assert_close(b, expected, 1e-4)


@pytest.mark.parametrize("solve", [linalg.solve_cholesky, linalg.solve_lu])
def test_padded_rows(spd, draw, solve):
    a, b, expected = spd
    padded_a, padded_b = draw(L, N, N + 3), draw(L, C, N + 5)
    padded_a[..., :N], padded_b[..., :N] = a, b
    assert_close(solve(padded_a[..., :N], padded_b[..., :N])[0], expected, 1e-4)


@pytest.mark.parametrize("solve", [linalg.solve_cholesky, linalg.solve_lu])
def test_a_batch_of_one_may_lack_its_axis(spd, solve):
    a, b, expected = spd
    x, *infos = solve(a[0], b[0])
    assert_close(x, expected[0], 1e-4)
    assert [info.tolist() for info in infos] == [[0], [0]]


def test_solve_lu_solves_from_the_right(draw):
    a, b = draw(L, N, N), draw(L, C, N)
    x, factor, solve = linalg.solve_lu(a, b)
    assert_close(x, torch.linalg.solve(wide(a).mT, wide(b).mT).mT, 1e-3)
    assert factor.dtype is solve.dtype is torch.int32


def test_infos_name_what_failed(spd):
    a, b, _ = spd
    a[1, 2, 2], a[2, 0, 0] = -1, NAN
    _, factor, solve = linalg.solve_cholesky(a, b)
    assert factor.tolist() == [0, 3, -1]
    assert solve.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"Non-zero items found: .*'factor_info', 1, 3"):
        linalg.solve_cholesky(a, b, check_errors=True)
    a[1], a[1, 0, 0] = 0, 1
    assert linalg.solve_lu(a, b)[1].tolist() == [0, 2, -1]
    with pytest.raises(ValueError, match="Non-zero items found"):
        linalg.solve_lu(a, b, check_errors=True)


@pytest.mark.parametrize("fill_mode", FillMode)
def test_eigh(spd, fill_mode):
    a, _, _ = spd
    kept = a.clone()
    w, v, infos = linalg.eigh(one_triangle(a, fill_mode), fill_mode, check_errors=True)
    assert w.shape == (L, N)
    assert_close(w, torch.linalg.eigvalsh(wide(a)), 1e-4)
    assert_close(a @ v, wide(v * w[:, None]), 1e-4)
    assert (infos.dtype, infos.tolist()) == (torch.int32, [0] * L)
    assert torch.equal(a, kept)
    a[0, 0, 0] = NAN
    assert linalg.eigh(a)[2].tolist() == [-1, 0, 0]
    with pytest.raises(ValueError, match="Non-zero items found"):
        linalg.eigh(a, check_errors=True)


def test_refused(spd):
    a, b, _ = spd
    for solve in (linalg.solve_cholesky, linalg.solve_lu):
        for wrong_a, wrong_b, kind in (
            (a.double(), b, TypeError), (a, b.double(), TypeError), (None, b, TypeError),
            (a[:2], b, ValueError), (a[..., :-1].contiguous(), b, ValueError),
            (a, b[..., :-1].contiguous(), ValueError), (a, b.mT.contiguous().mT, ValueError),
            (a[0], b, ValueError), (a[0, 0], b, ValueError),
        ):  # fmt: skip
            with pytest.raises(kind):
                solve(wrong_a, wrong_b)
    with pytest.raises(TypeError):
        linalg.eigh(a.double())
    with pytest.raises(ValueError):
        linalg.eigh(a[0])
