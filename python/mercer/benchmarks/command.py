"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import pathlib
import traceback
from collections.abc import Callable, Sequence

from . import cpu_machine, engine, gpu_machine, gpu_runs, keeping, runs
from .gpu_result import GpuTable
from .gpu_settings import GpuSettings
from .result import Table
from .settings import Settings
from .timing import one_thread

DEFAULT_JSON = "bench_out/bench.json"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mercer.benchmarks",
        description="Mercer against the libraries installed here.",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu; cuda or cuda:1; auto: the CPU, then a GPU where there is one",
    )
    parser.add_argument("--only", help="rows to run, separated by commas (see --list)")
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes, fewer repeats: a minute"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows and leave")
    parser.add_argument(
        "--json", metavar="FILE", help=f"the results ({DEFAULT_JSON}; of a GPU, bench_cuda.json)"
    )
    parser.add_argument(
        "--keep", action="store_true", help=f"keep the results in {keeping.RUNS} of a checkout, too"
    )
    parser.add_argument(
        "--plot", metavar="PNG", help="the results as a picture (of a GPU, with _cuda in its name)"
    )
    parser.add_argument(
        "--from", dest="source", metavar="FILE",
        help="draw the results of this JSON file and measure nothing; needs --plot",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="on a GPU, measure tiles before every row that has one, and keep the fastest",
    )
    options = parser.parse_args(arguments)
    if options.device not in ("auto", "cpu") and not options.device.startswith("cuda"):
        parser.error(f"--device must be cpu, cuda, cuda:1 … or auto. Received {options.device}")
    if options.source is not None and options.plot is None:
        parser.error("--from needs --plot. Received none")
    return options


def _chosen(only: str | None, rows: dict, known: Sequence[str]) -> dict:
    if only is None:
        return rows
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no such row: {', '.join(unknown)}. The rows are {', '.join(known)}.")
    return {name: rows[name] for name in names if name in rows}


def _describe(machine: dict) -> None:
    clock = machine["clock_ghz"]
    print(machine["cpu"] + (f", {clock:.2f} GHz measured" if clock else ""))
    print(f"floors with the costs of {machine['costs']}")
    if why := engine.why_no_floor():
        print(why)
    print(", ".join(f"{name} {version}" for name, version in machine["versions"].items()))
    print("CPU time of one thread, best of interleaved repeats; * timed on some rows and scaled.\n")


def _run(rows: dict[str, Callable], settings: object, table: Table) -> list[str]:
    """Fills the table; the names of the rows that failed."""
    failed = []
    table.print_head()
    for name, run in rows.items():
        try:
            for line in run(settings):
                table.add(line)
        except Exception:  # one broken row must not cost the others
            failed.append(name)
            traceback.print_exc()
    return failed


def _finish(
    machine: dict,
    table: Table,
    failed: list[str],
    path: pathlib.Path,
    options: argparse.Namespace,
) -> int:
    missed = [line for line in table.lines if line.misses()]
    lines = [line.to_dict() for line in table.lines]
    keeping.write(path, machine, lines, failed)
    written = str(path)
    if options.keep:
        written += f" and {keeping.keep(machine, lines, failed)}"
    print(
        f"\n{len(missed)} of {len(table.lines)} lines miss a bar; {len(failed)} rows failed."
        f" Written to {written}.\n"
    )
    if options.plot is not None and lines:
        plot = pathlib.Path(options.plot)
        plot = plot if "cpu" in machine else plot.with_stem(plot.stem + "_cuda")
        _draw(plot, {"machine": machine, "lines": lines})
    return 1 if failed or (options.strict and missed) else 0


def _draw(path: pathlib.Path, content: dict) -> None:
    from . import plot

    machine = content["machine"]
    plot.draw(str(path), machine.get("cpu") or machine["gpu"], content["lines"])
    print(f"{path}: drawn")


def _draw_source(options: argparse.Namespace) -> int:
    try:
        content = json.loads(pathlib.Path(options.source).read_text())
        lines = content["lines"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{options.source}: must be a JSON file of the benchmarks. Received {error}"
        ) from error
    _draw(pathlib.Path(options.plot), content | {"lines": lines})
    return 0


def _on_cpu(rows: dict, options: argparse.Namespace) -> int:
    machine, table = cpu_machine.describe(), Table()
    _describe(machine)
    with one_thread():
        failed = _run(rows, Settings(options.quick), table)
    return _finish(machine, table, failed, pathlib.Path(options.json or DEFAULT_JSON), options)


def _gpu_path(options: argparse.Namespace) -> pathlib.Path:
    path = pathlib.Path(options.json or DEFAULT_JSON)
    both = options.device == "auto" or options.json is None
    return path.with_stem(path.stem + "_cuda") if both else path


def _on_gpu(rows: dict, device: str, options: argparse.Namespace) -> int:
    machine, table = gpu_machine.describe(device), GpuTable()
    print(gpu_machine.headline(machine))
    machine["tuned"] = options.tune
    settings = GpuSettings(device, options.quick, tunes=options.tune)
    settings.name = machine["gpu"]
    failed = _run(rows, settings, table)
    return _finish(machine, table, failed, _gpu_path(options), options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen rows, prints the tables, writes the JSON files."""
    options = _parse(arguments)
    if options.plot is not None:
        from mercer._cli import pictures

        pictures.check(options.plot)  # before the work
    if options.source is not None:
        return _draw_source(options)
    on_cpu, on_gpu = options.device in ("auto", "cpu"), options.device != "cpu"
    device = options.device if ":" in options.device else "cuda:0"
    cpu_rows = runs.all_rows() if on_cpu else {}
    gpu_rows = gpu_runs.all_rows() if on_gpu else {}
    if options.list:
        print("\n".join(list(cpu_rows) + [f"{name} (GPU)" for name in gpu_rows]))
        return 0
    known = list(dict.fromkeys([*cpu_rows, *gpu_rows]))
    cpu_rows = _chosen(options.only, cpu_rows, known)
    gpu_rows = _chosen(options.only, gpu_rows, known)
    missing = gpu_machine.why_not(device) if gpu_rows else ""
    if missing and not on_cpu:
        raise ValueError(f"no rows of a GPU: {missing}.")
    code = _on_cpu(cpu_rows, options) if cpu_rows else 0
    if missing:
        print(f"No rows of a GPU: {missing}.")
    elif gpu_rows:
        code |= _on_gpu(gpu_rows, device, options)
    return code
