#!/usr/bin/env python3
"""Compares two runs of the benchmarks on one machine, row by row.

    python bench/compare.py BEFORE.json AFTER.json [--threshold 1.1] [--all]

A ratio is the time after over the time before: above 1 a row got slower. Either side may be several
files of the same code, joined by commas: times are then medians, and the spread of a ratio is from
the least time after over the most time before to the most over the least. The column "peer" has the
ratio of the other library's times, which shows what the machine did meanwhile.

A row is slower where even the lower end of its spread is above the threshold. Exit code: 0 without
such rows, 1 with some, 2 for files that cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MACHINE = ("cpu", "cpus", "gpu", "multiprocessors", "power_limit")  # what must agree
NAME = ("row", "data", "shape", "dtype", "target")  # what tells rows apart
UNITS = {"ms": 1e-3, "seconds": 1.0}


class Incomparable(Exception):
    """Files whose times say nothing of one another."""


@dataclass
class Times:
    """Seconds of a row, one a file, and those of its peers by their names."""

    ours: list[float] = field(default_factory=list)
    peers: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Pair:
    """A row of both sides."""

    name: str
    before: float
    after: float
    low: float
    high: float
    peer: float | None

    @property
    def ratio(self) -> float:
        return self.after / self.before


def seconds_of(line: dict, prefix: str = "") -> float | None:
    """The time of a line, or that of its peer; None where it has none."""
    for unit, scale in UNITS.items():
        value = line.get(prefix + unit)
        if value is not None and math.isfinite(value) and value > 0:
            return value * scale
    return None


def name_of(line: dict) -> str:
    parts = [line.get(key) for key in NAME]
    return " ".join("x".join(map(str, p)) if isinstance(p, list) else str(p) for p in parts if p)


def of_file(content: dict) -> dict[str, Times]:
    """The rows of one file. A row with several peers has a line each, with one time of its own;
    rows of one name with different times are numbered."""
    rows: dict[str, Times] = {}
    for line in content["lines"]:
        base, own, peer = name_of(line), seconds_of(line), seconds_of(line, "peer_")
        name, number = base, 1
        while own is not None and name in rows and rows[name].ours not in ([], [own]):
            number += 1
            name = f"{base} #{number}"
        row = rows.setdefault(name, Times())
        if own is not None:
            row.ours = [own]
        if peer is not None:
            row.peers.setdefault(line.get("peer", ""), []).append(peer)
    return rows


def joined(contents: Iterable[dict]) -> dict[str, Times]:
    """The rows of several files of the same code."""
    rows: dict[str, Times] = {}
    for content in contents:
        for name, times in of_file(content).items():
            row = rows.setdefault(name, Times())
            row.ours += times.ours
            for peer, seconds in times.peers.items():
                row.peers.setdefault(peer, []).extend(seconds)
    return {name: row for name, row in rows.items() if row.ours}


def peer_ratio(before: Times, after: Times) -> float | None:
    """The geometric mean over the peers that both have."""
    shared = before.peers.keys() & after.peers.keys()
    median = statistics.median
    ratios = [median(after.peers[name]) / median(before.peers[name]) for name in shared]
    return statistics.geometric_mean(ratios) if ratios else None


def pair(name: str, before: Times, after: Times) -> Pair:
    return Pair(
        name,
        statistics.median(before.ours),
        statistics.median(after.ours),
        min(after.ours) / max(before.ours),
        max(after.ours) / min(before.ours),
        peer_ratio(before, after),
    )


def require_one_machine(contents: Sequence[dict]) -> None:
    """The first file's machine must be that of all."""
    first = contents[0].get("machine", {})
    for other in contents[1:]:
        machine = other.get("machine", {})
        differ = [key for key in MACHINE if first.get(key) != machine.get(key)]
        if differ:
            key = differ[0]
            raise Incomparable(
                f"files must be of one machine (--any-machine: whatever they say). "
                f"Received {key} {first.get(key)} and {machine.get(key)}"
            )


def read(paths: str) -> list[dict]:
    contents = []
    for path in paths.split(","):
        try:
            content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Incomparable(f"{path}: {error}") from error
        if not isinstance(content, dict) or "lines" not in content:
            raise Incomparable(f"a file must have 'lines', as the benchmarks write them: {path}")
        contents.append(content)
    return contents


def time_text(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def line_text(p: Pair, width: int) -> str:
    peer = "" if p.peer is None else f"{p.peer:.2f}"
    spread = "" if p.low == p.high else f"{p.low:.2f} to {p.high:.2f}"
    times = f"{time_text(p.before):>9} {time_text(p.after):>9}"
    return f"{p.name:{width}} {times} {p.ratio:6.2f} {spread:>13} {peer:>6}".rstrip()


def print_rows(pairs: Sequence[Pair]) -> None:
    width = max(len(p.name) for p in pairs)
    head = f"{'row':{width}} {'before':>9} {'after':>9} {'ratio':>6} {'spread':>13} {'peer':>6}"
    print(head)
    for p in sorted(pairs, key=lambda p: -p.ratio):
        print(line_text(p, width))


def print_summary(pairs: Sequence[Pair], alone: Sequence[str]) -> None:
    ratios = [p.ratio for p in pairs]
    low, middle, high = (
        statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    print(
        f"\n{len(pairs)} rows of both: geometric mean {statistics.geometric_mean(ratios):.3f}, "
        f"median {middle:.3f}, quartiles {low:.3f} and {high:.3f}"
    )
    if peers := [p.peer for p in pairs if p.peer is not None]:
        mean = statistics.geometric_mean(peers)
        print(f"the peers of {len(peers)} rows: geometric mean {mean:.3f}")
    if alone:
        print(f"{len(alone)} rows of one side only: {', '.join(alone)}")


def compare(before: Sequence[dict], after: Sequence[dict], threshold: float, every: bool) -> int:
    """Prints the comparison; 1 if a row got slower."""
    old, new = joined(before), joined(after)
    pairs = [pair(name, old[name], new[name]) for name in old if name in new]
    if not pairs:
        raise Incomparable("files must have rows in common. Received none")
    slower = [p for p in pairs if p.low > threshold]
    changed = [p for p in pairs if p.low > threshold or p.high < 1 / threshold]
    if shown := pairs if every else changed:
        print_rows(shown)
    print_summary(pairs, sorted(old.keys() ^ new.keys()))
    if slower:
        names = ", ".join(p.name for p in sorted(slower, key=lambda p: -p.ratio))
        print(f"slower by more than {threshold:g}: {names}")
    else:
        print(f"no row is slower by more than {threshold:g}")
    return 1 if slower else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="a file, or several joined by commas")
    parser.add_argument("after", help="a file, or several joined by commas")
    parser.add_argument("--threshold", type=float, default=1.1, help="a ratio above it is slower")
    parser.add_argument("--all", action="store_true", help="print rows that did not change, too")
    parser.add_argument("--any-machine", action="store_true", help="whatever the machines are")
    options = parser.parse_args(arguments)
    if not options.threshold >= 1:
        parser.error(f"--threshold must be at least 1. Received {options.threshold}")
    try:
        before, after = read(options.before), read(options.after)
        if not options.any_machine:
            require_one_machine([*before, *after])
        return compare(before, after, options.threshold, options.all)
    except Incomparable as error:
        print(f"compare: {error}.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
