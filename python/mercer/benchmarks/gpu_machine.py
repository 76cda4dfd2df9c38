"""The GPU of the benchmarks: whether there is one, and what a result must say of it."""

from __future__ import annotations

import platform
import subprocess

from . import keeping


def why_not(device: str = "cuda:0") -> str:
    """Empty when PyTorch can use this device, else the reason."""
    try:
        import torch
    except ImportError:
        return "PyTorch, which holds the arrays and times the calls, is not installed"
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    index = torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        return f"PyTorch sees {torch.cuda.device_count()} CUDA devices"
    return ""


def _asked(device: str, fields: str) -> list[str]:
    """What nvidia-smi says; empty where there is none."""
    command = ["nvidia-smi", f"--id={device.partition(':')[2] or 0}", f"--query-gpu={fields}"]
    try:
        text = subprocess.run(
            [*command, "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [field.strip() for field in text.strip().split(",")]


def clock_mhz(device: str) -> int | None:
    """The clock of the device's multiprocessors; None where nvidia-ml-py is not installed or does
    not know the device."""
    import torch

    try:
        return torch.cuda.clock_rate(device)
    except Exception:  # its errors are of classes that only it has
        return None


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("mercer", "numpy", "torch"):
        try:
            found[name] = str(getattr(__import__(name), "__version__", "unknown"))
        except ImportError:
            continue
    return found


def describe(device: str) -> dict:
    """Hardware, driver, date, versions."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    fields = _asked(device, "driver_version,clocks.max.sm,power.limit")
    return {
        "gpu": torch.cuda.get_device_name(device),
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": fields[0] if fields else "unknown",
        "most_clock": fields[1] if len(fields) > 1 else "unknown",
        "power_limit": fields[2] if len(fields) > 2 else "unknown",
        "cuda": str(torch.version.cuda),
        "date": keeping.now(),
        "commit": keeping.commit(),
        "versions": versions(),
    }


def headline(machine: dict) -> str:
    names = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['gpu']}, {machine['multiprocessors']} multiprocessors, up to "
        f"{machine['most_clock']}, driver {machine['driver']}, CUDA {machine['cuda']}\n{names}\n"
        "CUDA events, median after a warm-up; * timed on some rows and scaled. Errors are relative,"
        " against float64.\n"
    )
