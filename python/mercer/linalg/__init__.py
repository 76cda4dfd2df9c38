"""Linear algebra of kernel machines: Cholesky, LU, eigenvalues, and what is solved with them.

Matrices are ``[..., n, n]``, those of ``lu_factor`` ``[..., m, n]``, of float32 or float64, in
arrays of NumPy, PyTorch, CuPy and other libraries that speak DLPack. Leading axes are batches and
broadcast, strides are honoured.

PyTorch differentiates the functions of stored matrices as often as wanted, in both modes, and
traces them; a gradient by a symmetric matrix is symmetric, whichever triangle is read. It
differentiates ``cg``, ``minres``, ``sap``, ``inv_quad_logdet`` and the parts of an operator by all
that it is made of, within torch.func too; a preconditioner is that of the same numbers without
gradients. ``eigh_top`` refuses tensors that require gradients (NotImplementedError).

JAX has all of them, with their derivatives, under its transforms too: there, where nothing can be
raised, what fails is NaN. It takes no first guesses and no ``rank`` of ``sap``, and does not
differentiate ``eigh_top``.

On the CPU LAPACK does the work, on as many threads as ``mercer.get_num_threads`` says: a small
matrix for each, or all of them inside a large one. On CUDA devices cuSOLVER and cuBLAS do, and
kernels of Mercer's own, in the current stream.
"""

from __future__ import annotations

import functools as _functools
import importlib as _importlib
import sys as _sys
import typing as _typing
from collections.abc import Sequence as _Sequence
from typing import Any

from mercer import _linalg_calls as _calls
from mercer import _mercer
from mercer._mercer import Preconditioner, restored_preconditioner
from mercer._mixed import require_one_library as _require_one_library
from mercer.linalg._sap import sap

if _typing.TYPE_CHECKING:
    from mercer._mercer import (
        KernelOperator,
        cg,
        cho_inverse,
        cho_inverse_diagonal,
        cho_solve,
        cholesky,
        eigh,
        eigh_top,
        lu_factor,
        lu_solve,
        minres,
        nystrom,
        pivoted_cholesky,
        rpcholesky,
        solve_cholesky,
        solve_lu,
        solve_triangular,
    )  # fmt: skip
    from mercer._types import ArrayT as _ArrayT
    from mercer._types import Indices as _Indices
    from mercer._types import Numbers as _Numbers
    from mercer._types import ScalarT as _ScalarT
    from mercer.linalg._stochastic import InvQuadLogdet as _InvQuadLogdet

    @_typing.overload
    def inv_quad_logdet(
        a: KernelOperator, b: _ArrayT, *, n_probes: int = 16,
        preconditioner: Preconditioner | None = None, tol: float | None = None,
        max_iter: int | None = None, seed: int = 0, progress: bool = False,
    ) -> _InvQuadLogdet: ...  # fmt: skip
    @_typing.overload
    def inv_quad_logdet(
        a: _ArrayT, b: _ArrayT, *, lower: bool = True, overwrite_a: bool = False,
        jitter: float | _Sequence[float] | None = None, check: _typing.Literal[True] = True,
        out: tuple[_ArrayT, _ArrayT] | None = None, workspace: _ArrayT | None = None,
        progress: bool = False,
    ) -> tuple[_ArrayT, _ArrayT]: ...  # fmt: skip
    @_typing.overload
    def inv_quad_logdet(
        a: _Numbers[_ScalarT], b: _Numbers[_ScalarT], *, lower: bool = True,
        overwrite_a: bool = False, jitter: float | _Sequence[float] | None = None,
        check: _typing.Literal[False], workspace: _Numbers[_ScalarT] | None = None,
        out: tuple[_Numbers[_ScalarT], _Numbers[_ScalarT]] | None = None, progress: bool = False,
    ) -> tuple[tuple[_Numbers[_ScalarT], _Numbers[_ScalarT]], _Indices]: ...  # fmt: skip
    @_typing.overload
    def inv_quad_logdet(
        a: _ArrayT, b: _ArrayT, *, lower: bool = True, overwrite_a: bool = False,
        jitter: float | _Sequence[float] | None = None, check: _typing.Literal[False],
        out: tuple[_ArrayT, _ArrayT] | None = None, workspace: _ArrayT | None = None,
        progress: bool = False,
    ) -> tuple[tuple[_ArrayT, _ArrayT], _ArrayT]: ...  # fmt: skip
    def inv_quad_logdet(a: Any, b: Any, **options: Any) -> Any: ...
