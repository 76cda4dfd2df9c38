#!/usr/bin/env python3
"""Changed lines of C++ and device text are as clang-format with .clang-format writes them.

    tools/check_format.py [BASE] [--fix]

Changed: since BASE, by default since HEAD left main; what is not committed counts too, but for
files that git does not know yet. Older lines stay as they are, tables laid out by hand among them.
`--fix` writes the changed lines anew.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from git_output import git, knows

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATTERNS = ("*.cpp", "*.h", "*.c", "*.cuh", "*.inc")
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def default_base() -> str | None:
    """Where HEAD left main; HEAD itself on main."""
    for name in ("origin/main", "main"):
        if base := git("merge-base", name, "HEAD"):
            return base.strip()
    return "HEAD" if knows("HEAD") else None


def changed_lines(base: str) -> dict[pathlib.Path, list[tuple[int, int]]]:
    """First and last lines of what was added or changed, by file."""
    # A setting of the user may leave the prefixes out or name others.
    prefixes = ["--src-prefix=a/", "--dst-prefix=b/"]
    options = ["-U0", "--no-color", "--no-ext-diff", "--diff-filter=AMR", *prefixes]
    told = git("diff", *options, base, "--", *PATTERNS)
    if told is None:
        raise SystemExit(f"check_format: git must know the commit. Received {base}.")
    found: dict[pathlib.Path, list[tuple[int, int]]] = {}
    path = None
    for line in told.splitlines():
        if line.startswith("+++ "):
            path = pathlib.Path(line[6:]) if line.startswith("+++ b/") else None
        elif path and (hunk := HUNK.match(line)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            if count:
                found.setdefault(path, []).append((first, first + count - 1))
    return found


def clang_format() -> str:
    """The program next to this interpreter, else the one on the PATH."""
    own = pathlib.Path(sys.executable).with_name("clang-format")
    program = str(own) if own.is_file() else shutil.which("clang-format")
    if program is None:
        raise SystemExit(
            "check_format: clang-format is missing: pip install -r requirements/lint.txt."
        )
    return program


def formatted(program: str, path: pathlib.Path, lines: list[tuple[int, int]]) -> str:
    """The file with these lines anew."""
    ranges = [f"--lines={first}:{last}" for first, last in lines]
    name = path.with_suffix(".h") if path.suffix == ".inc" else path  # which language it is in
    done = subprocess.run(
        [program, "--style=file:.clang-format", f"--assume-filename={name}", *ranges],
        input=path.read_bytes(),
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", help="a commit")
    parser.add_argument("--fix", action="store_true", help="write the changed lines anew")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    base = options.base or default_base()
    if base is None:
        print("format: no checkout of git, so no line is known to be changed")
        return 0
    changed, program = changed_lines(base), clang_format()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(lambda item: formatted(program, *item), changed.items())
        differing = {
            path: (old, new)
            for path, new in zip(changed, texts, strict=True)
            if (old := path.read_text(encoding="utf-8")) != new
        }
    for path, (old, new) in differing.items():
        if options.fix:
            path.write_text(new, encoding="utf-8")
            print(f"{path}: written")
        else:
            names = (f"{path}", f"{path} formatted")
            sys.stdout.writelines(
                difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names, n=1)
            )
    if not differing:
        print(f"format: changed lines of {len(changed)} files hold")
    elif not options.fix:
        print(f"format: {len(differing)} files differ; make format writes their changed lines anew")
    return 1 if differing and not options.fix else 0


if __name__ == "__main__":
    sys.exit(main())
