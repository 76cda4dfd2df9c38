"""PyTorch: what traces a function or listens to the dispatcher sees every verb as an operator."""

from __future__ import annotations

import io

import mercer as mc
import numpy as np
import pytest
import verb_table

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils import _pytree  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

M, N, K = 5, 4, 6
EXTRA = verb_table.extra_arrays(np.random.default_rng(0), (), M, N, K)
TRACED = {name: v for name, v in verb_table.VERBS.items() if name not in verb_table.FOLDS}
VERBS = TRACED | {
    "kron.matmul": lambda x, z, a: mc.kron.matmul(x, [z[:2, :3], z[1:4, :2]], alpha=2.0),
    "kron.kron_matmul": lambda x, z, a: mc.kron.kron_matmul(
        [z[:2, :3], z[1:4, :2]], x.T, beta=2.0, y=a["row"]
    ),
    "linalg.cholesky": lambda x, z, a: mc.linalg.cholesky(positive(x), lower=False, jitter=1e-3),
    "linalg.solve_cholesky": lambda x, z, a: mc.linalg.solve_cholesky(positive(x), x),
    "linalg.cho_solve": lambda x, z, a: mc.linalg.cho_solve(positive(x), a["row"]),
    "linalg.inv_quad_logdet": lambda x, z, a: mc.linalg.inv_quad_logdet(positive(x), x),
    "linalg.solve_lu": lambda x, z, a: mc.linalg.solve_lu(positive(x), x),
    "linalg.lu_solve": lambda x, z, a: mc.linalg.lu_solve(mc.linalg.lu_factor(positive(x)), x),
    "linalg.cho_inverse": lambda x, z, a: mc.linalg.cho_inverse(positive(x)),
    "linalg.eigh": lambda x, z, a: mc.linalg.eigh(positive(x), eigvals_only=True),
}
# torch.fx would have to know the factors' shapes.
SHAPED = {
    "kron.solve": lambda x, z, a: mc.kron.solve([positive(x)], x, shift=0.5),
    "kron.solve without a shift": lambda x, z, a: mc.kron.solve([positive(x)], x),
    "kron.logdet": lambda x, z, a: mc.kron.logdet([positive(x)], shift=0.5),
}


def positive(x):
    return x @ x.mT + 2 * torch.eye(M)


def arrays(seed):
    """x, z and the extra arrays, one after the other."""
    generator = torch.Generator().manual_seed(seed)
    points = [torch.randn(count, K, generator=generator) for count in (M, N)]
    return (*points, *(torch.from_numpy(array) * (1 + 0.1 * seed) for array in EXTRA.values()))


def function_of(name):
    def call(x, z, row, col, v, coef, coefs, amplitude, w, h, hs):
        given = dict(zip(EXTRA, (row, col, v, coef, coefs, amplitude, w, h, hs), strict=True))
        return (VERBS | SHAPED)[name](x, z, given)

    return call


SEEN: list[str] = []


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        SEEN.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        SEEN.append(str(func))
        return func(*args, **(kwargs or {}))


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        SEEN.append(str(func))
        inner = _pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return _pytree.tree_map_only(torch.Tensor, cls, func(*inner[0], **inner[1]))


def saved_and_loaded(traced):
    stream = io.BytesIO()
    torch.jit.save(traced, stream)
    stream.seek(0)
    return torch.jit.load(stream)


def in_mode(mode):
    def trace(function, example):
        def call(*given):
            SEEN.clear()
            with mode():
                result = function(*given)
            assert any(seen.startswith("mercer") for seen in SEEN)
            return result

        return call

    return trace


def of_wrappers(function, example):
    def call(*given):
        SEEN.clear()
        result = function(*map(Wrapper, given))
        assert any(seen.startswith("mercer") for seen in SEEN)
        return _pytree.tree_map_only(Wrapper, lambda t: t.inner, result)

    return call


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, z, row, col, v, coef, coefs, amplitude, w, h, hs):
        return self.function(x, z, row, col, v, coef, coefs, amplitude, w, h, hs)


TRACERS = {
    "jit.trace": lambda f, a: saved_and_loaded(torch.jit.trace(f, a, check_trace=False)),
    "make_fx": lambda f, a: make_fx(f)(*a),
    "make_fx of symbols": lambda f, a: make_fx(f, tracing_mode="symbolic")(*a),
    "make_fx before dispatch": lambda f, a: make_fx(f, pre_dispatch=True)(*a),
    "functionalize": lambda f, a: torch.func.functionalize(f),
    "make_fx of functionalize": lambda f, a: make_fx(torch.func.functionalize(f))(*a),
    "symbolic_trace": lambda f, a: torch.fx.symbolic_trace(f),
    "export": lambda f, a: torch.export.export(Module(f), a, strict=False).module(),
    "a dispatch mode": in_mode(Dispatches),
    "a function mode": in_mode(Functions),
    "a subclass": of_wrappers,
}


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", VERBS | SHAPED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced_verbs_on_other_data(name, tracer):
    function = function_of(name)
    if name in SHAPED and tracer == "symbolic_trace":
        with pytest.raises(torch.fx.proxy.TraceError, match="symbolically traced variables"):
            TRACERS[tracer](function, arrays(0))
        return
    with torch.no_grad():
        traced = TRACERS[tracer](function, arrays(0))
        results, expected = traced(*arrays(1)), function(*arrays(1))
    torch.testing.assert_close(results, expected)


