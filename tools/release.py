#!/usr/bin/env python3
"""Prepares a release: looks whether everything names one version, checks all, makes the wheels.

    tools/release.py 0.2.0 [--dry-run]   all steps; --dry-run: the checks, and what would follow
    tools/release.py --agree             whether the files agree with one another (CI)

It publishes nothing. In the end it prints the commands that do.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence

from git_output import git, knows

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = re.compile(r"\d+\.\d+\.\d+")
CMAKE = re.compile(r"project\(mercer VERSION ([0-9.]+)")
CITATION = re.compile(r"^version: *[\"']?([^\"'\s]+)", re.MULTILINE)
RELEASED = re.compile(r"^date-released: *[\"']?([0-9-]+)", re.MULTILINE)
PYPROJECT = re.compile(r"^version *= *[\"']([^\"']+)[\"']", re.MULTILINE)
VCPKG = re.compile(r'"version": *"([^"]+)"')
HEAD = re.compile(r"^## (\S+)(?: \((.+)\))?$", re.MULTILINE)


def text(root: pathlib.Path, name: str) -> str:
    path = root / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def one(pattern: re.Pattern[str], content: str) -> str | None:
    match = pattern.search(content)
    return match[1] if match else None


def versions(root: pathlib.Path) -> dict[str, str | None]:
    """The version that each file names; pyproject.toml takes CMake's and may name none."""
    named = {
        "CMakeLists.txt": one(CMAKE, text(root, "CMakeLists.txt")),
        "CITATION.cff": one(CITATION, text(root, "CITATION.cff")),
        "CHANGELOG.md": one(HEAD, text(root, "CHANGELOG.md")),
    }
    if port := text(root, "packaging/vcpkg/mercer/vcpkg.json"):
        named["vcpkg.json"] = one(VCPKG, port)
    pyproject = text(root, "pyproject.toml")
    own = one(PYPROJECT, pyproject.split("[tool.", 1)[0])
    if own is not None or 'input = "CMakeLists.txt"' not in pyproject:
        named["pyproject.toml"] = own
    return named


def disagreements(root: pathlib.Path) -> list[str]:
    """Files that name another version than CMakeLists.txt, or none."""
    named = versions(root)
    wanted = named["CMakeLists.txt"]
    return [
        f"{name} must name version {wanted}, as CMakeLists.txt does. Received {version}"
        for name, version in named.items()
        if version is None or version != wanted
    ]


def section(root: pathlib.Path) -> tuple[str | None, str]:
    """What stands in parentheses at the newest section of the changelog, and the section."""
    changelog = text(root, "CHANGELOG.md")
    heads = list(HEAD.finditer(changelog))
    if not heads:
        return None, ""
    end = heads[1].start() if len(heads) > 1 else len(changelog)
    return heads[0][2], changelog[heads[0].end() : end].strip()


def is_date(word: str | None) -> bool:
    try:
        datetime.date.fromisoformat(word or "")
    except ValueError:
        return False
    return True


def unready(root: pathlib.Path, version: str) -> list[str]:
    """Why these files are no release of this version."""
    found = disagreements(root)
    if not VERSION.fullmatch(version):
        found.append(f"a version is major.minor.patch. Received {version}")
    elif versions(root)["CMakeLists.txt"] != version:
        found.append(f"CMakeLists.txt must name version {version}")
    date, entries = section(root)
    if not is_date(date):
        found.append(
            f"the head of CHANGELOG.md must be '## {version} (year-month-day)'. Received ({date})"
        )
    if "\n- " not in f"\n{entries}":
        found.append("the newest section of CHANGELOG.md must have entries. Received none")
    released = one(RELEASED, text(root, "CITATION.cff"))
    if is_date(date) and released != date:
        found.append(f"CITATION.cff must have 'date-released: {date}'. Received {released}")
    return found


def unclean(root: pathlib.Path, version: str) -> list[str]:
    """Why this checkout cannot be tagged."""
    found = []
    status = git("status", "--porcelain", cwd=root)
    if status is None:
        return ["a release is made from a checkout of git"]
    if status.strip():
        found.append(f"everything must be committed. Received {status.splitlines()[0].strip()} …")
    if knows(f"refs/tags/v{version}", cwd=root):
        found.append(f"the tag v{version} must be new")
    return found


def steps() -> list[list[str]]:
    """What makes the release and checks it."""
    targets = ("check-deb", "wheels", "check-wheels")
    return [[".ci/run"], *(["make", target] for target in targets)]


def hints(version: str) -> str:
    return f"""dist/ holds what was made and checked. What is left:
    git tag -a v{version} -m "Mercer {version}"
    git push origin v{version}
    python -m twine upload dist/mercer-{version}*
    a release of v{version} on GitHub, with its section of CHANGELOG.md
    the next version in CMakeLists.txt, CITATION.cff and packaging/vcpkg/mercer/vcpkg.json, and
    "## … (unreleased)" in CHANGELOG.md"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", nargs="?")
    parser.add_argument("--dry-run", action="store_true", help="make nothing")
    parser.add_argument("--agree", action="store_true", help="look at the versions of files alone")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if (options.version is None) != options.agree:
        parser.error("either a version or --agree must be given")
    root = options.root
    if options.agree:
        found = disagreements(root)
    else:
        found = unready(root, options.version) + unclean(root, options.version)
    for fault in found:
        print(f"release: {fault}.")
    if found:
        return 1
    if options.agree:
        print(f"versions: all files name {versions(root)['CMakeLists.txt']}")
        return 0
    for command in steps():
        print("+", *command, flush=True)
        if not options.dry_run:
            subprocess.run(command, cwd=root, check=True)
    print(hints(options.version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
