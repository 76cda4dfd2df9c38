"""Linear algebra of kernel machines: Cholesky, LU, eigenvalues, and what is solved with them.

Matrices are ``[..., n, n]``, those of ``lu_factor`` ``[..., m, n]``, of float32 or float64, in
arrays of NumPy, PyTorch, CuPy and other libraries that speak DLPack, but for JAX; tensors that
require gradients are refused (NotImplementedError). Leading axes are batches and broadcast, strides
are honoured. On the CPU OpenBLAS does the work, on as many threads as ``mercer.get_num_threads``
says: a small matrix for each, or all of them inside a large one. On CUDA devices cuSOLVER and
cuBLAS do, and kernels of Mercer's own, in the current stream.
"""

from __future__ import annotations

from typing import Any

from mercer._mercer import (
    KernelOperator,
    Preconditioner,
    cg,
    cho_solve,
    cholesky,
    eigh,
    eigh_top,
    inv_quad_logdet,
    lu_factor,
    lu_solve,
    nystrom,
    pivoted_cholesky,
    restored_preconditioner,
    solve_cholesky,
    solve_lu,
)  # fmt: skip


def _restored_preconditioner(
    rows: Any, scale: float, rank: int, device: int | None = None
) -> Preconditioner:
    return restored_preconditioner(rows, scale, rank, device)


def _restored_operator(f: Any, x: Any, ridge: float, params: dict[str, Any]) -> KernelOperator:
    return KernelOperator(f, x, ridge=ridge, **params)


__all__ = [
    "KernelOperator", "Preconditioner", "cg", "cho_solve", "cholesky", "eigh", "eigh_top",
    "inv_quad_logdet", "lu_factor", "lu_solve", "nystrom", "pivoted_cholesky", "solve_cholesky",
    "solve_lu",
]  # fmt: skip
