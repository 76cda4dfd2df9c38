#!/usr/bin/env python3
"""No tracked source file is over 800 lines, no line over 120 columns, no kernel's page over 150.

Stubs are exempt.
"""

from __future__ import annotations

import pathlib
import sys

from git_output import git

LIMIT, COLUMNS, PAGE = 800, 120, 150
SUFFIXES = {".c", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".py", ".sh"}


def main() -> int:
    told = git("ls-files", "--cached", "--others", "--exclude-standard")
    if told is None:
        raise SystemExit("check_sizes: the files must be those of a checkout of git.")
    paths = [
        p for p in map(pathlib.Path, told.splitlines()) if p.suffix in SUFFIXES and p.is_file()
    ]
    pages = sorted(pathlib.Path("docs/kernels").glob("*.md"))
    limits = [(p, LIMIT) for p in paths] + [(p, PAGE) for p in pages]
    long = [
        (lines, limit, p)
        for p, limit in limits
        if (lines := len(p.read_text(encoding="utf-8").splitlines())) > limit
    ]
    for lines, limit, path in long:
        print(f"{path}: {lines} lines; the limit is {limit}")
    wide = [
        (p, number, len(line))
        for p in paths
        for number, line in enumerate(p.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    for path, number, columns in wide:
        print(f"{path}:{number}: {columns} columns; the limit is {COLUMNS}")
    if not long and not wide:
        print(f"sizes: no file of {len(paths)} is over {LIMIT} lines or {COLUMNS} columns")
    return 1 if long or wide else 0


if __name__ == "__main__":
    sys.exit(main())
