"""``mercer cache``: the compiled GPU kernels on disk."""

from __future__ import annotations

import argparse

from mercer import _mercer
from mercer._cli.command import Command, argument

# What is said before the name of a file of each kind.
_KEPT = {"cubin": "", "tile": "tile of ", "kron": "plan of ", "cpu": "costs of "}


def _age(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _list(path: str, files: int, size: int) -> None:
    for key, name, number, age in _mercer.cache_files():
        kind, *fields = key.decode(errors="replace").split("\n")
        if kind in _KEPT:  # then the architecture
            text = _KEPT[kind] + name.decode(errors="replace")
            print(f"{number:>10}  {_age(age):>5}  {fields[0]:<8}  {text}")
    print(f"{files} files, {size} bytes in {path or 'no folder: the cache is off'}")
    print("Code for the CPU is emitted in memory within a millisecond and is not kept here.")


def _run(options: argparse.Namespace) -> None:
    path, (files, size) = _mercer.cache_path(), _mercer.cache_stats()
    if options.action == "path":
        print(path or "off")
    elif options.action == "list":
        _list(path, files, size)
    else:
        _mercer.cache_clear()
        print(f"removed {files} files, {size} bytes")


COMMANDS = (
    Command(
        "cache",
        "the compiled GPU kernels on disk",
        _run,
        (argument("action", choices=["list", "clear", "path"]),),
        "mercer cache clear",
    ),
)
