"""The tools that look at commits, changed lines and versions."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import ROOT, program

pytestmark = pytest.mark.quick

check_commits = program("tools", "check_commits")
check_format = program("tools", "check_format")
coverage_table = program("tools", "coverage_table")
release = program("tools", "release")


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("x" * 73, "at most 72 characters. Received 73"),
        ("A subject.\n", "without a full stop"),
        ("A subject\nand more", "must be empty"),
        ("fixup! A subject", "folded"),
        ("", "must have a subject"),
    ],
)
def test_messages(message, rule):
    (fault,) = check_commits.faults(message)
    assert rule in fault


def test_messages_that_hold(tmp_path):
    assert check_commits.faults("x" * 72 + "\n\nWhy.\n") == []
    message = tmp_path / "message"
    message.write_text("A subject\n# Please enter …\n# ---- >8 ----\ndiff of lines" + "x" * 90)
    assert check_commits.main(["--file", str(message)]) == 0
    message.write_text("x" * 73)
    assert check_commits.main(["--file", str(message)]) == 1


def test_messages_without_git(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert check_commits.main([]) == 0
    assert "no message is looked at" in capsys.readouterr().out


def commit(folder, subject):
    words = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-a", "-m", subject]
    subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A small repository of git, the current folder."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commits_of_a_range(checkout, capsys):
    (checkout / "a").write_text("")
    subprocess.run(["git", "add", "a"], check=True)
    commit(checkout, "x" * 80)
    subprocess.run(["git", "checkout", "-q", "-b", "work"], check=True)
    (checkout / "a").write_text("1")
    commit(checkout, "A subject")
    assert check_commits.main([]) == 0  # what main has is not looked at
    assert "1 messages hold" in capsys.readouterr().out
    assert check_commits.main(["HEAD"]) == 1
    with pytest.raises(SystemExit, match=r"must know the range\. Received nothing\.\.HEAD"):
        check_commits.main(["nothing..HEAD"])


def test_changed_lines(checkout):
    source = checkout / "a.cpp"
    source.write_text("int  a;\nint  b;\n")
    subprocess.run(["git", "add", "."], check=True)
    commit(checkout, "A subject")
    source.write_text("int  a;\nint  b = 1;\nint  c;\n")
    assert check_format.default_base() == subprocess.check_output(
        ["git", "rev-parse", "HEAD"], text=True
    ).strip()  # fmt: skip
    changed = {pathlib.Path("a.cpp"): [(2, 3)]}
    assert check_format.changed_lines("HEAD") == changed
    subprocess.run(["git", "config", "diff.noprefix", "true"], check=True)
    assert check_format.changed_lines("HEAD") == changed


def test_the_workflow_checks_no_files_of_its_own_environments():
    """tools/check_sizes.py reads what git does not ignore."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    made = {f"/{folder}/" for folder in re.findall(r"-m venv (\S+)", workflow)}
    assert made
    assert made <= set((ROOT / ".gitignore").read_text(encoding="utf-8").split())


PAGES = ("*.md", "docs/**/*.md", ".github/*.md", ".pre-commit-config.yaml", "requirements/*.txt")


def test_targets_of_make_that_pages_name_are_there():
    """What stands as `make a b` in backquotes."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    pages = [page for pattern in PAGES for page in ROOT.glob(pattern)]
    named = [
        (page.name, word)
        for page in pages
        for words in re.findall(r"`make\s+([a-z\s-]+)", page.read_text(encoding="utf-8"))
        for word in words.split()
    ]
    assert ("README.md", "docs") in named
    assert [pair for pair in named if pair[1] not in targets] == []


FILES = {
    "CMakeLists.txt": "project(mercer VERSION 0.2.0 LANGUAGES CXX)\n",
    "CITATION.cff": "cff-version: 1.2.0\nversion: 0.2.0\ndate-released: 2026-12-01\n",
    "CHANGELOG.md": "# C\n\n## 0.2.0 (2026-12-01)\n\n- More.\n\n## 0.1.0 (2026-11-01)\n\n- A\n",
    "pyproject.toml": '[project]\ndynamic = ["version"]\n[tool.x]\ninput = "CMakeLists.txt"\n',
}


@pytest.fixture
def released(checkout):
    for name, content in FILES.items():
        (checkout / name).write_text(content)
    subprocess.run(["git", "add", "."], check=True)
    commit(checkout, "A release")
    return checkout


def test_a_release(released, capsys):
    arguments = ["0.2.0", "--dry-run", "--root", str(released)]
    assert release.main(arguments) == 0
    said = capsys.readouterr().out
    commands = [line for line in said.splitlines() if line.startswith("+ ")]
    assert commands[:2] == ["+ .ci/run", "+ make check-deb"]
    assert commands[-1] == "+ make check-wheels"
    assert 'git tag -a v0.2.0 -m "Mercer 0.2.0"' in said
    subprocess.run(["git", "tag", "v0.2.0"], check=True)
    assert release.main(arguments) == 1
    assert "the tag v0.2.0 must be new" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        ("CITATION.cff", "0.2.0", "0.1.0", "CITATION.cff must name version 0.2.0"),
        ("CITATION.cff", "2026-12-01", "2026-11-01", "CITATION.cff must have 'date-released"),
        ("CHANGELOG.md", "0.2.0 (2026-12-01)", "0.2.0 (unreleased)", "(year-month-day)'"),
        ("CHANGELOG.md", "## 0.2.0", "## 0.3.0", "CHANGELOG.md must name version 0.2.0"),
        ("CHANGELOG.md", "- More.\n", "", "must have entries"),
        ("CMakeLists.txt", "0.2.0", "0.2.1", "CMakeLists.txt must name version 0.2.0"),
        ("pyproject.toml", 'dynamic = ["version"]', 'version = "1.0.0"', "Received 1.0.0"),
        ("pyproject.toml", "input", "output", "pyproject.toml must name version 0.2.0"),
    ],
)
def test_what_is_no_release(released, capsys, name, old, new, fault):
    path = released / name
    path.write_text(path.read_text().replace(old, new))
    assert release.main(["0.2.0", "--dry-run", "--root", str(released)]) == 1
    said = capsys.readouterr().out
    assert fault in said
    assert "everything must be committed" in said


def test_the_versions_of_this_checkout_agree(capsys):
    assert release.main(["--agree"]) == 0


def test_a_table_of_coverage(tmp_path, capsys):
    """What coverage.py and gcovr write, of the same numbers."""
    folder = "/a/mercer/.venv/lib/site-packages/mercer"
    summaries = {"nn.py": (3, 4), "compat/kermac.py": (1, 2), "compat/cli.py": (0, 2)}
    of_python = {
        f"{folder}/{name}": {"summary": {"covered_lines": reached, "num_statements": lines}}
        for name, (reached, lines) in summaries.items()
    }
    of_cpp = [
        {"filename": f"mercer/{name}", "line_covered": reached, "line_total": lines}
        for name, (reached, lines) in summaries.items()
    ]
    for files in (of_python, of_cpp):
        (tmp_path / "a.json").write_text(json.dumps({"files": files}))
        assert coverage_table.main([str(tmp_path / "a.json"), "--files", "1"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["mercer", "4", "1", "75.0%"] in rows
        assert ["mercer/compat", "4", "3", "25.0%"] in rows
        assert ["all", "8", "4", "50.0%"] in rows
        assert rows[-1] == ["mercer/compat/cli.py", "2", "2", "0.0%"]
