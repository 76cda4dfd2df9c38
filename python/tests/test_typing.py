"""Type checkers accept the package, and a program that uses every public name of it."""

from __future__ import annotations

import ast
import builtins
import pathlib
import runpy
import subprocess
import sys
import types

import mercer as mc
import mercer.models
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "python/tests/typing/every_name.py"
MODULES = {"mc": mc, "linalg": mc.linalg, "kron": mc.kron, "models": mercer.models}


def checked(*arguments: object) -> subprocess.CompletedProcess[str]:
    cache = ROOT / "build/mypy"
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", cache, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_mypy_accepts_the_program_and_the_package():
    pytest.importorskip("mypy")
    found = checked("python/mercer", PROGRAM)
    assert found.returncode == 0, found.stdout + found.stderr


def test_mypy_refuses_what_is_wrong(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "wrong.py"
    program.write_text(
        "import mercer as mc\n"
        "import numpy as np\n"
        "x = np.zeros((3, 2), dtype=np.float32)\n"
        "values: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = mc.knn('l1', x, x, 2)[1]\n"
        "mc.nothing\n"
        "mc.table\n"
        "mc.cdist(x, x, q=3, metrik=None, p='two')\n",
        encoding="utf-8",
    )
    found = checked(program).stdout
    for line in (4, 5, 6, 7):
        assert f"wrong.py:{line}: error" in found
    assert "wrong.py:3" not in found


def test_the_program_runs():
    runpy.run_path(str(PROGRAM), run_name="__main__")


@pytest.mark.parametrize("alias", MODULES)
def test_the_program_uses_every_name(alias):
    """The zoo's names are read from its list, which is one of the names."""
    used = {
        node.attr
        for node in ast.walk(ast.parse(PROGRAM.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == alias
    }
    imported = {"errors", "kron", "linalg", "zoo"}
    classes = {"Preconditioner"}
    names = {name for name in MODULES[alias].__all__ if name not in {*mc.zoo.__all__, *imported}}
    assert names - used - (set() if alias == "linalg" else classes) == set()


def test_the_list_of_names_is_whole():
    """It is written out, since type checkers read it; only the zoo's part is added."""
    public = {
        name
        for name, value in vars(mc).items()
        if name[0] != "_"
        and name not in {*dir(builtins), "annotations"}
        and (name in mc.__all__ or not isinstance(value, types.ModuleType))
    }
    assert set(mc.__all__) == public
    assert len(set(mc.__all__)) == len([*mc.__all__]) - 1  # dot: an operation, and a kernel
    assert sorted(mercer.models.__all__) == sorted(mercer.models._HOMES)
