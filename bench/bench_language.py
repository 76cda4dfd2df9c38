"""Formulas of several arrays, vector values, averages, chosen blocks and listed pairs, with peers.

``python bench/bench_language.py [--device cuda] [--part 1] [--only words]``

The peer is KeOps on a GPU where it is installed, PyTorch in blocks of rows elsewhere. ``--part``
divides the numbers of points. Each row prints milliseconds (the best of three after a call that
compiles), their ratio, and the largest difference relative to the largest value.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import mercer as mc
import torch
from torch import Tensor

MEMORY = 4.8e12  # bytes a second of an H200, for the floor of listed pairs
BLOCK = 1000  # rows of PyTorch's blocks


@dataclasses.dataclass
class Row:
    name: str
    ours: Callable[[], Tensor]
    peers: dict[str, Callable[[], Any]]


def milliseconds(call: Callable[[], Any], rounds: int = 3) -> tuple[float, Any]:
    best, result = float("inf"), call()
    for _ in range(rounds):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.perf_counter()
        result = call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 1e3 * best, result


def blocks(rows: int, call: Callable[[slice], Tensor]) -> Tensor:
    return torch.cat([call(slice(first, first + BLOCK)) for first in range(0, rows, BLOCK)])


def squares(x: Tensor, z: Tensor) -> Tensor:
    return ((x[:, None] - z[None]) ** 2).sum(-1)


class Draw:
    def __init__(self, device: str, part: int) -> None:
        self.device, self.part = device, part
        self.random = torch.Generator(device).manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, generator=self.random)

    def lazy(self) -> Any:
        """KeOps' LazyTensor where it computes on this device."""
        if self.device == "cpu":
            return None
        try:
            from pykeops.torch import LazyTensor
        except ImportError:
            return None
        return LazyTensor


def two_groups(draw: Draw) -> Row:
    n = 100_000 // draw.part
    x, z = ({"pos": draw(n, 3), "age": draw(n, 1)} for _ in range(2))
    v = draw(n, 1)
    f = "exp(-sum((x.pos-z.pos)^2)/2) * exp(-sum((x.age-z.age)^2)/8)"

    def by_torch() -> Tensor:
        def of(s: slice) -> Tensor:
            exponent = squares(x["pos"][s], z["pos"]) / 2 + squares(x["age"][s], z["age"]) / 8
            return torch.exp(-exponent) @ v

        return blocks(n, of)

    peers: dict[str, Callable[[], Any]] = {"torch": by_torch}
    if (lazy := draw.lazy()) is not None:
        i, j = ({k: lazy(side[k].view(shape)) for k, shape in
                 (("pos", (*lead, 3)), ("age", (*lead, 1)))}
                for side, lead in ((x, (n, 1)), (z, (1, n))))  # fmt: skip
        peers = {"KeOps": lambda: (
            (-((i["pos"] - j["pos"]) ** 2).sum(-1) / 2).exp()
            * (-((i["age"] - j["age"]) ** 2).sum(-1) / 8).exp()) @ v}  # fmt: skip
    return Row(f"two groups {n} x {n}, 3 + 1", lambda: mc.kernel_product(f, x, z, v), peers)


def matrix_valued(draw: Draw) -> Row:
    n = 50_000 // draw.part
    x, z, v = draw(n, 3), draw(n, 3), draw(n, 3)
    f = "r = sum((x-z)^2); s = exp(-r/2); s*v + 0.5*s*(x-z)*sum((x-z)*v)"

    def of(s: slice) -> Tensor:
        t = x[s, None] - z[None]
        k = torch.exp(-(t**2).sum(-1) / 2)
        inner = (t * v).sum(-1)
        return k @ v + 0.5 * ((k * inner)[..., None] * t).sum(1)

    peers: dict[str, Callable[[], Any]] = {"torch": lambda: blocks(n, of)}
    if (lazy := draw.lazy()) is not None:
        i, j, w = lazy(x[:, None]), lazy(z[None]), lazy(v[None])

        def by_keops() -> Any:
            t = i - j
            k = (-(t**2).sum(-1) / 2).exp()
            return (k * w + 0.5 * k * t * (t * w).sum(-1)).sum(1)

        peers = {"KeOps": by_keops}
    return Row(f"matrix-valued {n} x {n} x 3", lambda: mc.kernel_sum(f, x, z, v=v, separate=True),
               peers)  # fmt: skip


