"""No module of the package is read while one that it needs is still half read."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator
from importlib.util import resolve_name

import mercer
import pytest

PACKAGE = pathlib.Path(mercer.__file__).parent


def modules_of(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The files of a package by the names of their modules."""
    names = {path.relative_to(folder.parent).with_suffix(""): path for path in folder.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in names.items()}


def read_first(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports of a module that run when it is read: none of a function's, none for types."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from read_first(ast.Module(child.orelse, []))
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from read_first(child)


def imported(name: str, modules: dict[str, pathlib.Path], compiled: set[str]) -> set[str]:
    """The modules of the package that one imports; a name of a package is a name in its file."""
    path, found = modules[name], set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in read_first(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        home = resolve_name("." * node.level + (node.module or ""), package)
        named = [f"{home}.{alias.name}" for alias in node.names]
        found |= {full if full in modules or full in compiled else home for full in named}
    return (found & modules.keys()) - {name}


def circle_of(folder: pathlib.Path, compiled: set[str]) -> dict[str, set[str]]:
    """The modules that import each other, with what they import of each other."""
    modules = modules_of(folder)
    needs = {name: imported(name, modules, compiled) for name in modules}
    size = None
    while size != len(needs):
        size = len(needs)
        needed = set().union(*needs.values())
        needs = {name: found & needs.keys() for name, found in needs.items()}
        needs = {name: found for name, found in needs.items() if found and name in needed}
    return needs


def test_modules_import_each_other_in_no_circle():
    assert circle_of(PACKAGE, {"mercer._mercer"}) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from some import b", {"some", "some.a", "some.b"}),
        ("from . import b", {"some", "some.a", "some.b"}),
        ("from .b import value", {"some", "some.a", "some.b"}),
        ("try:\n    import some.b\nexcept ImportError: pass", {"some", "some.a", "some.b"}),
        ("from some import core", set()),
        ("def later():\n    from some import b", set()),
        ("if typing.TYPE_CHECKING:\n    from some import b", set()),
    ],
)
def test_a_circle_is_found(tmp_path, text, expected):
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "__init__.py").write_text("from some import a\n")
    (folder / "a.py").write_text(f"{text}\n")
    (folder / "b.py").write_text("from some import value\n")
    assert circle_of(folder, {"some.core"}).keys() == expected
