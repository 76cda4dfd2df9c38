#!/usr/bin/env python3
"""Compiles the GPU kernels that come with the package, as cmake/cuda_store.txt lists them.

Runs while the package is installed, on the compiled module before there is a package. Without NVRTC
it says so in a line and makes nothing: kernels are then compiled by their first call.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import sys
import types

SOURCE = pathlib.Path(__file__).resolve().parent.parent
LISTS = ("architecture", "dtype", "layout", "shape", "verb", "formula")


def read_list(path: pathlib.Path) -> tuple[dict[str, list[list[str]]], int]:
    """The words after each kind of line, and the cap in bytes."""
    rows: dict[str, list[list[str]]] = {kind: [] for kind in LISTS}
    cap = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] == "cap_megabytes":
            cap = int(words[1]) << 20
        elif words[0] in rows:
            rows[words[0]].append(words[1:])
        else:
            raise SystemExit(f"{path}:{number}: a line must start with one of {LISTS}: {line}")
    return rows, cap


def load_module(folder: pathlib.Path) -> types.ModuleType:
    """The compiled module in this folder, as a part of the package's sources."""
    package = types.ModuleType("mercer")
    package.__path__ = [str(SOURCE / "python" / "mercer"), str(folder)]
    sys.modules["mercer"] = package
    import mercer._mercer as module
    from mercer import _libraries

    _libraries.hand_over()
    return module


def write(module: types.ModuleType, rows: dict, architectures: list[str], folder: str) -> None:
    shapes: dict[tuple[str, ...], list[tuple[int, ...]]] = {}  # that have the same verbs
    for m, n, k, *own in rows["shape"]:
        verbs = tuple(own) or tuple(words[0] for words in rows["verb"])
        shapes.setdefault(verbs, []).append((int(m), int(n), int(k)))
    for (name, *options), verbs in itertools.product(rows["formula"], shapes):
        module.write_cuda_store(
            folder,
            name,
            shapes=shapes[verbs],
            dtypes=[words[0] for words in rows["dtype"]],
            layouts=[words[0] for words in rows["layout"]],
            verbs=list(verbs),
            devices=architectures,
            **{key: float(value) for key, value in (option.split("=") for option in options)},
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--module", required=True, help="the folder of the compiled module")
    parser.add_argument("--folder", required=True, help="where the kernels go")
    parser.add_argument("--cache", required=True, help="where they are kept for the next time")
    parser.add_argument("--list", default=SOURCE / "cmake" / "cuda_store.txt", type=pathlib.Path)
    parser.add_argument("--architectures", nargs="+", default=["all"], help="some of the list's")
    options = parser.parse_args()
    os.environ["MERCER_CACHE_DIR"] = options.cache
    rows, cap = read_list(options.list)
    listed = [words[0] for words in rows["architecture"]]
    chosen = listed if options.architectures == ["all"] else options.architectures
    if unknown := set(chosen) - set(listed):
        raise SystemExit(f"store: {options.list} has {listed}. Received {sorted(unknown)}.")
    module = load_module(pathlib.Path(options.module).resolve())
    if "NVRTC: none" in module.describe_machine():
        print(
            "store: no NVRTC here, so no GPU kernels are shipped; they compile at their first use"
        )
        return 0
    write(module, rows, chosen, options.folder)
    files = list(pathlib.Path(options.folder).glob("*.mk"))
    size = sum(file.stat().st_size for file in files)
    contents = f"{len(files)} kernels for {' '.join(chosen)}, {size / 2**20:.1f} MB"
    print(f"store: {contents}")
    # mercer.info() says it.
    pathlib.Path(options.folder, "contents.txt").write_text(contents + "\n", encoding="utf-8")
    if size > cap:
        raise SystemExit(f"store: at most {cap >> 20} MB are shipped. Received {size >> 20} MB.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
