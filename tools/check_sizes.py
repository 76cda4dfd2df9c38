#!/usr/bin/env python3
"""No tracked source file is over 800 lines, no line over 120 columns, no kernel's page over 150.

Stubs are exempt. A file of device text has at most 8 conditions of the preprocessor, all files
together 60: templates and codegen decide what is in a kernel (docs/design/cuda_code.md).
"""

from __future__ import annotations

import pathlib
import re
import sys

from git_output import git

LIMIT, COLUMNS, PAGE = 800, 120, 150
CONDITIONS, ALL_CONDITIONS = 8, 60
DEVICE_TEXT = pathlib.Path("src/kernels/cuda")
SUFFIXES = {".c", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".py", ".sh"}


def conditions() -> list[str]:
    """What is wrong with the preprocessor's conditions in device text."""
    counts = {
        p: len(re.findall(r"^[ \t]*#[ \t]*if", p.read_text(encoding="utf-8"), re.MULTILINE))
        for p in sorted(DEVICE_TEXT.rglob("*.*h"))
    }
    found = [
        f"{p}: {n} conditions; the limit is {CONDITIONS}"
        for p, n in counts.items()
        if n > CONDITIONS
    ]
    if (together := sum(counts.values())) > ALL_CONDITIONS:
        found.append(f"{DEVICE_TEXT}: {together} conditions; the limit is {ALL_CONDITIONS}")
    return found


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
    unclear = conditions()
    for line in unclear:
        print(line)
    if not long and not wide and not unclear:
        print(f"sizes: no file of {len(paths)} is over {LIMIT} lines or {COLUMNS} columns")
    return 1 if long or wide or unclear else 0


if __name__ == "__main__":
    sys.exit(main())
