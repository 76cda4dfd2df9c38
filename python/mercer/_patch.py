"""Functions of other packages that compute through Mercer while a patch is in force.

What a replacement does for a call that it does not serve is to call the original, so that a patched
program meets the errors, dtypes and corners that it met before.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["patch", "unpatch"]

#: Packages, each with the module that has its REPLACEMENTS: full name -> original -> replacement.
_HOMES = {
    "torch": "mercer._patches.torch",
    "scipy": "mercer._patches.scipy",
    "sklearn": "mercer._patches.sklearn",
}
_lock = threading.RLock()
#: Name -> the original, its replacement, and the patches that ask for it.
_active: dict[str, tuple[Any, Any, set[object]]] = {}


class _Patch:
    """What ``patch`` returns: at the end of its last with block it is taken back."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.depth = 0
        self.take()

    def take(self) -> None:
        with _lock:
            _put([name for name in self.names if name not in _active])
            for name in self.names:
                _active[name][2].add(self)

    def __enter__(self) -> _Patch:
        with _lock:
            self.take()
            self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            self.depth = max(self.depth - 1, 0)
            if self.depth:
                return
            held = [n for n in self.names if n in _active and self in _active[n][2]]
            for name in held:
                _active[name][2].discard(self)
            _restore([name for name in held if not _active[name][2]])

    def __repr__(self) -> str:
        return f"mercer.patch({', '.join(map(repr, self.names))})"


def patch(*names: str) -> _Patch:
    """Lets functions of other packages compute through Mercer, for good or for a with block.

    names: full names of functions, as "torch.cdist", or the name of a package for all of its
    functions; ``mercer.patch()`` raises a ValueError that lists them. The package is imported. Each
    module of it that has the function under a name of its own gets the replacement; what a program
    has imported by ``from torch import cdist`` before stays the original, and what it imports so
    within a block calls the original once no patch is in force. ``torch.jit.script`` reads the
    originals.

    A call that Mercer does not serve goes to the original: other dtypes, devices or options, and
    whatever Mercer refuses. Blocks may be nested and overlap in several threads, also those of one
    patch, which can be entered again: the original comes back with the end of the last one.
    ``unpatch`` ends all of them.

    >>> with mc.patch("torch.cdist"):
    ...     model.fit(x, y)
    >>> mc.patch("torch.cdist")  # until mc.unpatch("torch.cdist")
    """
    if not names:
        raise ValueError(f"patch: give a package or functions of {', '.join(_known())}")
    return _Patch(_expanded("patch", names))


def unpatch(*names: str) -> None:
    """Gives functions back that ``patch`` replaced, whoever asked for it.

    names: as those of ``patch``; none of them for all that are patched. Functions that are not
    patched stay as they are. Raises ValueError for names that cannot be patched.
    """
    with _lock:
        asked = _expanded("unpatch", names) if names else list(_active)
        _restore([name for name in asked if name in _active])


def _replacements(package: str) -> dict[str, Callable[[Any], Any]]:
    return importlib.import_module(_HOMES[package]).REPLACEMENTS


def _known() -> list[str]:
    """Names of packages that are installed, with their functions."""
    names = []
    for package in _HOMES:
        try:
            names += [package, *_replacements(package)]
        except ModuleNotFoundError:
            names.append(f"{package} (not installed)")
    return names


def _expanded(verb: str, names: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for name in names:
        package = name.partition(".")[0] if isinstance(name, str) else None
        if package not in _HOMES:
            raise ValueError(
                f"{verb}: functions of {', '.join(_HOMES)} can be patched. Received {name!r}"
            )
        offered = _replacements(package)
        taken = list(offered) if name == package else [name] if name in offered else []
        if not taken:
            raise ValueError(
                f"{verb}: of {package} it knows {', '.join(offered)}. Received {name!r}"
            )
        found += [full for full in taken if full not in found]
    return found


@functools.cache
def _replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The original by its name and signature, computed by Mercer while a patch is in force.

    There is one for each original, since a program may keep it for longer than the patch."""
    served = _replacements(name.partition(".")[0])[name](original)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return (served if name in _active else original)(*args, **kwargs)

    function.__qualname__ = function.__name__  # pickle finds it in the module by this name
    vars(function).update(vars(served))
    return function


def _put(names: list[str]) -> None:
    swaps = []
    for name in names:
        home, _, attribute = name.rpartition(".")
        original = getattr(importlib.import_module(home), attribute)
        replacement = _replacement(name, original)
        _active[name] = (original, replacement, set())
        swaps.append((name, original, replacement))
    _swap(swaps)


def _restore(names: list[str]) -> None:
    found = [(name, *_active.pop(name)) for name in names]
    _swap([(name, replacement, original) for name, original, replacement, _ in found])
    for package in {name.partition(".")[0] for name in names}:
        restored = getattr(importlib.import_module(_HOMES[package]), "restored", None)
        if restored is not None:
            restored([(new, old) for name, old, new, _ in found if name.startswith(package)])


def _swap(swaps: list[tuple[str, Any, Any]]) -> None:
    """Old for new in each module of the packages, and in the tables of functions that they have."""
    new_of = {id(old): new for _, old, new in swaps}
    packages = {name.partition(".")[0] for name, *_ in swaps}
    for scope in _scopes(packages) if swaps else ():
        for key, value in list(scope.items()):
            if id(value) in new_of:
                scope[key] = new_of[id(value)]


def _scopes(packages: set[str]) -> Iterator[dict[str, Any]]:
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name.partition(".")[0] in packages:
            scope = vars(module)
            yield scope
            for key, value in list(scope.items()):
                if type(value) is dict and key.isupper():
                    yield value
