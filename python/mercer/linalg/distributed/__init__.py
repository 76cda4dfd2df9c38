"""Cholesky, LU and eigenvalues of matrices that lie in blocks on many ranks.

Processes of MPI compute with ScaLAPACK, GPUs with cuSOLVERMp and NCCL; all are opened when first
called for. A call is made by all ranks of a grid, which agree on its arguments before anything is
computed: what is wrong on one of them is an error on all.

>>> from mercer.linalg import distributed
>>> grid = distributed.Grid()                      # under mpirun -np 4 python -m mpi4py program.py
>>> a = distributed.kernel_matrix(grid, mc.gauss(bandwidth=2.0), x, ridge=0.1)
>>> alpha = distributed.solve_cholesky(a, y)
"""

from __future__ import annotations

from mercer.linalg.distributed._dtensor import from_dtensor, to_dtensor
from mercer.linalg.distributed._grid import Grid
from mercer.linalg.distributed._matrix import Matrix, from_local, kernel_matrix, scatter
from mercer.linalg.distributed._solve import eigh, solve_cholesky, solve_lu

__all__ = [
    "Grid", "Matrix", "eigh", "from_dtensor", "from_local", "kernel_matrix", "scatter",
    "solve_cholesky", "solve_lu", "to_dtensor",
]  # fmt: skip
