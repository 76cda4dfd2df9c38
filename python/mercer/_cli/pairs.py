"""The verbs on pairs of points, on files: a row of ``VERBS`` for each."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import mercer as mc
from mercer._array_likes import NUMPY_TYPES
from mercer._cli import arguments as a
from mercer._cli import files
from mercer._cli.command import Argument, Command, Refusal, argument
from mercer._cli.files import Numbers

REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "logsumexp")


@dataclass(frozen=True)
class Verb:
    """name: the command. call: the function of ``mercer``. operand: its array next to the points.

    own: keyword arguments from the options. names: of the columns of each result in a table, from
    x and the operand.
    """

    name: str
    call: str
    help: str
    example: str
    names: Callable[[Numbers, Numbers | None], dict[str, Any]]
    operand: str | None = None
    arguments: tuple[Argument, ...] = ()
    own: Callable[[argparse.Namespace], dict[str, Any]] = lambda _: {}

    def command(self) -> Command:
        """The formula comes first, then points, then what is a verb's own."""
        is_cdist = self.name == "cdist"
        points = (a.X, a.Z if self.operand else a.Z_OR_X)
        operand = (argument(self.operand, help=_OPERANDS[self.operand]),) if self.operand else ()
        formula = () if is_cdist else (a.FORMULA,)
        taken = (*formula, *points, *operand, a.OUTPUT, *self.arguments)
        rest = (a.PARAM, a.WEIGHTS, a.HEADER, *a.RUNNING)
        run = functools.partial(_run, self)
        return Command(self.name, self.help, run, (*taken, *rest), self.example)


_OPERANDS = {
    "v": "the file of the right-hand sides, [N] or [N, E]",
    "coef": "the file of the coefficients, [N] or [outputs, N]; in a table a column an output",
}

VERBS = (
    Verb(
        "cdist", "cdist", "distances of all pairs",
        "mercer cdist a.npy b.npy -o d.npy --p 1.3\n"
        "mercer cdist a.csv -o d.parquet --metric canberra",
        lambda x, _: {"values": "z"},
        arguments=(
            argument("--p", type=float, help="the norm: 0 to inf (2)"),
            argument(
                "--metric", help="a name of the zoo or a formula; --p is its option then"
            ),
        ),
        own=lambda options: {"p": options.p, "metric": options.metric},
    ),
    Verb(
        "kernel", "kernel_matrix", "the kernel matrix of a formula",
        'mercer kernel "exp(-sum(square(x-z))/h)" x.npy -o k.npy --param h=2',
        lambda x, _: {"values": "z"},
    ),
    Verb(
        "product", "kernel_product", "a kernel matrix times v, the matrix never formed",
        "mercer product gauss x.npy z.npy v.npy -o y.npy --param bandwidth=3",
        lambda x, v: {"values": (v and v.names) or "y"},
        operand="v",
        arguments=(
            argument("--normalize", choices=["softmax", "sum"], help="divide rows by their sums"),
        ),
        own=lambda options: {"normalize": options.normalize},
    ),
    Verb(
        "reduce", "kernel_reduce", "a sum, a maximum and their like of each row of a matrix",
        "mercer reduce gauss x.npy z.npy -o density.npy --by sum --param bandwidth=0.5",
        lambda x, _: {"values": "value"},
        arguments=(argument("--by", choices=REDUCTIONS, required=True, help="the reduction"),),
        own=lambda options: {"reduce": options.by},
    ),
    Verb(
        "knn", "knn", "the k nearest points by a metric: with one file each point is its own first",
        "mercer knn canberra x.csv z.csv -o nearest.csv -k 10",
        lambda x, _: {"values": "value", "indices": "index"},
        arguments=(
            argument("-k", "--neighbours", type=a.count, required=True, help="how many"),
        ),
        own=lambda options: {"k": options.neighbours},
    ),
    Verb(
        "gradient", "kernel_gradient", "the gradients of weighted sums of kernels",
        "mercer gradient gauss x.npy z.npy coef.npy -o g.npy --param bandwidth=3",
        lambda x, _: {"values": x.names or "x"},
        operand="coef",
    ),
)  # fmt: skip


