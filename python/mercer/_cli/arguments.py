"""Arguments that several commands have, and how their texts are read."""

from __future__ import annotations

import argparse

from mercer._cli.command import Argument, argument

POINTS = ("float16", "float32", "float64", "uint8", "int8", "int32")  # NumPy has no bfloat16


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
    if not name.isidentifier() or not sign or not found:
        raise argparse.ArgumentTypeError(
            f"must be name=number or name=number,number. Received {text}"
        )
    return name, found[0] if len(found) == 1 else found


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on. Received {text}")
    return int(text)


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
    "--dtype", default="float32", choices=[*POINTS, "bfloat16"], help="of the points (float32)"
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
