"""Random calls compared with what other libraries offer: every verb, dtype and kind of data.

They follow from a seed. Rows chosen by hand show where Mercer is fast; these show where it is not.

Each call is made by Mercer and by its peers on the same arrays, in turns; results are compared
loosely, within what low precision and matrix products of cancelling points cost. A line whose ratio
is below 1 is a loss. All of them are printed again at the end, the worst first, with a summary by
verb.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import mercer

from . import peers
from .gpu_data import points
from .gpu_result import GpuLine
from .gpu_settings import GpuSettings
from .result import Line
from .settings import Settings

_LineT = TypeVar("_LineT", Line, GpuLine)

CALLS, SEED = 200, 1
SECONDS = 270.0  # no call begins later
LOOSE = {"float64": 1e-5, "float32": 2e-2, "float16": 5e-2, "bfloat16": 5e-2, "uint8": 5e-2}
KINDS = ("normal", "uniform", "lognormal", "heavy tails", "10 clusters", "3 clusters in order")
DTYPES = ("float32", "float32", "float32", "float64", "float64", "float16", "bfloat16", "uint8")
VERBS = ("pairwise", "cdist", "kernel_matrix", "kernel_product", "kernel_reduce", "knn",
         "kernel_gradient", "kernel_agop", "gradient_field", "backward", "kron", "solve_cholesky",
         )  # fmt: skip
WIDTHS = (0.05, 0.3, 1.0, 3.0)  # of kernels, in units of a typical distance


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of pairs for Mercer, and for PyTorch the fastest way that it has."""

    name: str
    formula: str
    torch: Callable  # of x, z and the width
    lazy: Callable | None = None  # the same of KeOps' symbolic points
    scipy: dict | None = None  # of scipy.spatial.distance.cdist
    sklearn: tuple[str, Callable] | None = None  # of sklearn.metrics.pairwise, its options by width
    p: float | None = None  # of cdist

    @property
    def has_width(self) -> bool:
        return "/h" in self.formula or "*h" in self.formula


def _cdist(p: float) -> Callable:
    import torch

    return lambda x, z, h: torch.cdist(x, z, p=p)


def _times(call: Callable[[], Any], v: Any) -> Any:
    return call() @ v


def _unit(x: Any) -> Any:
    return x / x.norm(dim=-1, keepdim=True)


def functions() -> tuple[Function, ...]:
    l1, l2 = _cdist(1.0), _cdist(2.0)

    def squares(x: Any, z: Any) -> Any:
        return ((x - z) ** 2).sum(-1)

    return (
        Function("l1", "sum(abs(x-z))", l1, lambda x, z, h: (x - z).abs().sum(-1),
                 {"metric": "cityblock"}, ("manhattan_distances", lambda h: {}), 1.0),
        Function("l2", "sqrt(sum((x-z)^2))", l2, lambda x, z, h: squares(x, z).sqrt(),
                 {"metric": "euclidean"}, ("euclidean_distances", lambda h: {}), 2.0),
        Function("linf", "max(abs(x-z))", _cdist(math.inf), None, {"metric": "chebyshev"},
                 p=math.inf),
        Function("l1.5", "sum(abs(x-z)^1.5)^(1/1.5)", _cdist(1.5), None,
                 {"metric": "minkowski", "p": 1.5}, p=1.5),
        Function("square", "sum((x-z)^2)", lambda x, z, h: l2(x, z, h).square(),
                 lambda x, z, h: squares(x, z), {"metric": "sqeuclidean"}),
        Function("dot", "sum(x*z)", lambda x, z, h: x @ z.mT, lambda x, z, h: (x * z).sum(-1)),
        Function("cosine", "sum(x*z)/sqrt(sum(x*x)*sum(z*z))",
                 lambda x, z, h: _unit(x) @ _unit(z).mT, None, None,
                 ("cosine_similarity", lambda h: {})),
        Function("gauss", "exp(-sum((x-z)^2)/h/h)",
                 lambda x, z, h: l2(x, z, h).square().mul(-1 / h**2).exp(),
                 lambda x, z, h: (-squares(x, z) / h**2).exp(), None,
                 ("rbf_kernel", lambda h: {"gamma": 1 / h**2})),
        Function("laplace", "exp(-sum(abs(x-z))/h)", lambda x, z, h: l1(x, z, h).mul(-1 / h).exp(),
                 lambda x, z, h: (-(x - z).abs().sum(-1) / h).exp(), None,
                 ("laplacian_kernel", lambda h: {"gamma": 1 / h})),
        Function("matern32", "r = sqrt(3*sum((x-z)^2))/h; (1+r)*exp(-r)",
                 lambda x, z, h: (lambda r: (1 + r) * (-r).exp())(l2(x, z, h) * (3**0.5 / h))),
        Function("cauchy", "1/(1+sum((x-z)^2)/h/h)",
                 lambda x, z, h: 1 / (1 + l2(x, z, h).square() / h**2)),
    )  # fmt: skip


