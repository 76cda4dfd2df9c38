"""The reference of C++ and C: Doxygen reads the headers, Breathe puts each on its page.

Everything in the headers must be documented: Doxygen's warnings are errors. Without Doxygen or
Breathe (requirements/docs.txt) a page shows its header as it is.
"""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.errors import ExtensionError

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ROOT / "include" / "mercer"
# Breathe writes type, name and arguments one after another.
POINTER_TO_FUNCTION = re.compile(r"\(\*\)(</type>\s*<definition>.*?</definition>\s*<argsstring>)")


class HeaderAsItIs(Directive):
    """`doxygenfile` in place of Breathe's."""

    required_arguments = 1

    def run(self):
        name = self.arguments[0]
        path = HEADERS / ("c/mercer.h" if name == "mercer.h" else name)
        text = path.read_text(encoding="utf-8")
        return [nodes.literal_block(text, text, language="cpp")]


def _executable():
    own = shutil.which("doxygen", path=pathlib.Path(sys.executable).parent)
    return own or shutil.which("doxygen")


def _read_headers(app):
    folder = pathlib.Path(app.doctreedir) / "doxygen"
    index = folder / "xml" / "index.xml"
    sources = [ROOT / "docs" / "Doxyfile", *HEADERS.rglob("*.h")]
    if index.exists() and index.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return
    folder.mkdir(parents=True, exist_ok=True)
    settings = sources[0].read_text(encoding="utf-8") + f"\nOUTPUT_DIRECTORY = {folder}\n"
    done = subprocess.run(
        [_executable(), "-"], input=settings, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        index.unlink(missing_ok=True)
        raise ExtensionError(f"doxygen: {done.stderr}")
    for path in index.parent.glob("*_8h.xml"):
        xml = path.read_text(encoding="utf-8")
        path.write_text(POINTER_TO_FUNCTION.sub(r"(*\1)", xml), encoding="utf-8")


def _configure(app, config):
    config.breathe_projects = {"mercer": str(pathlib.Path(app.doctreedir) / "doxygen" / "xml")}
    config.breathe_default_project = "mercer"
    config.breathe_default_members = ("members",)
    # Each header opens the namespace anew.
    config.suppress_warnings = [*config.suppress_warnings, "duplicate_declaration.cpp"]


def setup(app):
    if importlib.util.find_spec("breathe") is None or _executable() is None:
        app.add_directive("doxygenfile", HeaderAsItIs)
    else:
        app.setup_extension("breathe")
        app.connect("config-inited", _configure)
        app.connect("builder-inited", _read_headers, priority=100)
    return {"parallel_read_safe": True}
