"""mm_ptx.ptx_inject: text in the place of the sites of annotated PTX.

CUDA code marks a site with the macros of ``ptx_inject.h``; a compiler makes PTX of it, in which
each copy of the site (of an inlined function, of an unrolled loop) is a block with registers of its
own under the same names. The text that takes its place reads and writes those registers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Inject", "InjectArg", "MutType", "PTXInject", "PtxInjectError"]

_SITE = re.compile(r"// PTX_INJECT_START (.*?)\n(.*?)// PTX_INJECT_END", re.S)
_ARGUMENT = re.compile(r"\s*// (\S+) ([moi]) (\S+) (\S+) (\S+)\s*")


class PtxInjectError(RuntimeError):
    """Annotated PTX that is not of the form; the message begins with the name of the error."""


class MutType(Enum):
    """What a site does with a variable."""

    OUT = "o"
    MOD = "m"
    IN = "i"


@dataclass(frozen=True)
class InjectArg:
    """A variable of a site: ``reg`` is the name of its register, without the %."""

    name: str
    mut_type: MutType
    data_type: str
    register_type: str
    reg: str


@dataclass(frozen=True)
class Inject:
    """A site by its name, with the number of its copies."""

    name: str
    num_args: int
    num_sites: int
    args: list[InjectArg]


class PTXInject:
    """The sites of annotated PTX; ``inject["site"]["variable"]`` is an InjectArg.

    Raises PtxInjectError for markers that are not of the form, and for sites of one name with
    different variables. It may be used as a context, which does nothing.
    """

    def __init__(self, annotated_ptx: str) -> None:
        self._ptx = annotated_ptx
        sites: dict[str, tuple[list[InjectArg], int]] = {}
        for name, body in _SITE.findall(annotated_ptx):
            arguments, count = _arguments(name, body), sites.get(name, (None, 0))[1]
            if count and sites[name][0] != arguments:
                raise PtxInjectError(f"PTX_INJECT_ERROR_INCONSISTENT_INJECTION: {name}")
            sites[name] = arguments, count + 1
        starts = annotated_ptx.count("// PTX_INJECT_START")
        if starts != sum(count for _, count in sites.values()):
            raise PtxInjectError("PTX_INJECT_ERROR_FORMATTING: a site does not end")
        self.injects = [
            Inject(name, len(arguments), count, arguments)
            for name, (arguments, count) in sites.items()
        ]

    def __getitem__(self, name: str) -> dict[str, InjectArg]:
        for inject in self.injects:
            if inject.name == name:
                return {argument.name: argument for argument in inject.args}
        raise KeyError(name)

    def render_ptx(self, ptx_stubs: Mapping[str, str]) -> str:
        """The PTX with texts, by the names of their sites; KeyError for a site without one."""
        for inject in self.injects:
            ptx_stubs[inject.name]
        return _SITE.sub(lambda match: ptx_stubs[match[1]], self._ptx)

    def print_injects(self) -> None:
        """Prints the sites and their variables."""
        for inject in self.injects:
            print(f"{inject.name}: {inject.num_sites} sites")
            for a in inject.args:
                print(f"  {a.mut_type.name:<3} {a.data_type} {a.name}: %{a.reg}, {a.register_type}")
        if not self.injects:
            print("No inject sites found.")

    def close(self) -> None:
        """Nothing: there is nothing to free."""

    def __enter__(self) -> PTXInject:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _arguments(site: str, body: str) -> list[InjectArg]:
    arguments = []
    for line in body.splitlines():
        if line.strip():
            match = _ARGUMENT.fullmatch(line)
            if not match:
                raise PtxInjectError(f"PTX_INJECT_ERROR_FORMATTING: {site}: {line.strip()}")
            register, kind, register_type, data_type, name = match.groups()
            arguments.append(InjectArg(name, MutType(kind), data_type, register_type, register))
    return arguments
