"""Small matrices in formulas with vector values: applied to vectors of one side before a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mercer._vectors.nodes import (
    J_SIDE,
    PARAMETER,
    Keys,
    Node,
    full,
    is_apart,
    less_centre,
    numeric,
    quiet,
    transposed,
    widened,
)  # fmt: skip

__all__ = ["Known", "mapped", "root"]


def _leaf(node: Node, values: Any) -> Node:
    """An array in the place of a node of one side, with its values [..., n, D]."""
    category = max(node.sides & {0, 1}, default=PARAMETER)
    value = values[..., 0, :] if category == PARAMETER else values
    return Node("array", (), values.shape[-1], value=value, category=category)


class Known:
    """Products that were computed, of points that are those of both sides once."""

    def __init__(self, is_wide: bool = False):
        self.is_wide = is_wide  # differences of both sides are taken apart in float64
        self.keys, self.values = Keys(), dict[tuple[int, int], Any]()

    def __call__(self, node: Node, matrix: Node, compute: Callable[[], Any]) -> Any:
        of_rows = transposed(node) if J_SIDE in node.sides else node
        key = (self.keys(of_rows), self.keys(matrix))
        if key not in self.values:
            self.values[key] = compute()
        return self.values[key]


def _of_one_side(
    node: Node, matrix: Node, is_transposed: bool, xp: Any, like: Any, known: Known
) -> Node | None:
    whole = Node("Concat", (node, matrix), node.dim + matrix.dim)
    vectors, entries = numeric(node, xp, like), numeric(matrix, xp, like)
    if whole.is_of_pairs() or vectors is None or entries is None:
        return None
    if isinstance(vectors, (int, float)):
        vectors = full(vectors, xp, like)
    columns = node.dim
    rows = matrix.dim // columns
    shape = (columns, rows) if is_transposed else (rows, columns)
    entries = entries.reshape(*entries.shape[:-1], *shape)
    entries = xp.swapaxes(entries, -1, -2) if is_transposed else entries
    if not matrix.sides - {PARAMETER}:
        small = xp.swapaxes(entries[..., 0, :, :], -1, -2)
        return _leaf(whole, known(node, matrix, lambda: xp.matmul(vectors, small)))
    return _leaf(whole, (entries * vectors[..., None, :]).sum(-1))


@quiet
def mapped(
    node: Node, matrix: Node, is_transposed: bool, xp: Any, like: Any, known: Known | None = None
) -> Node | None:
    """The product of a matrix, by rows, with a vector: of one side, or a sum of such ones times
    numbers. None for any other."""
    known = known or Known()
    if not node.is_of_pairs():
        return _of_one_side(node, matrix, is_transposed, xp, like, known)
    vectors = [argument for argument in node.arguments if argument.dim == node.dim]
    is_sum = node.op in ("Add", "Subtract") and len(vectors) == 2
    is_multiple = node.op in ("Minus", "Mult") and len(vectors) == 1
    is_part = node.op == "Divide" and len(vectors) == 1 and node.arguments[0].dim == node.dim
    if not (is_sum or is_multiple or is_part) or matrix.sides - {PARAMETER}:
        return None
    arguments = node.arguments
    values = numeric(arguments[1], xp, like) if is_sum and is_apart(node) else None
    if values is not None:
        if known.is_wide:
            arguments = tuple(Node("Wide", (part,), part.dim) for part in arguments)
            matrix, values = Node("Wide", (matrix,), matrix.dim), widened(values, xp)
        arguments = less_centre(Node(node.op, arguments, node.dim), values, xp)
    found = [
        mapped(a, matrix, is_transposed, xp, like, known) if a.dim == node.dim else a
        for a in arguments
    ]
    parts = tuple(argument for argument in found if argument is not None)
    if len(parts) < len(found):
        return None
    return Node(node.op, parts, matrix.dim // node.dim)


def root(matrix: Node, xp: Any, like: Any) -> Node | None:
    """L^T by rows of parameters A = L L^T, so that x A x is the squared length of L^T x. None where
    A is not positive definite, or no parameter."""
    values = None if matrix.sides - {PARAMETER} else numeric(matrix, xp, like)
    size = round(matrix.dim**0.5)
    if values is None or size * size != matrix.dim or any(n != 1 for n in values.shape[:-1]):
        return None
    values = values.reshape(size, size)
    try:
        lower = xp.linalg.cholesky((values + values.T) / 2)
    except (xp.linalg.LinAlgError, ValueError):
        return None
    return Node("array", (), matrix.dim, value=xp.swapaxes(lower, -1, -2).reshape(-1))
