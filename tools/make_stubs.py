#!/usr/bin/env python3
"""Writes the type stubs: _mercer.pyi from the compiled module, zoo.pyi from the table of the zoo.

With a folder as argument they go there (a test compares them with the committed ones), else to
python/mercer. They describe the package that is installed.
"""

from __future__ import annotations

import inspect
import pathlib
import sys

from nanobind.stubgen import StubGen


def module_stub() -> str:
    import mercer._mercer as module

    stub = StubGen(module, include_private=False, quiet=True)
    stub.put(module)
    return stub.get()


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