def computed_in(dtype: np.dtype) -> np.dtype:
    """The type itself where Mercer has it, in this machine's byte order."""
    if dtype.newbyteorder("=") in NUMPY_TYPES:
        return dtype.newbyteorder("=")
    return np.dtype("float64" if dtype.kind == "f" or dtype.itemsize > 2 else "float32")


def same_dtype(*arrays: np.ndarray | None) -> list[Any]:
    """Other types and mixed widths become floats that hold them: files seldom have chosen types."""
    kinds = {computed_in(array.dtype) for array in arrays if array is not None}
    is_wide = kinds & {np.dtype("float64"), np.dtype("int32")}
    kind = kinds.pop() if len(kinds) == 1 else np.dtype("float64" if is_wide else "float32")
    return [None if array is None else array.astype(kind, copy=False) for array in arrays]


def read_points(options: argparse.Namespace) -> tuple[Numbers, np.ndarray, np.ndarray | None]:
    """x as its file has it, then x and z in one dtype."""
    x = files.read(options.x, options.header)
    z = None if options.z is None else files.read(options.z, options.header).array
    first, second = same_dtype(x.array, z)
    return x, first, second


def as_values(array: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Numbers that go with points of a dtype."""
    return array.astype("float64" if points.dtype == np.float64 else "float32", copy=False)


def weights(options: argparse.Namespace, points: np.ndarray) -> dict[str, np.ndarray]:
    """w, as a row or a column of a table or as the numbers themselves."""
    if options.weights is None:
        return {}
    found = a.numbers(options.weights)
    w = np.array(found) if found else files.read(options.weights, options.header).array
    if w.ndim == 2 and 1 in w.shape and w.shape[-1] != points.shape[-1]:
        w = w.reshape(-1)
    return {"w": as_values(w[0] if w.shape[:-1] == (1,) else w, points)}


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Threads and target are of the process; the rest goes along with the call."""
    if options.threads is not None:
        mc.set_num_threads(options.threads)
    if options.target is not None:
        mc.set_target(options.target)
    device = {} if options.device is None else {"device": options.device}
    return {"progress": sys.stderr.isatty(), **device}


def _operand(verb: Verb, options: argparse.Namespace, points: np.ndarray) -> Numbers | None:
    if verb.operand is None:
        return None
    found = files.read(getattr(options, verb.operand), options.header)
    array = as_values(found.array, points)
    if verb.operand == "coef" and files.is_table(getattr(options, verb.operand)):
        array = array[:, 0] if array.shape[1] == 1 else array.T
    return Numbers(array, found.names)


def _run(verb: Verb, options: argparse.Namespace) -> None:
    files.check_output(options.output)
    if verb.name != "cdist" and options.formula.lower().endswith(files.SUFFIXES):
        raise Refusal(f"a formula comes before the files. Received the file {options.formula}")
    given, x, z = read_points(options)
    operand = _operand(verb, options, x)
    own = verb.own(options)
    params = a.parameters(options, verb.call, *(["p"] if "p" in own else []))
    if "p" in params and "p" in own:  # --param p=3 is --p 3
        if own["p"] is not None:
            raise Refusal("--p and --param p are one number. Received both")
        own["p"] = params.pop("p")
    names = verb.names(given, operand)
    files.check_arrays(options.output, list(names))
    files.check_axes(options.output, _axes(verb, x, z, operand, params))
    keywords = {**own, **weights(options, x), **settings(options), **params}
    formula = () if verb.name == "cdist" else (options.formula,)
    positional = (*formula, x, z, *(() if operand is None else (operand.array,)))
    result = getattr(mc, verb.call)(*positional, **keywords)
    arrays = result if isinstance(result, tuple) else (result,)
    files.write(options.output, dict(zip(names, arrays, strict=True)), names)


def _axes(verb: Verb, x: Any, z: Any, operand: Numbers | None, params: dict[str, Any]) -> int:
    """The least number of axes of the result: a table is refused before the work, not after it."""
    ndim = 0 if operand is None else operand.array.ndim
    outputs = ndim - 1 if verb.operand == "coef" else 0
    batch = any(isinstance(value, list) for value in params.values())
    axes = max(x.ndim, 0 if z is None else z.ndim) + outputs + batch
    return axes - (verb.name == "reduce") - (verb.name == "product" and ndim == 1)


COMMANDS = tuple(verb.command() for verb in VERBS)
