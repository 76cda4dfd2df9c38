"""Products with Kronecker products of small matrices, which are never stored.

``matmul(x, factors)`` is x (F1 (x) ... (x) FN), ``kron_matmul(factors, x)`` the product from the
left. Arrays come from NumPy, PyTorch and other libraries that speak DLPack; any strides, batches
that broadcast, float16 to int64. A grid of points has such a kernel matrix: Saatci, "Scalable
inference for structured Gaussian process models", PhD thesis, Cambridge (2011).
"""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
    from mercer._mercer import kron_matmul, matmul
else:
    from mercer._verbs import kron_matmul, matmul

__all__ = ["kron_matmul", "matmul"]
