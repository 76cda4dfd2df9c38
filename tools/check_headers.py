#!/usr/bin/env python3
"""``check_headers.py PREFIX PAGE…``: each installed header stands alone, and examples compile.

What lies between \\code and \\endcode in a comment of a header, or in a block of C++ on a page, is
taken for the body of a function that finds some arrays, a formula and arguments declared.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile

GIVEN = """
#include <cstdio>
#include "mercer/c/mercer.h"
#include "mercer/mercer.h"
extern const mercer::Formula f;
extern const mercer::Arguments arguments;
extern const mercer::Tensor x, z, out;
extern const std::vector<mercer::Tensor> factors;
extern const mercer::kron::Options options;
"""
OF_C = "mercer_tensor x = {}, z = {}, out = {};"


def examples(header: pathlib.Path) -> list[str]:
    text = header.read_text("utf-8")
    found = re.findall(r"^ *///? ?\\code$(.*?)^ *///? ?\\endcode$", text, re.S | re.M)
    return [re.sub(r"^ *///? ?", "", code, flags=re.M) for code in found]


def blocks(page: pathlib.Path) -> list[str]:
    return re.findall(r"^```cpp\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)


def body(number: int, given: str, code: str) -> str:
    return f"void example_{number}() {{ {given}\n{code}}}\n"


def compiles(text: str, suffix: str, options: list[str]) -> str:
    """What the compiler says against it."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "header" + suffix)
        source.write_text(text, "utf-8")
        command = [*options, "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", source]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def main() -> int:
    include = pathlib.Path(sys.argv[1]).resolve() / "include"
    cpp = [os.environ.get("CXX", "c++"), "-std=c++20", f"-I{include}", "-Wno-unused-variable"]
    c = [os.environ.get("CC", "cc"), "-std=c99", f"-I{include}"]
    headers = sorted((include / "mercer").glob("*.h"))
    of_c = include / "mercer" / "c" / "mercer.h"
    for_c = [of_c, *sorted((include / "mercer" / "compat").glob("*.h"))]
    alone = "".join(f'#include "mercer/{header.name}"\n' for header in headers)
    bodies, faults = [], [compiles(f'#include "{h}"\nint only;\n', ".c", c) for h in for_c]
    for header in [*headers, of_c]:
        found = examples(header)
        if not found and header.name != "mercer.h":
            faults.append(f"{header}: has no example\n")
        arrays = OF_C if header == of_c else ""
        for code in found:
            bodies.append(body(len(bodies), arrays, code))
    for code in [code for page in sys.argv[2:] for code in blocks(pathlib.Path(page))]:
        bodies.append(body(len(bodies), "using namespace mercer;", code))
    faults.append(compiles(alone + GIVEN + "".join(bodies), ".cpp", cpp))
    faults += [compiles(f'#include "{h}"\n', ".cpp", cpp) for h in [*headers, *for_c]]
    print(
        "".join(faults)
        or f"headers: {len(headers) + len(for_c)} stand alone, {len(bodies)} examples compile"
    )
    return 1 if any(faults) else 0


if __name__ == "__main__":
    sys.exit(main())
