"""``python -m mercer.compat run script.py``: an unmodified program, with the drop-in modules."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
from collections.abc import Sequence

from mercer.compat import MODULES, install

EXAMPLES = """\
examples:
  python -m mercer.compat run train.py --epochs 3
  python -m mercer.compat run --device cpu train.py          # "cuda" in the program is the CPU
  python -m mercer.compat run --packages kermac train.py     # of the others the originals
  python -m mercer.compat run -m unittest discover -s tests
"""


def run(options: argparse.Namespace) -> None:
    packages = options.packages.split(",") if options.packages else []
    try:
        install(*packages)
    except ValueError as error:
        sys.exit(str(error))
    with contextlib.ExitStack() as stack:
        if options.device == "cpu":
            from mercer.compat import _host

            stack.enter_context(_host.cuda_on_host())
            print('mercer.compat: "cuda" is the CPU in this run', file=sys.stderr)
        name, *sys.argv[1:] = options.program
        if options.module:
            sys.argv[0], sys.path[0] = name, os.getcwd()
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.argv[0], sys.path[0] = name, os.path.dirname(os.path.abspath(name))
            runpy.run_path(name, run_name="__main__")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mercer.compat", description=__doc__.replace("``", ""), epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command = parser.add_subparsers(required=True).add_parser(
        "run", help="run a script", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("--device", choices=["cpu"], help='let "cuda" be the CPU')
    command.add_argument(
        "--packages", "--as", help=f"which to replace, of {','.join(MODULES)}; all"
    )
    command.add_argument("-m", dest="module", action="store_true", help="a module, not a script")
    command.add_argument("program", nargs=argparse.REMAINDER, help="the script, and its arguments")
    command.set_defaults(function=run)
    options = parser.parse_args(arguments)
    if not options.program:
        command.error("a script must be given")
    options.function(options)


if __name__ == "__main__":
    main()
