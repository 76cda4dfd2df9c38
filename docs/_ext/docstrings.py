"""Docstrings are plain text: |x|, a*b and theta_ mean themselves, and sections are lists.

A section is a heading with a rule of dashes below; its entries are ``name : text``, with lines that
go on indented. Examples (``>>>``) and what follows a ``::`` are left as they are. nanobind's list
of overloads repeats signatures, and is left out. Types of signatures lose the names of modules that
no page is about.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx import addnodes

RULE = re.compile(r"-{3,}$")
# Methods that scikit-learn adds to every estimator, with links into its own pages.
OF_SKLEARN = re.compile(r"(set_\w+_request|get_metadata_routing)$")
OVERLOAD = re.compile(r"Overloaded function\.$|\d+\. ``\w+\(.*\).*``$")
PREFIX = re.compile(r"\b(mercer\._types|collections\.abc)\.|\b_(?=[A-Z])")


def escaped(line: str) -> str:
    """A line whose characters mean themselves; what is in double backquotes does anyway."""
    parts = re.split(r"(``.*?``)", line)
    for index in range(0, len(parts), 2):
        text = parts[index].replace("*", r"\*").replace("|", r"\|")
        parts[index] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", text)
    return "".join(parts)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def plain(lines: list[str]) -> list[str]:
    """The lines as reStructuredText."""
    result: list[str] = []
    literal, in_example, in_list = None, False, False
    for line in lines:
        blank = not line.strip()
        if literal is not None and not blank and indent(line) <= literal:
            literal = None
        in_example = not blank and (in_example or line.lstrip().startswith(">>>"))
        if literal is not None or in_example or blank:
            result.append(line)
            in_list = in_list and not blank
            continue
        if RULE.match(line) and result:
            heading = result.pop().removeprefix("- ")
            result += [f".. rubric:: {heading}", ""]
            in_list = heading in ("Parameters", "Attributes", "Returns", "Raises")
            continue
        if in_list:
            result.append(("- " if indent(line) == 0 else "  ") + escaped(line.strip()))
        else:
            result.append(escaped(line))
        if line.rstrip().endswith("::"):
            literal = indent(line)
    return result


def _docstring(app, what, name, obj, options, lines) -> None:
    signature = name.rpartition(".")[2] + "("
    lines[:] = plain([
        line for line in lines if not (OVERLOAD.match(line) or line.startswith(signature))
    ])  # fmt: skip


def _skipped(app, what, name, obj, skip, options) -> bool | None:
    return True if OF_SKLEARN.match(name) else None


def _short_types(app, doctree) -> None:
    for signature in doctree.findall(addnodes.desc_signature):
        for text in list(signature.findall(nodes.Text)):
            if PREFIX.search(text):
                text.parent.replace(text, nodes.Text(PREFIX.sub("", text)))


def setup(app) -> dict:
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-skip-member", _skipped)
    app.connect("doctree-read", _short_types)
    return {"parallel_read_safe": True}
