#!/usr/bin/env python3
"""Folder = stage: a file under src/ includes only from its own folder and those to its left.

    core | ir | formula | plan | codegen | jit | backend | ops

Public headers (mercer/...) are everybody's. Prints each offending include as file:line and exits 1.
"""

from __future__ import annotations

import pathlib
import re
import sys

STAGES = ["core", "ir", "formula", "plan", "codegen", "jit", "backend", "ops"]
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def offences(src: pathlib.Path) -> list[str]:
    found = []
    for path in sorted(p for p in src.rglob("*") if p.suffix in {".h", ".cpp", ".inc"}):
        stage = path.relative_to(src).parts[0]
        if stage not in STAGES:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1).split("/")[0]
            if target in STAGES and STAGES.index(target) > STAGES.index(stage):
                found.append(
                    f'{path}:{number}: {stage}/ includes "{match.group(1)}", '
                    f"but {target}/ lies to its right"
                )
    return found


def main() -> int:
    src = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "src")
    found = offences(src)
    print("\n".join(found) if found else f"layers: {' | '.join(STAGES)} hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
