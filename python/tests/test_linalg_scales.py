"""What mercer.linalg computes by products of a matrix times a power of two is that of the matrix,
times a power of it, up to the ends of the range."""

import mercer as mc
import numpy as np
import pytest
from mercer import linalg

N = 40
RANDOM = np.random.default_rng(3)
TURN = np.linalg.qr(RANDOM.normal(size=(N, N)))[0]
SIZES = np.exp(np.linspace(0, -4, N))
POINTS = RANDOM.normal(size=(N, 3))
WIDE = RANDOM.normal(size=(400, 3))
RIGHT = RANDOM.normal(size=(N, 3))
EXPONENTS = {"float32": (-110, -64, 64, 116), "float64": (-1000, -520, 520, 1008)}
TOL = {"float32": 1e-4, "float64": 1e-10}


def matrix(dtype, signs=1.0, ridge=0.0):
    a = (TURN * (SIZES * signs)) @ TURN.T
    return ((a + a.T) / 2 + ridge * np.eye(N)).astype(dtype)


def gauss(dtype, scale):
    return linalg.KernelOperator(
        "exp(-sum(square(x-z))/2)*c", POINTS.astype(dtype), c=scale, ridge=0.1 * scale
    )


def large(dtype):
    return mc.kernel_matrix("exp(-sum(square(x-z))/2)", WIDE.astype(dtype))


def made(form, dtype, scale):
    """The operator times the scale; where it is a matrix the product is exact."""
    if form == "kernel":
        return gauss(dtype, scale)
    forms = {
        "definite": lambda: matrix(dtype),
        "indefinite": lambda: matrix(dtype, np.where(np.arange(N) % 3 == 0, -1.0, 1.0)),
        "shifted": lambda: matrix(dtype, ridge=1.0),
        "large": lambda: large(dtype),
    }
    return forms[form]() * np.dtype(dtype).type(scale)


def preconditioned(a, scale, b, tol):
    return linalg.cg(a, b, tol=tol, preconditioner=linalg.nystrom(a, 10, ridge=1e-2 * scale))


def cg(a, b, tol, **options):
    return linalg.cg(a, b, tol=tol, **options)


def minres(a, b, tol, **options):
    return linalg.minres(a, b, tol=tol, **options)


def times(b, scale):
    return b * b.dtype.type(scale)


# What is computed of an operator times a scale, and the power of it that this grows with, or None.
CASES = {
    "cg": ("definite", -1, lambda a, s, b, tol: linalg.cg(a, b, tol=tol)),
    "cg, ridge": ("definite", -1, lambda a, s, b, tol: cg(a, b, tol, ridge=s / 2)),
    "cg, guess": ("definite", -1, lambda a, s, b, tol: cg(a, b, tol, x0=times(b, 1 / s))),
    "cg, both": ("definite", 0, lambda a, s, b, tol: cg(a, times(b, s), tol)),
    "cg, kernel": ("kernel", -1, lambda a, s, b, tol: linalg.cg(a, b, tol=tol)),
    "cg, nystrom": ("definite", -1, preconditioned),
    "cg, rpcholesky": (
        "shifted", -1, lambda a, s, b, tol: linalg.cg(
            a, b, tol=tol, preconditioner=linalg.rpcholesky(a, 10, ridge=s))),
    "minres": ("indefinite", -1, lambda a, s, b, tol: linalg.minres(a, b, tol=tol)),
    "minres, ridge": ("definite", -1, lambda a, s, b, tol: minres(a, b, tol, ridge=s / 2)),
    "minres, both": ("indefinite", 0, lambda a, s, b, tol: minres(a, times(b, s), tol)),
    "minres, kernel": ("kernel", -1, lambda a, s, b, tol: linalg.minres(a, b, tol=tol)),
    "sap": ("kernel", -1, lambda a, s, b, tol: linalg.sap(a, b, tol=1e-3)),
    "sap, both": ("kernel", 0, lambda a, s, b, tol: linalg.sap(a, times(b, s), tol=1e-3)),
    "eigh_top": ("large", 1, lambda a, s, b, tol: linalg.eigh_top(a, 4)[0]),
    "eigh_top, vectors": ("large", 0, lambda a, s, b, tol: np.abs(linalg.eigh_top(a, 4)[1])),
    "eigh_top, small": ("indefinite", 1, lambda a, s, b, tol: linalg.eigh_top(a, 4)[0]),
    "nystrom": ("definite", 0, lambda a, s, b, tol: linalg.nystrom(a, 10, ridge=s / 100).solve(b)),
    "nystrom, kernel": ("kernel", 0, lambda a, s, b, tol: linalg.nystrom(a, 10).solve(b)),
    "rpcholesky": ("shifted", -1, lambda a, s, b, tol: linalg.rpcholesky(a, 10, ridge=s).solve(b)),
    "rpcholesky, logdet": (
        "shifted", None, lambda a, s, b, tol: linalg.rpcholesky(a, 10, ridge=s).logdet()),
    "pivoted_cholesky": (
        "kernel", -1, lambda a, s, b, tol: linalg.pivoted_cholesky(a, 10).solve(b)),
    "inv_quad": ("kernel", -1, lambda a, s, b, tol: linalg.inv_quad_logdet(a, b).inv_quad),
    "logdet": ("kernel", None, lambda a, s, b, tol: linalg.inv_quad_logdet(a, b).logdet),
}  # fmt: skip


@pytest.mark.parametrize("dtype", EXPONENTS)
@pytest.mark.parametrize("name", CASES)
def test_scales(name, dtype):
    form, power, compute = CASES[name]
    b, tol = RIGHT.astype(dtype), TOL[dtype]

    def of(exponent):
        scale = 2.0**exponent
        found = np.asarray(compute(made(form, dtype, scale), scale, b, tol), np.float64)
        if power is None:
            return found - N * exponent * np.log(2)
        return np.ldexp(found, -power * exponent)

    wanted = of(0)
    # Powers of two change no rounding but of what is below the range, and of random restarts.
    lost = (1e-3 if "sap" in name else 4e-5) if dtype == "float32" else 1e-9
    for exponent in EXPONENTS[dtype]:
        gap = np.abs(of(exponent) - wanted).max()
        assert gap <= lost * np.abs(wanted).max() + (1e-6 if power is None else 0), exponent
