"""Kronecker products of the package linear_operator (GPyTorch's) that multiply through Mercer."""

from __future__ import annotations

from typing import Any

from linear_operator.operators import KroneckerProductLinearOperator
from torch import Tensor

from mercer import kron


class MercerKroneckerLinearOperator(KroneckerProductLinearOperator):
    """Everything but its products is linear_operator's."""

    def _factors(self) -> list[Tensor]:
        return [op.to_dense() for op in self.linear_ops]

    def _matmul(self, rhs: Tensor) -> Tensor:
        return kron.kron_matmul(self._factors(), rhs)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return kron.kron_matmul(self._factors(), rhs, transpose_factors=True)


def operator_of(*factors: Any) -> MercerKroneckerLinearOperator:
    if len(factors) == 1 and isinstance(factors[0], KroneckerProductLinearOperator):
        factors = factors[0].linear_ops
    return MercerKroneckerLinearOperator(*factors)
