"""Random calls on one CPU thread compared with the best of PyTorch, NumPy, SciPy and scikit-learn.

The sizes are those that rows chosen by hand leave out: M and N from 1 to 8000, K to 800, v of up
to 200 columns, batches of up to 2000 items. All follow from a seed. Every call and its peers take
turns in one process; a ratio is the best peer's CPU time over Mercer's: below 1 it is a loss.

    python bench/bench_random_cpu.py --count 40 --verb dot,cosine
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
import zlib
from collections.abc import Callable

import mercer
import numpy as np
import torch
from mercer.benchmarks.timing import one_thread
from scipy.spatial.distance import cdist

MOST_PAIRS, MOST_TERMS = 4e6, 1e8
TYPES = (np.float32, np.float32, np.float32, np.float64)
Calls = dict[str, Callable[[], object]]


class Draw:
    """Arrays of one call."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(zlib.crc32(seed.encode()))
        self.type = self.random.choice(TYPES)
        self.m, self.n = self.size(1, 8000), self.size(1, 8000)
        self.k, self.columns = self.size(1, 800), self.size(1, 200)
        self.shape = ""

    def size(self, least: float, most: float) -> int:
        return round(math.exp(self.random.uniform(math.log(least), math.log(most))))

    def fit(self, of_one_set: bool = False) -> None:
        if of_one_set:
            self.n = self.m
        while self.m * self.n > MOST_PAIRS or self.m * self.n * self.k > MOST_TERMS:
            self.m, self.n = max(1, self.m * 2 // 3), max(1, self.n * 2 // 3)
        self.shape = f"{self.m}x{self.n}x{self.k} {np.dtype(self.type).name}"

    def normal(self, *shape: int) -> np.ndarray:
        return self.numbers.standard_normal(shape).astype(self.type)

    def points(self, of_one_set: bool = False) -> tuple[np.ndarray, np.ndarray]:
        self.fit(of_one_set)
        x = self.normal(self.m, self.k)
        return x, x if of_one_set else self.normal(self.n, self.k)

    @property
    def width(self) -> float:
        return math.sqrt(2 * self.k)


def _tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(a) for a in arrays]


def dot(d: Draw) -> Calls:
    x, z = d.points()
    tx, tz = _tensors(x, z)
    return {"mercer": lambda: mercer.pairwise("sum(x*z)", x, z), "numpy": lambda: x @ z.T,
            "torch": lambda: tx @ tz.T}  # fmt: skip


def cosine(d: Draw) -> Calls:
    x, z = d.points()
    tx, tz = _tensors(x, z)
    unit = torch.nn.functional.normalize
    return {"mercer": lambda: mercer.pairwise("sum(x*z)/sqrt(sum(x*x)*sum(z*z))", x, z),
            "torch": lambda: unit(tx, dim=1) @ unit(tz, dim=1).T}  # fmt: skip


def _distances(p: float, metric: str, of_one_set: bool = False) -> Callable[[Draw], Calls]:
    def make(d: Draw) -> Calls:
        x, z = d.points(of_one_set)
        tx, tz = _tensors(x, z)
        wx, wz = x.astype(np.float64), z.astype(np.float64)
        return {"mercer": lambda: mercer.cdist(x, None if of_one_set else z, p=p),
                "torch": lambda: torch.cdist(tx, tz, p=p),
                "scipy": lambda: cdist(wx, wz, metric)}  # fmt: skip

    return make


def _gauss(x: torch.Tensor, z: torch.Tensor, h: float) -> torch.Tensor:
    return torch.cdist(x, z).square_().mul_(-1 / h**2).exp_()


def _matern(x: torch.Tensor, z: torch.Tensor, h: float) -> torch.Tensor:
    r = torch.cdist(x, z).mul_(3**0.5 / h)
    return (1 + r) * torch.exp(-r)


GAUSS = "exp(-sum((x-z)^2)/h/h)"
MATERN = "r = sqrt(3*sum((x-z)^2))/h; (1+r)*exp(-r)"


def gauss(d: Draw) -> Calls:
    x, z = d.points()
    tx, tz = _tensors(x, z)
    return {"mercer": lambda: mercer.pairwise(GAUSS, x, z, h=d.width),
            "torch": lambda: _gauss(tx, tz, d.width)}  # fmt: skip


def _product(formula: str, peer: Callable) -> Callable[[Draw], Calls]:
    def make(d: Draw) -> Calls:
        x, z = d.points()
        v = d.normal(d.n, d.columns)
        tx, tz, tv = _tensors(x, z, v)
        d.shape += f", {d.columns} columns"
        return {"mercer": lambda: mercer.kernel_product(formula, x, z, v, h=d.width),
                "torch": lambda: peer(tx, tz, d.width) @ tv}  # fmt: skip

    return make


