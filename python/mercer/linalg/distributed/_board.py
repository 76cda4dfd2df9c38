"""What processes tell each other before they compute, so that all of them raise the same error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.errors import LinAlgError

__all__ = ["Board", "digest"]


class Board:
    """Small objects and sums, exchanged through a communicator of mpi4py; alone without one."""

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm
        self.size = comm.Get_size() if comm is not None else 1
        self.rank = comm.Get_rank() if comm is not None else 0

    def exchange(self, item: Any) -> list[Any]:
        """The items of all processes, in the order of their ranks."""
        return [item] if self.comm is None else self.comm.allgather(item)

    def total(self, array: np.ndarray) -> np.ndarray:
        """The sum over all processes."""
        if self.comm is None:
            return array
        result = np.empty_like(array)
        self.comm.Allreduce(array, result)
        return result

    def agree(self, verb: str, check: Callable[[], dict[str, Any]]) -> None:
        """Runs check here and everywhere; raises on every rank what the first one raised.

        check gives facts that must be equal on all ranks.
        """
        facts, error = {}, None
        try:
            facts = {"verb": verb, **check()}
        except Exception as mine:
            error = mine
        answers = self.exchange((facts, _portable(error)))
        failed = [rank for rank, (_, other) in enumerate(answers) if other is not None]
        if failed:
            raise self._error(answers[failed[0]][1], failed[0]) from error
        for rank, (other, _) in enumerate(answers):
            _compare(verb, answers[0][0], other, rank)

    def agree_finite(self, verb: str, finite: bool, name: str = "a") -> None:
        """Raises LinAlgError on every rank where one of them holds NaN or an infinity."""
        holders = [rank for rank, fine in enumerate(self.exchange(finite)) if not fine]
        if holders:
            raise LinAlgError(
                f"{verb}: {name} must be finite. Received one with NaN or infinity"
                + (f" on rank {holders[0]}." if self.size > 1 else ".")
            )

    def _error(self, error: Exception, rank: int) -> Exception:
        if self.size == 1:
            return error
        return type(error)(f"{error} (rank {rank})")


def _portable(error: Exception | None) -> Exception | None:
    """The error as another process can have it: its kind where that has a message alone."""
    if error is None or type(error).__module__ in ("builtins", "mercer.errors"):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _compare(verb: str, mine: dict[str, Any], other: dict[str, Any], rank: int) -> None:
    for name in [*mine, *other]:
        if mine.get(name) != other.get(name):
            what = f"{mine.get(name)} on rank 0 and {other.get(name)} on rank {rank}"
            raise ValueError(f"{verb}: all ranks must pass the same {name}. Received {what}.")


def digest(value: Any) -> str:
    """A checksum of a number, a text or an array, dtype, shape and values."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    array = np.ascontiguousarray(_on_host(value))
    check = hashlib.blake2b(array.view(np.uint8).data if array.size else b"", digest_size=8)
    return f"{array.dtype}{list(array.shape)} {check.hexdigest()}"


def _on_host(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
