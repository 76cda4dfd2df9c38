"""What must work wherever the package is installed, with NumPy alone and no compiler on the PATH.

Run by tools/check_wheels.py with the interpreter of an environment that has nothing else.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile

import mercer as mc
import numpy as np


def check(name: str, got: np.ndarray, expected: np.ndarray, tolerance: float = 2e-6) -> None:
    error = float(np.max(np.abs(got - expected) / np.maximum(np.abs(expected), 1e-3)))
    if not error <= tolerance:
        raise SystemExit(f"{name}: the error is {error:.2g}, at most {tolerance:.2g} is right")


def verbs(x: np.ndarray, z: np.ndarray) -> None:
    differences = x.astype(np.float64)[:, None, :] - z.astype(np.float64)[None, :, :]
    absolute = np.abs(differences)
    for p in (1.0, 1.3, 2.0, 3.0):
        check(f"cdist p={p}", mc.cdist(x, z, p=p), (absolute**p).sum(-1) ** (1 / p))
    f = mc.kernel("exp(-sum(abs(x-z))/h)")
    kernel = np.exp(-absolute.sum(-1) / 7.0)
    check("pairwise", mc.pairwise(f, x, z, h=7.0), kernel)
    v = np.linspace(0.5, 1.5, len(z), dtype=np.float32)
    check("kernel_product", mc.kernel_product(f, x, z, v, h=7.0), kernel @ v)
    slope = (-np.sign(differences) * (kernel * v)[:, :, None] / 7.0).sum(1)
    check("kernel_gradient", mc.kernel_gradient(f, x, z, v, h=7.0), slope, 2e-4)
    with mc.options(target="interpreter"):
        check("interpreter", mc.pairwise(f, x, z, h=7.0), kernel)
    values, indices = mc.knn("cityblock", x, z, k=3)
    nearest = np.sort(absolute.sum(-1), axis=1)[:, :3]
    check("knn", values, nearest)
    check("knn's indices", np.take_along_axis(absolute.sum(-1), indices, 1), nearest)
    factors = [np.arange(6.0).reshape(2, 3), np.arange(20.0).reshape(4, 5)]
    points = np.arange(16.0).reshape(2, 8)
    check("kron", mc.kron.matmul(points, factors), points @ np.kron(*factors))


def linear_algebra(x: np.ndarray) -> None:
    x = x.astype(np.float64)
    a = mc.kernel_matrix("gauss", x) + np.eye(len(x))
    b = np.cos(np.arange(2.0 * len(x))).reshape(len(x), 2)
    check("solve_cholesky", a @ mc.linalg.solve_cholesky(a, b), b, 1e-9)
    check("solve_lu", a @ mc.linalg.solve_lu(a, b), b, 1e-9)
    check("eigh", mc.linalg.eigh(a)[0], np.linalg.eigvalsh(a), 1e-9)


def commands(x: np.ndarray) -> None:
    script = pathlib.Path(sys.executable).with_name("mercer")
    for command in (str(script),), (sys.executable, "-m", "mercer"):
        told = subprocess.run([*command, "info"], capture_output=True, text=True, check=True)
        if mc.__version__ not in told.stdout or "LAPACK: " not in told.stdout:
            raise SystemExit(f"mercer info says {told.stdout}")
    with tempfile.TemporaryDirectory() as folder:
        points, out = pathlib.Path(folder, "x.npy"), pathlib.Path(folder, "d.npy")
        np.save(points, x)
        subprocess.run([str(script), "cdist", points, "-o", out], check=True, capture_output=True)
        check("mercer cdist", np.load(out), mc.cdist(x, x))


END = """
import threading, time
import numpy as np, mercer as mc

class Late:
    def __del__(self, clock=time.perf_counter):
        begin = clock()
        while clock() - begin < 0.5:  # Python ends, and this thread holds its lock
            pass

def work(x=np.ones((700, 50))):
    while True:
        mc.cdist(x, x, p=1.3)

keep = Late()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def end_of_python() -> None:
    """While a daemon thread computes: CPython unwinds it, which no C++ may take part in."""
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"Python must end with 0. Received {done.returncode}: {done.stderr}")


def main() -> int:
    if found := [name for name in ("cc", "c++", "gcc", "g++", "clang") if shutil.which(name)]:
        raise SystemExit(f"No compiler may be on the PATH. Found {found}.")
    if pathlib.Path(sys.prefix) not in pathlib.Path(mc.__file__).parents:
        raise SystemExit(f"mercer must come from {sys.prefix}. Received {mc.__file__}.")
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((n, 19), dtype=np.float32) for n in (70, 90))
    verbs(x, z)
    linear_algebra(x)
    commands(x)
    end_of_python()
    print(f"mercer {mc.__version__} on Python {sys.version.split()[0]}: all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
