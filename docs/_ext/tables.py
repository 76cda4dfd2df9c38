"""Directives that print Mercer's own tables, so that the documentation cannot go out of date.

``{zoo-table} metrics``, ``{zoo-table} kernels``: the rows of src/formula/zoo.cpp, from the package.
``{env-table}``: the environment variables, read from src/core/system/env.cpp.
``{bench-table} h200``: the newest file of that GPU in bench/results.
"""

from __future__ import annotations

import json
import pathlib
import re

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

ROOT = pathlib.Path(__file__).parents[2]
# {"NAME", "default", "doc"}, on one line or two.
ENV_ROW = re.compile(r'\{"(MERCER_\w+)",\s*"([^"]*)",\s*"([^"]*)"\}')


def _cell(content: str | list[nodes.Node]) -> nodes.entry:
    entry = nodes.entry()
    children = [nodes.Text(content)] if isinstance(content, str) else content
    paragraph = nodes.paragraph()
    paragraph.extend(children)
    entry += paragraph
    return entry


def table(head: list[str], body: list[list], widths: list[int]) -> nodes.table:
    """A table of texts, or of lists of inline nodes."""
    result = nodes.table(classes=["longtable"])
    group = nodes.tgroup(cols=len(head))
    result += group
    group.extend(nodes.colspec(colwidth=width) for width in widths)
    for part, rows in ((nodes.thead(), [head]), (nodes.tbody(), body)):
        for cells in rows:
            row = nodes.row()
            row.extend(_cell(cell) for cell in cells)
            part += row
        group += part
    return result


def _code(text: str) -> list[nodes.Node]:
    return [nodes.literal(text, text)]


def _options(row: dict) -> str:
    numbers = [f"{option['name']} = {option['default']:g}" for option in row["options"]]
    return ", ".join(numbers + [f"w: {row['w_meaning']}"] * bool(row["w_meaning"]))


def _zoo_rows() -> list[dict]:
    try:
        from mercer import zoo
    except ImportError:  # not built
        return []
    return zoo.table


class ZooTable(SphinxDirective):
    """The metrics or the kernels of the zoo."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        wanted = self.arguments[0] == "metrics"
        rows = [row for row in _zoo_rows() if row["is_metric"] == wanted]
        if not rows:
            text = (
                "The package was not built when this page was made; mercer.zoo.table has the rows."
            )
            return [nodes.paragraph(text, text)]
        body = [
            [
                _code(row["name"]),
                ", ".join(row["aliases"]),
                _code(row["text"]),
                _options(row),
                row["domain"],
            ]
            for row in rows
        ]
        return [table(["name", "also", "formula", "options", "values"], body, [14, 14, 44, 16, 12])]


class EnvTable(SphinxDirective):
    """The environment variables."""

    def run(self) -> list[nodes.Node]:
        source = ROOT / "src" / "core" / "system" / "env.cpp"
        self.env.note_dependency(str(source))
        rows = ENV_ROW.findall(source.read_text(encoding="utf-8"))
        body = [[_code(name), doc, default or "empty"] for name, default, doc in rows]
        return [table(["variable", "meaning", "default"], body, [22, 50, 28])]


def _milliseconds(ms: float | None) -> str:
    if ms is None:
        return ""
    if ms >= 1000:
        return f"{ms / 1e3:.3g} s"
    return f"{ms:.3g} ms" if ms >= 0.02 else f"{1e3 * ms:.3g} µs"


def _bench_cells(line: dict) -> list[str]:
    bar = _milliseconds(line["least"])
    peer = f"{line['peer']}, {_milliseconds(line['peer_ms'])}" if line["peer"] else ""
    return [
        line["row"],
        "x".join(map(str, line["shape"])),
        _milliseconds(line["ms"]),
        "" if line["of_floor"] is None else f"{line['of_floor']:.0%}",
        bar + (" missed" if "time" in line["misses"] else ""),
        "" if line["error"] is None else f"{line['error']:.1e}",
        peer + ("*" if line["peer_scaled"] else ""),
        "" if line["ratio"] is None else f"{line['ratio']:.3g}",
    ]


class BenchTable(SphinxDirective):
    """The newest results kept of a GPU."""

    required_arguments = 1
    HEAD = ("row", "shape", "time", "of floor", "bar", "error", "compared with", "times as long")

    def run(self) -> list[nodes.Node]:
        files = sorted((ROOT / "bench" / "results").glob(f"{self.arguments[0]}-*.json"))
        if not files:
            text = "No results are kept here yet; make bench measures on your machine."
            return [nodes.paragraph(text, text)]
        self.env.note_dependency(str(files[-1]))
        content = json.loads(files[-1].read_text(encoding="utf-8"))
        machine = content["machine"]
        text = f"{machine['gpu']}, driver {machine['driver']}, {machine['date'][:10]}; * scaled."
        body = [_bench_cells(line) for line in content["lines"]]
        return [
            nodes.paragraph(text, text),
            table(list(self.HEAD), body, [14, 17, 11, 8, 12, 9, 22, 7]),
        ]


def setup(app) -> dict:
    app.add_directive("zoo-table", ZooTable)
    app.add_directive("env-table", EnvTable)
    app.add_directive("bench-table", BenchTable)
    return {"parallel_read_safe": True}
