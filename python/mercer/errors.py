"""Errors of Mercer. A broken rule of a call is a plain ValueError, something not offered a
NotImplementedError; wrong dtypes and errors of compilation, of devices and of data have classes of
their own."""

from __future__ import annotations

from numpy.linalg import LinAlgError as _NumpyLinAlgError

__all__ = ["CompileError", "DeviceError", "DtypeError", "LinAlgError"]


class DtypeError(ValueError, TypeError):
    """An array has an element type that the call does not take. The message says the cast to write.

    It is a ValueError, as every broken rule, and a TypeError, as array libraries have it.
    """


class CompileError(RuntimeError):
    """Code for a formula could not be generated."""


class DeviceError(RuntimeError):
    """A device or its memory failed."""


class LinAlgError(_NumpyLinAlgError):
    """The data has no answer: a singular matrix, say. A subclass of NumPy's LinAlgError."""
