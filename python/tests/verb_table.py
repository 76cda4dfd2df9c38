"""The verbs as one table, for the tests that run each of them on the arrays of some library."""

from __future__ import annotations

import mercer as mc
import numpy as np

GAUSS = "exp(-sum(square(x-z))/h)"
POWER = "exp(-sum(abs(x-z)^p)/h)"

# Each verb as a function of x, z and a dict of the extra arrays.
VERBS = {
    "pairwise": lambda x, z, a: mc.pairwise(POWER, x, z, p=1.3, h=2.0),
    "the same points": lambda x, z, a: mc.pairwise(POWER, x, p=1.3, h=2.0),
    "a parameter": lambda x, z, a: mc.pairwise(POWER, x, z, p=1.3, h=a["h"]),
    "parameters": lambda x, z, a: mc.pairwise(GAUSS, x, z, h=a["hs"]),
    "row and col": lambda x, z, a: mc.pairwise(
        "sum(x*z)+row*col", x, z, row=a["row"], col=a["col"]
    ),
    "offsets": lambda x, z, a: mc.pairwise("sum(x*z)+i-2*j", x, z, i_offset=3, j_offset=1),
    "weights": lambda x, z, a: mc.cdist(x, z, p=1, w=a["w"]),
    "cdist": lambda x, z, a: mc.cdist(x, z),
    "cdist of a metric": lambda x, z, a: mc.cdist(x, z, metric="canberra"),
    "kernel_matrix": lambda x, z, a: mc.kernel_matrix(mc.laplace(bandwidth=2.0), x),
    "kernel_product": lambda x, z, a: mc.kernel_product(GAUSS, x, z, a["v"], h=2.0),
    "kernel_product of a vector": lambda x, z, a: mc.kernel_product(GAUSS, x, z, a["coef"], h=2.0),
    "kernel_reduce": lambda x, z, a: mc.kernel_reduce(GAUSS, x, z, "logsumexp", h=2.0),
    "argmin": lambda x, z, a: mc.kernel_reduce("l1", x, z, "argmin"),
    "knn": lambda x, z, a: mc.knn("l1", x, z, 2),
    "kernel_gradient": lambda x, z, a: mc.kernel_gradient(GAUSS, x, z, a["coefs"], h=2.0),
    "kernel_gradient of a vector": lambda x, z, a: mc.kernel_gradient(
        GAUSS, x, z, a["coef"], h=2.0
    ),
    "kernel_agop": lambda x, z, a: mc.kernel_agop(GAUSS, x, z, a["coefs"], h=2.0),
    "kernel_agop of a vector": lambda x, z, a: mc.kernel_agop(GAUSS, x, z, a["coef"], h=2.0),
    "gradient_field": lambda x, z, a: mc.gradient_field(
        "sign(x-z)*abs(x-z)^(p-1)", x, z, a["amplitude"], a["coefs"], p=1.5
    ),
    "gradient_field of a derivative": lambda x, z, a: mc.gradient_field(
        mc.differentiate(POWER, "x"), x, z, a["amplitude"], a["coef"], p=1.3, h=2.0
    ),
}  # fmt: skip
# Without derivatives, and not for tracers.
FOLDS = {
    "gradient_field of the largest": lambda x, z, a: mc.gradient_field(
        "coef + amplitude*abs(x-z)/h", x, z, a["amplitude"], a["coef"], combine="max", h=2.0
    ),
    "gradient_field in order": lambda x, z, a: mc.gradient_field(
        "reduce(coef*(x-z)*exp(-sum(abs(x-z))/h), 0.5*a + t, 0, finish=tanh(a))", x, z, None,
        a["coefs"], combine="reduce", h=30.0,
    ),
    "gradient_field without arrays": lambda x, z, a: mc.gradient_field(
        "abs(x-z)", x, z, None, None, combine="logsumexp"
    ),
}  # fmt: skip
VERBS |= FOLDS


def extra_arrays(rng, lead, m, n, k):
    """The extra arrays that the table names, with these leading axes, in float32."""
    extra = {
        "row": rng.normal(size=(*lead, m)), "col": rng.normal(size=(*lead, n)),
        "v": rng.normal(size=(*lead, n, 4)), "coef": rng.normal(size=(*lead, n)),
        "coefs": rng.normal(size=(*lead, 2, n)), "amplitude": rng.normal(size=(*lead, m, n)),
        "w": rng.uniform(0.5, 2, size=(*lead, k)), "h": rng.uniform(1, 3, size=lead),
        "hs": rng.uniform(1, 3, size=(*lead, 2)),
    }  # fmt: skip
    return {name: np.asarray(array, "f") for name, array in extra.items()}
