#!/usr/bin/env python3
"""Prints what coverage.py (`coverage json`) or gcovr (`--json-summary`) found, a line a folder.

tools/coverage_table.py FILE [--files 10]    and so many files with the most lines not reached
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence

Counts = dict[str, tuple[int, int]]  # lines that were reached, and all


def of_files(content: dict) -> Counts:
    """Counts of each file, named by its path from the root, or from the installed package on."""
    files = content["files"]
    if isinstance(files, list):
        return {f["filename"]: (f["line_covered"], f["line_total"]) for f in files}
    counts = {}
    for path, found in files.items():
        parts = pathlib.PurePath(path).parts
        start = len(parts) - parts[::-1].index("mercer") - 1 if "mercer" in parts else 0
        summary = found["summary"]
        name = str(pathlib.PurePath(*parts[start:]))
        counts[name] = (summary["covered_lines"], summary["num_statements"])
    return counts


def by_folder(files: Counts) -> Counts:
    """Sums over the files of a folder, of the folders within it apart."""
    sums: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for path, counts in files.items():
        row = sums[str(pathlib.PurePath(path).parent)]
        row[0] += counts[0]
        row[1] += counts[1]
    return {folder: (row[0], row[1]) for folder, row in sums.items()}


def table(rows: Iterable[tuple[str, tuple[int, int]]]) -> list[str]:
    rows = list(rows)
    width = max([len(name) for name, _ in rows] + [6])
    lines = [f"{'':{width}} {'lines':>7} {'missed':>7} {'reached':>8}"]
    for name, (reached, total) in rows:
        share = reached / total if total else 1.0
        lines.append(f"{name:{width}} {total:7} {total - reached:7} {share:8.1%}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=10, help="how many files are named")
    options = parser.parse_args(arguments)
    files = of_files(json.loads(options.file.read_text(encoding="utf-8")))
    folders = by_folder(files)
    whole = tuple(map(sum, zip(*files.values(), strict=True))) if files else (0, 0)
    print("\n".join(table([*sorted(folders.items()), ("all", whole)])))
    most = sorted(files.items(), key=lambda item: item[1][0] - item[1][1])[: options.files]
    if options.files and most:
        print("\nmost lines not reached")
        print("\n".join(table(most)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
