"""mercer.compat.kernel_tools: its contract against float64, on the CPU and on CUDA."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from compat_oracles import assert_close, differences, products, wide  # noqa: E402
from mercer.compat.kernel_tools import kernels, linalg  # noqa: E402

N, B = 8, 3
NAN = float("nan")


@pytest.fixture(params=["float32", "float64"])
def symmetric(request, draw):
    half = draw(B, N, N).to(getattr(torch, request.param))
    return half + half.mT


def tolerance(a):
    return 100 * torch.finfo(a.dtype).eps


def check_pairs(a, w, v):
    """Eigenvalues, ascending, and orthonormal eigenvectors in columns."""
    assert_close(w, torch.linalg.eigvalsh(wide(a)), tolerance(a))
    assert_close(wide(a) @ wide(v), wide(v) * wide(w)[..., None, :], tolerance(a))
    assert_close(wide(v).mT @ wide(v), torch.eye(N, dtype=torch.float64).expand_as(wide(v)), 1e-4)


def triangle(a, lower):
    other = torch.ones_like(a, dtype=torch.bool).triu(1)
    return a.masked_fill(other if lower else other.mT, NAN)


@pytest.mark.parametrize("lower", [True, False])
def test_eigh_reads_one_triangle(symmetric, lower):
    a = symmetric[0]
    given = triangle(a, lower)
    before = given.clone()
    check_pairs(a, *linalg.cusolver_eigh(given, lower=lower))
    assert torch.equal(given.nan_to_num(7), before.nan_to_num(7))
    assert_close(
        linalg.cusolver_eigh(given, lower=lower, eigvals_only=True, overwrite_a=True),
        torch.linalg.eigvalsh(wide(a)), tolerance(a),
    )  # fmt: skip


def test_eigh_of_a_subset(symmetric):
    a = symmetric[0]
    w, v = linalg.cusolver_eigh(a, subset_by_index=(2, 4))
    assert v.shape == (N, 3)
    assert v.untyped_storage().nbytes() == 3 * N * a.element_size()
    assert_close(w, torch.linalg.eigvalsh(wide(a))[2:5], tolerance(a))
    assert_close(wide(a) @ wide(v), wide(v) * wide(w), tolerance(a))
    for wrong in ((3, 2), (-1, 2), (0, N)):
        with pytest.raises(ValueError, match="subset_by_index"):
            linalg.cusolver_eigh(a, subset_by_index=wrong)


def test_eigh_of_a_batch(symmetric):
    check_pairs(symmetric, *linalg.cusolver_batched_eigh(symmetric))
    assert_close(
        linalg.cusolver_batched_eigh(triangle(symmetric, False), lower=False, eigvals_only=True),
        torch.linalg.eigvalsh(wide(symmetric)), tolerance(symmetric),
    )  # fmt: skip


@pytest.mark.parametrize("overwrite", [False, True])
def test_mg_eigh_works_from_the_host(symmetric, overwrite):
    a = symmetric[0].cpu()
    given = a.clone()
    w, v = linalg.cusolver_mg_eigh(given, overwrite_a=overwrite)
    check_pairs(a, w, v)
    assert w.device.type == v.device.type == "cpu"
    assert torch.equal(given, v.mT if overwrite else a)
    with pytest.raises(ValueError, match="on the CPU"):
        linalg.cusolver_mg_eigh(torch.empty(2, 2, device="meta"))


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_getrf_and_getrs(draw, overwrite, by_columns):
    a, targets = draw(N, N).double(), draw(3, N).double()
    if by_columns:
        a = a.mT.contiguous().mT
    seen = wide(a if by_columns else a.mT).clone()  # what cuSOLVER reads
    kept, wanted = a.clone(), wide(targets).clone()
    lu, ipiv = linalg.cusolver_getrf(a, overwrite_a=overwrite)
    assert (lu is a) == overwrite
    assert lu.stride() == a.stride()
    assert overwrite or torch.equal(a, kept)
    assert ipiv.dtype is torch.int64
    factors = wide(lu if by_columns else lu.mT)
    expected = torch.linalg.lu_factor(seen)
    assert_close(factors, expected.LU, 1e-9)
    assert ipiv.tolist() == expected.pivots.tolist()
    x = linalg.cusolver_getrs(lu, ipiv, targets, overwrite_targets=overwrite)
    assert (x is targets) == overwrite
    assert_close(x, torch.linalg.solve(seen, wanted.mT).mT, 1e-9)


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("m", "n"), [(5, 8), (8, 5)])
def test_getrf_of_any_shape(draw, m, n, by_columns):
    a = draw(m, n).double()
    if by_columns:
        a = a.mT.contiguous().mT
    lu, ipiv = linalg.cusolver_getrf(a)
    assert lu.shape == a.shape
    assert lu.stride() == a.stride()
    expected = torch.linalg.lu_factor(wide(a if by_columns else a.mT))
    assert_close(wide(lu if by_columns else lu.mT), expected.LU, 1e-9)
    assert ipiv.tolist() == expected.pivots.tolist()
    with pytest.raises(ValueError, match="a must be square"):
        linalg.cusolver_getrs(lu, ipiv, draw(3, n).double())


def test_data_without_an_answer(draw):
    a = torch.zeros_like(draw(N, N))
    with pytest.raises(ValueError, match=r"info of getrf is not equal to 0: 1"):
        linalg.cusolver_getrf(a)
    a[2, 2] = NAN
    with pytest.raises(ValueError, match="info of syevdx is not equal to 0"):
        linalg.cusolver_eigh(a)
    with pytest.raises(ValueError, match=r"info of syev_batched is not equal to 0: \[0, -1\]"):
        linalg.cusolver_batched_eigh(torch.stack([torch.eye(N).to(a), a]))


def test_refused(draw):
    a = draw(N, N)
    for call in (linalg.cusolver_eigh, linalg.cusolver_getrf, linalg.cusolver_mg_eigh):
        for wrong in (draw(N), draw(B, N, N), a.half()):
            with pytest.raises(ValueError):
                call(wrong)
    for call, oblong in (
        (linalg.cusolver_eigh, draw(N, N + 1)),
        (linalg.cusolver_mg_eigh, draw(N, N + 1).cpu()),
    ):
        with pytest.raises(ValueError, match="must be square"):
            call(oblong)
    for wrong in (a, draw(B, N, N + 1), draw(B, N, N).half()):
        with pytest.raises(ValueError):
            linalg.cusolver_batched_eigh(wrong)
    lu, ipiv = linalg.cusolver_getrf(a)
    with pytest.raises(ValueError, match="targets must be"):
        linalg.cusolver_getrs(lu, ipiv, draw(N, 3))
    with pytest.raises(RuntimeError, match="one stride of a must be 1"):
        linalg.cusolver_getrf(draw(2 * N, 2 * N)[::2, ::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_workspaces_by_size(dtype, capsys):
    sizes = (
        linalg.cusolver_eigh_workspace_requirements(N, dtype),
        linalg.cusolver_batched_eigh_workspace_requirements(N, B, dtype),
        linalg.cusolver_getrf_workspace_requirements(N, N, dtype),
        linalg.cusolver_getrf_workspace_requirements(N, 2 * N, dtype),
        (linalg.cusolver_mg_eigh_workspace_requirements(N, dtype), 0),
    )
    for device, host in sizes:
        assert host == 0
        assert device > 0 if torch.cuda.is_available() else device == 0
    for query in (
        lambda: linalg.cusolver_eigh_workspace_requirements(N, torch.half),
        lambda: linalg.cusolver_batched_eigh_workspace_requirements(N, B, torch.half),
        lambda: linalg.cusolver_getrf_workspace_requirements(N, N, torch.int32),
        lambda: linalg.cusolver_mg_eigh_workspace_requirements(N, torch.half),
    ):
        with pytest.raises(ValueError, match="float32 or float64"):
            query()
    linalg.cusolver_eigh(torch.eye(N, dtype=dtype), verbose=True)
    lu, ipiv = linalg.cusolver_getrf(torch.eye(N, dtype=dtype), verbose=True)
    linalg.cusolver_getrs(lu, ipiv, torch.eye(N, dtype=dtype), verbose=True)
    assert capsys.readouterr().out.count("bytes of scratch memory") == 3


# Kernels


@pytest.fixture
def points(draw):
    return draw(13, 5), draw(9, 5)


def test_euclidean_and_functions_of_it(points):
    x, z = points
    d2 = (differences(x, z) ** 2).sum(-1)
    assert_close(kernels.euclidean(x, z), d2)
    assert_close(kernels.euclidean(x, z, squared=False), d2.sqrt())
    assert_close(kernels.gaussian(x, z, bandwidth=2.0), torch.exp(-d2 / 8))
    assert_close(kernels.laplacian(x, z, bandwidth=2.0), torch.exp(-d2.sqrt() / 2))
    assert_close(kernels.dispersal(x, z, 2.0, 1.5), torch.exp(-(d2**0.75) / 2))
    for kernel in (kernels.gaussian, kernels.laplacian):
        with pytest.raises(ValueError, match="bandwidth must be positive"):
            kernel(x, z, 0)


def ntk(s, nx, nz, depth, bias):
    value = s + bias**2
    for _ in range(1, depth):
        c = (s / nx / nz).clip(-1 + 1e-12, 1 - 1e-12)
        k0 = 1 - torch.acos(c) / math.pi
        s = nx * nz * (c * k0 + (1 - c**2).sqrt() / math.pi)
        value = value * k0 + s + bias**2
    return value


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_ntk_relu(points, depth, bias):
    x, z = points
    s, nx, nz = products(x, z).sum(-1), wide(x).norm(dim=1)[:, None], wide(z).norm(dim=1)
    assert_close(kernels.ntk_relu(x, z, depth, bias), ntk(s, nx, nz, depth, bias))
    x, z = (torch.nn.functional.normalize(t.double()) for t in (x, z))
    x[0] = z[0]
    s = products(x, z).sum(-1)
    result = kernels.ntk_relu_unit_sphere(x, z, depth, bias)
    assert_close(result, ntk(s, 1, 1, depth, bias), 1e-9)
    assert_close(
        kernels.ntk_relu_unit_sphere(x, None, depth, bias),
        ntk(products(x, x).sum(-1), 1, 1, depth, bias), 1e-7,
    )  # fmt: skip


def test_autograd_goes_through(points):
    x, z = (t.double().requires_grad_() for t in points)
    kernels.gaussian(x, z, 2.0).sum().backward()
    t = wide(x)[:, None] - wide(z)
    k = torch.exp(-(t**2).sum(-1) / 8)
    assert_close(x.grad, -(k[..., None] * t / 4).sum(1), 1e-9)
