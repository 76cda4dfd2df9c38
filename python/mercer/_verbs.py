"""The verbs, as torch.compile can read them.

Each is the compiled function and nothing else, except while torch.compile traces: a compiled
function is opaque to it, so it is shown the registered operator instead. PyTorch is not imported.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from mercer import _mercer

NAMES = (
    "pairwise", "kernel_matrix", "kernel_product", "kernel_reduce", "knn", "kernel_gradient",
    "kernel_agop", "gradient_field", "cdist",
)  # fmt: skip
# Those of mercer.kron.
KRON = ("matmul", "kron_matmul")
_modules = sys.modules


def _signature_of(compiled: Any) -> inspect.Signature:
    scope: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{compiled.__nb_signature__[0][0]}: ...", scope)
    return inspect.signature(scope[compiled.__name__])


def _traceable(name: str, module: str) -> Callable[..., Any]:
    compiled = getattr(_mercer, name)

    @functools.wraps(compiled)
    def verb(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
            from mercer._torch import traced

            return getattr(traced, name)(*args, **kwargs)
        return compiled(*args, **kwargs)

    verb.__module__ = module
    verb.__doc__ = compiled.__nb_signature__[0][1]
    verb.__signature__ = _signature_of(compiled)
    return verb


for _name in NAMES:
    globals()[_name] = _traceable(_name, "mercer")
for _name in KRON:
    globals()[_name] = _traceable(_name, "mercer.kron")
