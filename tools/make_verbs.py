#!/usr/bin/env python3
"""Writes python/mercer/_verbs.py: the verbs as functions of Python, from the compiled signatures.

With a folder as argument the file goes there (a test compares it with the committed one), else to
python/mercer. A new verb is a name in VERBS.
"""

from __future__ import annotations

import inspect
import pathlib
import sys
import textwrap

from make_stubs import for_numpy

# The functions of each public module.
VERBS = {
    "mercer": (
        "pairwise", "kernel_matrix", "kernel_product", "kernel_reduce", "knn", "kernel_gradient",
        "kernel_agop", "gradient_field", "cdist",
    ),
    "mercer.kron": ("matmul", "kron_matmul"),
}  # fmt: skip
# The verbs that take ranges, a keyword that only Python knows.
RANGED = ("kernel_product", "kernel_reduce", "knn")
# How names of other modules are written in the signatures, and in the file.
IMPORTED = {
    "collections.abc": ("Sequence",),
    "typing": ("Literal",),
    "mercer._types": (
        "Array", "ArrayT", "FormulaLike", "Indices", "Numbers", "Parameter", "ScalarT",
    ),
}  # fmt: skip
WIDTH = 100
HEAD = '''"""The verbs, as torch.compile can read them. Written by tools/make_verbs.py.

Each is the compiled function and nothing else, except while torch.compile traces: a compiled
function is opaque to it, so it is shown the registered operator instead. PyTorch is not imported.
Arguments go on one by one and by their places: as a tuple and a dict the compiled function has them
0.3 us later, as keywords 0.25 us. Places of keywords are not in their stubs, hence call-arg.
What it refuses is called once more where lists, tables or whole numbers can be read as arrays.
"""
# fmt: off
# mypy: disable-error-code="no-any-return, call-arg, call-overload, misc"

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, overload

from mercer import _array_likes, _mercer, _sparse

if TYPE_CHECKING:
{imports}

{names}
_modules = sys.modules
_REFUSED = _array_likes.REFUSED
'''
TRACED = """\
    if "torch._dynamo" in _modules and _modules["torch"].compiler.is_dynamo_compiling():
        from mercer._torch import traced

{refusal}        return traced.{call}
"""
REFUSAL = """\
        if device is not None:
            raise NotImplementedError(
                f"{name}: device= is not offered under torch.compile. Received {{device!r}}"
            )
"""


RANGES = """\
        if "ranges" in params:
            return _array_likes.by_ranges("{name}", locals())
"""
GROUPED = """\
        if _array_likes.is_grouped(locals()):
            return _array_likes.gradient_of_groups(locals())
"""
AGAIN = """\
    except _REFUSED:
{sparse}{grouped}        again = _array_likes.read("{name}", locals())
        if again is None:
            raise
    return {name}(**again)
"""


# Points come first but for a formula.
SPARSE = """\
        if _sparse.is_sparse({points}):
            return _sparse.call("{name}", locals())
"""
OF_SPARSE = ("pairwise", "kernel_matrix", "kernel_product", "kernel_reduce", "knn", "cdist")

DESCRIBE = """\
def _describe(module: str, *verbs: Any) -> None:
    for verb in verbs:
        verb.__module__ = module
        verb.__doc__ = getattr(_mercer, verb.__name__).__nb_signature__[0][1]


"""


def wrapped(start: str, parts: list[str], end: str) -> str:
    """A call or a signature: on one line where it fits, else its parts in lines of their own."""
    line = f"{start}({', '.join(parts)}){end}"
    if len(line.partition("\n")[0]) <= WIDTH:
        return line
    indent = " " * (len(start) - len(start.lstrip()))
    lines, current = [], ""
    for part in parts:
        longer = f"{current} {part}," if current else f"{indent}    {part},"
        if len(longer) > WIDTH:
            lines.append(current)
            longer = f"{indent}    {part},"
        current = longer
    return "\n".join([f"{start}(", *lines, current, f"{indent}){end}"])


def passed_on(parameter: inspect.Parameter) -> str:
    name = parameter.name
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        return f"{name}={name}"
    return f"**{name}" if parameter.kind is inspect.Parameter.VAR_KEYWORD else name


def placed(parameter: inspect.Parameter) -> str:
    """By its place, which the compiled function takes sooner than a keyword."""
    return passed_on(parameter).partition("=")[0]


def written(parameters: list[inspect.Parameter]) -> list[str]:
    """The parameters of a definition, with the star before those that have names only."""
    parts = [
        f"{placed(parameter)}: {parameter.annotation}"
        + ("" if parameter.default is parameter.empty else f" = {parameter.default!r}")
        for parameter in parameters
    ]
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return parts


