"""What a command is: its name, its words of help, its arguments, and the function that runs it."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Refusal(Exception):
    """A mistake of the caller; printed without a traceback."""


@dataclass(frozen=True)
class Argument:
    """The arguments of ``add_argument``."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def argument(*names: str, **settings: Any) -> Argument:
    return Argument(names, settings)


@dataclass(frozen=True)
class Command:
    """``run`` takes the parsed arguments, and returns an exit code or None."""

    name: str
    help: str
    run: Callable[[argparse.Namespace], int | None]
    arguments: tuple[Argument, ...] = ()
    example: str = ""

    def add_to(self, commands: Any) -> None:
        """Adds a parser to what ``add_subparsers`` returned."""
        parser = commands.add_parser(
            self.name,
            help=self.help,
            description=self.help[0].upper() + self.help[1:] + ".",
            epilog="example:\n" + textwrap.indent(self.example, "  ") if self.example else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for one in self.arguments:
            parser.add_argument(*one.names, **one.settings)
        parser.set_defaults(run=self.run)
