"""mm_ptx.stack_ptx_default_types: the few types and instructions that mm-ptx comes with."""

from __future__ import annotations

from enum import auto, unique
from typing import Any

from mercer.compat.mm_ptx.stack_ptx import (
    ArgTypeEnum,
    StackPtx,
    StackTypeEnum,
    create_instruction_enum,
    create_special_register_enum,
)

__all__ = ["ArgType", "PtxInstruction", "SpecialRegister", "Stack", "compiler"]


@unique
class Stack(StackTypeEnum):
    f32 = (auto(), "f32")
    s32 = (auto(), "s32")
    u32 = (auto(), "u32")


@unique
class ArgType(ArgTypeEnum):
    f32 = (auto(), Stack.f32)
    u32 = (auto(), Stack.u32)


_F, _U = [ArgType.f32], [ArgType.u32]


_Instruction: Any = create_instruction_enum(ArgType)


@unique
class PtxInstruction(_Instruction):
    add_u32 = (auto(), "add.u32", _U * 2, _U)
    add_ftz_f32 = (auto(), "add.ftz.f32", _F * 2, _F)
    mul_ftz_f32 = (auto(), "mul.ftz.f32", _F * 2, _F)
    sin_approx_ftz_f32 = (auto(), "sin.approx.ftz.f32", _F, _F)
    cos_approx_ftz_f32 = (auto(), "cos.approx.ftz.f32", _F, _F)


_Register: Any = create_special_register_enum(ArgType)


@unique
class SpecialRegister(_Register):
    clock = (auto(), "clock", ArgType.u32)
    tid_x = (auto(), "tid.x", ArgType.u32)


compiler = StackPtx(Stack, ArgType, PtxInstruction, SpecialRegister)
