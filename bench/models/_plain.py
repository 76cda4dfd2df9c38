"""What a user of PyTorch writes instead: kernel products by blocks of rows, and the same solvers on
them. All of it stays on the device of the tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_BLOCK = 2**29  # numbers of a block of the matrix


def gauss(x: Any, z: Any, bandwidth: float) -> Any:
    """exp(-|x - z|^2 / (2 bandwidth^2)), [m, n]."""
    return torch.cdist(x, z).square_().mul_(-0.5 / bandwidth**2).exp_()


def product(x: Any, z: Any, v: Any, bandwidth: float) -> Any:
    """The matrix of x and z times v [n, k]; 2 GB of it in float32 are stored at a time."""
    rows = max(1, _BLOCK // z.shape[0])
    return torch.cat([gauss(x[i : i + rows], z, bandwidth) @ v for i in range(0, len(x), rows)])


@dataclass
class Outcome:
    coef: Any
    seconds: float
    products: int
    residual: float
    ended: bool  # in the seconds that it had

    def __str__(self) -> str:
        said = "" if self.ended else ", stopped"
        return f"{self.products} products to {self.residual:.1e}{said}"


def ridge(x: Any, y: Any, bandwidth: float, alpha: float, inverse: Callable[[Any], Any], tol: float,
          cap: float) -> Outcome:  # fmt: skip
    """Conjugate gradients for y [n, k] with a preconditioner, of no more than ``cap`` seconds."""
    return _descend(
        lambda p: product(x, x, p, bandwidth) + alpha * p, inverse, y, tol, time.perf_counter(), cap
    )


def falkon(x: Any, y: Any, z: Any, bandwidth: float, alpha: float, tol: float,
           cap: float) -> Outcome:  # fmt: skip
    """Rudi, Carratino, Rosasco, 2017; factors in float64, products in the tensors' dtype."""
    start, dtype = time.perf_counter(), x.dtype
    k = gauss(z.double(), z.double(), bandwidth)
    k.diagonal().add_(1e-6 * k.diagonal().mean())
    lower = torch.linalg.cholesky(k)
    inner = lower.T @ lower * (len(x) / len(z))
    inner.diagonal().add_(alpha)
    inner = torch.linalg.cholesky(inner)

    def coefficients(b: Any) -> Any:
        return torch.linalg.solve_triangular(lower.T, b, upper=True).to(dtype)

    def gathered(v: Any) -> Any:
        wide = product(z, x, v, bandwidth).double()
        return torch.linalg.solve_triangular(lower, wide, upper=False)

    found = _descend(
        lambda b: gathered(product(x, z, coefficients(b), bandwidth)) + alpha * b,
        lambda r: torch.cholesky_solve(r, inner), gathered(y), tol, start, cap,
    )  # fmt: skip
    found.coef = coefficients(found.coef)
    return found


def _descend(multiply: Any, inverse: Any, b: Any, tol: float, start: float, cap: float) -> Outcome:
    coef, r, taken = torch.zeros_like(b), b.clone(), 0
    z = inverse(r)
    p, rz, lengths = z, (r * z).sum(0), b.norm(dim=0)
    while True:
        residual = float((r.norm(dim=0) / lengths).max())  # waits
        spent = time.perf_counter() - start
        if residual <= tol or spent > cap:
            return Outcome(coef, spent, taken, residual, residual <= tol)
        q, taken = multiply(p), taken + 1
        step = rz / (p * q).sum(0)
        coef, r = coef + step * p, r - step * q
        z = inverse(r)
        rz, last = (r * z).sum(0), rz
        p = z + rz / last * p
