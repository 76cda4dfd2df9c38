"""mm-kermac on Mercer: semirings of one's own, written as lists of stack instructions.

The lists become formulas, so that they run on the CPU as well as on CUDA devices. Sums go where
sums of formulas go, tensor cores included; other accumulations are reductions in the order of the
features. Instructions that are approximations have the accuracy of Mercer's functions.
"""

from __future__ import annotations

from mercer.compat.kermac._common import CudaTimer
from mercer.compat.mm_kermac.stack_ptx_types import PtxInstruction, SpecialRegister, Stack

__all__ = ["CudaTimer", "PtxInstruction", "SpecialRegister", "Stack"]
