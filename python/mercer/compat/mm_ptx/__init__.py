"""mm-ptx on Mercer: programs of stack instructions as PTX text (``stack_ptx``)."""

from __future__ import annotations