def batch(d: Draw) -> Calls:
    """Many items of few points."""
    items, m, n, k = d.size(20, 2000), d.size(1, 32), d.size(1, 32), d.size(1, 128)
    x, z = d.normal(items, m, k), d.normal(items, n, k)
    tx, tz = _tensors(x, z)
    d.shape = f"{items} items of {m}x{n}x{k} {np.dtype(d.type).name}"
    if d.random.random() < 0.5:
        d.shape += ", dot"
        return {"mercer": lambda: mercer.pairwise("sum(x*z)", x, z),
                "numpy": lambda: x @ z.transpose(0, 2, 1), "torch": lambda: tx @ tz.mT}  # fmt: skip
    d.shape += ", l2"
    return {"mercer": lambda: mercer.cdist(x, z), "torch": lambda: torch.cdist(tx, tz)}


def knn(d: Draw) -> Calls:
    x, z = d.points()
    tx, tz = _tensors(x, z)
    k = min(d.size(1, 32), d.n)
    d.shape += f", {k} of them"
    return {"mercer": lambda: mercer.knn("sum((x-z)^2)", x, z, k),
            "torch": lambda: torch.cdist(tx, tz).topk(k, largest=False)}  # fmt: skip


def backward(d: Draw) -> Calls:
    """A product of a Gauss kernel and its gradients by x, z and v."""
    x, z = d.points()
    leaves = [t.requires_grad_() for t in _tensors(x, z, d.normal(d.n, min(d.columns, 16)))]

    def both(forward: Callable) -> Callable[[], object]:
        return lambda: torch.autograd.grad(forward(*leaves).sum(), leaves)

    def peer(x: torch.Tensor, z: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (-torch.cdist(x, z).square() / d.width**2).exp() @ v

    return {"mercer": both(lambda x, z, v: mercer.kernel_product(GAUSS, x, z, v, h=d.width)),
            "torch": both(peer)}  # fmt: skip


VERBS: dict[str, Callable[[Draw], Calls]] = {
    "dot": dot, "cosine": cosine, "batch": batch, "l1": _distances(1.0, "cityblock"),
    "l2": _distances(2.0, "euclidean"), "linf": _distances(math.inf, "chebyshev"),
    "one_set": _distances(2.0, "euclidean", True), "gauss": gauss,
    "gauss_product": _product(GAUSS, _gauss), "matern_product": _product(MATERN, _matern),
    "knn": knn, "backward": backward,
}  # fmt: skip


def best_seconds(calls: Calls, least: float = 1e-3, rounds: int = 4) -> dict[str, float]:
    """CPU seconds of one call each, in turns; short calls are repeated within a measurement."""
    counts, best = {}, dict.fromkeys(calls, math.inf)
    for name, call in calls.items():
        call()
        start = time.process_time()
        call()
        counts[name] = max(1, int(least / max(time.process_time() - start, 1e-6)))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(counts[name]):
                call()
            best[name] = min(best[name], (time.process_time() - start) / counts[name])
    return best


def run(verb: str, seed: int, count: int, all_lines: bool) -> list[float]:
    """Ratios of one verb's calls; prints the losses."""
    ratios = []
    for index in range(count):
        draw = Draw(f"{verb}-{seed}-{index}")
        seconds = best_seconds(VERBS[verb](draw))
        ours = seconds.pop("mercer")
        peer = min(seconds, key=seconds.__getitem__)
        ratios.append(seconds[peer] / ours)
        if all_lines or ratios[-1] < 1:
            print(f"  {ratios[-1]:6.2f}  {verb} {draw.shape}: {ours * 1e3:.4f} ms,"
                  f" {peer} {seconds[peer] * 1e3:.4f}", flush=True)  # fmt: skip
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=58, help="calls of each verb")
    parser.add_argument("--verb", default=",".join(VERBS), help="some of the verbs, by commas")
    parser.add_argument("--all", action="store_true", help="print calls that are won too")
    options = parser.parse_args()
    rows = []
    torch.set_flush_denormal(False)
    with one_thread():
        for verb in options.verb.split(","):
            rows.append((verb, run(verb, options.seed, options.count, options.all)))
    print(f"\n{'verb':16} median   worst  losses of {options.count}")
    for verb, ratios in rows:
        lost = sum(ratio < 1 for ratio in ratios)
        print(f"{verb:16} {statistics.median(ratios):6.2f}  {min(ratios):6.3f}  {lost}")


if __name__ == "__main__":
    main()
