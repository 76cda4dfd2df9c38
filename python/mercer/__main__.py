"""The command line: ``mercer`` or ``python -m mercer``. Each subcommand is one function below."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import pathlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import mercer as mc
from mercer import _mercer

FAILURE = 1
POINTS = ("float16", "float32", "float64", "uint8", "int8", "int32")  # NumPy has no bfloat16

EXAMPLES = """\
examples:
  mercer info
  mercer zoo                         # the table of named metrics and kernels
  mercer zoo matern52                # one of them
  mercer cdist a.npy b.npy -o d.npy --p 1.3
  mercer cdist a.npy -o d.npy --metric canberra        # a.npy with itself
  mercer kernel "exp(-sum(abs(x-z)^p)/h)" x.npy z.npy -o k.npy --param p=1.3 --param h=2
  mercer product gauss x.npy z.npy v.npy -o y.npy --param bandwidth=3
  mercer explain "sum(abs(x-z))" --shape 30000x30000x1024 --target sm_90
  mercer tune "sum(abs(x-z)^p)" --shape 30000x30000x1024 --p 1.3
  mercer tune --cpu                  # what vector instructions cost on this processor
  mercer tune --gpu                  # what stored values cost on this GPU
  mercer bench --quick

A formula is written over the points x and z: sum, prod, max, min and logsumexp run over the
features, other names are parameters. Arrays are .npy files of shape [..., points, features].
"""


class Refusal(Exception):
    """A mistake of the caller; printed without a traceback."""


def _load(path: str) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise Refusal(f"{path}: cannot be read as a .npy file ({error})") from error
    if array.dtype.kind not in "biuf":
        raise Refusal(f"{path}: must hold real numbers. Received {array.dtype}")
    return array


def _check_output(path: str) -> None:
    """Before the work, not after it."""
    folder = pathlib.Path(path).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise Refusal(f"{path}: cannot be written (no folder {folder} to write into)")


def _save(path: str, array: np.ndarray) -> None:
    try:
        with open(path, "wb") as file:  # np.save would append .npy to another name
            np.save(file, array)
    except OSError as error:
        raise Refusal(f"{path}: cannot be written ({error})") from error
    print(f"{path}: {array.dtype}{list(array.shape)}")


def _shape(text: str) -> tuple[int, int, int]:
    sizes = text.lower().split("x")
    if len(sizes) != 3 or not all(size.isdecimal() for size in sizes):
        raise argparse.ArgumentTypeError(f"must be MxNxK, such as 4096x4096x256. Received {text}")
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def _parameter(text: str) -> tuple[str, float | list[float]]:
    name, sign, value = text.partition("=")
    try:
        numbers = [float(number) for number in value.split(",")]
    except ValueError:
        numbers = []
    if not name.isidentifier() or not sign or not numbers:
        raise argparse.ArgumentTypeError(
            f"must be name=number or name=number,number. Received {text}"
        )
    return name, numbers[0] if len(numbers) == 1 else numbers


def _computed_in(dtype: np.dtype) -> np.dtype:
    """The type itself where Mercer has it, in this machine's byte order."""
    if dtype.newbyteorder("=") in map(np.dtype, POINTS):
        return dtype.newbyteorder("=")
    return np.dtype("float64" if dtype.kind == "f" or dtype.itemsize > 2 else "float32")


def _same_dtype(*arrays: np.ndarray | None) -> list[np.ndarray | None]:
    """Other types and mixed widths become floats that hold them: files seldom have chosen types."""
    kinds = {_computed_in(array.dtype) for array in arrays if array is not None}
    is_wide = kinds & {np.dtype("float64"), np.dtype("int32")}
    kind = kinds.pop() if len(kinds) == 1 else np.dtype("float64" if is_wide else "float32")
    return [None if array is None else array.astype(kind, copy=False) for array in arrays]


def _parameters(options: argparse.Namespace) -> dict[str, float | list[float]]:
    params = dict(options.param)
    if options.p is not None:
        params["p"] = options.p
    return params


def _call_options(options: argparse.Namespace) -> dict:
    if options.threads is not None:
        mc.set_num_threads(options.threads)
    if options.target is not None:
        mc.set_target(options.target)
    _check_output(options.output)
    return {"progress": sys.stderr.isatty()}


def info(_: argparse.Namespace) -> None:
    print(mc.info().rstrip())


def env(_: argparse.Namespace) -> None:
    for name, default, doc in _mercer.env_rows():
        print(f"{name:<20} {doc}\n{'':<20} default: {default or 'empty'}")


def explain(options: argparse.Namespace) -> None:
    place = options.shape, options.dtype, options.target
    call = {"verb": options.verb, "columns": options.columns, "backward": options.backward}
    print(mc.explain(options.formula, *place, **call).rstrip())


