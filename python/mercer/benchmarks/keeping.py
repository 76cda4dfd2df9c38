"""Results kept by machine, date and commit: ``runs/amd-epyc-2026-11-30-1a2b3c4d.json``."""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import subprocess
from collections.abc import Sequence

RUNS = pathlib.Path("bench/results/runs")  # of a checkout, the folder where the program runs


def commit() -> str:
    """The checkout's commit, with a + where files differ from it; empty outside of a checkout."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def now() -> str:
    """The date and time of day, UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def name_of(machine: dict) -> str:
    """The first words of the name of the GPU or CPU, the date and the commit."""
    words = re.findall(r"[a-z0-9]+", (machine.get("gpu") or machine["cpu"]).lower())
    parts = [*words[:3], machine["date"][:10], machine.get("commit", "").replace("+", "-changed")]
    return "-".join(filter(None, parts))


def write(path: pathlib.Path, machine: dict, lines: Sequence[dict], failed: Sequence[str]) -> None:
    """One file of results."""
    content = {"machine": machine, "lines": list(lines), "failed": list(failed)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def keep(
    machine: dict,
    lines: Sequence[dict],
    failed: Sequence[str] = (),
    *,
    program: str = "",
    folder: pathlib.Path = RUNS,
) -> pathlib.Path:
    """Writes a file of its own, which no later run replaces; its path. ``program``: other than the
    benchmarks of the package."""
    stem = "-".join(filter(None, (program, name_of(machine))))
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    write(path, machine, lines, failed)
    return path
