"""Arguments of mercer.linalg from several libraries: the error names the argument and both."""

from __future__ import annotations

import itertools

import mercer as mc
import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

linalg = mc.linalg
A, B = np.eye(3, dtype="float32"), np.ones(3, "float32")
MADE = {
    "numpy": lambda v: v,
    "torch": torch.from_numpy,
    "torch, followed": lambda v: torch.from_numpy(v).clone().requires_grad_(),
    "jax": jnp.asarray,
}


def operator(x, **options):
    return linalg.KernelOperator("gauss", x, ridge=options.pop("ridge", 1.0), bandwidth=1.0,
                                 **options)  # fmt: skip


#: The name of the argument, that of the first one, and the call.
CALLS = {
    "solve_cholesky": ("b", "a", lambda a, b: linalg.solve_cholesky(a, b)),
    "solve_lu by name": ("b", "a", lambda a, b: linalg.solve_lu(b=b, a=a)),
    "cho_solve": ("b", "factor", lambda a, b: linalg.cho_solve(a, b)),
    "lu_solve": ("b", "lu", lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b)),
    "solve_triangular": ("b", "a", lambda a, b: linalg.solve_triangular(a, b)),
    "inv_quad_logdet": ("b", "a", lambda a, b: linalg.inv_quad_logdet(a, b)),
    "inv_quad_logdet of an operator": (
        "b", "a", lambda a, b: linalg.inv_quad_logdet(operator(a), b)),
    "cg": ("b", "a", lambda a, b: linalg.cg(a, b)),
    "cg of an operator": ("b", "a", lambda a, b: linalg.cg(operator(a), b=b)),
    "cg, a first guess": ("x0", "a", lambda a, b: linalg.cg(a, a[0], x0=b)),
    "minres": ("b", "a", lambda a, b: linalg.minres(a, b)),
    "minres of an operator": ("b", "a", lambda a, b: linalg.minres(operator(a), b)),
    "KernelOperator, weights": ("weights", "x", lambda a, b: operator(a, weights=b)),
    "KernelOperator, ridges": ("ridge", "x", lambda a, b: operator(a, ridge=b)),
    "parameter_gradient": (
        "weights", "x", lambda a, b: mc.parameter_gradient("gauss", a, None, (b, b), bandwidth=1.)),
}  # fmt: skip
PAIRS = [
    (one, other) for one, other in itertools.permutations(MADE, 2)
    if one.partition(",")[0] != other.partition(",")[0]
]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_both_libraries_are_named(name):
    argument, first, call = CALLS[name]
    verb = name.partition(",")[0].partition(" ")[0]
    for one, other in PAIRS:
        if argument == "ridge" and {one, other} == {"jax", "numpy"} and one == "jax":
            continue  # numbers of columns and points may be NumPy's
        words = (
            rf"^{verb}: {argument} must come from the library of {first}, {one.partition(',')[0]}"
        )
        with pytest.raises(ValueError, match=words) as caught:
            call(MADE[one](A), MADE[other](B))
        assert f"Received an array of {other.partition(',')[0]}" in str(caught.value)


def test_sap():
    for one, other in PAIRS:
        if one == "jax":
            continue
        with pytest.raises(
            ValueError, match=r"^sap: b must come from the library of a, "
        ) as caught:
            linalg.sap(operator(MADE[one](A)), MADE[other](B))
        assert f"Received an array of {other.partition(',')[0]}" in str(caught.value)


def test_numbers_of_numpy_go_with_any_library():
    """A parameter of NumPy's without axes is a number among tensors, with its gradient."""
    x = np.random.default_rng(0).normal(size=(5, 2))
    wanted = mc.parameter_gradient("gauss", x, bandwidth=1.5)["bandwidth"]
    for width in (np.float64(1.5), np.array(1.5)):
        for made in (torch.from_numpy, lambda v: v):
            found = mc.parameter_gradient("gauss", made(x), bandwidth=width)["bandwidth"]
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
