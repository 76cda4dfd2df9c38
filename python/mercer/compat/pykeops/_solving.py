"""The matrix of a lazy formula of the same points as an operator that solvers take."""

from __future__ import annotations

from typing import Any

from mercer import linalg
from mercer._vectors.formulas import Formula, Request
from mercer._vectors.nodes import Node

__all__ = ["operator"]


def operator(node: Node, request: Request, alpha: float) -> Any:
    """K + alpha as mercer.linalg.KernelOperator, of a K of the same points on both sides."""
    formula = Formula(node, request)
    text, x, z = formula.points()
    pairs = list(zip(x.items(), z.items(), strict=False))
    is_same = len(x) == len(z) == 1 and pairs[0][0][1].shape == pairs[0][1][1].shape
    if not is_same or request.ranges is not None or request.axis != 1:
        raise NotImplementedError(
            "solve: it is offered for formulas of one variable of i and one of j, of the same "
            "points, without ranges. Received others"
        )
    (x_name, points), (z_name, others) = pairs[0]
    if not bool((points == others).all()):
        raise ValueError("solve: i and j must be the same points. Received others")
    if points.shape[-1] == 1:
        text = text.replace(f"x.{x_name}", "sum(x)").replace(f"z.{z_name}", "sum(z)")
    text = text.replace(f"x.{x_name}", "x").replace(f"z.{z_name}", "z")
    if "[" in text:
        raise NotImplementedError("solve: components are not offered. Received a formula of some")
    options = formula.arguments()
    return linalg.KernelOperator(text, points, ridge=alpha, **options)
