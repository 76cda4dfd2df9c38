"""``mercer zoo``: the table of named metrics and kernels."""

from __future__ import annotations

import argparse

import mercer as mc
from mercer._cli.command import Command, argument


def _row(row: dict) -> str:
    lines = [f"{row['name']} ({'metric' if row['is_metric'] else 'kernel'}): {row['text']}"]
    if row["aliases"]:
        lines.append("also: " + ", ".join(row["aliases"]))
    if row["weighted"]:
        lines.append("with weights: " + row["weighted_text"])
    for option in row["options"]:
        fixed = ", chooses the text" if option["is_static"] else ""
        lines.append(f"{option['name']} = {option['default']:g}{fixed}: {option['doc']}")
    if row["w_meaning"]:
        lines.append(f"w: {row['w_meaning']}")
    lines.append(f"values: {row['domain']}")
    lines.append(f"source: {row['source']}")
    return "\n  ".join(lines)


def _zoo(options: argparse.Namespace) -> None:
    rows = mc.zoo.table
    if options.name is not None:
        rows = [row for row in rows if options.name in (row["name"], *row["aliases"])]
        if not rows:
            mc.metric(options.name)  # raises with the known names
        print(_row(rows[0]))
        return
    for title, wanted in (("metrics", True), ("kernels", False)):
        print(f"{title}:")
        for row in rows:
            if row["is_metric"] == wanted:
                print(f"  {row['name']:<22} {row['text']}")


COMMANDS = (
    Command(
        "zoo",
        "the named metrics and kernels",
        _zoo,
        (argument("name", nargs="?", help="one of them"),),
        "mercer zoo matern52",
    ),
)
