"""mercer.compat.mm_ptx: programs of stack instructions as PTX, run here by a reader of the text."""

from __future__ import annotations

import ctypes
import random
import re
import struct
from enum import IntEnum, auto, unique

import compat_stack
import mercer as mc
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mercer.compat.mm_ptx import (  # noqa: E402
    get_include_dir,
    get_ptx_inject_header,
    ptx_inject,
    stack_ptx,
)
from mercer.compat.mm_ptx._machine import Limits  # noqa: E402

LIMITS = {"execution_limit": 100, "max_ast_to_visit_stack_depth": 40}


@unique
class Stack(stack_ptx.StackTypeEnum):
    f32 = (auto(), "f32")
    s32 = (auto(), "s32")
    u32 = (auto(), "u32")
    pred = (auto(), "pred")


@unique
class Arg(stack_ptx.ArgTypeEnum):
    f32 = (auto(), Stack.f32)
    u32 = (auto(), Stack.u32)
    pred = (auto(), Stack.pred)
    v2_f32 = (auto(), Stack.f32, 2)
    v4_u32 = (auto(), Stack.u32, 4)


F = [Arg.f32]


@unique
class Ptx(stack_ptx.create_instruction_enum(Arg)):
    add = (auto(), "add.ftz.f32", F * 2, F)
    sub = (auto(), "sub.ftz.f32", F * 2, F)
    mul = (auto(), "mul.ftz.f32", F * 2, F)
    fma = (auto(), "fma.rn.ftz.f32", F * 3, F)
    minimum = (auto(), "min.ftz.f32", F * 2, F)
    neg = (auto(), "neg.ftz.f32", F, F)
    less = (auto(), "setp.lt.ftz.f32", F * 2, [Arg.pred])
    pick = (auto(), "selp.f32", [*F * 2, Arg.pred], F)
    add_u32 = (auto(), "add.u32", [Arg.u32] * 2, [Arg.u32])
    cvt = (auto(), "cvt.rn.f32.u32", [Arg.u32], F)
    swap = (auto(), "test.swap.f32", [Arg.v2_f32], [Arg.v2_f32])


@unique
class Special(stack_ptx.create_special_register_enum(Arg)):
    clock = (auto(), "clock", Arg.u32)
    tid = (auto(), "tid", Arg.v4_u32)


COMPILER = stack_ptx.StackPtx(Stack, Arg, Ptx, Special)


@pytest.fixture
def registry():
    registry = stack_ptx.RegisterRegistry()
    for name in "xyz":
        registry.add(f"_{name}", Stack.f32, name=name)
    registry.add("n", Stack.u32)
    registry.freeze()
    return registry


def run_text(text, values):
    """The registers after a block of PTX."""
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "{"
    assert lines[-1] == "}"
    values = dict(values)

    def value(operand):
        if operand.startswith("0f"):
            return struct.unpack("<f", struct.pack("<I", int(operand[2:], 16)))[0]
        return int(operand.rstrip("U"), 16) if operand[0] == "0" else values[operand]

    for line in lines[1:-1]:
        name, rest = line.rstrip(";").split(" ", 1)
        if name == ".reg":
            continue
        target, *operands = rest.split(", ")
        numbers = [value(operand) for operand in operands]
        function = (lambda a: a) if name.startswith("mov.") else compat_stack.FUNCTIONS[name]
        values[target] = function(*numbers)
    return values


def test_the_text_of_a_program(registry):
    text = COMPILER.compile(
        registry,
        [registry.x, registry.y, Ptx.sub, Stack.f32.dup, Stack.f32.constant(1.5), Ptx.mul],
        [registry.z, registry.y], **LIMITS,
    )  # fmt: skip
    assert text == (
        "\t{\n\t.reg .f32 %_a<2>;\n\tsub.ftz.f32 %_a0, %_y, %_x;\n"
        "\tmul.ftz.f32 %_a1, 0f3FC00000, %_a0;\n\tmov.f32 %_z, %_a1;\n\tmov.f32 %_y, %_a0;\n\t}\n"
    )


@pytest.mark.parametrize("seed", range(60))
def test_programs_at_random(registry, seed):
    choose = random.Random(seed)
    moves = [
        Stack.f32.dup, Stack.f32.swap, Stack.f32.rotate, Stack.f32.reverse, Stack.f32.store(2),
        Stack.load(2), Stack.f32.yank_dup, Stack.f32.swap_with, Stack.f32.replace, Stack.f32.drop,
        Stack.meta_constant(1), Stack.meta_constant(2), Stack.f32.constant(2),
    ]  # fmt: skip
    choices = [[registry.x, registry.y], list(Ptx)[:8], moves]
    tokens = [choose.choice(choose.choice(choices)) for _ in range(25)]
    numbers = {"x": 3.0, "y": -2.0}
    expected = compat_stack.run(tokens, numbers)[::-1][:2]
    text = COMPILER.compile(registry, tokens, [registry.z, registry.x], **LIMITS)
    values = run_text(text, {"%_x": 3.0, "%_y": -2.0, "%_z": None})
    unset = [None, 3.0]
    got = [values["%_z"], values["%_x"]]
    assert got == [*expected, *unset[len(expected) :]]


