"""The stacks and instructions of mm-kermac."""

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


@unique
class Stack(StackTypeEnum):
    f32 = (auto(), "f32")
    s32 = (auto(), "s32")
    u32 = (auto(), "u32")
    pred = (auto(), "pred")


@unique
class ArgType(ArgTypeEnum):
    f32 = (auto(), Stack.f32)
    u32 = (auto(), Stack.u32)
    pred = (auto(), Stack.pred)


_F, _P = ArgType.f32, ArgType.pred


_Instruction: Any = create_instruction_enum(ArgType)


@unique
class PtxInstruction(_Instruction):
    """The first argument is the one on top of the stack."""

    copysign_f32 = (auto(), "copysign.f32", [_F, _F], [_F])
    add_ftz_f32 = (auto(), "add.ftz.f32", [_F, _F], [_F])
    sub_ftz_f32 = (auto(), "sub.ftz.f32", [_F, _F], [_F])
    mul_ftz_f32 = (auto(), "mul.ftz.f32", [_F, _F], [_F])
    fma_rn_ftz_f32 = (auto(), "fma.rn.ftz.f32", [_F, _F, _F], [_F])
    div_approx_ftz_f32 = (auto(), "div.approx.ftz.f32", [_F, _F], [_F])
    abs_ftz_f32 = (auto(), "abs.ftz.f32", [_F], [_F])
    neg_ftz_f32 = (auto(), "neg.ftz.f32", [_F], [_F])
    min_ftz_f32 = (auto(), "min.ftz.f32", [_F, _F], [_F])
    max_ftz_f32 = (auto(), "max.ftz.f32", [_F, _F], [_F])
    rcp_approx_ftz_f32 = (auto(), "rcp.approx.ftz.f32", [_F], [_F])
    sqrt_approx_ftz_f32 = (auto(), "sqrt.approx.ftz.f32", [_F], [_F])
    rsqrt_approx_ftz_f32 = (auto(), "rsqrt.approx.ftz.f32", [_F], [_F])
    sin_approx_ftz_f32 = (auto(), "sin.approx.ftz.f32", [_F], [_F])
    cos_approx_ftz_f32 = (auto(), "cos.approx.ftz.f32", [_F], [_F])
    lg2_approx_ftz_f32 = (auto(), "lg2.approx.ftz.f32", [_F], [_F])
    ex2_approx_ftz_f32 = (auto(), "ex2.approx.ftz.f32", [_F], [_F])
    tanh_approx_f32 = (auto(), "tanh.approx.f32", [_F], [_F])
    setp_lt_ftz_f32 = (auto(), "setp.lt.ftz.f32", [_F, _F], [_P])
    setp_gt_ftz_f32 = (auto(), "setp.gt.ftz.f32", [_F, _F], [_P])
    selp_f32 = (auto(), "selp.f32", [_F, _F, _P], [_F])


_Register: Any = create_special_register_enum(ArgType)


@unique
class SpecialRegister(_Register):
    """No instruction makes an f32 of them, so they never reach a value that is asked for."""

    clock = (auto(), "clock", ArgType.u32)
    tid_x = (auto(), "tid.x", ArgType.u32)


compiler = StackPtx(Stack, ArgType, PtxInstruction, SpecialRegister)
