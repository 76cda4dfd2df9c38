#!/usr/bin/env python3
"""Writes the type stubs: _mercer.pyi from the compiled module, zoo.pyi from the table of the zoo.

With a folder as argument they go there (a test compares them with the committed ones), else to
python/mercer. They describe the package that is installed.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
import textwrap

from nanobind.stubgen import StubGen

# Where a function takes or gives integers and values, A being the type of the arrays: what its
# signature says for any library, and for NumPy's arrays, whose types have the type of the elements.
_PAIR = (("tuple[A, A]", "tuple[A, I]"),)
_COUNTS = (("tuple[A, A, A]", "tuple[A, I, I]"),)
_EVERY_REDUCE = 'Literal["sum", "max", "min", "argmax", "argmin", "logsumexp"]'
INTEGERS = {
    "knn": _PAIR,
    "kernel_reduce": (
        (_EVERY_REDUCE, 'Literal["argmax", "argmin"]'), ("out: A", "out: I"), ("-> A", "-> I"),
    ),
    "cholesky": _PAIR,
    "solve_cholesky": _PAIR,
    "solve_lu": _PAIR,
    "lu_factor": (("tuple[tuple[A, A], A]", "tuple[tuple[A, I], I]"), *_PAIR),
    "lu_solve": _PAIR,
    "inv_quad_logdet": (("-> tuple[tuple[A, A], A]", "-> tuple[tuple[A, A], I]"),),
    "eigh": (("tuple[Any, A]", "tuple[Any, I]"),),
    "cg": _COUNTS,
    "minres": _COUNTS,
}  # fmt: skip


def for_numpy(name: str, head: str, types: str = "mercer._types.") -> str | None:
    """The signature for NumPy's arrays, where it says more than the one for all libraries."""
    array = f"{types}ArrayT"
    said = replaced = head.replace("'", '"')
    for old, new in INTEGERS.get(name, ()):
        old, new = (re.sub(r"\bA\b", array, text) for text in (old, new))
        replaced = replaced.replace(old, re.sub(r"\bI\b", f"{types}Indices", new))
    if said == replaced:
        return None
    return replaced.replace(array, f"{types}Numbers[{types}ScalarT]")


def with_overloads(text: str) -> str:
    """The stub with a signature for NumPy's arrays before each of those in INTEGERS."""
    lines: list[str] = []
    for line in text.splitlines():
        name = re.match(r"def (\w+)\(", line)
        more = for_numpy(name[1], line) if name else None
        if more is not None:
            is_first = not lines or lines[-1] != "@overload"
            marks = ["@overload"] if is_first else []
            lines += [*marks, more.removesuffix(" ...") + " ...", "", "@overload"]
        lines.append(line)
    return "\n".join(lines) + "\n"


def module_stub() -> str:
    import mercer._mercer as module

    stub = StubGen(module, include_private=False, quiet=True)
    stub.put(module)
    text = stub.get().replace("-> tuple: ...", "-> tuple[Any, ...]: ...")
    text = text.replace("(self: Any, ", "(self, ")
    # == of expressions is an expression.
    text = re.sub(r"(def __(?:eq|ne)__\(.*-> Expr: \.\.\.)", r"\1  # type: ignore[override]", text)
    return with_overloads(text) + "\n__version__: str\n"


def zoo_stub() -> str:
    from mercer import zoo

    lines = [
        "# Written by tools/make_stubs.py from the table in src/formula/zoo.cpp.",
        "from typing import Any",
        "",
        "from mercer._mercer import Kernel",
        "from mercer._types import Array",
        "",
        "table: list[dict[str, Any]]",
        "",
        *textwrap.wrap(f"__all__ = {sorted(zoo.__all__)!r}".replace("'", '"'), 98),
        "",
    ]
    for name in sorted(zoo.__all__):
        signature = inspect.signature(getattr(zoo, name))
        arguments = [f"{p.name}: {p.annotation} = ..." for p in signature.parameters.values()]
        lines.append(
            f"def {name}({', '.join(['*', *arguments] if arguments else [])}) -> Kernel: ..."
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "python" / "mercer"
    (folder / "_mercer.pyi").write_text(module_stub(), encoding="utf-8")
    (folder / "zoo.pyi").write_text(zoo_stub(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
