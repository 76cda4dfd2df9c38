"""Microseconds of a call on tiny arrays, where hardly anything but the host's part is left.

``python bench/bench_calls.py [--only cdist,kron] [--repeats 40] [--json FILE] [--keep]``

Each verb is called with arrays of NumPy and tensors of PyTorch on the CPU: as they are ("torch"),
with a gradient recorded ("grad"), and with one that is wanted but switched off ("no_grad"); drop-in
modules with tensors as they are. Rows have the times of other libraries, too. Times are
the best of interleaved rounds of one thread's CPU time.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Iterator
from functools import partial

import mercer as mc
import numpy as np
import torch
from mercer.benchmarks import cpu_machine, keeping
from mercer.benchmarks.timing import best_times, one_thread

Call = Callable[[], object]
Calls = dict[str, Call]
GAUSS = mc.kernel("exp(-sum(square(x-z))/h)")


def without_grad(call: Call) -> Call:
    def within() -> object:
        with torch.no_grad():
            return call()

    return within


def on_libraries(verb: Callable[..., object], *arrays: np.ndarray) -> Calls:
    """The verb on these arrays; the first one is differentiated by."""
    tensors = [torch.from_numpy(array) for array in arrays]
    leaf, rest = tensors[0].clone().requires_grad_(), tensors[1:]
    return {
        "numpy": partial(verb, *arrays),
        "torch": partial(verb, *tensors),
        "grad": partial(verb, leaf, *rest),
        "no_grad": without_grad(partial(verb, leaf, *rest)),
    }


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def cdist_rows(rng: np.random.Generator) -> Iterator[tuple[str, Calls]]:
    from scipy.spatial.distance import cdist

    x, z = draw(rng, 8, 4), draw(rng, 8, 4)
    a, b = torch.from_numpy(x), torch.from_numpy(z)
    leaf = a.clone().requires_grad_()
    yield (
        "cdist 8 x 8 x 4",
        on_libraries(mc.cdist, x, z)
        | {"scipy": partial(cdist, x, z), "torch.cdist": partial(torch.cdist, a, b)}
        | {"torch.cdist, grad": partial(torch.cdist, leaf, b)},
    )


def verb_rows(rng: np.random.Generator) -> Iterator[tuple[str, Calls]]:
    x, z, v = draw(rng, 8, 4), draw(rng, 8, 4), draw(rng, 8)
    a, b, c = map(torch.from_numpy, (x, z, v))
    leaf = a.clone().requires_grad_()

    def by_torch(a: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.cdist(a, b).square() / -2) @ c

    product = on_libraries(lambda x, z, v: mc.kernel_product(GAUSS, x, z, v, h=2.0), x, z, v)
    peers = {"by torch": partial(by_torch, a), "by torch, grad": partial(by_torch, leaf)}
    yield "kernel_product 8 x 8 x 4", product | peers
    verbs: dict[str, Callable[..., object]] = {
        "pairwise": lambda x, z, v: mc.pairwise(GAUSS, x, z, h=2.0),
        "kernel_reduce": lambda x, z, v: mc.kernel_reduce(GAUSS, x, z, "max", h=2.0),
        "knn": lambda x, z, v: mc.knn("euclidean", x, z, 3),
        "kernel_gradient": lambda x, z, v: mc.kernel_gradient(GAUSS, x, z, v, h=2.0),
        "kernel_agop": lambda x, z, v: mc.kernel_agop(GAUSS, x, z, v, h=2.0),
    }
    for name, verb in verbs.items():
        yield f"{name} 8 x 8 x 4", on_libraries(verb, x, z, v)


def kron_rows(rng: np.random.Generator) -> Iterator[tuple[str, Calls]]:
    for size in (4, 64):
        x, factor = draw(rng, 1, size * size), draw(rng, size, size)
        a, b = torch.from_numpy(x), torch.from_numpy(factor)
        calls = on_libraries(lambda x, f: mc.kron.matmul(x, [f, f]), x, factor)
        square = size, size
        yield (
            f"kron.matmul 1 x {size}^2",
            calls
            | {
                "numpy, f' x f": lambda x=x, f=factor, s=square: np.dot(f.T, x.reshape(s)) @ f,
                "torch, f' x f": lambda x=a, f=b, s=square: f.T @ x.view(s) @ f,
            },
        )
        if size == 4:
            calls = {
                "np.kron": lambda x=x, f=factor: np.dot(x, np.kron(f, f)),
                "torch.kron": lambda x=a, f=b: x @ torch.kron(f, f),
            }
            yield "x times the stored product, 1 x 4^2", calls


def linalg_rows(rng: np.random.Generator) -> Iterator[tuple[str, Calls]]:
    import scipy.linalg

    root, b = draw(rng, 4, 4), draw(rng, 4, 2)
    a = root @ root.T + 4 * np.eye(4, dtype=np.float32)
    c, d = torch.from_numpy(a), torch.from_numpy(b)
    leaf = c.clone().requires_grad_()

    def by_torch(a: torch.Tensor) -> torch.Tensor:
        return torch.cholesky_solve(d, torch.linalg.cholesky(a))

    peers = {
        "scipy": lambda: scipy.linalg.cho_solve(scipy.linalg.cho_factor(a), b),
        "np.linalg.solve": partial(np.linalg.solve, a, b),
        "by torch": partial(by_torch, c),
        "by torch, grad": partial(by_torch, leaf),
    }
    yield "solve_cholesky 4 x 4", on_libraries(mc.linalg.solve_cholesky, a, b) | peers
    yield "cholesky 4 x 4", on_libraries(mc.linalg.cholesky, a)
    yield "eigh 4 x 4", on_libraries(mc.linalg.eigh, a)


def dropin_rows(rng: np.random.Generator) -> Iterator[tuple[str, Calls]]:
    from mercer.compat import kermac
    from mercer.compat.kernel_tools import kernels, linalg
    from mercer.compat.mm_kermac import hyper_semiring
    from mercer.compat.pyfastkron import fastkrontorch

    a, b, square = (torch.from_numpy(draw(rng, 8, n)) for n in (4, 4, 8))
    coef, out = torch.from_numpy(draw(rng, 2, 8)), torch.empty(1, 8, 8)
    yield (
        "cdist p = 1.3",
        {
            "mercer": partial(mc.cdist, a, b, 1.3),
            "kermac": partial(kermac.cdist, a, b, p=1.3),
            "kermac, out": partial(kermac.cdist, a, b, out=out, p=1.3),
        },
    )
    semiring = hyper_semiring.NormL1()
    yield (
        "cdist p = 1",
        {"mercer": partial(mc.cdist, a, b, 1.0), "mm_kermac": partial(semiring, a, b)},
    )
    phi, rows, columns = mc.kernel("copysign(1, x - z)"), a.T.contiguous(), b.T.contiguous()
    yield (
        "gradient_field",
        {
            "mercer": partial(mc.gradient_field, phi, a, b, square, coef),
            "kermac": partial(kermac.cdist_grad, square, columns, coef, rows, p=1.0),
        },
    )
    x, factors = torch.from_numpy(draw(rng, 8, 16)), [square[:4, :4].contiguous()] * 2
    yield (
        "kron.matmul",
        {
            "mercer": partial(mc.kron.matmul, x, factors),
            "pyfastkron": partial(fastkrontorch.gemkm, x, factors),
        },
    )
    yield (
        "pairwise gauss",
        {
            "mercer": partial(mc.pairwise, GAUSS, a, b, h=8.0),
            "kernel_tools": partial(kernels.gaussian, a, b, 2.0),
        },
    )
    symmetric = square + square.T
    yield (
        "eigh",
        {
            "mercer": partial(mc.linalg.eigh, symmetric),
            "kernel_tools": partial(linalg.cusolver_eigh, symmetric),
        },
    )


GROUPS = {
    "cdist": cdist_rows, "verbs": verb_rows, "kron": kron_rows, "linalg": linalg_rows,
    "dropins": dropin_rows,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows, by commas")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", type=pathlib.Path, help="a file for the lines")
    parser.add_argument("--keep", action="store_true", help=f"keep the lines in {keeping.RUNS}")
    arguments = parser.parse_args()
    lines = []
    with one_thread():
        for group in arguments.only.split(","):
            for name, calls in GROUPS[group](np.random.default_rng(0)):
                times = best_times(calls, arguments.repeats)
                lines += [{"row": name, "data": n, "seconds": t} for n, t in times.items()]
                print(f"{name:36s}", *(f"{n} {1e6 * t:.2f}" for n, t in times.items()), sep="  ")
    if arguments.json:
        keeping.write(arguments.json, cpu_machine.describe(), lines, [])
    if arguments.keep:
        print(keeping.keep(cpu_machine.describe(), lines, program="calls"))


if __name__ == "__main__":
    main()