def docstring(text: str) -> str:
    """What the function is; its whole text is the compiled function's, and set below."""
    lines = textwrap.wrap(text.strip().partition("\n\n")[0], WIDTH - 10)
    if len(lines) == 1:
        return f'    """{lines[0]}"""\n'
    return textwrap.indent('"""' + "\n".join(lines) + '\n"""\n', "    ")


def overloads(name: str, line: str) -> str:
    """What type checkers read of it, where the types of NumPy's arrays say more than others."""
    special = for_numpy(name, " ".join(line.split()).replace("( ", "(").replace(", )", ")"), "")
    if special is None:
        return ""
    scope: dict = {}
    exec(f"from __future__ import annotations\n{special} ...", scope)
    signature = inspect.signature(scope[name])
    head = wrapped(
        f"def {name}", written(list(signature.parameters.values())),
        f" -> {signature.return_annotation}: ...",
    )  # fmt: skip
    return f"@overload\n{head}\n\n\n@overload\n{line} ...\n\n\n"


def definition(name: str, head: str, doc: str) -> str:
    """The function: for torch.compile the operator, for everybody else the compiled function."""
    scope: dict = {}
    exec(f"from __future__ import annotations\n{head}: ...", scope)
    signature = inspect.signature(scope[name])
    parameters = list(signature.parameters.values())
    arguments = [passed_on(parameter) for parameter in parameters]
    traced = [argument for argument in arguments if argument != "device=device"]
    refusal = "" if traced == arguments else REFUSAL.format(name=name)
    call = wrapped(f"        return traced.{name}", traced, "").removeprefix(
        "        return traced."
    )
    line = wrapped(f"def {name}", written(parameters), f" -> {signature.return_annotation}:")
    text = overloads(name, line) + line + "\n"
    text += docstring(doc) + TRACED.format(refusal=refusal, call=call)
    if name not in VERBS["mercer"]:
        return text + wrapped(f"    return _mercer.{name}", arguments, "") + "\n"
    arguments = [placed(parameter) for parameter in parameters]
    # Most calls have no parameters.
    call = wrapped(f"            return _mercer.{name}", arguments[:-1], "")
    text += f"    try:\n        if not {parameters[-1].name}:\n{call}\n"
    text += RANGES.format(name=name) if name in RANGED else ""
    text += wrapped(f"        return _mercer.{name}", arguments, "") + "\n"
    points = "x1, x2" if name == "cdist" else "x, z"
    sparse = SPARSE.format(name=name, points=points) if name in OF_SPARSE else ""
    grouped = GROUPED if name == "kernel_gradient" else ""
    return text + AGAIN.format(name=name, sparse=sparse, grouped=grouped)


def with_short_names(head: str) -> str:
    for module, names in IMPORTED.items():
        for name in sorted(names, key=len, reverse=True):
            head = head.replace(f"{module}.{name}", name)
    return head


def with_workspace() -> list[str]:
    """The public verbs that take scratch memory, as mercer.workspace_size names them."""
    from mercer import _mercer, linalg

    named = [(name, name) for name in (*VERBS["mercer"], *linalg.__all__)]
    named += [(f"kron.{name}", name) for name in VERBS["mercer.kron"]]
    compiled = {text: getattr(_mercer, name, None) for text, name in named}
    return [
        text
        for text, function in compiled.items()
        if any("workspace:" in head for head, *_ in getattr(function, "__nb_signature__", ()))
    ]


def module() -> str:
    from mercer import _mercer

    names = [name for group in VERBS.values() for name in group]
    signatures = {name: getattr(_mercer, name).__nb_signature__[0][:2] for name in names}
    functions = [
        definition(name, with_short_names(head), doc) for name, (head, doc) in signatures.items()
    ]
    imports = [f"    from {home} import {', '.join(names)}" for home, names in IMPORTED.items()]
    imports.insert(-1, "")
    listed = [
        wrapped(f"{title} = ", [f'"{name}"' for name in group], "")
        for title, group in zip(("NAMES", "KRON"), VERBS.values(), strict=True)
    ]
    listed.append("# What mercer.workspace_size serves.")
    listed.append(wrapped("WITH_WORKSPACE = ", [f'"{name}"' for name in with_workspace()], ""))
    head = HEAD.format(imports="\n".join(imports), names="\n".join(listed))
    tail = [wrapped("_describe", [f'"{home}"', *group], "") + "\n" for home, group in VERBS.items()]
    return "\n\n".join([head, *functions, "".join([DESCRIBE, *tail])])


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "python" / "mercer"
    (folder / "_verbs.py").write_text(module(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
