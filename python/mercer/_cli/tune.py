"""``mercer tune``: measurements that are kept for later calls."""

from __future__ import annotations

import argparse

from mercer import _mercer, _tune
from mercer._cli import arguments as a
from mercer._cli.command import Command, Refusal, argument


def _run(options: argparse.Namespace) -> None:
    if [options.cpu, options.gpu, options.formula is not None].count(True) != 1:
        raise Refusal("takes a formula, for a GPU, or --cpu, or --gpu. Received several or none")
    if options.cpu or options.gpu:
        costs = _mercer.tune_cpu() if options.cpu else _mercer.tune_gpu(options.device)
        print(costs.rstrip())
        return
    params = a.parameters(options, options.verb, by=_tune.tune_shape)
    if options.p is not None:
        if "p" in params:
            raise Refusal("--p and --param p are one number. Received both")
        params["p"] = options.p
    place = options.shape, options.dtype, options.device, options.verb
    print(_tune.tune_shape(options.formula, *place, **params))


COMMANDS = (
    Command(
        "tune",
        "the fastest tile for a formula on this GPU, or this machine's costs, measured and kept",
        _run,
        (
            argument("formula", nargs="?", help="a formula or a name of the zoo"),
            argument(
                "--cpu", action="store_true", help="what instructions and ways cost, in seconds"
            ),
            argument(
                "--gpu", action="store_true", help="what stored values cost there, in seconds"
            ),
            a.SHAPE,
            a.DTYPE,
            argument("--device", default="cuda:0", help="the GPU (cuda:0)"),
            argument("--verb", default="pairwise", choices=["pairwise", "kernel_product"]),
            argument("--p", type=float, help="short for --param p=P"),
            a.parameter("only the values of exponents make a difference"),
        ),
        'mercer tune "exp(-sum(abs(x-z)^p)/h)" --shape 30000x30000x1024 --p 1.3 --param h=2\n'
        "mercer tune --cpu\n"
        "mercer tune --gpu --device cuda:1",
    ),
)
