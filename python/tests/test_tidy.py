"""The tool that asks clang-tidy; a program of the tests speaks in its place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, program

pytestmark = pytest.mark.quick

FAKE = """#!{python}
import pathlib, sys
if sys.argv[1] == "--version":
    sys.exit(0)
path = pathlib.Path(sys.argv[-1])
with open({seen!r}, "a") as seen:
    seen.write(path.name + "\\n")
for name in (path, path.parent / "a.h", pathlib.Path("/usr/include/math.h")):
    lines = name.read_text().splitlines() if name.is_file() else ["BadName"]
    for number, line in enumerate(lines, 1):
        if "BadName" in line:
            print(f"{{name}}:{{number}}:1: warning: invalid case style for 'BadName' [a-check]")
        if "#error" in line:
            print(f"{{name}}:{{number}}:2: error: not C++ [clang-diagnostic-error]")
            sys.exit(1)
"""


@pytest.fixture
def tidy(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return program("tools", "tidy")


@pytest.fixture
def library(tmp_path, monkeypatch, tidy):
    """A small library in git: a.cpp and b.cpp include a.h, c.cpp includes nothing."""
    texts = {
        "src/core/a.h": "int a;\n",
        "src/core/a.cpp": '#include "core/a.h"\nint BadName;\n',
        "src/core/b.cpp": '#include "core/a.h"\nint b;\n',
        "src/core/c.cpp": "int c;\n",
        "tests/unit/d.cpp": "int BadName;\n",
        ".clang-tidy": "Checks: a-check\n",
        ".gitignore": "/build/\n",
        "tools/tidy_known.txt": "src/core/a.cpp: invalid case style for 'BadName' [a-check]\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    build = tmp_path / "build" / "release"
    build.mkdir(parents=True)
    entries = [
        {"file": str(tmp_path / name), "command": f"c++ -c {name}"}
        for name in texts
        if name.endswith(".cpp")
    ]
    (build / "compile_commands.json").write_text(json.dumps(entries))
    fake = tmp_path / "build" / "clang-tidy"
    fake.write_text(FAKE.format(python=sys.executable, seen=str(tmp_path / "build" / "seen")))
    fake.chmod(0o755)
    monkeypatch.setattr(tidy, "clang_tidy", lambda: str(fake))
    monkeypatch.chdir(tmp_path)
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "A"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], check=True)
    return tmp_path


def seen(folder):
    """The files that clang-tidy looked at since the last call."""
    path = folder / "build" / "seen"
    names = sorted(path.read_text().split()) if path.is_file() else []
    path.unlink(missing_ok=True)
    return names


def test_known_findings_are_no_fault_and_new_ones_are(tidy, library, capsys):
    arguments = ["--all", "--root", str(library)]
    assert tidy.main(arguments) == 0
    assert "0 new findings in 3 files" in capsys.readouterr().out
    assert seen(library) == ["a.cpp", "b.cpp", "c.cpp"]
    (library / "src/core/a.h").write_text("\nint BadName;\n")
    assert tidy.main(arguments) == 1
    said = capsys.readouterr().out
    assert said.startswith("src/core/a.h:2:1: invalid case style for 'BadName' [a-check]\n")
    assert "1 new findings" in said  # of two files that include the header
    assert seen(library) == ["a.cpp", "b.cpp"]  # c.cpp and all it includes are as before


def test_the_list_of_what_is_known(tidy, library, capsys):
    arguments = ["--all", "--root", str(library)]
    (library / "src/core/a.cpp").write_text("int c;\n")
    (library / "src/core/c.cpp").write_text("int BadName;\nint BadName;\n")
    assert tidy.main(arguments) == 1
    assert "no longer found: src/core/a.cpp: invalid case" in capsys.readouterr().out
    assert tidy.main([*arguments, "--update"]) == 0
    line = "src/core/c.cpp: invalid case style for 'BadName' [a-check]\n"
    assert (library / tidy.KNOWN).read_text() == line * 2
    assert tidy.main(arguments) == 0
    (library / "src/core/c.cpp").write_text("int BadName;\n\nint BadName;\nint BadName;\n")
    assert tidy.main(arguments) == 1  # a third one of a kind that was there twice


def test_only_changed_files_are_looked_at(tidy, library):
    arguments = ["--root", str(library)]
    assert tidy.main(arguments) == 0
    assert seen(library) == []
    (library / "src/core/c.cpp").write_text("int other;\n")
    (library / "tests/unit/d.cpp").write_text("int BadName, other;\n")
    assert tidy.main(arguments) == 0
    assert seen(library) == ["c.cpp"]
    (library / "src/core/a.h").write_text("int BadName;\n")
    assert tidy.main(arguments) == 1
    assert seen(library) == ["a.cpp"]  # one of the files that include a header, the one of its name
    (library / "src/core/b.cpp").write_text('#include "core/new.h"\nint b;\n')
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "commit", "-q", "-a", "-m", "B"], check=True)
    (library / "src/core/new.h").write_text("int n;\n")  # git does not know it yet
    assert tidy.main(arguments) == 1  # a.h is next to b.cpp
    assert seen(library) == ["b.cpp"]
    (library / ".clang-tidy").write_text("Checks: b-check\n")
    tidy.main(arguments)
    assert seen(library) == ["a.cpp", "b.cpp", "c.cpp"]


def test_what_cannot_be_looked_at_is_said(tidy, library):
    with pytest.raises(SystemExit, match=r"git must know the commit\. Received nothing\."):
        tidy.main(["nothing", "--root", str(library)])
    with pytest.raises(SystemExit, match=r"must have compile_commands\.json\. Received .*none"):
        tidy.main(["--all", "--build", "none", "--root", str(library)])
    with pytest.raises(SystemExit, match="2"):
        tidy.main(["--update"])
    shutil.rmtree(library / ".git")
    with pytest.raises(SystemExit, match="must be a checkout of git; --all looks at all files"):
        tidy.main(["--root", str(library)])
    (library / "src/core/b.cpp").write_text("#error\n")
    with pytest.raises(SystemExit, match=r"must compile\. Received .*b\.cpp:1: not C\+\+"):
        tidy.main(["--all", "--root", str(library)])
