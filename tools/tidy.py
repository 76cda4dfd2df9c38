#!/usr/bin/env python3
"""clang-tidy finds nothing new in the library's C++: names, long functions, suspicious code.

    tools/tidy.py [BASE]             files that changed since BASE, by default since HEAD left main
    tools/tidy.py --all [--update]   all files

.clang-tidy has the checks and the style of names. tools/tidy_known.txt lists what was found before
and stays, a line each; `--update` writes it anew. A header is looked at through files that include
it, a changed one through one of them. Tests, device text, C and what has the names of other
libraries are left out.

Files are compiled as compile_commands.json of the build folder says. Findings are kept there, by
all that they depend on but headers of other libraries.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

import check_format
from git_output import git

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = "tools/tidy_known.txt"
OURS = ("src/", "include/", "python/src/")
# Device text, and names that are not in the style of the project: of C and of other libraries.
NOT_OURS = ("src/kernels/", "src/compat/", "include/mercer/c/", "include/mercer/compat/")
OF_GCC = ("-fno-tree-pre",)  # options that Clang refuses; it passes over others
SETTINGS = {".clang-tidy", "requirements/lint.txt"}  # a change of these concerns all files
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
FINDING = re.compile(
    r"^(/[^:\n]+):(\d+):(\d+): (warning|error): (.+) \[([^\]\n]+)\]$", re.MULTILINE
)

Place = tuple[str, int, int]  # file, line, column
Findings = dict[tuple[Place, str], str]  # by place and check, the message


def commands_of(build: pathlib.Path) -> dict[pathlib.Path, str]:
    """How each file is compiled."""
    path = build / "compile_commands.json"
    if not path.is_file():
        raise SystemExit(
            f"tidy: the build folder must have compile_commands.json. Received {build}."
        )
    entries = json.loads(path.read_text(encoding="utf-8"))
    return {pathlib.Path(entry["file"]): entry["command"] for entry in entries}


def units_of(commands: Iterable[pathlib.Path], root: pathlib.Path) -> list[str]:
    """The library's files that are compiled, by their paths from the root."""
    paths = (file.relative_to(root).as_posix() for file in commands if file.is_relative_to(root))
    return sorted(path for path in paths if path.startswith(OURS))


def included(path: str, root: pathlib.Path) -> list[str]:
    """What a file includes of the library."""
    names = INCLUDE.findall((root / path).read_text(encoding="utf-8"))
    places = [path.rpartition("/")[0] + "/", *OURS]
    found = (
        (place + name for place in places if (root / (place + name)).is_file()) for name in names
    )
    return [next(options, "") for options in found]


def reached(unit: str, root: pathlib.Path, memo: dict[str, list[str]]) -> set[str]:
    """The file and what it includes, directly or not."""
    found, left = {unit}, [unit]
    while left:
        path = left.pop()
        if path not in memo:
            memo[path] = [name for name in included(path, root) if name]
        new = set(memo[path]) - found
        found |= new
        left += new
    return found


def units_for(changed: Iterable[str], units: Sequence[str], root: pathlib.Path) -> list[str]:
    """Changed units; for each other changed file the unit that has it with the fewest headers."""
    memo: dict[str, list[str]] = {}
    reach = {unit: reached(unit, root, memo) for unit in units}
    chosen = set(changed) & set(units)
    for path in sorted(set(changed) - chosen):
        stem = path.rpartition(".")[0]
        users = [unit for unit in units if path in reach[unit]]
        if users and not any(path in reach[unit] for unit in chosen):
            chosen.add(min(users, key=lambda unit: (unit != f"{stem}.cpp", len(reach[unit]))))
    return sorted(chosen)


def changed_since(base: str) -> set[str]:
    told = git("diff", "--name-only", "--no-renames", "--diff-filter=AM", base)
    if told is None:
        raise SystemExit(f"tidy: git must know the commit. Received {base}.")
    new = git("ls-files", "--others", "--exclude-standard") or ""
    return {*told.splitlines(), *new.splitlines()}


def clang_tidy() -> str:
    """The program next to this interpreter, else the one on the PATH."""
    own = pathlib.Path(sys.executable).with_name("clang-tidy")
    program = str(own) if own.is_file() else shutil.which("clang-tidy")
    if program is None:
        raise SystemExit("tidy: clang-tidy is missing: pip install -r requirements/lint.txt.")
    return program


