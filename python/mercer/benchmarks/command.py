"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import sys
import traceback
from collections.abc import Sequence

from . import engine, runs
from .result import Table
from .timing import one_thread, usable_cpus


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mercer.benchmarks",
        description="Mercer against the libraries installed here.",
    )
    parser.add_argument("--only", help="rows to run, separated by commas (see --list)")
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes, fewer repeats: a minute"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows and leave")
    parser.add_argument(
        "--json", metavar="FILE", default="bench_out/bench.json", help="the results"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    return parser.parse_args(arguments)


def _chosen(only: str | None) -> dict:
    rows = runs.all_rows()
    if only is None:
        return rows
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in rows]
    if unknown:
        raise SystemExit(f"no such row: {', '.join(unknown)}. The rows are {', '.join(rows)}.")
    return {name: rows[name] for name in names}


def _cpu_name() -> str:
    path = pathlib.Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    names = [
        line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or "unknown"


def _machine() -> dict:
    versions = {}
    for name in ("mercer", "numpy", "scipy", "sklearn", "torch"):
        try:
            versions[name] = str(getattr(__import__(name), "__version__", "unknown"))
        except ImportError:
            continue
    return {
        "cpu": _cpu_name(),
        "cpus": usable_cpus(),
        "clock_ghz": engine.clock_ghz(),
        "targets": engine.targets(),
        "versions": versions,
    }


def _describe(machine: dict) -> None:
    clock = machine["clock_ghz"]
    print(machine["cpu"] + (f", {clock:.2f} GHz measured" if clock else ""))
    print(", ".join(f"{name} {version}" for name, version in machine["versions"].items()))
    print("CPU time of one thread, best of interleaved repeats; * timed on some rows and scaled.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen rows, prints the table, writes the JSON file."""
    options = _parse(arguments)
    if options.list:
        print("\n".join(runs.all_rows()))
        return 0
    rows, settings, table, failed = _chosen(options.only), runs.Settings(options.quick), Table(), []
    machine = _machine()
    _describe(machine)
    table.print_head()
    with one_thread():
        for name, run in rows.items():
            try:
                for line in run(settings):
                    table.add(line)
            except Exception:  # one broken row must not cost the others
                failed.append(name)
                traceback.print_exc()
    missed = [line for line in table.lines if line.misses()]
    path = pathlib.Path(options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [line.to_dict() for line in table.lines]
    path.write_text(json.dumps({"machine": machine, "lines": lines}, indent=1) + "\n")
    print(
        f"\n{len(missed)} of {len(table.lines)} lines miss a bar; {len(failed)} rows failed."
        f" Written to {path}."
    )
    return 1 if failed or (options.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
