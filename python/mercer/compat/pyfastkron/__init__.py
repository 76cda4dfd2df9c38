"""PyFastKron on Mercer: products with Kronecker products, of PyTorch (``fastkrontorch``) and NumPy
(``fastkronnumpy``)."""

from __future__ import annotations
