"""Lists of stack instructions, run on numbers: a second machine, for the tests of the first."""

from __future__ import annotations

import numpy as np

# Functions of arrays in float64; the first argument is the top of the stack.
FUNCTIONS = {
    "copysign.f32": lambda sign, size: np.copysign(size, sign),
    "add.ftz.f32": np.add,
    "sub.ftz.f32": np.subtract,
    "mul.ftz.f32": np.multiply,
    "fma.rn.ftz.f32": lambda a, b, c: a * b + c,
    "div.approx.ftz.f32": np.divide,
    "abs.ftz.f32": np.abs,
    "neg.ftz.f32": np.negative,
    "min.ftz.f32": np.minimum,
    "max.ftz.f32": np.maximum,
    "rcp.approx.ftz.f32": lambda a: 1 / a,
    "sqrt.approx.ftz.f32": np.sqrt,
    "rsqrt.approx.ftz.f32": lambda a: 1 / np.sqrt(a),
    "sin.approx.ftz.f32": np.sin,
    "cos.approx.ftz.f32": np.cos,
    "lg2.approx.ftz.f32": np.log2,
    "ex2.approx.ftz.f32": np.exp2,
    "tanh.approx.f32": np.tanh,
    "setp.lt.ftz.f32": lambda a, b: a < b,
    "setp.gt.ftz.f32": lambda a, b: a > b,
    "selp.f32": lambda a, b, condition: np.where(condition, a, b),
}


def run(tokens, values, stores=16):
    """The f32 stack after the tokens, its top last; registers have the values of their names."""
    stacks, depths, stored = {}, [], {}
    for token in tokens:
        if hasattr(token, "register_name"):
            stacks.setdefault(0, []).append(values[token.name])
        elif hasattr(token, "rets"):
            apply(token, stacks)
        elif token.kind == "constant":
            stacks.setdefault(token.stack, []).append(float(token.value))
        elif token.kind == "meta_constant":
            depths.append(token.value)
        elif token.kind == "load":
            if token.value in stored:
                stack, value = stored[token.value]
                stacks.setdefault(stack, []).append(value)
        else:
            stack = stacks.setdefault(token.stack, [])
            if token.kind == "store" and stack:
                stored[token.value] = token.stack, stack.pop()
            elif token.kind in ("yank_dup", "swap_with", "replace", "drop"):
                if depths and (depth := depths.pop()) < len(stack):
                    at_depth(token.kind, stack, depth)
            elif token.kind != "store":
                stacks[token.stack] = moved(token.kind, stack)
    return stacks.get(0, [])


def apply(token, stacks):
    needed = [int(kind.stack_type) for kind in token.args]
    if all(len(stacks.get(stack, [])) >= needed.count(stack) for stack in needed):
        arguments = [stacks[stack].pop() for stack in needed]
        result = FUNCTIONS[token.ptx_str](*arguments)
        stacks.setdefault(int(token.rets[0].stack_type), []).append(result)


def at_depth(kind, stack, depth):
    place = len(stack) - 1 - depth
    if kind == "yank_dup":
        stack.append(stack[place])
    elif kind == "swap_with":
        stack[place], stack[-1] = stack[-1], stack[place]
    elif kind == "replace":
        stack[place] = stack[-1]
        del stack[-1]
    else:
        del stack[len(stack) - depth :]


def moved(kind, stack):
    *rest, a, b, c = [None] * 3 + stack
    known = {
        "dup": [*stack, c] if stack else stack,
        "swap": [*rest, a, c, b],
        "rotate": [*rest, c, a, b],
        "reverse": stack[::-1],
    }
    if len(stack) < {"swap": 2, "rotate": 3}.get(kind, 0):
        return stack
    return [value for value in known[kind] if value is not None]


def matrix(mma, epilogue, a, b, hypers=None):
    """[M, N] of a semiring of functions of numbers, feature by feature, from points [M, K]."""
    hypers = hypers or {}
    named = {name: Register(name) for name in (*"abce", *hypers)}
    records = {name: named[name] for name in hypers}
    values, state = dict(hypers), np.zeros((len(a), len(b)))
    for k in range(a.shape[1]):
        values |= {"a": a[:, k][:, None] + 0 * state, "b": b[:, k][None] + 0 * state, "c": state}
        left = run(mma(named["a"], named["b"], named["c"], records), values)
        state = left[-1] + 0 * state if left else state
    left = run(epilogue(named["e"], records), {**values, "e": state})
    return left[-1] if left else state


def gradient(multiply, accumulate, epilogue, a, b, c, d):
    """[O, N, M] of a gradient kernel of functions of registers; None if multiply leaves nothing."""
    named = {name: Register(name) for name in ("a", "b", "c", "d", "diff", "e")}
    zero = np.zeros((c.shape[0], *d.shape))
    state = zero
    for k in range(a.shape[0]):
        values = {"a": a[k] + zero, "b": b[:, k][:, None] + zero, "d": d + zero}
        left = run(multiply(named["d"], named["b"], named["a"], {}), values)
        if not left:
            return None
        values = {"c": c[:, k][:, None, None] + zero, "diff": left[-1] + zero, "e": state}
        left = run(accumulate(named["c"], named["diff"], named["e"], {}), values)
        state = left[-1] + zero if left else state
    left = run(epilogue(named["e"], {}), {"e": state})
    return left[-1] + zero if left else state


class Register:
    stack_type = 0

    def __init__(self, name):
        self.name = self.register_name = name
