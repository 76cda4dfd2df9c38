"""The command line: ``mercer`` or ``python -m mercer``. Each subcommand is one function below."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence

import numpy as np

import mercer as mc
from mercer import _mercer

FAILURE = 1
POINTS = ("float16", "bfloat16", "float32", "float64", "uint8")

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
  mercer bench --quick

A formula is written over the points x and z: sum, prod, max, min and logsumexp run over the
features, other names are parameters. Arrays are .npy files of shape [..., points, features].
"""


class Refusal(Exception):
    """A mistake of the caller; printed without a traceback."""


def _load(path: str) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Refusal(f"{path}: cannot be read as a .npy file ({error})") from error


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


def _same_dtype(*arrays: np.ndarray | None) -> list[np.ndarray | None]:
    """Whole numbers become float32 and mixed widths the wider: files seldom have chosen types."""
    given = [a for a in arrays if a is not None]
    kind = given[0].dtype if all(a.dtype == given[0].dtype for a in given) else np.float32
    for array in given:
        if array.dtype == np.float64:
            kind = np.float64
    if kind not in (np.float16, np.float32, np.float64, np.uint8):
        kind = np.float32
    return [None if a is None else a.astype(kind, copy=False) for a in arrays]


def _call_options(options: argparse.Namespace) -> dict:
    if options.threads is not None:
        mc.set_num_threads(options.threads)
    if options.target is not None:
        mc.set_target(options.target)
    return {"progress": sys.stderr.isatty(), **dict(options.param)}


def info(_: argparse.Namespace) -> None:
    print(mc.info().rstrip())


def env(_: argparse.Namespace) -> None:
    for name, default, doc in _mercer.env_rows():
        print(f"{name:<20} {doc}\n{'':<20} default: {default or 'empty'}")


def explain(options: argparse.Namespace) -> None:
    print(mc.explain(options.formula, options.shape, options.dtype, options.target).rstrip())


def tune(options: argparse.Namespace) -> None:
    from mercer import _tune

    params = dict(options.param)
    if options.p is not None:
        params["p"] = options.p
    found = _tune.tune_shape(
        options.formula, options.shape, options.dtype, options.device, options.verb, **params
    )
    print(found)


def cdist(options: argparse.Namespace) -> None:
    x, z = _same_dtype(_load(options.x), None if options.z is None else _load(options.z))
    result = mc.cdist(x, z, options.p, metric=options.metric, **_call_options(options))
    _save(options.output, result)


def kernel(options: argparse.Namespace) -> None:
    x, z = _same_dtype(_load(options.x), None if options.z is None else _load(options.z))
    _save(options.output, mc.kernel_matrix(options.formula, x, z, **_call_options(options)))


def product(options: argparse.Namespace) -> None:
    x, z = _same_dtype(_load(options.x), _load(options.z))
    computed = np.float64 if x.dtype == np.float64 else np.float32
    v = _load(options.v).astype(computed, copy=False)
    _save(options.output, mc.kernel_product(options.formula, x, z, v, **_call_options(options)))


def _zoo_row(row: dict) -> str:
    lines = [f"{row['name']} ({'metric' if row['is_metric'] else 'kernel'}): {row['text']}"]
    if row["aliases"]:
        lines.append("also: " + ", ".join(row["aliases"]))
    if row["weighted"]:
        lines.append("with weights: " + row["weighted_text"])
    for option in row["options"]:
        fixed = ", chooses the text" if option["is_static"] else ""
        lines.append(f"{option['name']} = {option['default']:g}{fixed}: {option['doc']}")
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
    from mercer import benchmarks

    return benchmarks.main(options.arguments)


