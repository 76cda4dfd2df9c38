"""Directives that print Mercer's own tables, so that the documentation cannot fall behind the code.

``{zoo-table} metrics``, ``{zoo-table} kernels``: the rows of src/formula/zoo.cpp, from the package.
``{env-table}``: the environment variables, read from src/core/env.cpp.
"""

from __future__ import annotations

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
    return ", ".join(f"{option['name']} = {option['default']:g}" for option in row["options"])


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
        source = ROOT / "src" / "core" / "env.cpp"
        self.env.note_dependency(str(source))
        rows = ENV_ROW.findall(source.read_text(encoding="utf-8"))
        body = [[_code(name), doc, default or "empty"] for name, default, doc in rows]
        return [table(["variable", "meaning", "default"], body, [22, 50, 28])]


def setup(app) -> dict:
    app.add_directive("zoo-table", ZooTable)
    app.add_directive("env-table", EnvTable)
    return {"parallel_read_safe": True}
