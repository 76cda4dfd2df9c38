#!/usr/bin/env python3
"""``check_symbols.py PREFIX``: the installed libraries show what their headers declare, no more.

A function that a header in PREFIX/include declares and does not define must be exported; what is
exported must be declared there, but for symbols of the version MERCER_PRIVATE, which are those that
libmercer_fastkron takes. Each library has its SONAME, and no path of the build.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#(?:\\\n|[^\n])*", re.S | re.M)
SCOPE = re.compile(r"^\s*(?:namespace|class|struct)\s+([\w:]+)(?:\s*:\s*[\w\s:]+)?$")
FUNCTION = re.compile(r"^[^(=]*?(operator[^\w\s(]+|~?\w+)\s*\(")
NO_DECLARATION = re.compile(r"^(?:typedef|using|friend|template)\b|=\s*(?:default|delete|here)$")
PLAIN = re.compile(r"(?:\w+::)*(?:operator[^\w(]+|~?\w+)")
THROWN = ("Cancelled", "Error")
TYPES = {f"{of} for mercer::{n}" for of in ("typeinfo", "typeinfo name", "vtable") for n in THROWN}


def without_bodies(text: str) -> str:
    """A header as declarations; a function that is defined in it ends on ``= here;``."""
    text = COMMENT.sub("", text).replace('extern "C" {', "")
    kept, start, depth, parentheses = [], 0, 0, 0
    for index, character in enumerate(text):
        parentheses += (character == "(") - (character == ")")
        if depth:
            depth += (character == "{") - (character == "}")
            if depth == 0:
                kept.append("" if parentheses else " = here;")
                start = index + 1
        elif character == "{":
            statement = re.split(r"[;{}]|\w+:(?!:)", text[start:index])[-1]
            if not SCOPE.match(statement.rstrip()):
                kept.append(text[start:index])
                depth = 1
    return "".join([*kept, text[start:]])


def declared(header: pathlib.Path) -> set[str]:
    """Qualified names of the functions that a header declares and leaves to the library."""
    found, scopes = set(), []
    for words, end in re.findall(r"([^;{}]*)([;{}])", without_bodies(header.read_text("utf-8"))):
        statement = re.sub(r"\b(?:public|private):", "", words).strip()
        if end == "{":
            scope = SCOPE.match(statement)
            scopes.append(scope[1] if scope else "")
        elif end == "}":
            scopes = scopes[:-1]
        elif not NO_DECLARATION.search(statement):
            for _ in range(3):  # templates in templates
                statement = re.sub(r"(?<!operator)<[^<>]*>", "", statement)
            if name := FUNCTION.match(statement):
                found.add("::".join([*filter(None, scopes), name[1]]))
    return found


def output(*command: object) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbols(library: pathlib.Path, which: str) -> list[tuple[str, str]]:
    """Demangled symbols with their versions."""
    lines = output("nm", "-DC", "--with-symbol-versions", which, library).splitlines()
    rows = (re.match(r"[0-9a-f ]{16} (\w) (.*?)(?:@+([\w.]+))?$", line) for line in lines)
    return [(row[2], row[3] or "") for row in rows if row and row[1] != "A"]


def plain(symbol: str) -> str:
    """``mercer::abs(mercer::Expr const&)`` is ``mercer::abs``."""
    return symbol if " for " in symbol else PLAIN.match(symbol)[0]


def compare(what: str, left: set[str], right: set[str]) -> list[str]:
    return [f"{what}: {name}" for name in sorted(left ^ right)]


def dynamic_faults(library: pathlib.Path) -> list[str]:
    text = output("readelf", "-d", library)
    name, found = re.search(r"soname: \[(.*?)\]", text), []
    if name is None or not re.fullmatch(rf"{re.escape(library.name)}\.\d+\.\d+", name[1]):
        found.append(f"{library.name}: SONAME {name and name[1]}")
    for path in re.findall(r"R(?:UN)?PATH.*\[(.*?)\]", text):
        if path != "$ORIGIN":
            found.append(f"{library.name}: searches {path}")
    return found


def faults(prefix: pathlib.Path) -> list[str]:
    library = next(iter(sorted(prefix.glob("lib*/**/libmercer.so"))))
    fastkron = library.with_name("libmercer_fastkron.so")
    headers = prefix / "include" / "mercer"
    public = set[str]().union(*map(declared, [*headers.glob("*.h"), *headers.glob("c/*.h")]))
    of_fastkron = set[str]().union(*map(declared, headers.glob("compat/*.h")))
    shown = symbols(library, "--defined-only")
    seen = {plain(name) for name, version in shown if version != "MERCER_PRIVATE"}
    private = {name for name, version in shown if version == "MERCER_PRIVATE"}
    taken = {name for name, v in symbols(fastkron, "--undefined-only") if v == "MERCER_PRIVATE"}
    seen_in_fastkron = {plain(name) for name, _ in symbols(fastkron, "--defined-only")}
    return [
        *compare("libmercer.so or its headers alone have", public | TYPES, seen),
        *compare("libmercer_fastkron.so or its headers alone have", of_fastkron, seen_in_fastkron),
        *compare("MERCER_PRIVATE is not what is taken", private, taken),
        *dynamic_faults(library),
        *dynamic_faults(fastkron),
    ]


def main() -> int:
    prefix = pathlib.Path(sys.argv[1])
    found = faults(prefix)
    print("\n".join(found) if found else f"symbols: {prefix} exports what its headers declare")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
