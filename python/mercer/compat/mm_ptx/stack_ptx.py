"""mm_ptx.stack_ptx: types and instructions of one's own, and programs of them as PTX text.

A program is a list of tokens for a machine with a stack for each type: registers and constants push
a value, an instruction pops its arguments, the top first, and pushes its results. The values on top
in the end go to the registers asked for.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mercer.compat.mm_ptx._machine import Limits, Machine, StackPtxError, Token, check_token
from mercer.compat.mm_ptx._text import Writer

__all__ = [
    "ArgTypeEnum", "RegisterRegistry", "RoutineEnum", "StackPtx", "StackPtxError", "StackTypeEnum",
    "create_instruction_enum", "create_special_register_enum",
]  # fmt: skip


class _Counted(enum.IntEnum):
    """Members are tuples whose first entry, auto(), counts from 0."""

    def __new__(cls, value: Any, *rest: Any) -> Any:
        number = len(cls.__members__) if isinstance(value, enum.auto) else value
        member: Any = int.__new__(cls, number)
        member._value_ = number
        member._describe(*rest)
        return member

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


class StackTypeEnum(_Counted):
    """Types with a stack each: ``f32 = (auto(), "f32")``, the word of PTX for the type."""

    literal_prefix: str

    def _describe(self, literal_prefix: str) -> None:
        self.literal_prefix = literal_prefix

    def constant(self, v: float) -> Token:
        """Pushes a number. ValueError for types other than f32, s32 and u32."""
        if self.literal_prefix not in ("f32", "s32", "u32"):
            raise ValueError(
                f"Only f32, s32 and u32 have constants. Received {self.literal_prefix}"
            )
        return Token("constant", self.value, v, f"{self.literal_prefix}_constant({v})")

    @classmethod
    def meta_constant(cls, v: int) -> Token:
        """Pushes a depth for yank_dup, swap_with, replace and drop."""
        return Token("meta_constant", 0, v, f"meta_constant({v})")

    def store(self, idx: int) -> Token:
        """Pops the top into a place."""
        return Token("store", self.value, idx, f"store({idx})")

    @classmethod
    def load(cls, idx: int) -> Token:
        """Pushes what was stored in a place."""
        return Token("load", 0, idx, f"load({idx})")

    def _on_stack(self, kind: str) -> Token:
        return Token(kind, self.value, None, f"{self.literal_prefix}_{kind}")

    @property
    def dup(self) -> Token:
        """Pushes the top once more."""
        return self._on_stack("dup")

    @property
    def swap(self) -> Token:
        """Swaps the two on top."""
        return self._on_stack("swap")

    @property
    def rotate(self) -> Token:
        """Puts the top two deeper."""
        return self._on_stack("rotate")

    @property
    def reverse(self) -> Token:
        """Turns the stack over."""
        return self._on_stack("reverse")

    @property
    def yank_dup(self) -> Token:
        """Pushes that of a depth."""
        return self._on_stack("yank_dup")

    @property
    def swap_with(self) -> Token:
        """Swaps with a depth."""
        return self._on_stack("swap_with")

    @property
    def replace(self) -> Token:
        """Pops the top into a depth."""
        return self._on_stack("replace")

    @property
    def drop(self) -> Token:
        """Pops a number of values."""
        return self._on_stack("drop")


class ArgTypeEnum(_Counted):
    """What instructions take and give: ``v2 = (auto(), Stack.f32, 2)``, of 0 one value."""

    stack_type: int
    stack_num_vec_elems: int

    def _describe(self, stack_type: int, stack_num_vec_elems: int = 0) -> None:
        self.stack_type, self.stack_num_vec_elems = int(stack_type), stack_num_vec_elems


class _Described(_Counted):
    """A token with PTX text of its own."""

    ptx_str: str

    def __str__(self) -> str:
        return self.ptx_str

    __repr__ = __str__


def create_instruction_enum(arg_type_enum: type[ArgTypeEnum]) -> Any:
    """The base of instructions: ``add = (auto(), "add.f32", [Arg.f32, Arg.f32], [Arg.f32])``."""

    class PtxInstructionEnum(_Described):
        def _describe(self, ptx_str: str, args: Any, rets: Any, aligned: bool = False) -> None:
            for name, types, most in (("args", args, 4), ("rets", rets, 2)):
                if not isinstance(types, list) or len(types) > most or not all(
                    isinstance(kind, arg_type_enum) for kind in types
                ):  # fmt: skip
                    raise ValueError(f"Invalid {name}: must be a list of at most {most} ArgTypes")
            self.ptx_str, self.args, self.rets, self.aligned = ptx_str, args, rets, aligned

    return PtxInstructionEnum


def create_special_register_enum(arg_type_enum: type[ArgTypeEnum]) -> Any:
    """The base of special registers: ``clock = (auto(), "clock", Arg.u32)``."""

    class SpecialRegisterEnum(_Described):
        def _describe(self, ptx_str: str, arg: Any) -> None:
            if not isinstance(arg, arg_type_enum):
                raise ValueError("Invalid arg: must be an ArgType")
            self.ptx_str, self.arg = ptx_str, arg

    return SpecialRegisterEnum


class RoutineEnum(_Counted):
    """Lists of tokens to be called: ``square = (auto(), [Stack.f32.dup, Ptx.mul])``."""

    instructions: list[Any]

    def _describe(self, instructions: list[Any]) -> None:
        self.instructions = instructions

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class RegisterRegistry:
    """The registers that a program reads and writes; each is an attribute by its name."""

    @dataclass(frozen=True)
    class RegisterRecord:
        idx: int
        register_name: str
        stack_type: int
        name: str

    def __init__(self) -> None:
        self._records: dict[str, RegisterRegistry.RegisterRecord] = {}
        self._frozen = False

    def add(self, register_name: str, stack_type: int, name: str | None = None) -> RegisterRecord:
        """Names a register of PTX. RuntimeError once the registry is frozen."""
        if self._frozen:
            raise RuntimeError("RegisterRegistry is frozen; cannot add more registers.")
        name = name or register_name
        record = self.RegisterRecord(len(self._records), register_name, int(stack_type), name)
        self._records[name] = record
        return record

    def freeze(self) -> None:
        self._frozen = True

    def get(self, name: str) -> RegisterRecord:
        if name not in self._records:
            raise KeyError(f"Name '{name}' not found")
        return self._records[name]

    def by_idx(self, idx: int) -> RegisterRecord:
        for record in self:
            if record.idx == idx:
                return record
        raise KeyError(f"Register with index {idx} not found")

    def get_register_names(self) -> list[str]:
        return [record.register_name for record in self]

    def get_stack_types(self) -> list[int]:
        return [record.stack_type for record in self]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RegisterRecord]:
        return iter(self._records.values())

    def __getattr__(self, name: str) -> RegisterRecord:
        if name.startswith("_") or name not in self._records:
            raise AttributeError(f"Register '{name}' not found")
        return self._records[name]


class StackPtx:
    """The compiler for one set of types, instructions and special registers."""

    def __init__(
        self, stack_enum: Any, arg_enum: Any, ptx_instruction_enum: Any, special_register_enum: Any
    ) -> None:
        self.stack_enum, self.arg_enum = stack_enum, arg_enum
        self.ptx_instruction_enum = ptx_instruction_enum
        self.special_register_enum = special_register_enum

    def compile(
        self,
        registry: RegisterRegistry,
        instructions: Sequence[Any],
        requests: Sequence[Any],
        execution_limit: int,
        routine_enum: Any = None,
        max_ast_size: int = 100,
        max_ast_to_visit_stack_depth: int = 10,
        stack_size: int = 128,
        max_frame_depth: int = 4,
        store_size: int = 16,
    ) -> str:
        """PTX text, a block in braces, that leaves the top values in the registers of requests.

        requests: registers of the registry, or their indices; a register whose stack is empty keeps
        its value. Raises ValueError for what is no instruction, StackPtxError where a limit or an
        index is exceeded.
        """
        limits = Limits(
            execution_limit, max_ast_size, max_ast_to_visit_stack_depth, stack_size,
            max_frame_depth, store_size,
        )  # fmt: skip
        machine = self.run(instructions, limits, routine_enum)
        wanted = [registry.by_idx(r) if isinstance(r, int) else r for r in requests]
        values = machine.top([record.stack_type for record in wanted])
        writer = Writer([stack.literal_prefix for stack in self.stack_enum], limits)
        return writer.text(
            [(r.register_name, r.stack_type, v) for r, v in zip(wanted, values, strict=True)]
        )

    def run(self, instructions: Sequence[Any], limits: Limits, routine_enum: Any = None) -> Machine:
        """The machine after the instructions."""
        for token in instructions:
            check_token(token)
        machine = Machine(len(self.stack_enum), limits, routine_enum)
        machine.run(instructions)
        return machine
