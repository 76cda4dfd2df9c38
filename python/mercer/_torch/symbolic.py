"""torch.fx.symbolic_trace: a call with a Proxy in it is a node that calls the verb again."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from torch.fx import Proxy


def proxy_among(values: Iterable[Any]) -> Proxy | None:
    """The first one, of lists too."""
    for value in values:
        if isinstance(value, (list, tuple)):
            value = proxy_among(value)
        if isinstance(value, Proxy):
            return value
    return None


def node(proxy: Proxy, module: str, verb: str, arguments: tuple, options: dict[str, Any]) -> Proxy:
    """The result of the verb of this module of Mercer's, which may not be loaded before this."""
    target = getattr(importlib.import_module(module), verb)
    given = {name: value for name, value in options.items() if value is not None}
    return proxy.tracer.create_proxy("call_function", target, arguments, given)
