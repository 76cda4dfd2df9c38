"""``mercer bench``: the benchmarks, where they are at hand."""

from __future__ import annotations

import argparse
import importlib.util

from mercer._cli.command import Command, Refusal, argument


def run(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("mercer.benchmarks") is None:
        raise Refusal(
            "the benchmarks come with a checkout (make bench), not with the package from an "
            "index. Received a package without them"
        )
    from mercer import benchmarks

    return benchmarks.main(options.arguments)


COMMANDS = (
    Command(
        "bench",
        "throughput compared with the libraries installed here",
        run,
        (argument("arguments", nargs=argparse.REMAINDER, help="see mercer bench --help"),),
        "mercer bench --quick --plot bench.png",
    ),
)