def findings_in(text: str, root: pathlib.Path) -> Findings:
    """What clang-tidy printed about the library's files."""
    found: Findings = {}
    for name, line, column, kind, message, check in FINDING.findall(text):
        path = os.path.relpath(name, root)
        if kind == "error":
            raise SystemExit(f"tidy: a file must compile. Received {path}:{line}: {message}")
        if path.startswith(OURS) and not path.startswith(NOT_OURS):
            found[(path, int(line), int(column)), check] = message
    return found


class Tidy:
    """clang-tidy on the library's files, with what it found before."""

    def __init__(self, build: pathlib.Path, root: pathlib.Path) -> None:
        self.program, self.root, self.kept = clang_tidy(), root, build / "tidy"
        folders = "|".join(re.escape(f"{root}/{folder}") for folder in OURS)
        config = root / ".clang-tidy"
        self.options = ["--quiet", f"-p={build}", f"--config-file={config}"]
        self.options.append(f"--header-filter=^({folders})")
        self.options += [f"--removed-arg={option}" for option in OF_GCC]
        version = subprocess.run([self.program, "--version"], capture_output=True, check=True)
        self.setting = version.stdout + config.read_bytes()
        self.commands = commands_of(build)
        self.includes: dict[str, list[str]] = {}
        self.kept.mkdir(exist_ok=True)

    def place_of(self, unit: str) -> pathlib.Path:
        """The file with what was found in this state of the unit."""
        key = hashlib.sha256(self.setting + self.commands[self.root / unit].encode())
        for path in sorted(reached(unit, self.root, self.includes)):
            key.update(path.encode() + b"\0" + (self.root / path).read_bytes() + b"\0")
        return self.kept / key.hexdigest()

    def look_at(self, unit: str) -> Findings:
        """What is found in a file and the library's headers that it includes."""
        place = self.place_of(unit)
        if not place.is_file():
            command = [self.program, *self.options, self.root / unit]
            done = subprocess.run(command, capture_output=True, text=True)
            found = findings_in(done.stdout, self.root)
            if done.returncode:
                raise SystemExit(f"tidy: {unit}: {done.stdout}{done.stderr}")
            part = place.with_suffix(".part")
            part.write_text(json.dumps([[*key, text] for key, text in found.items()]))
            part.replace(place)
        entries = json.loads(place.read_text())
        return {(tuple(where), check): text for where, check, text in entries}

    def look(self, units: Sequence[str]) -> Findings:
        found: Findings = {}
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for part in pool.map(self.look_at, units):
                found |= part
        return found


def record(found: Findings) -> collections.Counter[str]:
    """Lines of the list of what is known: no line numbers, which other changes move."""
    return collections.Counter(
        f"{path}: {message} [{check}]" for ((path, *_), check), message in found.items()
    )


def new_ones(found: Findings, known: collections.Counter[str]) -> list[str]:
    left, lines = known.copy(), []
    for ((path, line, column), check), message in sorted(found.items()):
        key = f"{path}: {message} [{check}]"
        left[key] -= 1
        if left[key] < 0:
            lines.append(f"{path}:{line}:{column}: {message} [{check}]")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", help="a commit")
    parser.add_argument("--all", action="store_true", help="all files")
    parser.add_argument("--update", action="store_true", help="write the list of what is known")
    parser.add_argument("--build", type=pathlib.Path, default="build/release", help="its folder")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.update and not options.all:
        parser.error("--update is for --all: the list has all files")
    root = options.root.resolve()
    os.chdir(root)
    start, build = time.monotonic(), options.build.resolve()
    tidy = Tidy(build, root)
    units = units_of(tidy.commands, root)
    if not options.all:
        base = options.base or check_format.default_base()
        if base is None:
            raise SystemExit("tidy: this must be a checkout of git; --all looks at all files.")
        changed = changed_since(base)
        units = units if changed & SETTINGS else units_for(changed, units, root)
    found, list_path = tidy.look(units), root / KNOWN
    if options.update:
        lines = sorted(record(found).elements())
        list_path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"tidy: {KNOWN} has {len(lines)} findings")
        return 0
    known = collections.Counter(list_path.read_text(encoding="utf-8").splitlines())
    new = new_ones(found, known)
    print("".join(f"{line}\n" for line in new), end="")
    if options.all and (gone := known - record(found)):
        print("".join(f"no longer found: {line}\n" for line in gone), end="")
        print("tidy: tools/tidy.py --all --update takes them off the list")
    seconds = time.monotonic() - start
    print(
        f"tidy: {len(new)} new findings in {len(units)} files and their headers ({seconds:.0f} s)"
    )
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
