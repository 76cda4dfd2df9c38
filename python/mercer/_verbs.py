"""The verbs, as torch.compile can read them.

Each is the compiled function and nothing else, except while torch.compile traces: a compiled
function is opaque to it, so it is shown the registered operator instead. PyTorch is not imported.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from mercer import _mercer

NAMES = (
    "pairwise", "kernel_matrix", "kernel_product", "kernel_reduce", "knn", "kernel_gradient",
    "kernel_agop", "gradient_field", "cdist",
)  # fmt: skip
# Those of mercer.kron.
KRON = ("matmul", "kron_matmul")
_modules = sys.modules

# Arguments go on one by one: as a tuple and a dict the compiled function has them 0.3 us later.
_BODY = """
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

        {refusal}return traced.{name}({traced})
    {shortcut}return _mercer.{name}({arguments})
"""
_REFUSAL = """if device is not None:
            raise NotImplementedError(
                "{name}: device= is not offered under torch.compile. Received " + repr(device)
            )
        """
_SHORTCUT = """if not {params}:
        return _mercer.{name}({arguments})
    """


def _argument(parameter: inspect.Parameter) -> str:
    name = parameter.name
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        return f"{name}={name}"
    return f"**{name}" if parameter.kind is inspect.Parameter.VAR_KEYWORD else name


def _define(name: str, module: str) -> None:
    """The verb among the names of this module, where torch.compile looks for what it reads."""
    head, doc = getattr(_mercer, name).__nb_signature__[0][:2]
    scope: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{head}: ...", scope)
    parameters = list(inspect.signature(scope[name]).parameters.values())
    arguments = [_argument(parameter) for parameter in parameters]
    shortcut = ""
    if arguments[-1].startswith("**"):
        shortcut = _SHORTCUT.format(
            name=name, params=parameters[-1].name, arguments=", ".join(arguments[:-1])
        )
    streams = "device=device" in arguments
    body = _BODY.format(
        name=name,
        arguments=", ".join(arguments),
        shortcut=shortcut,
        refusal=_REFUSAL.format(name=name) if streams else "",
        traced=", ".join(argument for argument in arguments if argument != "device=device"),
    )
    exec(compile(f"from __future__ import annotations\n{head}:{body}", __file__, "exec"), globals())
    verb = globals()[name]
    verb.__module__ = module
    verb.__doc__ = doc


for _name in NAMES:
    _define(_name, "mercer")
for _name in KRON:
    _define(_name, "mercer.kron")
