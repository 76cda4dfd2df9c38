"""The CPU of the benchmarks: what a result must say of it."""

from __future__ import annotations

import pathlib
import platform

from . import engine, keeping
from .timing import usable_cpus


def name() -> str:
    path = pathlib.Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    names = [
        line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or "unknown"


def describe() -> dict:
    """Processor, targets, date, commit, versions."""
    versions = {}
    for library in ("mercer", "numpy", "scipy", "sklearn", "torch"):
        try:
            versions[library] = str(getattr(__import__(library), "__version__", "unknown"))
        except ImportError:
            continue
    return {
        "cpu": name(),
        "cpus": usable_cpus(),
        "clock_ghz": engine.clock_ghz(),
        "costs": engine.costs(),
        "targets": engine.targets(),
        "date": keeping.now(),
        "commit": keeping.commit(),
        "versions": versions,
    }
