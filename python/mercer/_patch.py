"""Functions of other packages that compute through Mercer while a patch is in force.

What a replacement does for a call that it does not serve is to call the original, so that a patched
program meets the errors, dtypes and corners that it met before.
"""

from __future__ import annotations

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
}
_lock = threading.RLock()
#: Name -> the original, its replacement, and the patches that ask for it.
_active: dict[str, tuple[Any, Any, set[object]]] = {}


class _Patch:
    """What ``patch`` returns: at the end of a with block it is taken back."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __enter__(self) -> _Patch:
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            for name in self.names:
                if name in _active and self in _active[name][2]:
                    _active[name][2].discard(self)
                    if not _active[name][2]:
                        _restore(name)

    def __repr__(self) -> str:
        return f"mercer.patch({', '.join(map(repr, self.names))})"


def patch(*names: str) -> _Patch:
    """Lets functions of other packages compute through Mercer, for good or for a with block.

    names: full names of functions, as "torch.cdist", or the name of a package for all of its
    functions; ``mercer.patch()`` raises a ValueError that lists them. The package is imported. Each
    module of it that has the function under a name of its own gets the replacement; what a program
    has imported by ``from torch import cdist`` before stays the original.

    A call that Mercer does not serve goes to the original: other dtypes, devices or options, and
    whatever Mercer refuses. Blocks may be nested and overlap in several threads: the original comes
    back with the end of the last one. ``unpatch`` ends all of them.

    >>> with mc.patch("torch.cdist"):
    ...     model.fit(x, y)
    >>> mc.patch("torch.cdist")  # until mc.unpatch("torch.cdist")
    """
    if not names:
        raise ValueError(f"patch: give a package or functions of {', '.join(_known())}")
    made = _Patch(_expanded("patch", names))
    with _lock:
        for name in made.names:
            if name not in _active:
                _put(name)
            _active[name][2].add(made)
    return made


def unpatch(*names: str) -> None:
    """Gives functions back that ``patch`` replaced, whoever asked for it.

    names: as those of ``patch``; none of them for all that are patched. Functions that are not
    patched stay as they are. Raises ValueError for names that cannot be patched.
    """
    with _lock:
        for name in _expanded("unpatch", names) if names else list(_active):
            if name in _active:
                _restore(name)


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


def _put(name: str) -> None:
    home, _, attribute = name.rpartition(".")
    original = getattr(importlib.import_module(home), attribute)
    replacement = _replacements(name.partition(".")[0])[name](original)
    _swap(name, original, replacement)
    _active[name] = (original, replacement, set())


def _restore(name: str) -> None:
    original, replacement, _ = _active.pop(name)
    _swap(name, replacement, original)


def _swap(name: str, old: Any, new: Any) -> None:
    """In each module of the package, and in the tables of functions that it has."""
    for scope in list(_scopes(name.partition(".")[0])):
        for key, value in list(scope.items()):
            if value is old:
                scope[key] = new


def _scopes(package: str) -> Iterator[dict[str, Any]]:
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name.partition(".")[0] == package:
            scope = vars(module)
            yield scope
            for key, value in list(scope.items()):
                if key.isupper() and type(value) is dict:
                    yield value
