"""PyTorch: forward mode within forward mode, with reverse mode around and within, of every verb.

They are compared with the same transforms of the formula written with PyTorch's own functions.
"""

from __future__ import annotations

import mercer as mc
import pytest
from conftest import spread

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402
from torch_table import VERBS, K, M, N, every_device, normal, operands, positive  # noqa: E402


def pairs(x, z, row, col, w, h):
    squares = (w * (x.unsqueeze(-2) - z.unsqueeze(-3)).square()).sum(-1)
    return torch.exp(-squares / h) * row.unsqueeze(-1) * col.sin().unsqueeze(-2)


def slopes(x, z, row, col, w, h, coef):
    weights = coef.unsqueeze(-2) * pairs(x, z, row, col, w, h)
    differences = -2 * w * (x.unsqueeze(-2) - z.unsqueeze(-3)) / h
    return (weights.unsqueeze(-1) * differences).sum(-2)


def agop(*given):
    fields = slopes(*given).reshape(-1, K)
    return fields.T @ fields


def pair_fields(x, z, amplitude, coef, p):
    differences = x.unsqueeze(-2) - z
    values = torch.exp(-differences.square().sum(-1) / p).unsqueeze(-1)
    products = (x @ z.mT).unsqueeze(-1)
    return torch.einsum(
        "mn,on,mnk->omk", amplitude, coef, values * (z - 2 * differences / p * products)
    )


PLAIN = {
    "pairwise": pairs,
    "kernel_product": lambda *a: pairs(*a[:-1]) @ a[-1],
    "sum": lambda *a: pairs(*a).sum(-1),
    "max": lambda *a: pairs(*a).amax(-1),
    "logsumexp": lambda *a: pairs(*a).exp().sum(-1).log(),
    "knn": lambda *a: pairs(*a).sort(-1).values[..., :2],
    "kernel_gradient": slopes,
    "kernel_agop": agop,
}


def values(*shapes, device):
    return [normal(*shape, device=device).detach() for shape in shapes]


def case(name, device):
    """A function of mercer, one of PyTorch, and what both are called with."""
    if name == "cdist":
        x, z, w = *values((M, K), (N, K), device=device), positive(K, device=device).detach()
        return (
            lambda x, z, w: mc.cdist(x, z, 3.0, w=w),
            lambda x, z, w: (w * (x.unsqueeze(-2) - z).abs() ** 3).sum(-1) ** (1 / 3),
            (x, z, w),
        )
    if name == "the same points":
        return (
            lambda x: mc.pairwise("exp(-sum((x-z)^4))", x),
            lambda x: torch.exp(-((x.unsqueeze(-2) - x) ** 4).sum(-1)),
            tuple(values((M, K), device=device)),
        )
    if name == "gradient_field":
        return (
            lambda *a: mc.gradient_field("tanh(x-z)*x^2*p", *a[:-1], p=a[-1]),
            lambda x, z, a, c, p: torch.einsum(
                "mn,on,mnk->omk", a, c, (x.unsqueeze(-2) - z).tanh() * x.unsqueeze(-2) ** 2 * p
            ),
            tuple(values((M, K), (N, K), (M, N), (2, N), (), device=device)),
        )
    if name == "gradient_field of pairs":
        field = mc.differentiate("exp(-sum((x-z)^2)/p)*sum(x*z)", "x")
        return (
            lambda *a: mc.gradient_field(field, *a[:-1], p=a[-1]),
            pair_fields,
            (
                *values((M, K), (N, K), (M, N), (2, N), device=device),
                positive(device=device).detach(),
            ),
        )
    if name == "kron":
        return (
            lambda x, a, b: mc.kron.matmul(x, [a, b]),
            lambda x, a, b: x @ torch.kron(a, b),
            tuple(values((2, 6), (2, 2), (3, 2), device=device)),
        )
    function, shapes = VERBS[name]
    given = [t.detach() for t in operands(device)] + values(*shapes, device=device)
    return function, PLAIN[name], tuple(given)


def directions(given):
    """A direction for each input, without randomness, which vmap refuses."""
    return tuple(
        torch.linspace(-1, 1, t.numel(), dtype=t.dtype, device=t.device).reshape(t.shape).cos()
        for t in given
    )


def moved(function, times):
    """Its derivative in `directions`, so many times."""
    if times == 0:
        return function
    return lambda *a: jvp(moved(function, times - 1), a, directions(a))[1]


def loss(function):
    return lambda *a: function(*a).sin().sum()


def stacked(a):
    return torch.stack([a, 1.1 * a])


def dual(function):
    """The derivative by a dual level in place of torch.func."""

    def call(*given):
        with forward_ad.dual_level():
            duals = map(forward_ad.make_dual, given, directions(given))
            return forward_ad.unpack_dual(function(*duals)).tangent

    return call


def gradients(function):
    """Gradients by the autograd of PyTorch around it."""

    def call(*given):
        leaves = [t.clone().requires_grad_() for t in given]
        return torch.autograd.grad(loss(function)(*leaves), leaves, create_graph=True)

    return call


OTHERS = ["cdist", "the same points", "gradient_field", "gradient_field of pairs", "kron"]
TRANSFORMS = {
    "jvp of jvp": lambda f: moved(f, 2),
    "three times": lambda f: moved(f, 3),
    "jacfwd of jacfwd": lambda f: lambda *a: jacfwd(jacfwd(f), len(a) - 1)(*a),
    "jacfwd of jacrev": lambda f: lambda *a: jacfwd(jacrev(f), len(a) - 1)(*a),
    "jacrev of jacfwd": lambda f: lambda *a: jacrev(jacfwd(f), len(a) - 1)(*a),
    "hessian": lambda f: lambda *a: hessian(loss(f), tuple(range(len(a))))(*a),
    "forward twice of reverse": lambda f: moved(grad(loss(f)), 2),
    "reverse of forward twice": lambda f: grad(loss(moved(f, 2))),
    "forward of reverse of forward": lambda f: moved(grad(loss(moved(f, 1))), 1),
    "vmap around": lambda f: lambda x, *a: vmap(lambda x: moved(f, 2)(x, *a))(stacked(x)),
    "vmap within": lambda f: moved(lambda x, *a: vmap(lambda x: f(x, *a))(stacked(x)), 2),
    "a dual level around reverse": lambda f: dual(grad(loss(f))),
    "autograd around": lambda f: gradients(moved(f, 2)),
    "autograd around a dual level": lambda f: gradients(dual(f)),
    "jacobian": lambda f: (
        lambda *a: torch.autograd.functional.jacobian(f, a, strategy="forward-mode", vectorize=True)
    ),
    "hessian of autograd": lambda f: (
        lambda *a: torch.autograd.functional.hessian(
            loss(f), a, outer_jacobian_strategy="forward-mode", vectorize=True
        )
    ),
}


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else [t for r in result for t in flat(r)]


@every_device
@pytest.mark.parametrize(("name", "transform"), spread([*PLAIN, *OTHERS], TRANSFORMS))
def test_derivatives_in_any_mix_of_modes(name, transform, device):
    torch.manual_seed(0)
    function, plain, given = case(name, device)
    results = flat(TRANSFORMS[transform](function)(*given))
    expected = flat(TRANSFORMS[transform](plain)(*given))
    assert any(e.abs().max() > 1e-3 for e in expected)
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
