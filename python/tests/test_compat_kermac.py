"""mercer.compat.kermac: kermac's contract line by line, against float64, on the CPU and on CUDA."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

import mercer as mc  # noqa: E402
import mercer.compat.kermac as kermac  # noqa: E402
from compat_oracles import assert_close, differences, field, products, wide  # noqa: E402
from mercer.compat.kermac import InnerOperator, KernelDescriptor, KernelType, PowerType  # noqa: E402

M, N, K, L = 13, 9, 7, 3
INNER = {
    PowerType.NOOP: lambda t: t,
    PowerType.ABS: torch.abs,
    PowerType.SQUARE: torch.square,
    PowerType.SQRT: torch.sqrt,
    PowerType.POW: lambda t: t.abs() ** 1.3,
    PowerType.EXP_POW_SCALED: lambda t: torch.expm1(-0.5 * t.abs() ** 1.3),
}
OUTER = {
    PowerType.NOOP: lambda s: s,
    PowerType.ABS: torch.abs,
    PowerType.SQUARE: torch.square,
    PowerType.SQRT: torch.sqrt,
    PowerType.POW: lambda s: s**0.7,
}
KERNEL = {
    KernelType.NONE: lambda d: d,
    KernelType.LAPLACE: lambda d: torch.exp(-d / 2.0),
    KernelType.GAUSSIAN: lambda d: torch.exp(-d / 8.0),
}


def norm(a, b, p, root=True):
    s = (differences(a, b).abs() ** p).sum(-1)
    return s ** (1 / p) if root else s


# cdist


@pytest.mark.parametrize("p", [1, 2, 1.0, 2.0, 1.3, 0.7, 3])
def test_cdist_has_a_batch_axis_without_out(draw, p):
    a, b = draw(M, K), draw(N, K)
    assert_close(kermac.cdist(a, b, p=p), norm(a, b, p)[None])


def test_cdist_is_of_2_by_default(draw):
    a, b = draw(M, K), draw(N, K)
    assert_close(kermac.cdist(a, b), norm(a, b, 2)[None])


@pytest.mark.parametrize("p", [1.0, 2.0, 1.3])
def test_cdist_without_the_root_leaves_later_calls_alone(draw, p):
    a, b = draw(M, K), draw(N, K)
    assert_close(kermac.cdist(a, b, p=p, skip_epilogue=True), norm(a, b, p, False)[None])
    assert_close(kermac.cdist(a, b, p=p), norm(a, b, p)[None])
    l2 = kermac.kernel_descriptor_l2_norm
    assert_close(kermac.run_kernel(l2, a, b), norm(a, b, 2)[None])


def test_cdist_takes_p_as_a_tensor(draw, device):
    a, b = draw(M, K), draw(N, K)
    assert_close(kermac.cdist(a, b, p=torch.tensor(1.3, device=device)), norm(a, b, 1.3)[None])
    ps = torch.tensor([1.0, 1.3, 2.0], device=device)
    expected = torch.stack([norm(a, b, p) for p in (1.0, 1.3, 2.0)])
    assert_close(kermac.cdist(a, b, p=ps), expected)


@pytest.mark.parametrize("p", [0, 0.0, math.inf])
def test_cdist_refuses_p_without_a_root(draw, p):
    with pytest.raises(ValueError, match="finite and not 0"):
        kermac.cdist(draw(M, K), draw(N, K), p=p)


def test_duplicates_are_at_distance_zero(draw):
    a = draw(40, 50)
    for p in (0.7, 1.0, 1.3, 2.0):
        assert (kermac.cdist(a, a.clone(), p=p).diagonal(dim1=1, dim2=2) == 0).all()


# Batches and outputs


@pytest.mark.parametrize(("la", "lb"), [*itertools.product([None, 1, L], repeat=2)])
def test_batches_broadcast(draw, la, lb):
    a = draw(*([la] if la else []), M, K)
    b = draw(*([lb] if lb else []), N, K)
    length = max(la or 1, lb or 1)
    expected = norm(a, b, 1).expand(length, M, N)
    assert_close(kermac.cdist(a, b, p=1), expected)


@pytest.mark.parametrize("shape", [(M, N), (1, M, N), (L, M, N)])
def test_out_is_returned_as_given(draw, shape):
    a, b, out = draw(M, K), draw(N, K), draw(*shape)
    assert kermac.cdist(a, b, out=out, p=1) is out
    assert_close(out, norm(a, b, 1).expand(shape))


def test_out_takes_a_batch_of_points(draw):
    a, b, out = draw(L, M, K), draw(N, K), draw(L, M, N)
    assert kermac.cdist(a, b, out=out) is out
    assert_close(out, norm(a, b, 2))


def test_out_may_lie_by_columns_or_be_a_part(draw):
    a, b = draw(M, K), draw(N, K)
    for out in (draw(N, M).mT, draw(M, 2 * N)[:, :N], draw(L, N, M).mT):
        kermac.cdist(a, b, out=out, p=1)
        assert_close(out, norm(a, b, 1).expand(out.shape))


def test_points_may_lie_by_columns_or_be_padded(draw):
    a, b = draw(K, M).mT, draw(N, K + 3)[:, :K]
    assert_close(kermac.cdist(a, b, p=1), norm(a, b, 1)[None])
    a, b = draw(L, K, M).mT, draw(1, N, K).expand(L, N, K)
    assert_close(kermac.cdist(a, b, p=1, try_to_align=True), norm(a, b, 1))


def test_results_belong_to_the_caller(draw):
    a, b = draw(M, K), draw(N, K)
    first = kermac.cdist(a, b).squeeze(0)
    first.clamp_(min=0).mul_(-1).exp_()
    assert_close(kermac.cdist(a, b), norm(a, b, 2)[None])


def test_no_gradient_is_recorded(draw):
    a, b, out = draw(M, K).requires_grad_(), draw(N, K), draw(M, N)
    assert not kermac.cdist(a, b).requires_grad
    assert not kermac.cdist(a, b, out=out).requires_grad


def test_transforms_of_torch_func_find_no_gradient(draw):
    a, b = draw(M, K), draw(N, K)

    def total(a):
        return kermac.cdist(a, b, p=1.3).sum()

    def total_of_items(a):
        return torch.func.vmap(total)(a[None]).sum()

    for function in (total, total_of_items):
        assert not torch.func.grad(function)(a).any()
        assert not torch.func.jvp(function, (a,), (torch.ones_like(a),))[1].any()


@pytest.mark.parametrize(("m", "n", "k"), [(0, N, K), (M, 0, K), (M, N, 0), (1, 1, 1), (1, N, 1)])
def test_sizes_of_nothing_and_one(draw, m, n, k):
    a, b = draw(m, k), draw(n, k)
    assert_close(kermac.cdist(a, b, p=1.3), norm(a, b, 1.3)[None])


# run_kernel


@pytest.mark.parametrize("kernel", KernelType)
@pytest.mark.parametrize("operator", InnerOperator)
def test_every_descriptor(draw, operator, kernel):
    a, b = draw(M, K), draw(N, K)
    pairs = differences(a, b) if operator is InnerOperator.DIFF else products(a, b)
    for inner, outer in itertools.product(INNER, OUTER):
        words = {"inner_p": 1.3} if inner in (PowerType.POW, PowerType.EXP_POW_SCALED) else {}
        if outer is PowerType.POW:
            words["outer_p"] = 0.7
        if inner is PowerType.EXP_POW_SCALED:
            if kernel is not KernelType.NONE:
                continue  # its scale and the kernel's width would be one number
            words["bandwidth"] = -0.5
        if kernel is not KernelType.NONE:
            words |= {"bandwidth": 2.0, "epsilon": -math.inf}
        descriptor = KernelDescriptor(operator, inner, outer, kernel)
        s = OUTER[outer](INNER[inner](pairs).sum(-1))
        assert_close(kermac.run_kernel(descriptor, a, b, **words), KERNEL[kernel](s)[None], 1e-4)


def test_descriptors_by_name(draw):
    a, b = draw(M, K), draw(N, K)
    for descriptor, p in (
        (kermac.kernel_descriptor_laplace_l1, 1),
        (kermac.kernel_descriptor_laplace_l2, 2),
    ):
        result = kermac.run_kernel(descriptor, a, b, bandwidth=3)
        assert_close(result, torch.exp(-norm(a, b, p) / 3)[None])
    assert_close(kermac.run_kernel(kermac.kernel_descriptor_l1_norm, a, b), norm(a, b, 1)[None])
    assert_close(kermac.run_kernel(kermac.kernel_descriptor_p_norm, a, b, p=3), norm(a, b, 3)[None])
    product = kermac.run_kernel(kermac.kernel_descriptor_mma, a, b)
    assert_close(product, products(a, b).sum(-1)[None])


def test_a_descriptor_has_kermacs_defaults(draw):
    a, b = draw(M, K), draw(N, K)
    result = kermac.run_kernel(KernelDescriptor(), a, b, bandwidth=2.0)
    assert_close(result, torch.exp(-norm(a, b, 2) / 2)[None])


def test_hypers_along_a_batch(draw, device):
    a, b = draw(M, K), draw(N, K)
    widths = torch.tensor([1.0, 2.0, 4.0], device=device)
    result = kermac.run_kernel(kermac.kernel_descriptor_laplace_l1, a, b, bandwidth=widths)
    expected = torch.stack([torch.exp(-norm(a, b, 1) / w) for w in (1.0, 2.0, 4.0)])
    assert_close(result, expected)
    one = widths[1:2]  # of shape (1,), with a batch of points
    points = draw(L, M, K)
    result = kermac.run_kernel(kermac.kernel_descriptor_laplace_l1, points, b, bandwidth=one)
    assert_close(result, torch.exp(-norm(points, b, 1) / 2))


def test_inner_and_outer_powers_may_differ(draw, device):
    a, b = draw(M, K), draw(N, K)
    result = kermac.run_kernel(
        kermac.kernel_descriptor_p_norm, a, b,
        inner_p=torch.tensor(1.5, device=device), outer_p=2,
    )  # fmt: skip
    assert_close(result, (norm(a, b, 1.5, False) ** 2)[None])


def test_distances_below_epsilon_count_as_zero(draw):
    a, b = draw(M, K), draw(N, K)
    d = norm(a, b, 1)
    cut = float(d.median())
    result = kermac.run_kernel(
        kermac.kernel_descriptor_laplace_l1, a, b, bandwidth=2.0, epsilon=cut
    )
    assert_close(result, torch.exp(-torch.where(d < cut, 0, d) / 2)[None])


def test_epsilon_is_1e5_by_default(draw):
    a = draw(4, K)
    near = a.clone()
    near[:, 0] += torch.tensor([4e-6, 4e-6, 4e-4, 4e-4], device=a.device)
    l2 = kermac.kernel_descriptor_laplace_l2
    result = kermac.run_kernel(l2, a, near, bandwidth=1e-4)[0].diagonal()
    assert (result[:2] == 1).all()
    assert (result[2:] < 0.1).all()


@pytest.mark.parametrize("by_columns", [False, True])
def test_regularization_replaces_values(draw, by_columns):
    a, b = draw(M, K), draw(N, K)
    out = draw(N, M).mT if by_columns else draw(M, N)
    kermac.run_kernel(
        kermac.kernel_descriptor_laplace_l1, a, b, out=out, bandwidth=2.0, regularization=0.25,
        regularization_offset_x=3, regularization_offset_y=1,
    )  # fmt: skip
    m, n = torch.arange(M)[:, None], torch.arange(N)
    x, y = (m, n) if by_columns else (n, m)
    expected = torch.where(3 + x == 1 + y, 1.25, torch.exp(-norm(a, b, 1) / 2))
    assert_close(out, expected)


def test_regularization_of_a_batch_leaves_items_of_0_alone(draw, device):
    a = draw(M, K)
    width = torch.tensor([0.0, 0.5], device=device)
    result = kermac.run_kernel(
        kermac.kernel_descriptor_laplace_l1, a, a + 1, bandwidth=2.0, regularization=width
    )
    k = torch.exp(-norm(a, a + 1, 1) / 2)
    expected = torch.stack([k, torch.where(torch.eye(M).bool(), 1.5, k)])
    assert_close(result, expected)
    none = kermac.run_kernel(
        kermac.kernel_descriptor_laplace_l1, a, a + 1, bandwidth=2.0, regularization=0.0
    )
    assert_close(none, k[None])


def test_differences_change_sign_with_the_layout_of_out(draw):
    a, b = draw(M, K), draw(N, K)
    signed = KernelDescriptor(InnerOperator.DIFF, PowerType.NOOP, PowerType.NOOP, KernelType.NONE)
    rows, columns = draw(M, N), draw(N, M).mT
    s = differences(a, b).sum(-1)
    assert_close(kermac.run_kernel(signed, a, b, out=rows), s)
    assert_close(kermac.run_kernel(signed, a, b, out=columns), -s)


def test_p_may_serve_the_inner_power_alone(draw):
    a, b = draw(M, K), draw(N, K)
    sums = KernelDescriptor(InnerOperator.DIFF, PowerType.POW, PowerType.NOOP, KernelType.NONE)
    assert_close(kermac.run_kernel(sums, a, b, p=1.3), norm(a, b, 1.3, False)[None])


def test_debug_prints_what_was_compiled_or_found(draw, capsys):
    a, b = draw(M, K), draw(N, K)
    mc.clear_plans()
    kermac.cdist(a, b, p=1.8125, debug=True)
    kermac.cdist(a, b, p=1.8125, debug=True)
    first, second = capsys.readouterr().out.splitlines()
    assert "compiled: sum(abs(x - z)^p)^(1/p)" in first
    assert "found: sum(abs(x - z)^p)^(1/p)" in second


def test_pre_compile_descriptors(draw, device, capsys):
    kermac.pre_compile_descriptors(
        device, [kermac.kernel_descriptor_laplace_l1, kermac.kernel_descriptor_p_norm], debug=True
    )
    assert capsys.readouterr().out.count("(mercer.compat)") == 2
    kermac.pre_compile_descriptors(str(device), [kermac.kernel_descriptor_mma])


# Errors

P_NORM, L1 = kermac.kernel_descriptor_p_norm, kermac.kernel_descriptor_laplace_l1
PLAIN = kermac.kernel_descriptor_l2_norm


@pytest.mark.parametrize(
    ("descriptor", "words", "text"),
    [
        (P_NORM, {}, "'inner_power' of the kernel needs"),
        (P_NORM, {"inner_p": 2.0}, "'outer_power' of the kernel needs"),
        (P_NORM, {"p": 2.0, "inner_p": 2.0}, "`p` stands for"),
        (P_NORM, {"p": 2.0, "outer_p": 2.0}, "`p` stands for"),
        (P_NORM, {"p": 0}, "finite and not 0"),
        (PLAIN, {"p": 2.0}, "`p` is set"),
        (PLAIN, {"inner_p": 2.0}, "`inner_p` is set"),
        (PLAIN, {"outer_p": 2.0}, "`outer_p` is set"),
        (PLAIN, {"bandwidth": 2.0}, "`bandwidth` is set"),
        (PLAIN, {"epsilon": 2.0}, "`epsilon` is set"),
        (PLAIN, {"regularization": 2.0}, "`regularization` is set"),
        (L1, {}, "needs `bandwidth`"),
        (L1, {"bandwidth": torch.ones(2, 2)}, "0-dimensional"),
        (L1, {"bandwidth": torch.ones(L + 1)}, "batch sizes don't match"),
    ],
)
def test_hypers_that_do_not_fit(draw, device, descriptor, words, text):
    words = {k: v.to(device) if torch.is_tensor(v) else v for k, v in words.items()}
    with pytest.raises(ValueError, match=text):
        kermac.run_kernel(descriptor, draw(L, M, K), draw(N, K), **words)


@pytest.mark.parametrize(
    "words",
    [
        {"bandwidth": torch.ones((), dtype=torch.float64)}, {"bandwidth": "2"},
        {"bandwidth": 2.0, "epsilon": torch.ones(())},
    ],
)  # fmt: skip
def test_types_of_hypers(draw, device, words):
    words = {k: v.to(device) if torch.is_tensor(v) else v for k, v in words.items()}
    with pytest.raises(TypeError):
        kermac.run_kernel(L1, draw(M, K), draw(N, K), **words)


def test_types_of_points(draw):
    a, b = draw(M, K), draw(N, K)
    for pair in ((a.cpu().numpy(), b), (a.double(), b), (a, b.half()), (a, None)):
        with pytest.raises(TypeError):
            kermac.cdist(*pair)
    with pytest.raises(TypeError):
        kermac.cdist(a, b, out=draw(M, N).double())


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((M, K), (N, K + 1), None), ((K,), (N, K), None), ((1, 1, M, K), (N, K), None),
        ((2, M, K), (3, N, K), None), ((M, K), (N, K), (M, N + 1)), ((M, K), (N, K), (M,)),
        ((2, M, K), (N, K), (3, M, N)), ((2, M, K), (N, K), (M, N)),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(draw, a, b, out):
    with pytest.raises(ValueError):
        kermac.cdist(draw(*a), draw(*b), out=None if out is None else draw(*out))


def test_layouts_that_kermac_refuses(draw):
    a, b = draw(M, K), draw(N, K)
    for points in (draw(M, 2 * K)[:, ::2], draw(1, K).expand(M, K)):
        with pytest.raises(ValueError, match="non-standard memory layout"):
            kermac.cdist(points, b)
    with pytest.raises(ValueError, match="non-standard memory layout"):
        kermac.cdist(a, b, out=draw(M, 2 * N)[:, ::2])


def test_devices_may_not_differ():
    a, b = torch.randn(M, K), torch.randn(N, K)
    with pytest.raises(ValueError, match="on the device"):
        kermac.cdist(a, torch.empty_like(b, device="meta"))
    with pytest.raises(ValueError, match="on the device"):
        kermac.cdist(a, b, p=torch.ones((), device="meta"))


# cdist_grad


def signed(t):
    return torch.copysign(torch.ones_like(t), t)


def grad(p):
    if p == 2:
        return lambda t: t
    return lambda t: signed(t) * t.abs().clamp_min(1e-8) ** (p - 1)


def sources(draw, *lead, o=4):
    """a, b, c, d, some of whose features coincide."""
    a, b, c, d = draw(*lead, K, M), draw(*lead, N, K), draw(*lead, o, K), draw(*lead, N, M)
    d[..., :2] = b[..., :2]
    return a, b, c, d


@pytest.mark.parametrize("p", [1, 2, 1.0, 2.0, 1.3, 0.7])
def test_cdist_grad(draw, p):
    a, b, c, d = sources(draw)
    result = kermac.cdist_grad(a, b, c, d, p=p)
    assert result.shape == (1, 4, N, M)
    assert result.is_contiguous()
    assert_close(result, field(a, b, c, d, grad(p))[None])


def test_cdist_grad_is_of_2_by_default(draw):
    a, b, c, d = sources(draw)
    assert_close(kermac.cdist_grad(a, b, c, d), field(a, b, c, d, grad(2))[None])


def test_equal_features_have_the_sign_of_their_zero(draw):
    one = draw(1, 1).fill_(1)
    zero = torch.zeros_like(one)
    assert kermac.cdist_grad(one, zero, one, zero, p=1).item() == 1
    assert kermac.cdist_grad(one, zero, one, -zero, p=1).item() == -1


def test_powers_below_1_stay_finite(draw):
    one = draw(1, 1).fill_(1)
    result = kermac.cdist_grad(one, one, one, one, p=0.7).item()
    assert result == pytest.approx(1e-8**-0.3, rel=1e-4)


def test_cdist_grad_of_batches(draw, device):
    a, b, c, d = sources(draw, L)
    assert_close(kermac.cdist_grad(a, b, c, d, p=1), field(a, b, c, d, grad(1)))
    ps = torch.tensor([1.0, 1.3, 2.0], device=device)
    expected = torch.stack([field(a[0], b[0], c[0], d[0], grad(p)) for p in (1.0, 1.3, 2.0)])
    assert_close(kermac.cdist_grad(a[0], b[0], c[0], d[0], p=ps), expected)
    assert_close(kermac.cdist_grad(a, b[0], c[:1], d, p=1.3), field(a, b[0], c[:1], d, grad(1.3)))
    single = torch.tensor([1.3], device=device)
    assert_close(kermac.cdist_grad(a, b, c, d, p=single), field(a, b, c, d, grad(1.3)))


@pytest.mark.parametrize("lead", [(), (1,), (L,)])
def test_cdist_grad_returns_out_as_given(draw, lead):
    a, b, c, d = sources(draw)
    out = draw(*lead, 4, N, M)
    assert kermac.cdist_grad(a, b, c, d, out=out, p=1.0) is out
    assert_close(out, field(a, b, c, d, grad(1)).expand(out.shape))


@pytest.mark.parametrize("sizes", [(0, M, N, 2), (K, 1, N, 1), (K, M, 1, 2), (1, 1, 1, 1)])
def test_cdist_grad_of_nothing_and_one(draw, sizes):
    k, m, n, o = sizes
    a, b, c, d = draw(k, m), draw(n, k), draw(o, k), draw(n, m)
    assert_close(kermac.cdist_grad(a, b, c, d, p=1.3), field(a, b, c, d, grad(1.3))[None])


def test_cdist_grad_refuses(draw):
    a, b, c, d = sources(draw)
    for index, tensor in enumerate((a, b, c, d)):
        for wrong, kind in (
            (tensor.double(), TypeError), (None, TypeError), (tensor.flatten(), ValueError),
            (tensor.mT.contiguous().mT, ValueError), (tensor[:, :-1], ValueError),
        ):  # fmt: skip
            inputs = [a, b, c, d]
            inputs[index] = wrong
            with pytest.raises(kind):
                kermac.cdist_grad(*inputs)
    for out in (draw(4, N, M + 1), draw(N, M), draw(4, M, N).mT, draw(2, 3, 4, N, M)):
        with pytest.raises(ValueError):
            kermac.cdist_grad(a, b, c, d, out=out)
    with pytest.raises(ValueError, match="batch sizes"):
        kermac.cdist_grad(a.expand(2, K, M).contiguous(), b, c, d, out=draw(3, 4, N, M))


# Sums of exponentials


@pytest.mark.parametrize("p", [1, 2.0, 1.3])
def test_cdist_expadd(draw, p):
    a, b = draw(M, K), draw(N, K)
    expected = torch.exp(-0.5 * differences(a, b).abs() ** p).sum(-1)[None]
    assert_close(kermac.cdist_expadd(a, b, p=p, scale=-0.5), expected)


def test_cdist_expadd_by_lengthscale(draw, device):
    a, b = draw(M, K), draw(N, K)
    expected = torch.exp(differences(a, b).abs() ** 1.3 / 2.0**1.3).sum(-1)[None]
    assert_close(kermac.cdist_expadd(a, b, p=1.3, lengthscale=2), expected)
    ls = torch.tensor([2.0, 3.0], device=device)
    second = torch.exp(differences(a, b).abs() ** 1.3 / 3.0**1.3).sum(-1)[None]
    result = kermac.cdist_expadd(a, b, p=1.3, lengthscale=ls)
    assert_close(result, torch.cat([expected, second]))
    with pytest.raises(ValueError, match="scale or lengthscale"):
        kermac.cdist_expadd(a, b, p=1.3)


def test_cdist_expadd_of_few_features_and_out(draw):
    for k in (0, 1, K):
        a, b, out = draw(M, k), draw(N, k), draw(M, N)
        assert kermac.cdist_expadd(a, b, p=2, scale=-0.5, out=out) is out
        assert_close(out, torch.exp(-0.5 * differences(a, b) ** 2).sum(-1))


def grad_expadd(a, b, c, d, p, q=1.0, c0=0.0, scale=-0.5, eps=1e-8, s=None):
    t = wide(d)[..., :, :, None] - wide(b)[..., :, None, :]
    u = t.abs().clamp_min(eps)
    if s is None:
        s = torch.exp(scale * u**p).sum(-3).mT
    weight = wide(a) * q * (c0 + s).clamp_min(eps) ** (q - 1)
    g = torch.exp(scale * u**p) * p * scale * torch.sign(t) * u ** (p - 1)
    return torch.einsum("...ok,...km,...nmk->...onm", wide(c), weight, g)


@pytest.mark.parametrize(("p", "q"), [(1, 1), (1.0, 2.0), (1.3, 1.2), (0.7, 1.0), (2.0, 0.5)])
def test_cdist_grad_expadd(draw, p, q):
    a, b, c, d = sources(draw)
    result = kermac.cdist_grad_expadd(a, b, c, d, p=p, q=q, c0=0.7, scale=-0.5)
    assert_close(result, grad_expadd(a, b, c, d, p, q, 0.7)[None], 1e-4)


def test_cdist_grad_expadd_takes_the_sums_as_given(draw):
    a, b, c, d = sources(draw)
    s = draw(K, M)  # some below -c0, where the base is eps
    result = kermac.cdist_grad_expadd(
        a, b, c, d, s_km=s, p=1.3, q=2.0, c0=0.1, lengthscale=2.0, eps=1e-3
    )
    expected = grad_expadd(a, b, c, d, 1.3, 2.0, 0.1, 2.0**-1.3, 1e-3, wide(s))
    assert_close(result, expected[None], 1e-4)


def test_cdist_grad_expadd_of_batches_and_out(draw, device):
    a, b, c, d = sources(draw, L)
    q = torch.tensor([1.0, 1.5, 2.0], device=device)
    out = draw(L, 4, N, M)
    assert kermac.cdist_grad_expadd(a, b, c, d, p=1.3, q=q, scale=-0.5, out=out) is out
    expected = [
        grad_expadd(a[i], b[i], c[i], d[i], 1.3, power) for i, power in enumerate((1, 1.5, 2))
    ]
    assert_close(out, torch.stack(expected), 1e-4)
    with pytest.raises(ValueError, match="scale or lengthscale"):
        kermac.cdist_grad_expadd(a, b, c, d)


# Helpers


def test_tensor_stats(draw):
    rows = kermac.tensor_stats(draw(2, M, 8))
    assert rows.shape == (2, M, 8)
    assert rows.majorness is kermac.Majorness.ROW_MAJOR
    assert rows.alignment is kermac.Alignment.ALIGN_1
    assert (rows.num_batches, rows.batch_stride, rows.leading_dimension_stride) == (2, 8 * M, 8)
    columns = kermac.tensor_stats(draw(8, 12).mT)
    assert columns.shape == (1, 12, 8)
    assert columns.majorness is kermac.Majorness.COL_MAJOR
    assert columns.alignment is kermac.Alignment.ALIGN_4
    assert (columns.num_batches, columns.batch_stride) == (1, 0)
    assert kermac.tensor_stats(draw(8, 13).mT).alignment is kermac.Alignment.ALIGN_1
    for wrong, kind in (
        (draw(3), ValueError), (draw(3, 3).double(), TypeError), (draw(4, 4)[:, ::2], ValueError)
    ):  # fmt: skip
        with pytest.raises(kind):
            kermac.tensor_stats(wrong)


def test_ceil_div_and_timer(draw):
    assert [kermac.ceil_div(x, 4) for x in (0, 1, 4, 5)] == [0, 1, 1, 2]
    timer = kermac.CudaTimer()
    timer.start()
    kermac.cdist(draw(M, K), draw(N, K))
    assert timer.stop() >= 0


def test_enumerations():
    assert [power.name for power in PowerType] == [
        "NOOP", "ABS", "SQUARE", "SQRT", "POW", "EXP_POW_SCALED",
    ]  # fmt: skip
    assert [kind.value for kind in KernelType] == [1, 2, 3]
    assert [mode.name for mode in kermac.FillMode] == ["UPPER", "LOWER"]
