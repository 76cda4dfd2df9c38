"""mm-ptx on Mercer: programs of stack instructions as PTX text (``stack_ptx``), and PTX injected
into the sites that CUDA code marks with the macros of a header (``ptx_inject``)."""

from __future__ import annotations

import pathlib

__all__ = ["get_include_dir", "get_ptx_inject_header"]


def get_include_dir() -> str:
    """The folder of ``ptx_inject.h``, for the compiler's include paths."""
    return str(pathlib.Path(__file__).parent / "include")


def get_ptx_inject_header() -> str:
    """The path of ``ptx_inject.h``, which needs no other header."""
    return str(pathlib.Path(__file__).parent / "include" / "ptx_inject.h")
