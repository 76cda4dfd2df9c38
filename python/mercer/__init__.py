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

import builtins as _builtins

from mercer.zoo import *  # noqa: F403  first: an operation wins over an entry of the same name
from mercer import _calling, kron, linalg, zoo
from mercer._context import info, options
from mercer._mercer import (
    Expr, K, Kernel, __version__, abs, acos, asin, atan2, ceil, clear_plans, col, compile,
    copysign, cos, differentiate, equal, erf, exp, exp2, explain, expm1, floor, fma,
    get_num_threads,
    get_precision, get_target, i, j, log, log1p, log2, logical_and, logical_not, logical_or,
    logsumexp, max, maximum, min, minimum, not_equal, param, parse, plan_count, pow, prod, rcp,
    round, row, rsqrt, set_num_threads, set_precision, set_target, sign, sin, sqrt, square, sum,
    tanh, w, where, workspace_size, x, xlogy, z,
)  # fmt: skip
from mercer._features import dot, mean, norm
from mercer._parameter_gradient import parameter_gradient
from mercer._metrics import paired_distances, pdist, squareform
from mercer._patch import patch, unpatch
from mercer._trace import kernel, metric, ptx, reduce
from mercer._tune import tune

from mercer._verbs import (
    cdist, gradient_field, kernel_agop, kernel_gradient, kernel_matrix, kernel_product,
    kernel_reduce, knn, pairwise,
)  # fmt: skip
from mercer.errors import CompileError, DeviceError, DtypeError, LinAlgError

# `from mercer import *` leaves Python's own sum, max, abs and their like alone.
__all__ = [
    name for name in dir() if name[0] != "_" and name not in (*dir(_builtins), "annotations")
]