else:

    class KernelOperator(_mercer.KernelOperator):
        __doc__ = _mercer.KernelOperator.__doc__

        def __new__(cls, f: Any = None, x: Any = None, *, ridge: Any = 0.0, **options: Any) -> Any:
            """Points of DTensors make an operator that is split over their ranks, arrays of Dask
            one that multiplies by blocks, arrays of JAX one that JAX traces, and tensors within
            torch.func one that it differentiates and maps."""
            if _is_dask(x):
                from mercer import dask

                return dask.KernelOperator(f, x, ridge=ridge, **options)
            if _calls.is_jax(x):
                from mercer import _jax_operator

                return _jax_operator.KernelOperator(f, x, ridge=ridge, **options)
            if _calls.are_transformed((x, ridge, *options.values())):
                from mercer._torch import operator_parts

                return operator_parts.FollowedOperator(f, x, ridge=ridge, **options)
            if not _is_split(x):
                return super().__new__(cls)
            from mercer._torch.sharded_operator import ShardedOperator

            return ShardedOperator(f, x, ridge=ridge, **options)

        def __init__(self, f: Any, x: Any, *, ridge: Any = 0.0, **options: Any) -> None:
            try:
                super().__init__(f, x, ridge=_calls.with_tensor_of_one(ridge, x), **options)
            except (NotImplementedError, TypeError, ValueError):
                _require_one_library("KernelOperator", {"x": x, "ridge": ridge, **options})
                raise

        def __matmul__(self, v: Any) -> Any:
            try:
                return super().__matmul__(v)
            except NotImplementedError as refusal:
                return _calls.part(self, "product", v, refusal)

        matvec = matmat = rmatvec = rmatmat = __matmul__

        def __rmatmul__(self, v: Any) -> Any:
            try:
                return super().__rmatmul__(v)
            except NotImplementedError as refusal:
                turned = v.mT if v.ndim > 1 else v
                found = _calls.part(self, "product", turned, refusal)
                return found.mT if v.ndim > 1 else found

        def diagonal(self) -> Any:
            try:
                return super().diagonal()
            except NotImplementedError as refusal:
                return _calls.part(self, "diagonal", None, refusal)

        def rows(self, i: Any) -> Any:
            try:
                return super().rows(i)
            except NotImplementedError as refusal:
                return _calls.part(self, "rows", i, refusal)

        for _name in (
            "__matmul__",
            "__rmatmul__",
            "diagonal",
            "rows",
            "matvec",
            "matmat",
            "rmatvec",
            "rmatmat",
        ):
            locals()[_name].__doc__ = getattr(_mercer.KernelOperator, _name).__doc__
        del _name

    def _is_split(x: Any) -> bool:
        module = _sys.modules.get("torch.distributed.tensor")
        return module is not None and isinstance(x, module.DTensor)

    def _is_dask(x: Any) -> bool:
        module = _sys.modules.get("dask.array")
        return module is not None and isinstance(x, module.Array)

    def _is_of_jax(a: Any) -> bool:
        """Whether it is an operator of JAX's points."""
        module = _sys.modules.get("mercer._jax_operator")
        return module is not None and isinstance(a, module.KernelOperator)

    def _served(name: str) -> Any:
        """The compiled function, but for operators that are split over ranks."""
        engine = getattr(_mercer, name)

        @_functools.wraps(engine)
        def verb(a: Any, *arguments: Any, **options: Any) -> Any:
            split = _sys.modules.get("mercer._torch.sharded_operator")
            if split is not None and isinstance(a, split.ShardedOperator):
                from mercer._torch.sharded_linalg import SERVED

                if name not in SERVED:
                    raise NotImplementedError(
                        f"{name}: is not offered for operators that are split over ranks. "
                        "Received one"
                    )
                return SERVED[name](a, *arguments, **options)
            if _is_of_jax(a):
                return _calls.of_jax(name, a, *arguments, **options)
            own = getattr(type(a), f"_mercer_{name}", None)
            if own is not None:
                return own(a, *arguments, **options)
            if hasattr(type(a), "_mercer_is_followed"):
                return _calls.of_transformed(name, a, *arguments, **options)
            return engine(a, *arguments, **options)

        return verb

    cg, eigh_top, minres, nystrom, pivoted_cholesky, rpcholesky = (
        _calls.followed(_name, _served(_name), is_traced=False)
        for _name in (
            "cg", "eigh_top", "minres", "nystrom", "pivoted_cholesky", "rpcholesky",
        )
    )  # fmt: skip
    (
        cho_inverse, cho_inverse_diagonal, cho_solve, cholesky, eigh, lu_factor, lu_solve,
        solve_cholesky, solve_lu, solve_triangular,
    ) = (
        _calls.followed(_name, getattr(_mercer, _name))
        for _name in (
            "cho_inverse", "cho_inverse_diagonal", "cho_solve", "cholesky", "eigh", "lu_factor",
            "lu_solve", "solve_cholesky", "solve_lu", "solve_triangular",
        )
    )  # fmt: skip
    _exact = _calls.followed("inv_quad_logdet", _served("inv_quad_logdet"))

    @_functools.wraps(_exact)
    def inv_quad_logdet(a: Any, b: Any, **options: Any) -> Any:
        """An operator is taken by its products, a matrix by its factor."""
        if _is_of_jax(a):
            return _calls.of_jax("inv_quad_logdet", a, b, **options)
        if not _is_known_by_products(a):
            return _exact(a, b, **options)
        _require_one_library("inv_quad_logdet", {"a": a, "b": b})
        from mercer.linalg import _stochastic

        return _stochastic.inv_quad_logdet(a, b, **options)

    del inv_quad_logdet.__wrapped__  # inspect and Sphinx cannot read the signature of nanobind's

    def _is_known_by_products(a: Any) -> bool:
        is_ours = isinstance(a, _mercer.KernelOperator) or hasattr(type(a), "_mercer_is_followed")
        if is_ours or hasattr(type(a), "_mercer_multiply"):
            return True
        scipy = _sys.modules.get("scipy.sparse.linalg")
        return scipy is not None and isinstance(a, scipy.LinearOperator)


def _restored_preconditioner(
    rows: Any,
    values: list[float],
    ridges: list[float],
    least: float,
    is_relative: bool,
    most_weight: float,
    like: Any,
    device: int = -1,
) -> Preconditioner:
    return restored_preconditioner(
        rows, values, ridges, least, is_relative, most_weight, like, device
    )


def _restored_operator(
    f: Any, x: Any, ridge: Any, params: dict[str, Any], sides: dict[str, Any]
) -> KernelOperator:
    return KernelOperator(f, x, ridge=ridge, **sides, **params)


def __getattr__(name: str) -> Any:
    """``distributed`` is imported when first asked for."""
    if name == "distributed":
        return _importlib.import_module("mercer.linalg.distributed")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "KernelOperator", "Preconditioner", "cg", "cho_inverse", "cho_inverse_diagonal", "cho_solve",
    "cholesky", "eigh", "eigh_top", "inv_quad_logdet", "lu_factor", "lu_solve", "minres", "nystrom",
    "pivoted_cholesky", "rpcholesky", "sap", "solve_cholesky", "solve_lu", "solve_triangular",
]  # fmt: skip
