"""Each example of the gallery runs, and its assertions hold."""

from __future__ import annotations

import pathlib
import runpy
import warnings

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples/gallery").glob("*.py"))
NEEDS = {"out_of_core_graph": "dask", "surfaces": "torch"}


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, pyplot, one_thread):
    pytest.importorskip(NEEDS.get(path.stem, "numpy"))
    before = len(pyplot.get_fignums())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        runpy.run_path(str(path), run_name="__main__")
    assert len(pyplot.get_fignums()) > before


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_explains_and_checks_itself(path):
    text = path.read_text("utf-8")
    assert text.count("\n") <= 80
    assert text.startswith('r"""\n')
    assert text.count("\n# %%\n") >= 2
    assert "\nassert " in text or "\nnp.testing." in text
    assert "math::" in text or ":math:`" in text
