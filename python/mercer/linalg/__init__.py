"""Linear algebra of kernel machines: Cholesky, LU, eigenvalues, and what is solved with them.

Matrices are ``[..., n, n]``, those of ``lu_factor`` ``[..., m, n]``, of float32 or float64, in
arrays of NumPy, PyTorch, CuPy and other libraries that speak DLPack, but for JAX; tensors that
require gradients are refused (NotImplementedError). Leading axes are batches and broadcast, strides
are honoured. On the CPU OpenBLAS does the work, on as many threads as ``mercer.get_num_threads``
says: a small matrix for each, or all of them inside a large one. On CUDA devices cuSOLVER and
cuBLAS do, and kernels of Mercer's own, in the current stream.
"""

from __future__ import annotations

import functools as _functools
import importlib as _importlib
import sys as _sys
import typing as _typing
from typing import Any

from mercer import _mercer
from mercer._mercer import (
    Preconditioner,
    cho_inverse,
    cho_inverse_diagonal,
    cho_solve,
    cholesky,
    eigh,
    lu_factor,
    lu_solve,
    restored_preconditioner,
    solve_cholesky,
    solve_lu,
    solve_triangular,
)  # fmt: skip

if _typing.TYPE_CHECKING:
    from mercer._mercer import (
        KernelOperator,
        cg,
        eigh_top,
        inv_quad_logdet,
        nystrom,
        pivoted_cholesky,
    )  # fmt: skip
else:

    class KernelOperator(_mercer.KernelOperator):
        __doc__ = _mercer.KernelOperator.__doc__

        def __new__(cls, f: Any = None, x: Any = None, **options: Any) -> Any:
            """Points of DTensors make an operator that is split over their ranks, arrays of Dask
            one that multiplies by blocks."""
            if _is_dask(x):
                from mercer import dask

                return dask.KernelOperator(f, x, **options)
            if not _is_split(x):
                return super().__new__(cls)
            from mercer._torch.sharded_operator import ShardedOperator

            return ShardedOperator(f, x, **options)

    def _is_split(x: Any) -> bool:
        module = _sys.modules.get("torch.distributed.tensor")
        return module is not None and isinstance(x, module.DTensor)

    def _is_dask(x: Any) -> bool:
        module = _sys.modules.get("dask.array")
        return module is not None and isinstance(x, module.Array)

    def _served(name: str) -> Any:
        """The compiled function, but for operators that are split over ranks."""
        engine = getattr(_mercer, name)

        @_functools.wraps(engine)
        def verb(a: Any, *arguments: Any, **options: Any) -> Any:
            split = _sys.modules.get("mercer._torch.sharded_operator")
            if split is not None and isinstance(a, split.ShardedOperator):
                from mercer._torch.sharded_linalg import SERVED

                return SERVED[name](a, *arguments, **options)
            return engine(a, *arguments, **options)

        return verb

    cg, eigh_top, _exact, nystrom, pivoted_cholesky = map(
        _served, ("cg", "eigh_top", "inv_quad_logdet", "nystrom", "pivoted_cholesky")
    )

    @_functools.wraps(_exact)
    def inv_quad_logdet(a: Any, b: Any, **options: Any) -> Any:
        """Of an operator by its products, of a matrix from its factor."""
        if not _is_known_by_products(a):
            return _exact(a, b, **options)
        from mercer.linalg import _stochastic

        return _stochastic.inv_quad_logdet(a, b, **options)

    def _is_known_by_products(a: Any) -> bool:
        if isinstance(a, _mercer.KernelOperator) or hasattr(type(a), "_mercer_multiply"):
            return True
        scipy = _sys.modules.get("scipy.sparse.linalg")
        return scipy is not None and isinstance(a, scipy.LinearOperator)


def _restored_preconditioner(
    rows: Any, scale: float, rank: int, device: int | None = None
) -> Preconditioner:
    return restored_preconditioner(rows, scale, rank, device)


def _restored_operator(f: Any, x: Any, ridge: float, params: dict[str, Any]) -> KernelOperator:
    return KernelOperator(f, x, ridge=ridge, **params)


def __getattr__(name: str) -> Any:
    """``distributed`` is imported when first asked for."""
    if name == "distributed":
        return _importlib.import_module("mercer.linalg.distributed")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "KernelOperator", "Preconditioner", "cg", "cho_inverse", "cho_inverse_diagonal", "cho_solve",
    "cholesky", "eigh", "eigh_top", "inv_quad_logdet", "lu_factor", "lu_solve", "nystrom",
    "pivoted_cholesky", "solve_cholesky", "solve_lu", "solve_triangular",
]  # fmt: skip