def tune(options: argparse.Namespace) -> None:
    from mercer import _tune

    if [options.cpu, options.gpu, options.formula is not None].count(True) != 1:
        raise Refusal(
            "tune: takes a formula, for a GPU, or --cpu, or --gpu. Received several or none"
        )
    if options.cpu or options.gpu:
        costs = _mercer.tune_cpu() if options.cpu else _mercer.tune_gpu(options.device)
        print(costs.rstrip())
        return
    place = options.shape, options.dtype, options.device, options.verb
    print(_tune.tune_shape(options.formula, *place, **_parameters(options)))


def cdist(options: argparse.Namespace) -> None:
    x, z = _same_dtype(_load(options.x), None if options.z is None else _load(options.z))
    settings, params = _call_options(options), _parameters(options)
    p = params.pop("p", None)
    _save(options.output, mc.cdist(x, z, p, metric=options.metric, **settings, **params))


def kernel(options: argparse.Namespace) -> None:
    x, z = _same_dtype(_load(options.x), None if options.z is None else _load(options.z))
    settings, params = _call_options(options), dict(options.param)
    _save(options.output, mc.kernel_matrix(options.formula, x, z, **settings, **params))


def product(options: argparse.Namespace) -> None:
    x, z = _same_dtype(_load(options.x), _load(options.z))
    v = _load(options.v).astype("float64" if x.dtype == np.float64 else "float32", copy=False)
    settings, params = _call_options(options), dict(options.param)
    _save(options.output, mc.kernel_product(options.formula, x, z, v, **settings, **params))


def _zoo_row(row: dict) -> str:
    lines = [f"{row['name']} ({'metric' if row['is_metric'] else 'kernel'}): {row['text']}"]
    if row["aliases"]:
        lines.append("also: " + ", ".join(row["aliases"]))
    if row["weighted"]:
        lines.append("with weights: " + row["weighted_text"])
    for option in row["options"]:
        fixed = ", chooses the text" if option["is_static"] else ""
        lines.append(f"{option['name']} = {option['default']:g}{fixed}: {option['doc']}")
    if row["w_meaning"]:
        lines.append(f"w: {row['w_meaning']}")
    lines.append(f"values: {row['domain']}")
    lines.append(f"source: {row['source']}")
    return "\n  ".join(lines)


def zoo(options: argparse.Namespace) -> None:
    rows = mc.zoo.table
    if options.name is not None:
        rows = [row for row in rows if options.name in (row["name"], *row["aliases"])]
        if not rows:
            mc.metric(options.name)  # raises with the known names
        print(_zoo_row(rows[0]))
        return
    for title, wanted in (("metrics", True), ("kernels", False)):
        print(f"{title}:")
        for row in rows:
            if row["is_metric"] == wanted:
                print(f"  {row['name']:<22} {row['text']}")


