"""Programs of kermac, mm-kermac, PyFastKron and xRFM under Mercer's drop-in modules, on one GPU.

``python bench/bench_dropins.py [--only kermac,grad,zoo,kron,host,xrfm] [--json FILE] [--keep]``

The package itself runs as well where it can be imported (kermac 0.1.4 needs cuda-core 0.3,
mm-kermac 1.0.0 a newer one, so they take two runs); otherwise torch.cdist does, or a figure
measured before (`RECORDED`). The ratio is peer / Mercer. Milliseconds are medians by CUDA events.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
from mercer.benchmarks import gpu_machine, keeping
from mercer.benchmarks.gpu_timing import Stopwatch

# FastKron's GeKMM by its own choice of kernels on one H200, fp32, after a patch that lets it select
# kernels of compute capability 9.0 (1.1.0 has none): (rows, P, N) -> ms.
RECORDED = {
    (1024, 8, 5): 0.289,
    (1024, 16, 4): 0.509,
    (1024, 32, 3): 0.297,
    (1024, 64, 2): 0.044,
    (1024, 128, 2): 0.287,
    (16, 16, 5): 0.178,
    (1, 128, 3): 0.069,
    (1024, 8, 6): 2.21,
    (1024, 16, 5): 9.92,
    (1024, 32, 4): 11.7,
    (1024, 64, 3): 3.41,
    (320, 128, 3): 16.4,
}
XRFM = """
import sys, time, torch
from xrfm.rfm_src.recursive_feature_machine import RFM
n, d, kernel = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
x = torch.randn(n + 2000, d, device="cuda")
y = (x[:, :1] * x[:, 1:2] + torch.sin(3 * x[:, 2:3])) / 2
def fit():
    model = RFM(kernel=kernel, iters=3, bandwidth=10.0, exponent=1.2 if kernel == "l1" else 1.0,
                norm_p=1.3, device="cuda", verbose=False, tuning_metric="mse")
    torch.cuda.synchronize()
    start = time.perf_counter()
    model.fit((x[:n], y[:n]), (x[n:], y[n:]), reg=1e-3, verbose=False)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, float(((model.predict(x[n:]) - y[n:]) ** 2).mean())
fit()
results = [fit() for _ in range(3)]
print("FIT", min(r[0] for r in results), results[0][1])
"""

Line = dict[str, object]
Call = Callable[[], object]


def original(name: str) -> object | None:
    """The package itself, or None with the reason printed."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever an outdated package raises
        print(f"  {name} itself does not run here: {type(error).__name__}: {error}")
        return None


class Table:
    def __init__(self, watch: Stopwatch) -> None:
        self.watch, self.lines = watch, []

    def add(self, name: str, ours: Call, peer: Call | float | None, bar: float | None) -> None:
        ms = self.watch.median(ours)
        peer_ms = peer if isinstance(peer, float) else self.watch.median(peer) if peer else None
        self.note(name, ms, peer_ms, bar)

    def note(self, name: str, ms: float, peer_ms: float | None, bar: float | None) -> None:
        ratio = peer_ms / ms if peer_ms else None
        self.lines.append(
            {"row": name, "ms": ms, "peer_ms": peer_ms, "ratio": ratio, "ratio_bar": bar}
        )
        peers = f"peer {peer_ms:9.3f}  ratio {ratio:6.2f}" if peer_ms else ""
        missed = "  MISSED" if ratio and bar and ratio < bar else ""
        print(f"{name:42s} {ms:9.3f} ms  {peers}  bar {bar}{missed}", flush=True)


def kermac_rows(table: Table) -> None:
    from mercer.compat import kermac as shim

    package = original("kermac")

    def add(name: str, bar: float, function: str, *args: object, **words: object) -> None:
        calls = [partial(getattr(k, function), *args, **words) for k in (shim, package) if k]
        table.add(name, calls[0], calls[1] if package else None, bar)

    a, b = torch.randn(2, 30000, 1024, device="cuda").unbind()
    out = torch.empty(1, 30000, 30000, device="cuda")
    for p, bar in ((1.0, 1.35), (2.0, 8.0), (1.3, 1.35)):
        add(f"cdist p={p}", bar, "cdist", a, b, out=out, p=p)
    for p in (1.0, 2.0, 1.3):
        exponent = torch.tensor(p, device="cuda")
        # The package takes tensors in run_kernel, where its descriptor of powers serves them all.
        calls = [
            partial(k.run_kernel, k.kernel_descriptor_p_norm, a, b, out=out, p=exponent)
            for k in (shim, package)
            if k
        ]
        name = f"run_kernel p_norm, p={p} on the device"
        table.add(name, calls[0], calls[1] if package else None, 1.3)


def gradient_rows(table: Table) -> None:
    from mercer.compat import kermac as shim

    package = original("kermac")
    for size, features, outputs in ((8192, 256, 16), (8192, 256, 1), (20000, 50, 1)):
        weights = torch.randn(size, size, device="cuda")
        coef = torch.randn(outputs, size, device="cuda")
        b, d = torch.randn(2, features, size, device="cuda").unbind()
        for p, bar in ((1.0, 5.0), (2.0, 5.0), (1.3, 2.3)):
            name = f"cdist_grad {size}² x {features}, {outputs} outputs, p={p}"
            calls = [partial(k.cdist_grad, weights, b, coef, d, p=p) for k in (shim, package) if k]
            table.add(name, calls[0], calls[1] if package else None, bar)


