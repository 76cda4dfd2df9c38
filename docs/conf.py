"""Sphinx: `make docs`, or `sphinx-build docs docs/_build`. What is not built is mocked."""

import importlib.util
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "_ext"))

built = importlib.util.find_spec("mercer") is not None
if not built:
    sys.path.insert(0, str(ROOT / "python"))
    autodoc_mock_imports = ["mercer._mercer", "numpy", "dask"]
    suppress_warnings = ["autodoc", "autodoc.mocked_object"]

project = "Mercer"
author = "The Mercer contributors"
copyright = f"{author}"
release = re.search(
    r"VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text().split("project(")[1]
)[1]

extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "myst_parser", "tables", "cpp_reference"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
exclude_patterns = ["_build"]
nitpicky = False

html_theme = "furo" if importlib.util.find_spec("furo") else "alabaster"
html_static_path = ["_static"]
html_title = f"Mercer {release}"


def _plain_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: |x| and a*b mean themselves."""
    for index, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[index] = line.replace("*", r"\*").replace("|", r"\|")


def setup(app):
    app.connect("autodoc-process-docstring", _plain_text)
