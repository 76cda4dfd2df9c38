"""Kernels of pairs of points at the speed of the hardware.

One formula becomes a pairwise matrix, a product with it, its gradient, a reduction, or nearest
neighbours::

    import mercer as mc
    d = mc.cdist(x1, x2, p=1.3)
    f = mc.exp(-mc.sum(abs(mc.x - mc.z)**mc.param("p")) / mc.param("bandwidth"))
    k = mc.pairwise(f, x, z, p=1.3, bandwidth=2.0)
    y = mc.kernel_product(f, x, z, v, p=1.3, bandwidth=2.0)

A formula is written with operators on the symbols x and z, as a function, or as text; ``mc.zoo``
has the named ones. Arrays of NumPy, PyTorch, CuPy, JAX and other libraries that speak DLPack go in
and come out as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:  # of two imports mypy takes the first, Python the last
    from mercer._features import dot

# First, since an operation wins over an entry of the same name.
from mercer.zoo import *  # type: ignore[assignment]  # noqa: F403
from mercer import _calling, _latex, errors, kron, linalg, zoo
from mercer._context import info, options
from mercer._mercer import (
    Expr, K, Kernel, __version__ as __version__, abs as abs, acos, asin, atan2, ceil, clear_plans,
    col, compile as compile, copysign, cos, differentiate, equal, erf, exp, exp2, explain, expm1,
    floor, fma, get_num_threads, get_precision, get_target, i, j, log, log1p, log2, logical_and,
    logical_not, logical_or, logsumexp, max as max, maximum, min as min, minimum, not_equal, param,
    parse, plan_count, pow as pow, prod, rcp, round as round, row, rsqrt, set_num_threads,
    set_precision, set_target, sign, sin, sqrt, square, sum as sum, tanh, w, where, workspace_size,
    x, xlogy, z,
)  # fmt: skip
from mercer._edges import csr_rows, edge_product, edge_reduce, edges
from mercer._features import dot, mean, norm
from mercer._kernel_sum import kernel_sum
from mercer._parameter_gradient import parameter_gradient
from mercer._metrics import paired_distances, pdist, squareform
from mercer._neighbors import knn_graph, radius_neighbors
from mercer._patch import patch, unpatch
from mercer._ranges import block_ranges, cluster_ranges
from mercer._trace import kernel, metric, ptx, reduce
from mercer._tune import tune

from mercer._verbs import (
    cdist, gradient_field, kernel_agop, kernel_gradient, kernel_matrix, kernel_product,
    kernel_reduce, knn, pairwise,
)  # fmt: skip
from mercer.errors import CompileError, DeviceError, DtypeError, LinAlgError

# `from mercer import *` leaves Python's own sum, max, abs and their like alone.
__all__ = [
    "CompileError", "DeviceError", "DtypeError", "Expr", "K", "Kernel", "LinAlgError", "acos",
    "asin", "atan2", "block_ranges", "cdist", "ceil", "clear_plans", "cluster_ranges", "col",
    "copysign", "cos", "csr_rows", "differentiate", "dot", "edge_product", "edge_reduce",
    "edges", "equal", "erf", "errors", "exp", "exp2", "explain", "expm1", "floor", "fma",
    "get_num_threads", "get_precision", "get_target", "gradient_field", "i", "info", "j",
    "kernel", "kernel_agop", "kernel_gradient", "kernel_matrix", "kernel_product",
    "kernel_reduce", "kernel_sum", "knn", "knn_graph", "kron", "linalg", "log", "log1p", "log2",
    "logical_and", "logical_not", "logical_or", "logsumexp", "maximum", "mean", "metric",
    "minimum", "norm", "not_equal", "options", "paired_distances", "pairwise", "param",
    "parameter_gradient", "parse", "patch", "pdist", "plan_count", "prod", "ptx",
    "radius_neighbors", "rcp", "reduce", "row", "rsqrt", "set_num_threads", "set_precision",
    "set_target", "sign", "sin", "sqrt", "square", "squareform", "tanh", "tune", "unpatch", "w",
    "where", "workspace_size", "x", "xlogy", "z", "zoo",
]  # fmt: skip
__all__ += zoo.__all__
