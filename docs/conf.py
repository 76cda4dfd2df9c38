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

extensions = [
    "sphinx.ext.autodoc", "sphinx.ext.mathjax", "myst_parser", "sphinx_gallery.gen_gallery",
    "cpp_reference", "docstrings", "tables",
]  # fmt: skip
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 90  # longer ones have a line for each parameter
exclude_patterns = ["_build"]

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "plot_gallery": built,
    "filename_pattern": "",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 60,
    "image_scrapers": ("matplotlib",),
}

# Links within these pages must lead somewhere; types of signatures that have no page are named.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(collections|concurrent|dask|gpytorch|jax|linear_operator|np|numpy|scipy)\..*"),
    (r"py:.*", r"(da|sklearn|torch|types|typing)\..*"),
    (r"py:.*", r"_?(Array|ArrayT|ExprLike|FormulaLike|Indices|Numbers|Parameter|ScalarT)"),
    (r"py:.*", r"(mercer\.(.*\.)?)?_\w+(\.\w+)*"),
    (r"py:.*", r"LinearOperator|Sequence|Tensor|Tuned"),
    (r"cpp:identifier", r"u?int\d+_t|size_t|LowRankParts|Prepared|State|(cuda|ir|ops)(::\w+)?"),
    (r"std:ref", r"\w+_8h"),  # Doxygen's pages of headers, which Breathe does not make
]

html_theme = "furo" if importlib.util.find_spec("furo") else "alabaster"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_title = f"Mercer {release}"
