"""The named metrics and kernels: one function for each row of the table, made from it.

``mercer.laplace(p=1, bandwidth=2.0)`` is a formula. Options that choose the text (a norm's p) are
numbers; the others stay parameters of the formula with the value given as their default, a number
or an array, such as a tensor that is trained.
``weighted=True`` takes the form with weights w.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mercer import _mercer
from mercer._mercer import Kernel
from mercer._spelling import hint

#: The table: one dict a row.
table: list[dict[str, Any]] = _mercer.zoo_rows()


def _signature(row: dict[str, Any]) -> inspect.Signature:
    options = [
        inspect.Parameter(
            o["name"],
            inspect.Parameter.KEYWORD_ONLY,
            default=o["default"],
            annotation="float" if o["is_static"] else "float | Array",
        )
        for o in row["options"]
    ]
    if row["weighted"]:
        options.append(
            inspect.Parameter(
                "weighted", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"
            )
        )
    return inspect.Signature(options, return_annotation="Kernel")


def _doc(row: dict[str, Any]) -> str:
    lines = [row["text"], ""]
    lines += [f"{o['name']}: {o['doc']}" for o in row["options"]]
    if row["weighted"]:
        lines.append(f"weighted: {row['weighted_text']}")
    if row["w_meaning"]:
        lines.append(f"Calls give w: {row['w_meaning']}.")
    lines.append(f"Values: {row['domain']}. Source: {row['source']}")
    return "\n".join(lines)


def _function(row: dict[str, Any]) -> Callable[..., Kernel]:
    name, known = row["name"], {o["name"] for o in row["options"]}

    def entry(*, weighted: bool = False, **options: Any) -> Kernel:
        unknown = options.keys() - known
        if unknown:
            near = hint(min(unknown), known)
            raise TypeError(
                f"{name}: the options are {sorted(known)}{near}. Received {sorted(unknown)}"
            )
        return _mercer.zoo_formula(name, options, weighted)

    entry.__name__ = entry.__qualname__ = name
    entry.__signature__ = _signature(row)  # type: ignore[attr-defined]
    entry.__doc__ = _doc(row)
    return entry


def _functions() -> dict[str, Callable[..., Kernel]]:
    functions = {}
    for row in table:
        function = _function(row)
        for name in [row["name"], *row["aliases"]]:
            if name.isidentifier():
                functions[name] = function
    return functions


globals().update(_functions())
__all__ = sorted(_functions())