@dataclasses.dataclass
class Drawn:
    """A call: what it computes and of which points."""

    verb: str
    function: Function
    shape: tuple[int, int, int]
    dtype: str
    data: str
    columns: int
    width: float

    @property
    def note(self) -> str:
        width = f", width {self.width:g}" if self.function.has_width else ""
        return f"{self.verb} {self.function.name} of {self.data}, {self.columns} columns{width}"


class Draw:
    """Calls by a seed: the same on every machine of a kind. `most` bounds M N K."""

    def __init__(self, seed: int, most: float, most_points: int) -> None:
        import random

        self.random, self.most, self.most_points = random.Random(seed), most, most_points
        self.functions = functions()

    def _size(self, low: float, high: float) -> int:
        return int(math.exp(self.random.uniform(math.log(low), math.log(high))))

    def __call__(self, index: int) -> Drawn:
        verb = VERBS[index % len(VERBS)]
        m, n = (self._size(64, self.most_points) for _ in range(2))
        k = self._size(1, 1024)
        while m * n * k > self.most:
            m, n, k = max(32, m // 2), max(32, n // 2), max(1, k * 2 // 3)
        function = self.random.choice([f for f in self.functions if _serves(verb, f)])
        if function.name == "cosine":
            k += 1  # of one feature it is a sign
        dtype, data = self.random.choice(DTYPES), self.random.choice(KINDS)
        if verb in ("kron", "solve_cholesky", "backward") and dtype not in ("float32", "float64"):
            dtype = "float32"
        if dtype == "uint8":
            data = "integer"
        columns = self.random.choice((1, 1, 2, 4, 16, 64))
        return Drawn(verb, function, (m, n, k), dtype, data, columns, self.random.choice(WIDTHS))


def _serves(verb: str, f: Function) -> bool:
    if verb == "cdist":
        return f.p is not None
    if verb == "knn":
        return f.p is not None or f.name == "square"
    return f.name == "gauss" if verb == "solve_cholesky" else True


def drawn_points(kind: str, count: int, features: int, dtype: str, device: str, seed: int) -> Any:
    """[count, features]; "heavy tails" are Student's t of two degrees of freedom."""
    if kind != "heavy tails":
        return points(kind, count, features, dtype, device, seed)
    import torch

    g = [points("normal", count, features, "float64", device, seed + place) for place in range(3)]
    return (g[0] / ((g[1] ** 2 + g[2] ** 2) / 2).sqrt()).to(getattr(torch, dtype))


# ---- The contestants: calls without arguments that give what is compared. ------------------------


#: Mercer's call, and the peers' by name.
Contestants: TypeAlias = tuple[Callable[[], Any], dict[str, Callable[[], Any]]]


class Contest:
    """Mercer's call and its peers' on the same arrays; peers have theirs converted beforehand."""

    def __init__(self, drawn: Drawn, device: str) -> None:
        import torch

        self.drawn, self.device = drawn, device
        m, n, k = drawn.shape
        self.x = drawn_points(drawn.data, m, k, drawn.dtype, device, 1)
        same = drawn.verb in ("kernel_matrix", "solve_cholesky")
        self.z = self.x if same else drawn_points(drawn.data, n, k, drawn.dtype, device, 11)
        wide = torch.float64 if drawn.dtype == "float64" else torch.float32
        self.px, self.pz = self.x.to(wide), self.z.to(wide)
        if same:
            self.pz = self.px
        self.h = drawn.width * max(self._typical(), 1e-3)
        self.params: dict[str, Any] = {"h": self.h} if drawn.function.has_width else {}
        self.formula = mercer.kernel(drawn.function.formula)

    def _typical(self) -> float:
        """A typical distance, in the metric that the width divides."""
        import torch

        p = 1.0 if self.drawn.function.name == "laplace" else 2.0
        part = torch.cdist(self.px[:64].double(), self.pz[:64].double(), p=p)
        return float(part[part > 0].median()) if bool((part > 0).any()) else 1.0

    def normal(self, *shape: int) -> Any:
        """Normally distributed values, the same in either type."""
        drawn = points("normal", math.prod(shape), 1, "float32", self.device, 3)
        return drawn.to(self.px.dtype).reshape(shape)

    def in_float64(self) -> Contest:
        """A contest of the same points and width for peers that shall be exact."""
        wide = copy.copy(self)
        wide.px, wide.pz = self.px.double(), self.pz.double()
        return wide

    def values(self, x: Any = None) -> Any:
        """The matrix of PyTorch."""
        return self.drawn.function.torch(self.px if x is None else x, self.pz, self.h)

    def make(self) -> Contestants:
        """Mercer's call, and the peers' by name."""
        return getattr(self, f"_{self.drawn.verb}")()

    def _pairwise(self) -> Contestants:
        ours = lambda: mercer.pairwise(self.formula, self.x, self.z, **self.params)  # noqa: E731
        return ours, {"torch": self.values, **self._of_matrices()}

    def _of_matrices(self) -> dict[str, Callable]:
        """SciPy's and scikit-learn's, on the CPU. SciPy computes in float64 and has such points."""
        f = self.drawn.function
        found: dict[str, Callable[[], Any]] = {}
        if self.device != "cpu":
            return found
        of_scipy = f.scipy
        if of_scipy and peers.installed("scipy"):
            from scipy.spatial.distance import cdist

            x, z = self.px.double().numpy(), self.pz.double().numpy()
            found["scipy cdist (f64)"] = lambda: cdist(x, z, **of_scipy)
        if f.sklearn and peers.installed("scikit-learn"):
            import sklearn.metrics.pairwise

            function, options = (
                getattr(sklearn.metrics.pairwise, f.sklearn[0]),
                f.sklearn[1](self.h),
            )
            xs, zs = self.px.numpy(), self.pz.numpy()
            found[f"scikit-learn {f.sklearn[0]}"] = lambda: function(xs, zs, **options)
        if f.name == "dot":
            xn, zn = self.px.numpy(), self.pz.numpy()
            found["numpy matmul"] = lambda: xn @ zn.T
        return found

    def _cdist(self) -> Contestants:
        p = self.drawn.function.p
        return lambda: mercer.cdist(self.x, self.z, p=p), {
            "torch": self.values,
            **self._of_matrices(),
        }

    def _kernel_matrix(self) -> Contestants:
        ours = lambda: mercer.kernel_matrix(self.formula, self.x, **self.params)  # noqa: E731
        return ours, {"torch": self.values, **self._of_matrices()}

    def _with_keops(self, by: dict[str, Callable], of_pairs: Callable) -> dict[str, Callable]:
        """KeOps too, where it is installed: `of_pairs` reduces its symbolic matrix."""
        lazy = self.drawn.function.lazy
        if lazy is None or not peers.installed("pykeops"):
            return by
        from pykeops.torch import LazyTensor

        x, z = LazyTensor(self.px[:, None, :]), LazyTensor(self.pz[None, :, :])
        return {**by, "KeOps": lambda: of_pairs(lazy(x, z, self.h))}

    def _kernel_product(self) -> Contestants:
        v = self.normal(len(self.z), self.drawn.columns)
        ours = lambda: mercer.kernel_product(self.formula, self.x, self.z, v, **self.params)  # noqa: E731
        by = {"torch": lambda: self.values() @ v}
        if self.device == "cpu" and self.drawn.function.sklearn and peers.installed("scikit-learn"):
            vn = v.numpy()
            for name, call in self._of_matrices().items():
                if name.startswith("scikit"):
                    by[f"{name} @ v"] = functools.partial(_times, call, vn)
        return ours, self._with_keops(by, lambda pairs: pairs @ v)

    def _kernel_reduce(self) -> Contestants:
        kinds = ("sum", "max", "min", "logsumexp")
        kind: Any = kinds[self.drawn.columns % len(kinds)]
        by: Callable[[Any], Any]
        by = {"sum": lambda a: a.sum(1), "max": lambda a: a.amax(1), "min": lambda a: a.amin(1),
              "logsumexp": lambda a: a.logsumexp(1)}[kind]  # fmt: skip
        lazy: Callable[[Any], Any]
        lazy = {"sum": lambda a: a.sum(1), "max": lambda a: a.max(1), "min": lambda a: a.min(1),
                "logsumexp": lambda a: a.logsumexp(1)}[kind]  # fmt: skip
        ours = lambda: mercer.kernel_reduce(self.formula, self.x, self.z, kind, **self.params)  # noqa: E731
        return ours, self._with_keops({"torch": lambda: by(self.values())}, lazy)

    def _knn(self) -> Contestants:
        k = min(self.drawn.columns, len(self.z))
        ours = lambda: mercer.knn(self.formula, self.x, self.z, k)[0]  # noqa: E731
        by = {"torch": lambda: self.values().topk(k, largest=False).values}
        return ours, self._with_keops(by, lambda pairs: pairs.Kmin(k, dim=1))

    def _gradients(self, coef: Any) -> Any:
        """Autograd's gradients of the rows' sums, output by output."""
        import torch

        found = []
        for weights in coef:
            x = self.px.detach().requires_grad_()
            found.append(torch.autograd.grad((self.values(x) * weights).sum(), x)[0])
        return torch.stack(found)

    def _kernel_gradient(self) -> Contestants:
        coef = self.normal(min(self.drawn.columns, 4), len(self.z))
        ours = lambda: mercer.kernel_gradient(self.formula, self.x, self.z, coef, **self.params)  # noqa: E731
        return ours, {"torch autograd": lambda: self._gradients(coef)}

    def _kernel_agop(self) -> Contestants:
        coef = self.normal(min(self.drawn.columns, 4), len(self.z))
        ours = lambda: mercer.kernel_agop(self.formula, self.x, self.z, coef, **self.params)  # noqa: E731

        def peer() -> Any:
            g = self._gradients(coef).flatten(0, 1)
            return g.mT @ g

        return ours, {"torch autograd": peer}

    def _gradient_field(self) -> Contestants:
        phi = mercer.differentiate(self.formula, "x")
        params = {name: value for name, value in self.params.items() if name in phi.parameters}
        coef, amplitude = self.normal(len(self.z)), self.normal(len(self.x), len(self.z))
        ours = lambda: mercer.gradient_field(  # noqa: E731
            phi, self.x, self.z, amplitude=amplitude, coef=coef, **params
        )
        return ours, {"torch autograd": lambda: self._gradients([amplitude * coef])[0]}

    def _backward(self) -> Contestants:
        """A product and its gradients by x, z and v."""
        import torch

        v, cotangent = (self.normal(len(t), self.drawn.columns) for t in (self.z, self.x))

        def both(forward: Callable) -> Any:
            leaves = [t.detach().clone().requires_grad_() for t in (self.px, self.pz, v)]
            grads = torch.autograd.grad(forward(*leaves), leaves, cotangent)
            return torch.cat([g.flatten() for g in grads])

        def ours(x: Any, z: Any, v: Any) -> Any:
            return mercer.kernel_product(self.formula, x, z, v, **self.params)

        def peer(x: Any, z: Any, v: Any) -> Any:
            return self.drawn.function.torch(x, z, self.h) @ v

        return lambda: both(ours), {"torch autograd": lambda: both(peer)}

    def _kron(self) -> Contestants:
        """X (A1 x A2 x A3): of 2 or 3 factors of sides from 2 to 64."""
        import torch

        m, n, k = self.drawn.shape
        sides = [2 + m % 63, 2 + n % 63, 2 + k % 15][: 2 + self.drawn.columns % 2]
        factors = [self.normal(side, side) for side in sides]
        x = self.normal(max(1, min(4096, 10**6 // math.prod(sides))), math.prod(sides))

        def peer() -> Any:
            y = x.reshape(len(x), *sides)
            for axis, factor in enumerate(factors):
                y = torch.movedim(torch.tensordot(y, factor, dims=([axis + 1], [0])), -1, axis + 1)
            return y.reshape(len(x), -1)

        return lambda: mercer.kron.matmul(x, factors), {"torch tensordot": peer}

    def _solve_cholesky(self) -> Contestants:
        import torch

        size = min(len(self.x), 2000)
        matrix = mercer.kernel_matrix(self.formula, self.px[:size], **self.params).double()
        ridge = 1e-2 * torch.eye(size, dtype=matrix.dtype, device=self.device)
        matrix = (matrix + ridge).to(self.px.dtype)
        b = self.normal(size, self.drawn.columns)

        def peer() -> Any:
            return torch.cholesky_solve(b, torch.linalg.cholesky(matrix))

        return lambda: mercer.linalg.solve_cholesky(matrix, b), {"torch": peer}


# ---- Timing and comparing. ----------------------------------------------------------------------


def difference(ours: Callable[[], object], peer: Any) -> float:
    """The largest difference, of the largest value."""
    import torch

    a, b = (torch.as_tensor(t).double().cpu() for t in (ours, peer))
    # A KeOps result has an axis of one more; a value that is NaN for both is the same.
    b = b.reshape(a.shape)
    gap = torch.where(a.isnan() & b.isnan(), 0.0, (a - b).abs())
    gap = torch.where(a == b, 0.0, gap)
    finite = b[b.isfinite()].abs()
    return float(gap.max() / max(float(finite.max()) if len(finite) else 1.0, 1e-30))


def best_seconds(
    calls: dict[str, Callable], clock: Callable[[Callable], float]
) -> dict[str, float]:
    """Seconds of each, in turns; long calls are not repeated."""
    best = {}
    for name, call in calls.items():
        call()  # compiles
        best[name] = clock(call)
    for _ in range(2):
        for name, call in calls.items():
            if best[name] < 0.2:
                best[name] = min(best[name], clock(call))
    return best


def cpu_clock(call: Callable) -> float:
    """CPU seconds of one call; short ones in a row."""
    start = time.process_time()
    call()
    once = time.process_time() - start
    count = max(1, min(200, int(2e-3 / max(once, 1e-6))))
    if count == 1:
        return once
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def _compare(contest: Contest, ours: Callable, by: dict[str, Callable]) -> tuple[dict, dict]:
    """Peers that give a result, and what is to be said of their values."""
    found, remarks = {}, {}
    own, loose = ours(), LOOSE[contest.drawn.dtype]
    for name, call in by.items():
        try:
            gap = difference(own, call())
            remarks[name] = "" if gap <= loose else _blame(contest, own, name, gap)
            found[name] = call
        except (RuntimeError, ValueError, NotImplementedError, MemoryError) as error:
            print(f"{contest.drawn.note}: {name} has no result: {str(error).splitlines()[0]}")
    return found, remarks


def _blame(contest: Contest, own: Any, name: str, gap: float) -> str:
    """Who is off, by the peer's result in float64."""
    ours = difference(own, contest.in_float64().make()[1][name]())
    who = "the peer is off" if ours <= LOOSE[contest.drawn.dtype] else "VALUES DIFFER"
    return f"; {who} by {gap:.1e}"


def _lines(
    drawn: Drawn, device: str, clock: Callable[[Callable], float], line: Callable[..., _LineT]
) -> Iterator[_LineT]:
    contest = Contest(drawn, device)
    ours, by = contest.make()
    by, remarks = _compare(contest, ours, by)
    times = best_seconds({"mercer": ours, **by}, clock)
    for name in by:
        yield line(drawn, drawn.note + remarks[name], name, times["mercer"], times[name])


def _summary(lines: list[Any], calls: int) -> None:
    losses = sorted((line for line in lines if line.ratio < 1), key=lambda line: line.ratio)
    print(f"\nrandom calls: {len(losses)} losses of {len(lines)} comparisons in {calls} of {CALLS}"
          f" calls, seed {SEED}")  # fmt: skip
    for line in losses:
        shape = "x".join(map(str, line.shape))
        print(f"  {line.ratio:5.2f}  {line.peer}: {line.note}, {shape} {line.dtype}")
    for verb in VERBS:
        ratios = [line.ratio for line in lines if line.note.split()[0] == verb]
        if ratios:
            lost = sum(ratio < 1 for ratio in ratios)
            print(f"  {verb:16} median {statistics.median(ratios):6.2f}, worst {min(ratios):6.2f},"
                  f" {lost} lost of {len(ratios)}")  # fmt: skip
    differing = [line for line in lines if "VALUES DIFFER" in line.note]
    print(f"  {len(differing)} comparisons of values that differ by more than peers may\n")


def _all(
    draw: Draw, device: str, clock: Callable[[Callable], float], line: Callable[..., _LineT],
    most: float,
) -> Iterator[_LineT]:  # fmt: skip
    lines: list[Any] = []
    start, calls = time.perf_counter(), 0
    while calls < CALLS and time.perf_counter() - start < most:
        for found in _lines(draw(calls), device, clock, line):
            lines.append(found)
            yield found
        calls += 1
    _summary(lines, calls)


def cpu_lines(s: Settings) -> Iterator[Line]:
    """Lines of one thread."""

    def line(drawn: Drawn, note: str, peer: str, ours: float, theirs: float) -> Line:
        return Line("random", drawn.shape, drawn.dtype, peer=peer, note=note, seconds=ours,
                    peer_seconds=theirs, ratio=theirs / ours)  # fmt: skip

    draw = Draw(SEED, 1e6 if s.quick else 1e7, 2000)
    yield from _all(draw, "cpu", cpu_clock, line, SECONDS / 9 if s.quick else SECONDS)


def gpu_lines(s: GpuSettings) -> Iterator[GpuLine]:
    def clock(call: Callable) -> float:
        first = s.watch.once(call)
        count = max(1, min(20, math.ceil(1.0 / max(first, 1e-3))))
        return s.watch.once(call, count) / 1e3

    def line(drawn: Drawn, note: str, peer: str, ours: float, theirs: float) -> GpuLine:
        return GpuLine("random", drawn.shape, drawn.dtype, data=drawn.data, peer=peer, note=note,
                       ms=ours * 1e3, peer_ms=theirs * 1e3)  # fmt: skip

    draw = Draw(SEED, 1e9 * s.scale if s.device.startswith("cuda") else 1e6, 20000)
    yield from _all(draw, s.device, clock, line, SECONDS)