@pytest.mark.parametrize(
    ("move", "depth", "left"),
    [
        ("dup", None, [1, 2, 3, 4, 4]), ("swap", None, [1, 2, 4, 3]),
        ("rotate", None, [1, 4, 2, 3]), ("reverse", None, [4, 3, 2, 1]),
        ("yank_dup", 2, [1, 2, 3, 4, 2]), ("swap_with", 2, [1, 4, 3, 2]),
        ("replace", 2, [1, 4, 3]), ("drop", 2, [1, 2]), ("drop", 4, [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_moves_on_a_stack(registry, move, depth, left):
    tokens = [Stack.f32.constant(value) for value in (1, 2, 3, 4)]
    tokens += [] if depth is None else [Stack.meta_constant(depth)]
    tokens.append(getattr(Stack.f32, move))
    machine = COMPILER.run(tokens, Limits(100))
    assert [value.source for value in machine.stacks[Stack.f32]] == left
    assert compat_stack.run(tokens, {}) == left


def test_routines_call_each_other(registry):
    @unique
    class Routine(stack_ptx.RoutineEnum):
        one = (auto(), [Stack.u32.constant(1)])
        two = (auto(), [])

    Routine.two.instructions = [Stack.u32.constant(2), Routine.one, Ptx.add_u32]
    program = [Routine.two, Routine.two, Ptx.add_u32, Ptx.cvt]
    text = COMPILER.compile(registry, program, [registry.x], routine_enum=Routine, **LIMITS)
    assert text.count("add.u32") == 3
    shallow = COMPILER.compile(
        registry, program[:-1], [registry.n], 100, Routine, max_frame_depth=2
    )  # the calls within calls are left out
    assert shallow.count("add.u32") == 1
    with pytest.raises(stack_ptx.StackPtxError, match="ROUTINES_IDX_OUT_OF_BOUNDS"):
        COMPILER.compile(registry, program, [registry.x], **LIMITS)


def test_places_have_names(registry):
    class Var(IntEnum):
        total = 3

    tokens = [
        Stack.u32.constant(1), Stack.u32.constant(2), Ptx.add_u32, Stack.u32.store(Var.total),
        Stack.load(Var.total), Stack.load(Var.total), Ptx.add_u32,
    ]  # fmt: skip
    text = COMPILER.compile(registry, tokens, [registry.n], **LIMITS)
    assert text.count("add.u32") == 2
    assert "0x00000002U, 0x00000001U" in text
    for token in (Stack.u32.store(16), Stack.load(16)):
        with pytest.raises(stack_ptx.StackPtxError, match="IDX_OUT_OF_BOUNDS"):
            COMPILER.compile(registry, [*tokens, token], [registry.n], **LIMITS)
        COMPILER.compile(registry, [*tokens, token], [registry.n], store_size=17, **LIMITS)


def test_special_registers_and_vectors(registry):
    text = COMPILER.compile(
        registry,
        [Special.tid, Ptx.add_u32, Special.clock, Ptx.add_u32, Ptx.cvt, registry.x, Ptx.swap],
        [registry.z, registry.y], **LIMITS,
    )  # fmt: skip
    assert re.search(r"mov\.u32 %_c\d, %tid\.z;", text)
    assert re.search(r"mov\.u32 %_c\d, %tid\.w;", text)
    assert "%tid.x" not in text  # nobody reads it
    assert re.search(r"mov\.u32 %_c\d, %clock;", text)
    assert re.search(r"test\.swap\.f32 \{%_a1, %_a2\}, \{%_x, %_a0\};", text)
    assert text.endswith("mov.f32 %_z, %_a1;\n\tmov.f32 %_y, %_a2;\n\t}\n")


def test_limits_and_refusals(registry):
    chain = [registry.x, *[registry.y, Ptx.add] * 10]
    for words, text in (
        ({"max_ast_size": 20}, "INSUFFICIENT_AST_SIZE"),
        ({"max_ast_to_visit_stack_depth": 5}, "INSUFFICIENT_AST_VISIT_SIZE"),
    ):
        with pytest.raises(stack_ptx.StackPtxError, match=text):
            COMPILER.compile(registry, chain, [registry.z], 100, **words)
    cut = COMPILER.compile(registry, chain, [registry.z], execution_limit=5)
    assert cut.count("add.ftz.f32") == 2
    with pytest.raises(ValueError, match="Invalid instruction"):
        COMPILER.compile(registry, ["add.f32"], [registry.z], 100)
    with pytest.raises(ValueError, match="Only f32, s32 and u32 have constants"):
        Stack.pred.constant(1)
    for wrong in ((3, F), ([Arg.f32] * 5, F), (["f32"], F), (F, [Arg.f32] * 3)):
        with pytest.raises(ValueError, match="must be a list of at most"):
            stack_ptx.create_instruction_enum(Arg)("Wrong", {"op": (0, "op", *wrong)})
    with pytest.raises(ValueError, match="must be an ArgType"):
        stack_ptx.create_special_register_enum(Arg)("Wrong", {"r": (0, "r", "u32")})


def test_registry(registry):
    assert len(registry) == 4
    assert registry.get_register_names() == ["_x", "_y", "_z", "n"]
    assert registry.get_stack_types() == [0, 0, 0, 2]
    assert [record.name for record in registry] == ["x", "y", "z", "n"]
    assert registry.get("y") is registry.by_idx(1) is registry.y
    assert COMPILER.compile(registry, [registry.x], [2], 9) == COMPILER.compile(
        registry, [registry.x], [registry.z], 9
    )
    with pytest.raises(RuntimeError, match="frozen"):
        registry.add("w", Stack.f32)
    with pytest.raises(KeyError, match="'w' not found"):
        registry.get("w")
    with pytest.raises(KeyError, match="index 9"):
        registry.by_idx(9)
    with pytest.raises(AttributeError, match="Register 'w' not found"):
        registry.w


def nvrtc(source, *options):
    """The PTX of CUDA code, or, for an sm_ architecture, nothing; RuntimeError with the log."""
    found = re.search(r"^NVRTC: .*\((.*)\)$", mc.info(), re.M)
    if not found:
        pytest.skip("no NVRTC")
    library, program = ctypes.CDLL(found[1]), ctypes.c_void_p()

    def text(kind):
        size = ctypes.c_size_t()
        getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(library, f"nvrtcGet{kind}")(program, buffer)
        return buffer.value.decode()

    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None)
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, len(options), words)
    log, ptx = text("ProgramLog"), "" if failed else text("PTX")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(log)
    return ptx


def test_the_text_is_ptx(registry):
    tokens = [
        registry.x, Stack.f32.constant(np.float32(0.1)), Ptx.less, registry.y, registry.x, Ptx.pick,
        Special.clock, Stack.u32.constant(7), Ptx.add_u32, Ptx.cvt, Ptx.fma, registry.y, Ptx.fma,
        Stack.f32.dup, registry.x, Ptx.add,
    ]  # fmt: skip
    text = COMPILER.compile(registry, tokens, [registry.z], **LIMITS)
    places = {"z": "%0", "x": "%1", "y": "%2"}
    text = re.sub(r"%_([xyz])\b", lambda match: places[match[1]], text)
    escaped = re.sub(r"%(?=_|clock)", "%%", text).replace("\n", "\\n").replace("\t", " ")
    source = f"""extern "C" __global__ void kernel(float* p) {{
        float z; asm volatile("{escaped}" : "=f"(z) : "f"(p[0]), "f"(p[1])); p[2] = z; }}"""
    nvrtc(source, "--gpu-architecture=sm_90")  # down to machine code, by the assembler
    with pytest.raises(RuntimeError, match="Not a name of any known instruction"):
        nvrtc(source.replace("fma.rn", "fmb.rn"), "--gpu-architecture=sm_90")


# PTX Inject

ANNOTATED = """\
before
\t// PTX_INJECT_START func
\t// _x0 m f32 F32 y
\t// _x1 o f32 F32 z
\t// _x2 i u32 U32 n
\t// PTX_INJECT_END
between
// PTX_INJECT_START none
// PTX_INJECT_END
// PTX_INJECT_START func
// _x0 m f32 F32 y
// _x1 o f32 F32 z
// _x2 i u32 U32 n
// PTX_INJECT_END
after
"""


def test_sites_of_annotated_ptx(capsys):
    with ptx_inject.PTXInject(ANNOTATED) as inject:
        assert [(i.name, i.num_args, i.num_sites) for i in inject.injects] == [
            ("func", 3, 2), ("none", 0, 1),
        ]  # fmt: skip
        y, z, n = inject["func"].values()
        assert (y.name, y.mut_type, y.reg) == ("y", ptx_inject.MutType.MOD, "_x0")
        assert (z.name, z.mut_type, z.data_type) == ("z", ptx_inject.MutType.OUT, "F32")
        assert (n.mut_type, n.data_type, n.register_type) == (
            ptx_inject.MutType.IN, "U32", "u32",
        )  # fmt: skip
        rendered = inject.render_ptx({"func": "A\\n", "none": "B", "more": ""})
        assert rendered == "before\n\tA\\n\nbetween\nB\nA\\n\nafter\n"
        inject.print_injects()
    assert "MOD F32 y: %_x0, f32" in capsys.readouterr().out
    for call in (lambda: inject["other"], lambda: inject.render_ptx({"func": ""})):
        with pytest.raises(KeyError):
            call()


def test_annotations_that_are_refused():
    for text, error in (
        (ANNOTATED.replace("U32 n", "U32 n more"), "FORMATTING"),
        (ANNOTATED.replace("_x2 i", "_x2 q"), "FORMATTING"),
        (ANNOTATED + "// PTX_INJECT_START open\n", "FORMATTING"),
        (ANNOTATED.replace("F32 z", "F32 v", 1), "INCONSISTENT_INJECTION"),
    ):
        with pytest.raises(ptx_inject.PtxInjectError, match=error):
            ptx_inject.PTXInject(text)


CUDA = """
#define PTX_TYPE_INFO_PACKED PTX_TYPES_DESC(b32, b32, r, U32)
#include "ptx_inject.h"
struct Packed { unsigned short a, b; };
extern "C" __global__ void kernel(float* p, unsigned n) {
    float x = p[0], y = p[1], z;
    Packed packed = {1, 2};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        PTX_INJECT("func", PTX_IN(F32, x), PTX_OUT(F32, z), PTX_MOD(F32, y, y),
                   PTX_IN(U32, n, n + 1));
    }
    PTX_INJECT_TOK(single, PTX_MOD(PACKED, packed));
    p[2] = z; p[3] = y; p[4] = packed.b;
}
"""


def injected(architecture):
    """z = 2 x + y, y = x + y, at both sites of CUDA code."""
    ptx = nvrtc(CUDA, f"--gpu-architecture={architecture}", f"-I{get_include_dir()}")
    inject = ptx_inject.PTXInject(ptx)
    sites = {site.name: site for site in inject.injects}
    assert (sites["func"].num_sites, sites["single"].num_sites) == (2, 1)
    assert [a.name for a in sites["func"].args] == ["y", "z", "x", "n"]
    assert inject["single"]["packed"].data_type == "PACKED"
    func, registry = inject["func"], stack_ptx.RegisterRegistry()
    for name in "xyz":
        registry.add(func[name].reg, Stack.f32, name=name)
    x, y, z = (registry.get(name) for name in "xyz")
    stub = COMPILER.compile(registry, [x, y, Ptx.add, Stack.f32.dup, x, Ptx.add], [z, y], **LIMITS)
    return inject.render_ptx({"func": stub, "single": ""})


def test_sites_of_cuda_code():
    rendered = injected("compute_90")
    assert "PTX_INJECT" not in rendered
    block = re.search(r"// begin inline asm\n(.*?)// end inline asm", rendered, re.S)[1]
    lines = [line for line in block.splitlines() if line.strip() not in ("{", "}", "")]
    inputs = dict.fromkeys(re.findall(r"%r\d+", block), 7.0)
    first, second = re.findall(r"mov\.f32 %_x\d, (%f\d+)", block)[:2]  # y, then x
    values = run_text("{\n" + "\n".join(lines) + "\n}", {**inputs, first: 3.0, second: 5.0})
    z = re.search(r"mov\.f32 (%f\d+), %_x1", block)[1]
    assert (values[z], values[first]) == (13.0, 8.0)


def test_injected_code_runs():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    p = torch.tensor([5.0, 3.0, 0, 0, 0], device="cuda")
    major, minor = torch.cuda.get_device_capability()
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    text = injected(f"compute_{major}{minor}").encode()
    assert driver.cuModuleLoadData(ctypes.byref(module), text) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"kernel") == 0
    values = ctypes.c_uint64(p.data_ptr()), ctypes.c_uint32(0)
    pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    assert driver.cuLaunchKernel(function, *[1] * 6, 0, None, pointers, None) == 0
    torch.cuda.synchronize()
    assert p.tolist() == [5, 3, 18, 13, 2]


def test_header():
    assert get_ptx_inject_header().startswith(get_include_dir())
    many = ", ".join(f"PTX_IN(F32, v{i}, v)" for i in range(31))
    source = f"""#include "ptx_inject.h"
    __global__ void kernel(float v) {{ PTX_INJECT("many", {many}); }}"""
    ptx = nvrtc(source, "--gpu-architecture=compute_90", f"-I{get_include_dir()}")
    assert [*ptx_inject.PTXInject(ptx)["many"]] == [f"v{i}" for i in range(31)]