def softmax(draw: Draw) -> Row:
    n = 100_000 // draw.part
    x, z, v = draw(n, 16), draw(n, 16), draw(n, 16)
    f = "sum(x*z)/4"
    peers: dict[str, Callable[[], Any]] = {
        "torch": lambda: blocks(n, lambda s: torch.softmax(x[s] @ z.T / 4, 1) @ v)
    }
    if (lazy := draw.lazy()) is not None:
        i, j, w = lazy(x[:, None]), lazy(z[None]), lazy(v[None])
        peers["KeOps"] = lambda: ((i * j).sum(-1) / 4).sumsoftmaxweight(w, dim=1)
    return Row(f"softmax {n} x {n} x 16, 16 columns",
               lambda: mc.kernel_product(f, x, z, v, normalize="softmax"), peers)  # fmt: skip


def chosen_blocks(draw: Draw) -> Row:
    """The dense product is the peer: wanted is a tenth of its time, within 1.25."""
    n, count = 100_000 // draw.part, 100
    x, v = draw(n, 3), draw(n, 1)
    ends = torch.linspace(0, n, count + 1, device=draw.device).long()
    intervals = torch.stack([ends[:-1], ends[1:]], 1)
    keep = (torch.arange(count)[:, None] - torch.arange(count)[None]).abs() % count < count // 20
    ranges = mc.block_ranges(intervals.cpu(), intervals.cpu(), keep)
    share = keep.double().mean().item()
    f = "exp(-sum((x-z)^2)/2)"
    return Row(f"blocks {n} x {n} x 3, a share of {share:.3f}",
               lambda: mc.kernel_product(f, x, x, v, ranges=ranges),
               {"all pairs": lambda: mc.kernel_product(f, x, x, v)})  # fmt: skip


def listed(draw: Draw) -> Row:
    n, pairs = 1_000_000 // draw.part, 100_000_000 // draw.part
    x, z = draw(n, 64), draw(n, 64)
    rows, cols = (
        torch.randint(n, (pairs,), device=draw.device, generator=draw.random) for _ in range(2)
    )

    def by_torch() -> Tensor:
        part = 2_000_000
        return torch.cat([
            ((x[rows[f : f + part]] - z[cols[f : f + part]]) ** 2).sum(1)
            for f in range(0, pairs, part)
        ])  # fmt: skip

    floor = pairs * (2 * 64 * 4 + 2 * 8 + 4) / MEMORY * 1e3
    return Row(f"edges {pairs} x 64 (bytes' floor {floor:.1f} ms on an H200)",
               lambda: mc.edges("sum((x-z)^2)", x, z, rows, cols), {"torch": by_torch})  # fmt: skip


ROWS = {"groups": two_groups, "matrix": matrix_valued, "softmax": softmax,
        "blocks": chosen_blocks, "edges": listed}  # fmt: skip


def cold(draw: Draw) -> None:
    """Seconds of the first call of a formula that nobody has compiled."""
    x, v = draw(2000, 3), draw(2000, 1)
    c = 1 + time.time() % 1
    f = f"exp(-sum((x-z)^2)/{c}) * cos({c}*sum(x*z)) + tanh(sum(abs(x-z)))"
    began = time.perf_counter()
    mc.kernel_product(f, x, x, v)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    print(f"a new formula: {time.perf_counter() - began:.3f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--only", default="", help="words of the rows, with commas between")
    options = parser.parse_args()
    draw = Draw(options.device, options.part)
    words = options.only.split(",") if options.only else [*ROWS, "cold"]
    if "cold" in words:
        cold(draw)
    for word, make in ROWS.items():
        if word not in words:
            continue
        row = make(draw)
        own, value = milliseconds(row.ours)
        for name, call in row.peers.items():
            try:
                theirs, other = milliseconds(call)
            except (RuntimeError, ValueError) as error:
                print(f"{row.name}: {own:.2f} ms; {name} failed: {str(error)[:200]}", flush=True)
                continue
            difference = ""
            if name != "all pairs":
                other = other.reshape(value.shape)
                error = (value - other).abs().max() / other.abs().max()
                difference = f", difference {error.item():.1e}"
            print(f"{row.name}: {own:.2f} ms, {name} {theirs:.2f} ms, {theirs / own:.2f}x"
                  f"{difference}", flush=True)  # fmt: skip
        del row, value
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
