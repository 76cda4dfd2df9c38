"""Values as PTX text: instructions in an order in which each finds its arguments, registers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from mercer.compat.mm_ptx._machine import Application, Limits, StackPtxError, Value

_PREFIXES = "abcdefghijklmnopqrstuvwxyzABCDEF"  # of registers, one a stack


class Writer:
    """Text of values of stacks that are known by their literal prefixes."""

    def __init__(self, prefixes: Sequence[str], limits: Limits) -> None:
        self._types, self._limits = prefixes, limits
        self._counts = [0] * len(prefixes)
        self._registers: dict[tuple[int, int], str] = {}  # of values that are computed
        self._lines: list[str] = []

    def text(self, requests: Sequence[tuple[str, int, Value | None]]) -> str:
        """A block that computes the values and moves them into the registers named."""
        pending: list[Value] = []
        for _, _, value in requests:
            self._visit(pending, value)
        while pending:
            self._compute(pending)
        for name, stack, value in requests:
            if value is not None:
                self._lines.append(f"mov.{self._types[stack]} %{name}, {self._operand(value)};")
        declared = [
            f".reg .{kind} %_{_PREFIXES[stack]}<{count}>;"
            for stack, (kind, count) in enumerate(zip(self._types, self._counts, strict=True))
            if count
        ]
        return "".join(f"\t{line}\n" for line in ("{", *declared, *self._lines, "}"))

    def _visit(self, pending: list[Value], value: Value | None) -> None:
        if value is not None:
            if len(pending) >= self._limits.max_ast_to_visit_stack_depth:
                raise StackPtxError("STACK_PTX_ERROR_INSUFFICIENT_AST_VISIT_SIZE")
            pending.append(value)

    def _compute(self, pending: list[Value]) -> None:
        """The last value, or first what it waits for."""
        value = pending.pop()
        if self._is_there(value):
            return
        if value.kind == "special":
            register, element = value.source
            suffix = f".{'xyzw'[element]}" if register.arg.stack_num_vec_elems else ""
            place = self._register(value)
            self._lines.append(
                f"mov.{self._types[value.stack]} {place}, %{register.ptx_str}{suffix};"
            )
            return
        waiting = [v for v in reversed(value.source.arguments) if not self._is_there(v)]
        if not waiting:
            self._write(value.source)
            return
        for one in (value, *waiting):
            self._visit(pending, one)

    def _write(self, application: Application) -> None:
        instruction, arguments = application.instruction, iter(application.arguments)
        results, output = [], 0
        for kind in instruction.rets:
            names = []
            for _ in range(max(kind.stack_num_vec_elems, 1)):
                value = Value("ptx", kind.stack_type, application, output)
                names.append(self._register(value))
                output += 1
            results.append(_group(names, kind))
        operands = [
            _group([self._operand(next(arguments)) for _ in range(_count(kind))], kind)
            for kind in instruction.args
        ]
        written = ", ".join(["|".join(results), *operands])
        self._lines.append(f"{instruction.ptx_str} {written};")

    def _register(self, value: Value) -> str:
        name = f"%_{_PREFIXES[value.stack]}{self._counts[value.stack]}"
        self._counts[value.stack] += 1
        self._registers[_key(value)] = name
        return name

    def _is_there(self, value: Value) -> bool:
        return value.kind in ("input", "constant") or _key(value) in self._registers

    def _operand(self, value: Value) -> str:
        if value.kind == "input":
            return f"%{value.source.register_name}"
        if value.kind == "constant":
            return _literal(self._types[value.stack], value.source)
        return self._registers[_key(value)]


def _key(value: Value) -> tuple[int, int]:
    """A special register is read at each push of its own, an instruction once for its results."""
    return (id(value), 0) if value.kind == "special" else (id(value.source), value.output)


def _literal(kind: str, number: Any) -> str:
    if kind == "f32":
        return f"0f{struct.unpack('<I', struct.pack('<f', number))[0]:08X}"
    return f"0x{int(number) & 0xFFFFFFFF:08X}{'U' if kind == 'u32' else ''}"


def _count(kind: Any) -> int:
    return max(kind.stack_num_vec_elems, 1)


def _group(names: list[str], kind: Any) -> str:
    return "{" + ", ".join(names) + "}" if kind.stack_num_vec_elems else names[0]
