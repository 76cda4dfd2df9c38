#!/usr/bin/env python3
"""Folder = stage: a file under src/ includes only from its own folder and those to its left.

    core | ir | formula | plan | codegen | jit | backend | ops | c_api | compat

The rooms of a stage, its inner folders, have an order too (ROOMS): a file includes from its own
room and those to its left. Rooms that stand together in the order do not see each other.

Public headers (mercer/...) are everybody's. src/kernels/ is no stage but device text, the data of
codegen; its files include only each other, by their paths from src/kernels/cuda/ on, as all others
do from src/ on: a path from the file's own folder would hide its stage. Its headers
*.h, the arguments that host and device share, are plain C++ and seen from codegen on; the rest is
text to the host. Prints each offending include as file:line and exits 1.
"""

from __future__ import annotations

import pathlib
import re
import sys

STAGES = ["core", "ir", "formula", "plan", "codegen", "jit", "backend", "ops", "c_api", "compat"]
KERNELS = "kernels"
DEVICE_TEXT = "kernels/cuda"
# The rooms of a folder, left to right; "" has the files of the folder itself.
ROOMS: dict[str, list[str | tuple[str, ...]]] = {
    "core": ["", "system", "devices"],
    "ir": ["", "expr", "passes", "lower"],
    "plan": ["", "forms", "backward", ("cpu", "gpu"), "kron", "targets"],
    "codegen": ["", ("x86", "interpreter", "cuda")],
    "backend": ["", ("cpu", "cuda")],
    "backend/cpu": ["", "pack", "pairs", ("gradient", "linalg", "kron")],
    "backend/cuda": ["", "runtime", "gemm", "pairs", ("gradient", "linalg", "kron")],
    DEVICE_TEXT: ["", "common", "pairs", "pack", "gemm", ("nearest", "gradient", "kron", "linalg")],
    "ops": ["costs", "", "tune", "call", "gpu", "pairs", ("linalg", "kron", "explain")],
}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def offence(src: pathlib.Path, stage: str, included: str) -> str | None:
    """Why a file of this stage must not include that, if so."""
    target = included.split("/")[0]
    if stage == KERNELS:
        if (src / DEVICE_TEXT / included).is_file():
            return None
        return f'device text includes "{included}", which is no file of {DEVICE_TEXT}/'
    if target == KERNELS and STAGES.index(stage) < STAGES.index("codegen"):
        return f'{stage}/ includes "{included}", but device text is seen from codegen/ on only'
    if target == KERNELS and not included.endswith(".h"):
        return f'{stage}/ includes "{included}", but of device text only headers (*.h) are C++'
    if target in STAGES and STAGES.index(target) > STAGES.index(stage):
        return f'{stage}/ includes "{included}", but {target}/ lies to its right'
    return None


def room_of(path: str, folder: str) -> str:
    """The room of `folder` that a path under it lies in."""
    return path.removeprefix(f"{folder}/").rpartition("/")[0].partition("/")[0]


def place_of(room: str, folder: str) -> int | None:
    for place, rooms in enumerate(ROOMS[folder]):
        if room in (rooms if isinstance(rooms, tuple) else (rooms,)):
            return place
    return None


def room_offence(path: str, included: str) -> str | None:
    """Why a file in this place of src/ must not include that one, of the same stage, if so."""
    for folder in ROOMS:
        if not path.startswith(f"{folder}/"):
            continue
        room = room_of(path, folder)
        place = place_of(room, folder)
        if place is None:
            return f"{folder}/{room}/ is no room of the table in tools/check_layers.py"
        if not included.startswith(f"{folder}/"):
            continue
        other = room_of(included, folder)
        if other == room:
            continue
        there = place_of(other, folder)
        if there is None or there > place:
            where = "lies to its right"
        elif there == place:
            where = "is its neighbour"
        else:
            continue
        rooms = [f"{folder}/{name}".rstrip("/") for name in (room, other)]
        return f'{rooms[0]}/ includes "{included}", but {rooms[1]}/ {where}'
    return None


def offences(src: pathlib.Path) -> list[str]:
    found = []
    for path in sorted(p for p in src.rglob("*") if p.suffix in {".h", ".cpp", ".inc", ".cuh"}):
        stage = path.relative_to(src).parts[0]
        if stage not in (*STAGES, KERNELS):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            included = match.group(1)
            place = f"{DEVICE_TEXT}/{included}" if stage == KERNELS else included
            reason = offence(src, stage, included) or room_offence(
                path.relative_to(src).as_posix(), place
            )
            is_next = (path.parent / included).is_file() and not (src / place).is_file()
            if reason is None and is_next:
                reason = f'"{included}" is a path from the file\'s own folder, not from {src.name}/'
            if reason:
                found.append(f"{path}:{number}: {reason}")
    return found


def main() -> int:
    src = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "src")
    found = offences(src)
    print("\n".join(found) if found else f"layers: {' | '.join(STAGES)} hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
