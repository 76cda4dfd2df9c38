"""The CPU in the place of a CUDA device, for programs that say "cuda".

Within ``cuda_on_host`` PyTorch's functions that are given a CUDA device work on the CPU, and
``torch.cuda`` answers as if there were one device of compute capability 8.0. Tensors say that they
are on the CPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CUDA = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")
_COPIES = {torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory}
_MOVES = {torch.Tensor.to, torch.as_tensor, torch.asarray}


def _on_host(value: Any) -> Any:
    """The CPU for a CUDA device, as an object or by name; everything else as it is."""
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    return _CPU if isinstance(value, str) and _CUDA.fullmatch(value) else value


class _HostMode(TorchFunctionMode):
    """What goes from one device to another is copied: a program may write to one of the two."""

    devices_only = True  # mercer's calls need not go through it

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.device:  # a name alone: programs ask it whether they shall say "cuda"
            return func(*args, **(kwargs or {}))
        if func in _COPIES:
            return args[0].clone()
        args = tuple(map(_on_host, args))
        named = {name: _on_host(value) for name, value in (kwargs or {}).items()}
        if isinstance(named.get("device"), int):
            named["device"] = _CPU
        if named.get("pin_memory"):
            named["pin_memory"] = False
        result = func(*args, **named)
        if func not in _MOVES:
            return result
        moves = any(isinstance(value, (str, torch.device)) for value in (*args, *named.values()))
        return result.clone() if moves else result


class _Event:
    """An event of a stream that has nothing left to do: the time of its record."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._time = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def elapsed_time(self, end: _Event) -> float:
        return (end._time - self._time) * 1e3

    def query(self) -> bool:
        return True

    def synchronize(self, *_: Any) -> None:
        pass

    wait = synchronize


class _Stream(contextlib.AbstractContextManager):
    """A stream whose work is done by the time that it is asked for."""

    cuda_stream = 0
    device = torch.device("cuda", 0)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass

    def synchronize(self, *_: Any) -> None:
        pass

    wait_event = wait_stream = synchronize

    def query(self) -> bool:
        return True

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record()
        return event


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, _on_host(device))


def _memory() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def _properties() -> types.SimpleNamespace:
    return types.SimpleNamespace(
        name="CPU", major=8, minor=0, total_memory=_memory()[1],
        multi_processor_count=os.cpu_count(),
    )  # fmt: skip


def _answer(value: Any) -> Callable[..., Any]:
    """A function of its own for each name, as torch._dynamo asks for."""
    return lambda *_, **__: value


# What torch.cuda answers.
_ANSWERS: dict[str, Any] = {
    "Event": _Event,
    "Stream": _Stream,
    "stream": lambda stream=None: stream or _Stream(),
    "device": lambda device=None: _Stream(),
    "current_stream": lambda device=None: _Stream(),
    "default_stream": lambda device=None: _Stream(),
    "get_device_properties": lambda device=None: _properties(),
    "mem_get_info": lambda device=None: _memory(),
}
_VALUES = {
    "is_available": True, "is_initialized": True, "current_device": 0, "device_count": 1,
    "get_device_capability": (8, 0), "get_device_name": "CPU", "memory_allocated": 0,
    "max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0, "set_device": None,
    "synchronize": None, "empty_cache": None, "ipc_collect": None, "init": None,
    "manual_seed": None, "manual_seed_all": None, "reset_peak_memory_stats": None,
    "reset_max_memory_allocated": None,
}  # fmt: skip
_ANSWERS |= {name: _answer(value) for name, value in _VALUES.items()}


@contextlib.contextmanager
def cuda_on_host() -> Iterator[None]:
    """Within it "cuda" is the CPU, in this thread."""
    set_default, load = torch.set_default_device, torch.load
    changes: list[tuple[Any, str, Any]] = [
        (torch, "Generator", _Generator),
        (torch, "set_default_device", lambda device: set_default(_on_host(device))),
        (torch, "load", lambda file, to=None, **words: load(
            file, _on_host(words.pop("map_location", to) or _CPU), **words)),
        (torch.Tensor, "record_stream", _answer(None)),
        *((torch.cuda, name, value) for name, value in _ANSWERS.items()),
    ]  # fmt: skip
    before = [(home, name, getattr(home, name)) for home, name, _ in changes]
    try:
        for home, name, value in changes:
            setattr(home, name, value)
        with _HostMode():
            yield
    finally:
        for home, name, value in before:
            setattr(home, name, value)