def _age(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def cache(options: argparse.Namespace) -> None:
    path, (files, size) = _mercer.cache_path(), _mercer.cache_stats()
    if options.action == "path":
        print(path or "off")
    elif options.action == "list":
        for key, name, number, age in _mercer.cache_files():
            kind, *fields = key.decode(errors="replace").split("\n")
            if kind in ("cubin", "tile"):  # then the architecture
                name = name.decode(errors="replace")
                kept = "" if kind == "cubin" else "tile of "
                print(f"{number:>10}  {_age(age):>5}  {fields[0]:<8}  {kept}{name}")
        print(f"{files} files, {size} bytes in {path or 'no folder: the cache is off'}")
        print("Code for the CPU is emitted in memory within a millisecond and is not kept here.")
    else:
        _mercer.cache_clear()
        print(f"removed {files} files, {size} bytes")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mercer",
        description="Distances, kernels and products by any formula, at the speed of the hardware.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mercer {mc.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    def add(function, help_text: str, example: str = "") -> argparse.ArgumentParser:
        command = commands.add_parser(
            function.__name__,
            help=help_text,
            description=help_text[0].upper() + help_text[1:] + ".",
            epilog="example:\n" + textwrap.indent(example, "  ") if example else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=function)
        return command

    def add_call_options(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "-o", "--output", required=True, metavar="OUT", help="the .npy to write"
        )
        command.add_argument(
            "--param",
            action="append",
            default=[],
            type=_parameter,
            metavar="NAME=VALUE",
            help="a parameter of the formula; several values a,b,c give one result each",
        )
        command.add_argument("--threads", type=int, help="threads to use")
        command.add_argument("--target", help="x86_avx512, x86_avx2, interpreter or auto")

    add(info, "this machine and what Mercer chose")
    add(env, "the environment variables that Mercer reads")

    command = add(
        explain,
        "every stage of a call as text, without data",
        'mercer explain "exp(-sum(abs(x-z)^p)/h)" --shape 4096x4096x256 --target x86_avx512',
    )
    command.add_argument("formula", help="a formula or a name of the zoo")
    command.add_argument("--shape", type=_shape, default=(4096, 4096, 256), metavar="MxNxK")
    command.add_argument("--dtype", default="float32", help="of the points (float32)")
    command.add_argument(
        "--target",
        default="auto",
        help="x86_avx512, x86_avx2, interpreter or auto; sm_80 to sm_120 or cuda:0 for a GPU",
    )

    command = add(
        tune,
        "the fastest tile for a formula on this GPU, measured and kept",
        'mercer tune "exp(-sum(abs(x-z)^p)/h)" --shape 30000x30000x1024 --p 1.3 --param h=2',
    )
    command.add_argument("formula", help="a formula or a name of the zoo")
    command.add_argument("--shape", type=_shape, default=(4096, 4096, 256), metavar="MxNxK")
    command.add_argument("--dtype", default="float32", choices=POINTS, help="of the points")
    command.add_argument("--device", default="cuda:0", help="the GPU (cuda:0)")
    command.add_argument("--verb", default="pairwise", choices=["pairwise", "kernel_product"])
    command.add_argument("--p", type=float, help="short for --param p=P")
    command.add_argument(
        "--param",
        action="append",
        default=[],
        type=_parameter,
        metavar="NAME=VALUE",
        help="a parameter of the formula; only the values of exponents make a difference",
    )

    command = add(
        cdist, "distances of all pairs", "mercer cdist a.npy b.npy -o d.npy --p 1.3\n"
        "mercer cdist a.npy -o d.npy --metric canberra",
    )  # fmt: skip
    command.add_argument("x", help="the .npy of the rows")
    command.add_argument("z", nargs="?", help="the .npy of the columns; without it, x with itself")
    command.add_argument("--p", type=float, help="the norm: 0 to inf (2)")
    command.add_argument("--metric", help="a name of the zoo or a formula, in place of --p")
    add_call_options(command)

    command = add(
        kernel,
        "the kernel matrix of a formula",
        'mercer kernel "exp(-sum(square(x-z))/h)" x.npy -o k.npy --param h=2',
    )
    command.add_argument("formula", help="a formula or a name of the zoo")
    command.add_argument("x", help="the .npy of the rows")
    command.add_argument("z", nargs="?", help="the .npy of the columns; without it, x with itself")
    add_call_options(command)

    command = add(
        product,
        "a kernel matrix times v, the matrix never formed",
        "mercer product gauss x.npy z.npy v.npy -o y.npy --param bandwidth=3",
    )
    command.add_argument("formula", help="a formula or a name of the zoo")
    command.add_argument("x", help="the .npy of the rows")
    command.add_argument("z", help="the .npy of the columns")
    command.add_argument("v", help="the .npy of the right-hand sides, [N] or [N, E]")
    add_call_options(command)

    command = add(zoo, "the named metrics and kernels", "mercer zoo matern52")
    command.add_argument("name", nargs="?", help="one of them")

    command = add(bench, "throughput beside the libraries installed here", "mercer bench --quick")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="see mercer bench --help")

    command = add(cache, "the compiled kernels on disk", "mercer cache clear")
    command.add_argument("action", choices=["list", "clear", "path"])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["bench"]:  # its options are its own
        return bench(argparse.Namespace(arguments=arguments[1:]))
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except (
        Refusal, ValueError, NotImplementedError, TypeError, mc.CompileError, mc.DeviceError,
    ) as error:  # fmt: skip
        print(f"mercer {options.command}: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # mercer zoo | head
        sys.stderr.close()
        return FAILURE


if __name__ == "__main__":
    sys.exit(main())
