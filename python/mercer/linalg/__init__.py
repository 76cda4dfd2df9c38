"""Linear algebra of kernel machines: Cholesky, LU, eigenvalues, and what is solved with them.

Matrices are ``[..., n, n]``, those of ``lu_factor`` ``[..., m, n]``, of float32 or float64, in
arrays of NumPy, PyTorch, CuPy and other libraries that speak DLPack, but for JAX. Leading axes are
batches and broadcast, strides are honoured. PyTorch differentiates the functions of stored matrices
as often as wanted, in both modes, and traces them; a gradient by a symmetric matrix is symmetric,
whichever triangle is read. `cg` and `eigh_top` and preconditioners refuse tensors that require
gradients (NotImplementedError).

On the CPU OpenBLAS does the work, on as many threads as ``mercer.get_num_threads`` says: a small
matrix for each, or all of them inside a large one. On CUDA devices cuSOLVER and cuBLAS do, and
kernels of Mercer's own, in the current stream.
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
    restored_preconditioner,
    solve_triangular,
)  # fmt: skip

if _typing.TYPE_CHECKING:
    from mercer._mercer import (
        KernelOperator,
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
        solve_cholesky,
        solve_lu,
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

    def _followed(name: str, engine: Any) -> Any:
        """The compiled function, but for tensors that PyTorch follows."""

        @_functools.wraps(engine)
        def verb(*arguments: Any, **options: Any) -> Any:
            if "torch._dynamo" in _sys.modules and _is_compiling():
                return _in_torch(name, arguments, options)
            try:
                return engine(*arguments, **options)
            except (NotImplementedError, TypeError) as refusal:
                if not _is_of_torch(arguments, options):
                    raise
                refused = refusal
            return _in_torch(name, arguments, options, refused)

        verb.__module__ = __name__
        return verb

    def _is_compiling() -> bool:
        return _sys.modules["torch"].compiler.is_dynamo_compiling()

    def _in_torch(name: str, arguments: Any, options: Any, refusal: Any = None) -> Any:
        from mercer._torch import linalg_verbs

        return linalg_verbs.call(name, arguments, options, refusal)

    def _is_of_torch(arguments: Any, options: Any) -> bool:
        """Whether one of them is a tensor of PyTorch's, or what stands for one."""
        values = [*arguments, *options.values()]
        values += [v for pair in values if type(pair) is tuple for v in pair]
        return any(
            t.__module__.partition(".")[0] == "torch" for v in values for t in type(v).__mro__
        )

    cg, eigh_top, nystrom, pivoted_cholesky = map(
        _served, ("cg", "eigh_top", "nystrom", "pivoted_cholesky")
    )
    cholesky, solve_cholesky, cho_solve, lu_factor, lu_solve, solve_lu, eigh = (
        _followed(_name, getattr(_mercer, _name))
        for _name in (
            "cholesky",
            "solve_cholesky",
            "cho_solve",
            "lu_factor",
            "lu_solve",
            "solve_lu",
            "eigh",
        )
    )
    _exact = _followed("inv_quad_logdet", _served("inv_quad_logdet"))

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