@pytest.mark.parametrize("mode", [Dispatches, Functions])
def test_gradients_in_a_mode(mode):
    x, z, *_ = (t.requires_grad_() for t in arrays(0))
    with mode():
        results = torch.autograd.grad(mc.cdist(x, z).sum(), (x, z))
    torch.testing.assert_close(results, torch.autograd.grad(mc.cdist(x, z).sum(), (x, z)))


def forward_twice(f):
    return torch.func.jacfwd(torch.func.jacfwd(f))


@pytest.mark.parametrize(
    "transform", [torch.func.grad, torch.func.hessian, torch.vmap, forward_twice]
)
def test_transforms_within_make_fx(transform):
    x, other = torch.randn(2, M, K, dtype=torch.float64), torch.randn(2, M, K, dtype=torch.float64)

    def function(x):
        return mc.kernel_product("gauss", x, None, x, bandwidth=2.0).sin().sum()

    torch.testing.assert_close(make_fx(transform(function))(x)(other), transform(function)(other))


LINALG = {
    "eigh_top": lambda a, b: mc.linalg.eigh_top(a, 1),
    "cg": lambda a, b: mc.linalg.cg(a, b),
    "cg of a kernel": lambda a, b: mc.linalg.cg(
        mc.linalg.KernelOperator("gauss", a, ridge=1.0, bandwidth=1.0), b
    ),
    "nystrom": lambda a, b: mc.linalg.nystrom(a, 2, ridge=1.0),
    "pivoted_cholesky": lambda a, b: mc.linalg.pivoted_cholesky(
        mc.linalg.KernelOperator("gauss", a, ridge=1.0, bandwidth=1.0), 2
    ),
    "an output": lambda a, b: mc.pairwise("sum(x*z)", a, out=b),
    "an output of kron": lambda a, b: mc.kron.matmul(a, [b], out=a.clone()),
    "a workspace": lambda a, b: mc.kron.matmul(
        a, [b], workspace=torch.empty(1 << 23, dtype=torch.uint8)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINALG)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_traced_is_refused(name):
    a, b = torch.eye(M) + 0.1, torch.ones(M, M)
    kept = b.clone()
    tracers = [
        lambda f: torch.jit.trace(f, (a, b)), lambda f: make_fx(f)(a, b),
        lambda f: f(Wrapper(a), b),
        lambda f: make_fx(f, tracing_mode="fake")(a, b), lambda f: torch.fx.symbolic_trace(f),
        lambda f: in_mode(Functions)(f, None)(a, b), lambda f: torch.func.functionalize(f)(a, b),
        lambda f: torch.vmap(f)(a.expand(2, M, M), b.expand(2, M, M)),
    ]  # fmt: skip
    if name in ("cg", "cg of a kernel"):
        tracers.pop()  # torch.vmap has it
    rule = "must not be traced|must be a plain tensor|is not offered where PyTorch records|"
    rule += "is not offered within torch.(func|vmap)|"
    rule += "symbolically traced variables cannot"  # torch.fx, of a shape that is compared
    for trace in tracers:
        with pytest.raises((NotImplementedError, torch.fx.proxy.TraceError), match=rule):
            trace(lambda a, b: LINALG[name](a, b))
    assert torch.equal(b, kept)
    LINALG[name](a, b)  # a call that failed leaves nothing behind


def test_a_device_as_context_is_no_tracer():
    x, out = torch.randn(M, K), torch.empty(M, M)
    with torch.device("cpu"):
        assert mc.cdist(x, x, out=out) is out
        mc.linalg.cholesky(torch.eye(M))


def test_jit_trace_of_transforms_is_refused():
    x = torch.randn(M, K)
    for transform in (torch.func.grad, torch.func.jacfwd, torch.vmap):
        with pytest.raises(NotImplementedError, match=r"cdist: torch.jit.trace must not go"):
            torch.jit.trace(transform(lambda x: mc.cdist(x, x[:, None]).sum()), (x.T[..., None],))


def test_forward_mode_of_a_traced_graph_is_refused():
    """The dispatcher would drop the tangents of an operator that is registered from Python."""
    x = torch.randn(M, K)
    graph = make_fx(lambda x: mc.cdist(x, x))(x)
    kron = make_fx(lambda x: mc.kron.matmul(x, [x[:2, :2], x[:3, :3]]))(x)
    for traced in (graph, kron):
        with pytest.raises(NotImplementedError, match="must not be part of forward-mode"):
            torch.func.jvp(traced, (x,), (x,))
        with (
            torch.autograd.forward_ad.dual_level(),
            pytest.raises(NotImplementedError, match="must not be part of forward-mode"),
        ):
            traced(torch.autograd.forward_ad.make_dual(x, x))


@pytest.mark.parametrize("transform", ["jvp", "grad", "vmap"])
def test_transforms_within_compile(transform):
    x = torch.randn(2, M, K, dtype=torch.float64)

    def function(x):
        return mc.pairwise("gauss", x, bandwidth=2.0).sin().sum()

    def transformed(x):
        if transform == "jvp":
            return torch.func.jvp(function, (x,), (x,))[1]
        return (torch.func.grad if transform == "grad" else torch.vmap)(function)(x)

    torch._dynamo.reset()
    compiled = torch.compile(transformed, backend="aot_eager")
    torch.testing.assert_close(compiled(x), transformed(x))
