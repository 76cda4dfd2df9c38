"""Several processes: what the verbs on DTensors of PyTorch do not say by themselves.

The verbs of ``mercer``, ``mercer.kron`` and, with a ``KernelOperator`` of such points,
``mercer.linalg`` take DTensors as they are. Importing this module tells PyTorch how Mercer's
operators split, so that ``torch.ops.mercer`` takes them too.
"""

from __future__ import annotations

from typing import Any

from mercer import _mercer

__all__ = ["ring_product"]


def ring_product(f: Any, x: Any, z: Any, v: Any, **params: Any) -> Any:
    """sum over n of f(x_m, z_n) v[n, e], as ``mercer.kernel_product``; no rank has all of z.

    f: a formula of x, z, parameters, i and j. x ``[M, K]``, z ``[N, K]`` and v ``[N, E]``: DTensors
    split by rows, on one mesh of one dimension. The result is ``[M, E]``, split by rows. Parameters
    are numbers, or tensors that are the same on all ranks.

    Parts of z and v go round the ranks, each on its way while the one before it is multiplied, so a
    rank holds two parts at a time. PyTorch differentiates it once, by x, z, v and parameters; the
    backward goes round again.

    Raises ValueError, on every rank and before anything is computed, for other placements, for
    shards that are not those of ``distribute_tensor``, and where ranks make different calls;
    DeviceError where a rank does not answer within the time-out of the process group.
    """
    from mercer import _torch
    from mercer._torch import ring

    chosen = dict(params)
    text = str(_mercer.formula_for(f, "kernel_product", False, chosen))
    return ring.product(_torch.pairs_of("distributed.ring_product", text, x, z, chosen), v)


def _register() -> None:
    from mercer._torch import sharding

    sharding.register()


_register()
