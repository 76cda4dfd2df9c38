"""The verbs as functions of tensors that require a gradient, for PyTorch's tests."""

from __future__ import annotations

import mercer as mc
import pytest

torch = pytest.importorskip("torch")

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
every_device = pytest.mark.parametrize("device", DEVICES)
GAUSS = "exp(-sum(square(x-z))/h)"
ALL = "exp(-sum(w*square(x-z))/h)*row*sin(col)"  # reads everything but i and j
M, N, K = 5, 4, 3


def normal(*shape, device="cpu"):
    values = torch.randn(shape, dtype=torch.float64)
    return values.to(device).requires_grad_()


def positive(*shape, device="cpu"):
    values = torch.rand(shape, dtype=torch.float64) + 0.5
    return values.to(device).requires_grad_()


def operands(device="cpu"):
    """x, z, row, col, w and h for ALL."""
    return (
        normal(M, K, device=device), normal(N, K, device=device), normal(M, device=device),
        normal(N, device=device), positive(K, device=device), positive(device=device),
    )  # fmt: skip


def of_all(verb, *options):
    def call(x, z, row, col, w, h, *given):
        return verb(ALL, x, z, *given, *options, row=row, col=col, w=w, h=h)

    return call


# A function of the operands of ALL and more tensors, and the shapes of those.
VERBS = {
    "pairwise": (of_all(mc.pairwise), []),
    "kernel_matrix": (of_all(mc.kernel_matrix), []),
    "kernel_product": (of_all(mc.kernel_product), [(N, 2)]),
    "kernel_product of a vector": (of_all(mc.kernel_product), [(N,)]),
    "sum": (of_all(mc.kernel_reduce, "sum"), []),
    "max": (of_all(mc.kernel_reduce, "max"), []),
    "min": (of_all(mc.kernel_reduce, "min"), []),
    "logsumexp": (of_all(mc.kernel_reduce, "logsumexp"), []),
    "knn": (lambda *a: of_all(mc.knn, 2)(*a)[0], []),
    "kernel_gradient": (of_all(mc.kernel_gradient), [(2, N)]),
    "kernel_gradient of a vector": (of_all(mc.kernel_gradient), [(N,)]),
    "kernel_agop": (of_all(mc.kernel_agop), [(2, N)]),
    "kernel_agop of a vector": (of_all(mc.kernel_agop), [(N,)]),
}
