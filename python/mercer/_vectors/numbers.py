"""Formulas of one number for each pair with words of vectors: ``matvec``, ``vector``, ``dot``, ...

They become formulas of groups, whose arrays are the vectors of a side: ``matvec(p, x-z)`` is
x.v0 - z.v0 with the points times the matrix.
"""

from __future__ import annotations

from typing import Any

from mercer import _array_likes, _libraries
from mercer._vectors.formulas import Formula, Request
from mercer._vectors.inputs import Inputs
from mercer._vectors.nodes import quiet

__all__ = ["VERBS", "arguments", "separated"]

VERBS = (
    "pairwise", "kernel_matrix", "kernel_product", "kernel_reduce", "knn", "edges", "edge_product",
    "edge_reduce", "radius_neighbors",
)  # fmt: skip
_OWN = ("f", "x", "z", "row", "col", "w")


@_libraries.untraced
@quiet
def arguments(verb: str, given: dict[str, Any]) -> dict[str, Any]:
    """f, x, z, row, col, w and parameters of a verb, in the place of those of such a formula."""
    f = given["f"]
    if verb not in VERBS:
        raise NotImplementedError(
            f"{verb}: formulas with vectors and matrices of parameters are offered by "
            f"{', '.join(VERBS)} and kernel_sum. Received {f}"
        )
    own = {name: given.get(name) for name in ("x", "z", "row", "col", "w")}
    params = dict(given.get("params", {}))
    kept = {"ranges": params.pop("ranges")} if "ranges" in params else {}
    inputs = Inputs(verb, {**own, "params": params})
    node, read = inputs.node(f)
    inputs.check_read(read, f)
    if node.dim != 1:
        raise ValueError(
            f"{verb}: the formula must be a number for each pair; kernel_sum takes vectors. "
            f"Received a vector of {node.dim}: {f}"
        )
    is_same = own["z"] is None
    request = Request(1, inputs.sizes, inputs.like, inputs.xp, None, verb)
    formula = Formula(node, request, shares_names=is_same)
    text, x, z = formula.points()
    is_same = is_same and x.keys() == z.keys() and all(x[name] is z[name] for name in x)
    found = {"f": text, "x": x, "z": None if is_same else z, "row": None, "col": None}
    return {**found, "w": formula.weights, **formula.params, **kept}


def separated(
    verb: str, given: dict[str, Any], params: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """f, x, z, row, col and w, and the parameters, of a formula with or without such words."""
    if not _array_likes.is_of_vectors(given):
        return given, params
    found = arguments(verb, {**given, "params": params})
    return {name: found.pop(name) for name in _OWN}, found