def zoo_rows(table: Table) -> None:
    from mercer.compat.mm_kermac import hyper_semiring as shim

    package = original("mm_kermac.hyper_semiring")
    a, b = torch.randn(2, 2048, 256, device="cuda").unbind()
    p, q = torch.tensor(1.3, device="cuda"), torch.tensor(1 / 1.3, device="cuda")
    kinds: dict[str, tuple[tuple[object, ...], tuple[object, ...], Call]] = {
        "Gemm": ((), (), lambda: a @ b.T),
        "NormL1": ((), (), lambda: torch.cdist(a, b, p=1.0)),
        "NormL2": ((), (), lambda: torch.cdist(a, b, p=2.0)),
        "NormLp": ((1e-5,), (p, q), lambda: torch.cdist(a, b, p=1.3)),
    }
    for name, (arguments, hypers, torch_call) in kinds.items():
        calls = [
            partial(getattr(module, name)(*arguments), a, b, *hypers)
            for module in (shim, package)
            if module
        ]
        table.add(f"zoo {name} 2048² x 256", calls[0], calls[1] if package else None, 1.2)
        table.add(f"zoo {name} 2048² x 256, torch", calls[0], torch_call, None)


def kron_rows(table: Table) -> None:
    from mercer.compat.pyfastkron import fastkrontorch

    for (m, p, n), recorded in RECORDED.items():
        x = torch.randn(m, p**n, device="cuda")
        fs = [torch.randn(p, p, device="cuda") for _ in range(n)]
        table.add(
            f"gemkm {m} x {p}^{n}", lambda x=x, fs=fs: fastkrontorch.gemkm(x, fs), recorded, 2.5
        )


def seconds_of(statement: str) -> float:
    """The least seconds of five fresh processes that run the statement."""
    program = "\n".join(
        (
            "import time, torch, mercer",
            "start = time.perf_counter()",
            statement,
            "print(time.perf_counter() - start)",
        )
    )
    return min(
        float(
            subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(5)
    )


def host_rows(table: Table) -> None:
    import mercer as mc
    from mercer.compat import kermac
    from mercer.compat.pyfastkron import fastkrontorch

    a, b = torch.randn(2, 64, 16, device="cuda").unbind()
    out = torch.empty(1, 64, 64, device="cuda")
    host = table.watch.host
    native = host(lambda: mc.cdist(a, b, p=1.0, out=out[0]))
    table.note("host: kermac.cdist", host(lambda: kermac.cdist(a, b, out=out, p=1.0)), native, None)
    x, fs = torch.randn(8, 16, device="cuda"), [torch.randn(4, 4, device="cuda")] * 2
    native = host(lambda: mc.kron.matmul(x, fs))
    table.note("host: fastkrontorch.gemkm", host(lambda: fastkrontorch.gemkm(x, fs)), native, None)
    for module in ("kermac", "mm_kermac", "mm_ptx", "pyfastkron", "kernel_tools"):
        table.note(
            f"import mercer.compat.{module}",
            1e3 * seconds_of(f"import mercer.compat.{module}"),
            None,
            None,
        )


def xrfm_rows(table: Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "fit.py")
        with open(script, "w") as file:
            file.write(XRFM)
        for kernel in ("l1", "l2", "lpq"):
            seconds: list[float | None] = []
            for prefix in (["-m", "mercer.compat", "run", script], [script]):
                start = time.perf_counter()
                run = subprocess.run(
                    [sys.executable, *prefix, "20000", "50", kernel], capture_output=True, text=True
                )
                found = [line.split() for line in run.stdout.splitlines() if line.startswith("FIT")]
                if not found:
                    print(run.stderr[-2000:])
                seconds.append(float(found[0][1]) if found else None)
                print(
                    f"  xRFM {kernel}: {found}, whole process {time.perf_counter() - start:.1f} s"
                )
            if seconds[0] is not None:
                peer = None if seconds[1] is None else 1e3 * seconds[1]
                table.note(f"xRFM fit 20000 x 50, {kernel}", 1e3 * seconds[0], peer, None)


GROUPS = {
    "kermac": kermac_rows,
    "grad": gradient_rows,
    "zoo": zoo_rows,
    "kron": kron_rows,
    "host": host_rows,
    "xrfm": xrfm_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows, by commas")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the lines")
    parser.add_argument("--keep", action="store_true", help=f"keep the lines in {keeping.RUNS}")
    arguments = parser.parse_args()
    table = Table(Stopwatch("cuda"))
    for group in arguments.only.split(","):
        GROUPS[group](table)
    if arguments.json:
        keeping.write(arguments.json, gpu_machine.describe("cuda:0"), table.lines, [])
    if arguments.keep:
        print(keeping.keep(gpu_machine.describe("cuda:0"), table.lines, program="dropins"))


if __name__ == "__main__":
    main()
