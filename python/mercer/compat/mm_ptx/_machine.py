"""The machine of Stack PTX: a list of tokens becomes values on stacks, each a small tree.

Each type has a stack. A register, a constant or a special register is pushed; an instruction pops
its arguments, the top first, and pushes its results, the first on top. What finds too few operands,
or a full stack, does nothing. A value that nobody asks for is not computed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


class StackPtxError(RuntimeError):
    """A limit or an index of Stack PTX that was exceeded; the message is its name."""


@dataclass(frozen=True)
class Token:
    """An instruction that has no enumeration of its own, on one stack."""

    kind: str  # "constant", "meta", "store", "load" or an operation on a stack
    stack: int = 0
    value: Any = None
    name: str = ""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Value:
    """A value on a stack: of a register, a constant, a special register or an instruction."""

    kind: str  # "input", "constant", "special" or "ptx"
    stack: int
    source: Any  # a register, a number, (special register, element), or an Application
    output: int = 0

    @property
    def arguments(self) -> tuple[Value, ...]:
        return self.source.arguments if self.kind == "ptx" else ()

    @functools.cached_property
    def registers(self) -> frozenset[str]:
        """The names of the registers that it is made of."""
        if self.kind == "input":
            return frozenset([self.source.name])
        return frozenset().union(*(argument.registers for argument in self.arguments))


@dataclass(frozen=True, eq=False)
class Application:
    """An instruction with its arguments, the one popped first in front."""

    instruction: Any
    arguments: tuple[Value, ...]


@dataclass(frozen=True)
class Limits:
    execution_limit: int
    max_ast_size: int = 100
    max_ast_to_visit_stack_depth: int = 10
    stack_size: int = 128
    max_frame_depth: int = 4
    store_size: int = 16


def check_token(token: Any) -> None:
    kinds = ("kind", "ptx_str", "instructions", "register_name")
    if not any(hasattr(token, kind) for kind in kinds):
        raise ValueError(f"Invalid instruction: {token!r}")


class Machine:
    """Runs tokens within limits; ``stacks`` holds what they left."""

    def __init__(self, stacks: int, limits: Limits, routines: Any = None) -> None:
        self.stacks: list[list[Value]] = [[] for _ in range(stacks)]
        self._limits, self._routines = limits, routines
        self._meta: list[int] = []
        self._stored: dict[int, Value] = {}
        self._size = 0

    def run(self, tokens: Iterable[Any]) -> None:
        """Each token, and each end of a list of them, is one step of the execution limit."""
        frames: list[Iterator[Any]] = [iter(tokens)]
        for _ in range(self._limits.execution_limit):
            token = next(frames[-1], None)
            if token is None:
                frames.pop()
                if not frames:
                    return
            elif hasattr(token, "instructions"):
                if self._routines is None or not isinstance(token, self._routines):
                    raise StackPtxError("STACK_PTX_ERROR_ROUTINES_IDX_OUT_OF_BOUNDS")
                if len(frames) < self._limits.max_frame_depth:
                    frames.append(iter(token.instructions))
            else:
                self._step(token)

    def top(self, requests: Sequence[int]) -> list[Value | None]:
        """What each request, the number of a stack, takes from it; None where it is empty."""
        left = [list(stack) for stack in self.stacks]
        return [left[stack].pop() if left[stack] else None for stack in requests]

    def _step(self, token: Any) -> None:
        if isinstance(token, Token):
            getattr(self, f"_{token.kind}")(token)
        elif hasattr(token, "register_name"):
            self._make(Value("input", token.stack_type, token))
        elif hasattr(token, "args"):
            self._apply(token)
        else:
            count = max(token.arg.stack_num_vec_elems, 1)
            for element in range(count):
                self._make(Value("special", token.arg.stack_type, (token, element)))

    def _apply(self, instruction: Any) -> None:
        left = {arg.stack_type: list(self.stacks[arg.stack_type]) for arg in instruction.args}
        arguments = []
        for stack in _flat(instruction.args):
            if not left[stack]:
                return
            arguments.append(left[stack].pop())
        self._grow(len(arguments))
        for stack, values in left.items():
            self.stacks[stack] = values
        application = Application(instruction, tuple(arguments))
        outputs = list(enumerate(_flat(instruction.rets)))
        for output, stack in reversed(outputs):
            self._make(Value("ptx", stack, application, output))

    def _grow(self, count: int) -> None:
        self._size += count
        if self._size > self._limits.max_ast_size:
            raise StackPtxError("STACK_PTX_ERROR_INSUFFICIENT_AST_SIZE")

    def _make(self, value: Value) -> None:
        self._grow(1)
        self._push(value)

    def _push(self, value: Value) -> None:
        stack = self.stacks[value.stack]
        if len(stack) < self._limits.stack_size:
            stack.append(value)

    def _constant(self, token: Token) -> None:
        self._make(Value("constant", token.stack, token.value))

    def _meta_constant(self, token: Token) -> None:
        if len(self._meta) < self._limits.stack_size:
            self._meta.append(token.value)

    def _store(self, token: Token) -> None:
        if not 0 <= token.value < self._limits.store_size:
            raise StackPtxError("STACK_PTX_ERROR_STORE_IDX_OUT_OF_BOUNDS")
        if self.stacks[token.stack]:
            self._stored[int(token.value)] = self.stacks[token.stack].pop()

    def _load(self, token: Token) -> None:
        if not 0 <= token.value < self._limits.store_size:
            raise StackPtxError("STACK_PTX_ERROR_LOAD_IDX_OUT_OF_BOUNDS")
        if int(token.value) in self._stored:
            self._push(self._stored[int(token.value)])

    def _dup(self, token: Token) -> None:
        stack = self.stacks[token.stack]
        if stack:
            self._push(stack[-1])

    def _swap(self, token: Token) -> None:
        stack = self.stacks[token.stack]
        stack[-2:] = stack[-2:][::-1]

    def _rotate(self, token: Token) -> None:
        """The top goes below the two under it."""
        stack = self.stacks[token.stack]
        if len(stack) > 2:
            stack.insert(-2, stack.pop())

    def _reverse(self, token: Token) -> None:
        self.stacks[token.stack].reverse()

    def _yank_dup(self, token: Token) -> None:
        stack, depth = self.stacks[token.stack], self._depth(token.stack)
        if depth is not None:
            self._push(stack[-depth - 1])

    def _swap_with(self, token: Token) -> None:
        stack, depth = self.stacks[token.stack], self._depth(token.stack)
        if depth is not None:
            stack[-1], stack[-depth - 1] = stack[-depth - 1], stack[-1]

    def _replace(self, token: Token) -> None:
        """The value at a depth becomes the top, which is popped."""
        stack, depth = self.stacks[token.stack], self._depth(token.stack)
        if depth is not None:
            stack[-depth - 1] = stack[-1]
            stack.pop()

    def _drop(self, token: Token) -> None:
        stack, count = self.stacks[token.stack], self._depth(token.stack)
        if count:
            del stack[-count:]

    def _depth(self, stack: int) -> int | None:
        """The number popped from the stack of meta constants, if the stack is deeper."""
        depth = self._meta.pop() if self._meta else None
        return depth if depth is not None and depth < len(self.stacks[stack]) else None


def _flat(types: Iterable[Any]) -> list[int]:
    """The stack of each element of vectors and single values."""
    return [kind.stack_type for kind in types for _ in range(max(kind.stack_num_vec_elems, 1))]
