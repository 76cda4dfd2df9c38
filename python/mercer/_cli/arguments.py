"""Arguments that several commands have, and how their texts are read."""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable
from typing import Any

import mercer as mc
from mercer._array_likes import POINT_TYPES
from mercer._cli.command import Argument, Refusal, argument


def _shape(text: str) -> tuple[int, int, int]:
    sizes = text.lower().split("x")
    if len(sizes) != 3 or not all(size.isdecimal() for size in sizes):
        raise argparse.ArgumentTypeError(f"must be MxNxK, such as 4096x4096x256. Received {text}")
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def numbers(text: str) -> list[float] | None:
    """The numbers of a,b,c; None where it is something else."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        return None


def _parameter(text: str) -> tuple[str, float | list[float]]:
    name, sign, value = text.partition("=")
    found = numbers(value)
    if not name.isidentifier() or not sign or not found or any(map(math.isnan, found)):
        raise argparse.ArgumentTypeError(
            f"must be NAME=NUMBER or NAME=NUMBER,NUMBER, without NaN. Received {text}"
        )
    return name, found[0] if len(found) == 1 else found


def parameters(
    options: argparse.Namespace, verb: str, *also: str, by: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """What ``--param`` says, but for names that are arguments of the verb and not of the formula.

    also: those of them that may be given all the same. by: a function that calls the verb, whose
    arguments are no names of the formula's either.
    """
    calls = [getattr(mc, verb), *([] if by is None else [by])]
    own = [one for call in calls for one in inspect.signature(call).parameters.values()]
    taken = {one.name for one in own if one.kind is not one.VAR_KEYWORD} - {*also}
    found: dict[str, Any] = {}
    for name, value in options.param:
        if name in taken:
            raise Refusal(f"--param: the name must be one of the formula's. Received {name}")
        if name in found:
            raise Refusal(f"--param: a name must be given once. Received {name} twice")
        found[name] = value
    return found


def _whole(text: str, first: int, last: int) -> int:
    if not text.isdecimal() or not first <= int(text) <= last:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from {first} to {last}. Received {text}"
        )
    return int(text)


def count(text: str) -> int:
    """A whole number from 1 on."""
    return _whole(text, 1, 2**31 - 1)


def seed(text: str) -> int:
    """A seed of NumPy's and of scikit-learn's."""
    return _whole(text, 0, 2**32 - 1)


def parameter(help_text: str) -> Argument:
    """``--param``; what several values of one mean is said in the end."""
    return argument(
        "--param",
        action="append",
        default=[],
        type=_parameter,
        metavar="NAME=VALUE",
        help="a parameter of the formula; " + help_text,
    )


FORMULA = argument("formula", help="a formula or a name of the zoo")
SHAPE = argument("--shape", type=_shape, default=(4096, 4096, 256), metavar="MxNxK")
DTYPE = argument(
    "--dtype", default="float32", choices=[*POINT_TYPES], help="of the points (float32)"
)
X = argument("x", help="the file of the rows")
Z = argument("z", help="the file of the columns")
Z_OR_X = argument("z", nargs="?", help="the file of the columns; without it, x with itself")
OUTPUT = argument("-o", "--output", required=True, metavar="OUT", help="the file to write")
HEADER = argument(
    "--header", choices=["auto", "yes", "no"], default="auto",
    help="whether the first row of a .csv or .tsv has names; auto: if a cell is no number",
)  # fmt: skip
PARAM = parameter("several values a,b,c give one result each")
WEIGHTS = argument(
    "--weights", metavar="W", help="w of the formula or metric: a file of [K], or numbers a,b,c"
)
DEVICE = argument("--device", help="where to compute, such as cuda:0 (the CPU)")
RUNNING = (
    argument("--threads", type=count, help="threads to use (all)"),
    argument("--target", help="x86_avx512, x86_avx2, interpreter or auto"),
    DEVICE,
)
