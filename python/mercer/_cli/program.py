"""The commands together: ``main``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

import mercer as mc
from mercer._cli import bench, cache, explain, fit, machine, pairs, predict, show, tune, zoo
from mercer._cli.command import Refusal

REFUSED = 2  # a mistake of the caller, as argparse has it
FAILED = 1
INTERRUPTED = 130

EXAMPLES = """\
examples:
  mercer info
  mercer zoo                         # the table of named metrics and kernels
  mercer zoo matern52                # one of them
  mercer cdist a.npy b.npy -o d.npy --p 1.3
  mercer cdist a.npy -o d.csv --metric canberra        # a.npy with itself
  mercer kernel "exp(-sum(abs(x-z)^p)/h)" x.npy z.npy -o k.npz --param p=1.3 --param h=2
  mercer product gauss x.npy z.npy v.npy -o y.npy --param bandwidth=3
  mercer reduce gauss x.npy z.npy -o m.npy --by max
  mercer knn cityblock x.npy z.npy -o nearest.csv -k 3 --weights 1,2,1,1,0
  mercer gradient gauss x.npy z.npy coef.npy -o g.csv
  mercer fit train.csv --target y --model model.npz
  mercer predict test.csv --model model.npz -o y.csv
  mercer show gauss x.npy            # the matrix in the terminal; -o k.png for a picture
  mercer explain "sum(abs(x-z))" --shape 30000x30000x1024 --target sm_90
  mercer tune "sum(abs(x-z)^p)" --shape 30000x30000x1024 --p 1.3
  mercer tune --cpu                  # what vector instructions and ways cost on this processor
  mercer tune --gpu                  # what stored values cost on this GPU
  mercer bench --quick --plot bench.png

A formula is written over the points x and z: sum, prod, max, min and logsumexp run over the
features, other names are parameters. Files are .npy or .npz of shape [..., points, features], or
tables .csv, .tsv and .parquet of a row a point; x.csv:height,width takes two columns of a table.
"""

COMMANDS = tuple(
    command
    for module in (machine, explain, zoo, pairs, fit, predict, show, tune, bench, cache)
    for command in module.COMMANDS
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mercer",
        description="Distances, kernels and products by any formula, at the speed of the hardware.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mercer {mc.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return parser


def _options(arguments: list[str]) -> argparse.Namespace:
    if arguments[:1] == ["bench"]:  # its options are its own
        return argparse.Namespace(command="bench", run=bench.run, arguments=arguments[1:])
    return _parser().parse_args(arguments)


def _open_closed_streams() -> None:
    """Python has None for a stream that the shell closed; what goes there is dropped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command: 0, or 2 for what is refused, 1 for what failed, 130 after Ctrl-C."""
    _open_closed_streams()
    options = _options(sys.argv[1:] if arguments is None else list(arguments))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files need not be text
    try:
        code = options.run(options) or 0
        sys.stdout.flush()
        return code
    except (mc.CompileError, mc.DeviceError, MemoryError) as error:
        return _failed(options.command, error, FAILED)
    except (Refusal, ValueError, NotImplementedError, TypeError, ImportError) as error:
        return _failed(options.command, error, REFUSED)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # mercer zoo | head
            _failed(options.command, error, FAILED)
        _drop(sys.stdout)
        return FAILED


def _drop(stream: TextIO) -> None:
    """What the stream still holds goes nowhere, so that the end of the program cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _failed(command: str, error: Exception, code: int) -> int:
    try:
        print(f"mercer {command}: {error}", file=sys.stderr, flush=True)
    except OSError:  # the code says it
        _drop(sys.stderr)
    return code
