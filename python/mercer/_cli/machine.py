"""``mercer info`` and ``mercer env``: what is there, and what decides."""

from __future__ import annotations

import argparse

import mercer as mc
from mercer import _mercer
from mercer._cli.command import Command


def _info(_: argparse.Namespace) -> None:
    print(mc.info().rstrip())


def _env(_: argparse.Namespace) -> None:
    for name, default, doc in _mercer.env_rows():
        print(f"{name:<20} {doc}\n{'':<20} default: {default or 'empty'}")


COMMANDS = (
    Command("info", "this machine and what Mercer chose", _info),
    Command("env", "the environment variables that Mercer reads", _env),
)
