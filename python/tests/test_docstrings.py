"""Examples in docstrings: all that computes has one, and it runs; outputs that are stated hold."""

from __future__ import annotations

import doctest
import math
import warnings

import mercer as mc
import mercer.models
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

VERBS = [*mc._verbs.NAMES, "paired_distances", "parameter_gradient", "pdist", "squareform"]
FORMULAS = [
    "compile",
    "dot",
    "explain",
    "kernel",
    "mean",
    "metric",
    "norm",
    "options",
    "ptx",
    "reduce",
]
WITH_EXAMPLES = [
    *((mc, name) for name in [*VERBS, *FORMULAS]),
    *((mc.linalg, name) for name in mc.linalg.__all__ if name != "Preconditioner"),
    *((mc.kron, name) for name in mc.kron.__all__),
    *((mercer.models, name) for name in mercer.models.__all__),
    (mc.Kernel, "__call__"),
]  # fmt: skip


class Stated(doctest.OutputChecker):
    """An example that states no output may have any."""

    def check_output(self, want, got, flags):
        return not want or super().check_output(want, got, flags)


def namespace():
    """What examples take for granted: points, targets, labels."""
    rng = np.random.default_rng(0)
    x, z = rng.random((40, 3)), rng.random((30, 3))
    y = x[:, 0] + 0.1 * rng.random(40)
    operator = mc.linalg.KernelOperator("gauss", x, ridge=0.1)
    names = {name: getattr(mercer.models, name) for name in mercer.models.__all__}
    return {
        **names, "mc": mc, "mercer": mercer, "np": np, "math": math, "SVC": SVC,
        "cross_val_score": cross_val_score, "operator": operator,
        "X": x, "Z": z, "Y": x[::-1], "X_new": z, "x": x, "z": z, "x1": x, "x2": z, "x_new": z,
        "y": y, "rows": x, "labels": (x[:, 0] > 0.5).astype(int),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("home", "name"), WITH_EXAMPLES, ids=lambda value: getattr(value, "__name__", value)
)
def test_example(home, name):
    text = getattr(home, name).__doc__
    test = doctest.DocTestParser().get_doctest(text, namespace(), name, None, 0)
    assert test.examples, "it has no example"
    if "torch." in text.partition(">>>")[2]:
        test.globs["torch"] = pytest.importorskip("torch")
        pytest.importorskip("linear_operator")
    report = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn's convergence on few points
        doctest.DocTestRunner(Stated(), optionflags=flags).run(test, out=report.append)
    assert not report, "".join(report)
