"""KeOps' programs on Mercer: ``pykeops.numpy`` and ``pykeops.torch``.

A tree of lazy operations becomes one formula of Mercer, and its reduction a call of a verb. Nothing
is compiled by a C++ compiler and nothing of the package is needed.
"""

from __future__ import annotations

__all__ = ["clean_pykeops", "set_verbose"]

#: The version of the package whose functions these are.
__version__ = "2.3"


def clean_pykeops(recompile_jit_binaries: bool = True) -> None:
    """Does nothing: there is no folder of compiled formulas. ``mercer cache`` has Mercer's."""


def set_verbose(val: bool) -> None:
    """Does nothing: nothing is printed."""
