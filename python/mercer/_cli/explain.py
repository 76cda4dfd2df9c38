"""``mercer explain``: the stages of a call."""

from __future__ import annotations

import argparse

import mercer as mc
from mercer._cli import arguments as a
from mercer._cli.command import Command, argument


def _explain(options: argparse.Namespace) -> None:
    place = options.shape, options.dtype, options.target
    call = {"verb": options.verb, "columns": options.columns, "backward": options.backward}
    print(mc.explain(options.formula, *place, **call).rstrip())


COMMANDS = (
    Command(
        "explain",
        "every stage of a call as text, without data",
        _explain,
        (
            a.FORMULA,
            a.SHAPE,
            a.DTYPE,
            argument(
                "--target",
                default="auto",
                help="x86_avx512, x86_avx2, interpreter or auto; a family of CPUs as zen4, "
                "zen4:x86_avx2; sm_80 to sm_120 or cuda:0 for a GPU",
            ),
            argument(
                "--verb",
                default="pairwise",
                help="of a GPU kernel_product, kernel_reduce, knn, kernel_gradient or kernel_agop "
                "too",
            ),
            argument("--columns", type=a.count, default=1, help="of v, or the neighbours (1)"),
            argument(
                "--backward", action="store_true", help="the passes of PyTorch's backwards as well"
            ),
        ),
        'mercer explain "exp(-sum(abs(x-z)^p)/h)" --shape 4096x4096x256 --target x86_avx512',
    ),
)
