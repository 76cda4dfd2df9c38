"""The committed type stubs and verbs are those that `make stubs` writes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("tool", "names"),
    [("make_stubs.py", ("_mercer.pyi", "zoo.pyi")), ("make_verbs.py", ("_verbs.py",))],
)
def test_written_files_are_up_to_date(tmp_path, tool, names):
    subprocess.run([sys.executable, ROOT / "tools" / tool, tmp_path], check=True)
    for name in names:
        committed = (ROOT / "python" / "mercer" / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == committed, f"{name}: run make stubs"


def test_every_public_name_is_documented():
    import mercer as mc

    undocumented = [
        name
        for name in dir(mc)
        if not name.startswith("_")
        and callable(getattr(mc, name))
        and not getattr(mc, name).__doc__
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", ["_mercer.pyi", "zoo.pyi", "py.typed"])
def test_the_package_carries_its_types(name):
    import mercer as mc

    assert (pathlib.Path(mc.__file__).parent / name).exists()