def bench(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("mercer.benchmarks") is None:
        raise Refusal(
            "bench: the benchmarks come with a checkout (make bench), not with the package from an "
            "index. Received a package without them"
        )
    from mercer import benchmarks

    return benchmarks.main(options.arguments)


def _age(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


# By kind, what is said before the name of a file.
_KEPT = {"cubin": "", "tile": "tile of ", "kron": "plan of ", "cpu": "costs of "}


def cache(options: argparse.Namespace) -> None:
    path, (files, size) = _mercer.cache_path(), _mercer.cache_stats()
    if options.action == "path":
        print(path or "off")
    elif options.action == "list":
        for key, name, number, age in _mercer.cache_files():
            kind, *fields = key.decode(errors="replace").split("\n")
            if kind in _KEPT:  # then the architecture
                name = name.decode(errors="replace")
                print(f"{number:>10}  {_age(age):>5}  {fields[0]:<8}  {_KEPT[kind]}{name}")
        print(f"{files} files, {size} bytes in {path or 'no folder: the cache is off'}")
        print("Code for the CPU is emitted in memory within a millisecond and is not kept here.")
    else:
        _mercer.cache_clear()
        print(f"removed {files} files, {size} bytes")


def _add(
    commands: Any, function: Callable, help_text: str, example: str = ""
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        function.__name__,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog="example:\n" + textwrap.indent(example, "  ") if example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=function)
    return command


def _add_formula(command: argparse.ArgumentParser) -> None:
    command.add_argument("formula", help="a formula or a name of the zoo")


def _add_shape(command: argparse.ArgumentParser) -> None:
    command.add_argument("--shape", type=_shape, default=(4096, 4096, 256), metavar="MxNxK")
    command.add_argument(
        "--dtype", default="float32", choices=[*POINTS, "bfloat16"], help="of the points (float32)"
    )


def _add_param(command: argparse.ArgumentParser, help_text: str) -> None:
    command.add_argument(
        "--param",
        action="append",
        default=[],
        type=_parameter,
        metavar="NAME=VALUE",
        help="a parameter of the formula; " + help_text,
    )


def _add_points(command: argparse.ArgumentParser) -> None:
    command.add_argument("x", help="the .npy of the rows")
    command.add_argument("z", nargs="?", help="the .npy of the columns; without it, x with itself")


def _add_call(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", required=True, metavar="OUT", help="the .npy to write")
    _add_param(command, "several values a,b,c give one result each")
    command.add_argument("--threads", type=int, help="threads to use (all)")
    command.add_argument("--target", help="x86_avx512, x86_avx2, interpreter or auto")


def _add_texts(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Commands that print."""
    add(info, "this machine and what Mercer chose")
    add(env, "the environment variables that Mercer reads")

    command = add(
        explain,
        "every stage of a call as text, without data",
        'mercer explain "exp(-sum(abs(x-z)^p)/h)" --shape 4096x4096x256 --target x86_avx512',
    )
    _add_formula(command)
    _add_shape(command)
    command.add_argument(
        "--target",
        default="auto",
        help="x86_avx512, x86_avx2, interpreter or auto; a family of CPUs as zen4, zen4:x86_avx2; "
        "sm_80 to sm_120 or cuda:0 for a GPU",
    )
    command.add_argument(
        "--verb",
        default="pairwise",
        help="of a GPU kernel_product, kernel_reduce, knn, kernel_gradient or kernel_agop too",
    )
    command.add_argument("--columns", type=int, default=1, help="of v, or the neighbours (1)")
    command.add_argument(
        "--backward", action="store_true", help="the passes of PyTorch's backwards as well"
    )

    command = add(zoo, "the named metrics and kernels", "mercer zoo matern52")
    command.add_argument("name", nargs="?", help="one of them")


def _add_calls(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Commands that compute on files."""
    command = add(
        cdist, "distances of all pairs", "mercer cdist a.npy b.npy -o d.npy --p 1.3\n"
        "mercer cdist a.npy -o d.npy --metric canberra",
    )  # fmt: skip
    _add_points(command)
    command.add_argument("--p", type=float, help="the norm: 0 to inf (2)")
    command.add_argument("--metric", help="a name of the zoo or a formula; --p is its option then")
    _add_call(command)

    command = add(
        kernel,
        "the kernel matrix of a formula",
        'mercer kernel "exp(-sum(square(x-z))/h)" x.npy -o k.npy --param h=2',
    )
    _add_formula(command)
    _add_points(command)
    _add_call(command)

    command = add(
        product,
        "a kernel matrix times v, the matrix never formed",
        "mercer product gauss x.npy z.npy v.npy -o y.npy --param bandwidth=3",
    )
    _add_formula(command)
    command.add_argument("x", help="the .npy of the rows")
    command.add_argument("z", help="the .npy of the columns")
    command.add_argument("v", help="the .npy of the right-hand sides, [N] or [N, E]")
    _add_call(command)


def _add_measurements(add: Callable[..., argparse.ArgumentParser]) -> None:
    command = add(
        tune,
        "the fastest tile for a formula on this GPU, or this machine's costs, measured and kept",
        'mercer tune "exp(-sum(abs(x-z)^p)/h)" --shape 30000x30000x1024 --p 1.3 --param h=2\n'
        "mercer tune --cpu\n"
        "mercer tune --gpu --device cuda:1",
    )
    command.add_argument("formula", nargs="?", help="a formula or a name of the zoo")
    command.add_argument(
        "--cpu", action="store_true", help="what vector instructions cost here, in some seconds"
    )
    command.add_argument(
        "--gpu", action="store_true", help="what stored values cost there, in some seconds"
    )
    _add_shape(command)
    command.add_argument("--device", default="cuda:0", help="the GPU (cuda:0)")
    command.add_argument("--verb", default="pairwise", choices=["pairwise", "kernel_product"])
    command.add_argument("--p", type=float, help="short for --param p=P")
    _add_param(command, "only the values of exponents make a difference")

    command = add(bench, "throughput beside the libraries installed here", "mercer bench --quick")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="see mercer bench --help")

    command = add(cache, "the compiled GPU kernels on disk", "mercer cache clear")
    command.add_argument("action", choices=["list", "clear", "path"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mercer",
        description="Distances, kernels and products by any formula, at the speed of the hardware.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mercer {mc.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    add = functools.partial(_add, commands)
    _add_texts(add)
    _add_calls(add)
    _add_measurements(add)
    return parser


def _options(arguments: list[str]) -> argparse.Namespace:
    if arguments[:1] == ["bench"]:  # its options are its own
        return argparse.Namespace(command="bench", run=bench, arguments=arguments[1:])
    return _parser().parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(sys.argv[1:] if arguments is None else list(arguments))
    try:
        code = options.run(options) or 0
        sys.stdout.flush()
        return code
    except (
        Refusal, ValueError, NotImplementedError, TypeError, MemoryError, mc.CompileError,
        mc.DeviceError,
    ) as error:  # fmt: skip
        print(f"mercer {options.command}: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # mercer zoo | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


if __name__ == "__main__":
    sys.exit(main())
