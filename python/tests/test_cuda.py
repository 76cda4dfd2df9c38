"""Arrays on CUDA devices: PyTorch, CuPy and JAX, each where it is installed and sees a GPU.

The reference is the same verb on NumPy's arrays of the same values in float64, on the CPU. Without
a GPU every test is skipped, and counted: ``pytest -rs``.
"""

from __future__ import annotations

import importlib
import time
import timeit

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close, in_threads
from verb_table import GAUSS, POWER, VERBS, extra_arrays

M, N, K = 130, 70, 33
DTYPES = ["float32", "float64", "float16", "bfloat16", "uint8", "int8", "int32"]


class Torch:
    """Arrays of PyTorch on its current CUDA device."""

    def __init__(self):
        self.library = importlib.import_module("torch")
        self.devices = self.library.cuda.device_count()

    def array(self, values, dtype=None):
        tensor = self.library.from_numpy(np.array(values)).cuda()  # a number stays one
        return tensor if dtype is None else tensor.to(getattr(self.library, dtype))

    def numpy(self, array):
        return array.double().cpu().numpy()


class Cupy:
    """Arrays of CuPy, which has no bfloat16."""

    def __init__(self):
        self.library = importlib.import_module("cupy")
        self.devices = self.library.cuda.runtime.getDeviceCount()

    def array(self, values, dtype=None):
        if dtype == "bfloat16":
            pytest.skip("CuPy has no bfloat16")
        return self.library.asarray(values).astype(dtype or values.dtype)

    def numpy(self, array):
        return self.library.asnumpy(array.astype("float64"))


class Jax:
    """Arrays of JAX on its first GPU."""

    def __init__(self):
        self.library = importlib.import_module("jax.numpy")
        jax = importlib.import_module("jax")
        self.gpus = jax.devices("gpu")
        self.put, self.devices = jax.device_put, len(self.gpus)

    def array(self, values, dtype=None):
        if dtype == "float64":
            pytest.skip("JAX has float64 only where a process chose so")
        array = self.put(np.asarray(values), self.gpus[0])
        return array if dtype is None else array.astype(dtype)

    def numpy(self, array):
        return np.asarray(array).astype("float64")


def find(kind):
    """The library with its devices, or why it is not tested."""
    try:
        home = kind()
    except Exception as reason:  # not installed, or no driver
        return f"{type(reason).__name__}: {str(reason).splitlines()[0][:60]}"
    return home if home.devices else "it sees no CUDA device"


FOUND = {kind.__name__: find(kind) for kind in (Torch, Cupy, Jax)}


def parameter(name):
    home = FOUND[name]
    reason = f"no {name} on a GPU here ({home})"
    return pytest.param(
        home, id=name, marks=pytest.mark.skipif(isinstance(home, str), reason=reason)
    )


every_library = pytest.mark.parametrize("home", [parameter(name) for name in FOUND])
with_torch = pytest.mark.parametrize("home", [parameter("Torch")])
writing_libraries = pytest.mark.parametrize("home", [parameter("Torch"), parameter("Cupy")])


def points(rng, dtype, *lead):
    scale = 1 if "float" in dtype else 20
    x = np.abs(rng.normal(size=(*lead, M, K))) * scale
    z = np.abs(rng.normal(size=(*lead, N, K))) * scale
    kind = "f" if dtype == "bfloat16" else dtype
    return x.astype(kind), z.astype(kind)


def transposed(home, array):
    return home.array(np.ascontiguousarray(array.swapaxes(-1, -2))).swapaxes(-1, -2)


def strided(home, array):
    wide = np.zeros((*array.shape[:-2], 2 * array.shape[-2], 3 * array.shape[-1]), array.dtype)
    wide[..., ::2, 1::3] = array
    return home.array(wide)[..., ::2, 1::3]


LAYOUTS = {"transposed": transposed, "strided": strided}


def check(home, verb, x, z, extra):
    """The verb on these arrays of the library, and on their values in float64."""
    arrays = {name: home.array(values) for name, values in extra.items()}
    if str(x.dtype).endswith(("float64", "int32")):
        arrays = {name: home.array(values, "float64") for name, values in extra.items()}
    result = VERBS[verb](x, z, arrays)
    wide = {name: values.astype("d") for name, values in extra.items()}
    expected = VERBS[verb](home.numpy(x), home.numpy(z), wide)
    pairs = zip(result, expected, strict=True) if verb == "knn" else [(result, expected)]
    for got, wanted in pairs:
        assert tuple(got.shape) == wanted.shape
        # Sums that cancel are as exact as their largest terms: the contract's 2e-6 of those.
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
        np.testing.assert_allclose(home.numpy(got), wanted, 1e-5, 2e-6 * largest)


@every_library
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("verb", VERBS)
def test_verbs(rng, home, verb, dtype):
    x, z = points(rng, dtype)
    extra = extra_arrays(rng, (), M, N, K)
    check(home, verb, home.array(x, dtype), home.array(z, dtype), extra)


@every_library
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("verb", VERBS)
def test_layouts(rng, home, verb, layout):
    x, z = points(rng, "float32")
    extra = extra_arrays(rng, (), M, N, K)
    check(home, verb, *(LAYOUTS[layout](home, a) for a in (x, z)), extra)


@every_library
@pytest.mark.parametrize(
    "verb", [v for v in VERBS if v not in ("weights", "kernel_product of a vector")]
)
def test_batches(rng, home, verb):
    x, z = points(rng, "float32", 3)
    extra = extra_arrays(rng, (3,), M, N, K)
    extra["hs"] = extra["hs"][:, :1]  # [3, 1] broadcasts with [3]
    if verb == "parameters":
        x, z = x[:, None], z[:, None]
    check(home, verb, home.array(x), home.array(z), extra)


@every_library
def test_broadcast(rng, home):
    x, z = points(rng, "float32")
    xs, h = np.stack([x, 2 * x])[:, None], np.array([1, 2, 5], "f")
    result = mc.pairwise(GAUSS, home.array(xs), home.array(z), h=home.array(h))
    expected = mc.pairwise(GAUSS, xs.astype("d"), z.astype("d"), h=h.astype("d"))
    assert_close(home.numpy(result), expected)
    same = home.library.broadcast_to(home.array(x[:1]), (M, K))  # strides of zero
    assert_close(home.numpy(mc.cdist(same, None)), np.zeros((M, M)))


@every_library
@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (0, 0, 4), (3, 2, 0)])
def test_empty(home, m, n, k):
    result = mc.cdist(home.array(np.ones((m, k), "f")), home.array(np.ones((n, k), "f")))
    assert_close(home.numpy(result), np.zeros((m, n)))


@every_library
def test_parameters_may_stay_on_the_cpu(rng, home):
    x, _ = points(rng, "float32")
    expected = mc.pairwise(POWER, x.astype("d"), p=[1.0, 1.3], h=2.0)
    for p in ([1.0, 1.3], np.array([1.0, 1.3]), home.array(np.array([1, 1.3], "f"))):
        assert_close(home.numpy(mc.pairwise(POWER, home.array(x), p=p, h=2.0)), expected)


@writing_libraries
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_out(rng, home, layout):
    x, z = points(rng, "float32")
    make = LAYOUTS.get(layout, lambda home, a: home.array(a))
    out = make(home, np.zeros((M, N), "f"))
    assert mc.cdist(home.array(x), home.array(z), 1, out=out) is out
    assert_close(home.numpy(out), mc.cdist(x.astype("d"), z.astype("d"), 1))


@writing_libraries
def test_out_of_16_bits(rng, home):
    x, z = points(rng, "float32")
    out = home.array(np.zeros((M, N), "f"), "float16")
    mc.cdist(home.array(x), home.array(z), 1, out=out)
    assert_close(home.numpy(out), mc.cdist(x.astype("d"), z.astype("d"), 1), 2**-8)


@writing_libraries
def test_one_device_a_call(rng, home):
    x, z = points(rng, "float32")
    on_cpu = z if home.library.__name__ == "cupy" else home.array(z).cpu()
    with pytest.raises(ValueError, match=r"must lie on the device of x|must come from the library"):
        mc.cdist(home.array(x), on_cpu)


@writing_libraries
def test_workspace(rng, home):
    x, z = points(rng, "float32")
    memory = home.array(np.zeros(1 << 26, "u1"))
    result = mc.cdist(home.array(x), home.array(z), workspace=memory)
    assert_close(home.numpy(result), mc.cdist(x.astype("d"), z.astype("d")))
    with pytest.raises(ValueError, match="workspace must be a contiguous array of uint8"):
        mc.cdist(home.array(x), home.array(z), workspace=memory[::2])


@with_torch
def test_the_current_stream(rng, home):
    """Work waits for what is before it in the caller's stream, and the caller does not wait."""
    torch = home.library
    x, z = points(rng, "float32")
    source, target = home.array(x), torch.zeros((M, K), device="cuda")
    z = home.array(z)
    expected = mc.cdist(source, z, 1)  # compiles, too
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)  # half a second
        target.copy_(source)
        begin = time.perf_counter()
        result = mc.cdist(target, z, 1)
        called = time.perf_counter() - begin
        done = torch.cuda.Event()
        done.record()
        assert not done.query()
    assert called < 0.1
    side.synchronize()
    np.testing.assert_array_equal(home.numpy(result), home.numpy(expected))


@pytest.mark.parametrize("home", [parameter("Cupy")])
def test_the_current_stream_of_cupy(rng, home):
    cupy = home.library
    x, z = points(rng, "float32")
    source, z, target = home.array(x), home.array(z), home.array(np.zeros((M, K), "f"))
    expected = home.numpy(mc.cdist(source, z, 1))
    cupy.cuda.Device().synchronize()
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        for _ in range(200):
            target *= 0
        target += source
        result = mc.cdist(target, z, 1)
    side.synchronize()
    np.testing.assert_array_equal(home.numpy(result), expected)


def each(result):
    return result if isinstance(result, tuple) else (result,)


@with_torch
@pytest.mark.parametrize("verb", ["pairwise", "kernel_product", "knn", "kernel_gradient", "cdist"])
def test_graphs(rng, home, verb):
    """A captured call runs anew, on new values, at each replay."""
    torch = home.library
    x, z = (home.array(a) for a in points(rng, "float32"))
    extra = {n: home.array(a) for n, a in extra_arrays(rng, (), M, N, K).items()}
    VERBS[verb](x, z, extra)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = VERBS[verb](x, z, extra)
    for _ in range(2):
        x.copy_(torch.rand_like(x))
        graph.replay()
        torch.cuda.synchronize()
        expected = VERBS[verb](x, z, extra)
        for got, wanted in zip(each(result), each(expected), strict=True):
            np.testing.assert_array_equal(home.numpy(got), home.numpy(wanted))


LARGE_CALLS = {  # tensor cores, linear fields, mixed pipes: several kernels, and lists between them
    "distances": lambda x, z, coef: mc.cdist(x, z),
    "symmetric": lambda x, z, coef: mc.kernel_matrix(GAUSS, x, h=300.0),
    "L1": lambda x, z, coef: mc.cdist(x, z, 1),
    "power": lambda x, z, coef: mc.cdist(x, z, 1.3),
    "product-1": lambda x, z, coef: mc.kernel_product(GAUSS, x, z, coef[0], h=300.0),
    "product-64": lambda x, z, coef: mc.kernel_product(GAUSS, x, z, coef.mT, h=300.0),
    "argmin": lambda x, z, coef: mc.kernel_reduce("l2", x, z, "argmin"),
    "neighbours": lambda x, z, coef: mc.knn("l2", x, z, 9),
    "field-1": lambda x, z, coef: mc.kernel_gradient("l1", x, z, coef),
    "field-1.3": lambda x, z, coef: mc.kernel_gradient("minkowski", x, z, coef[:16], p=1.3),
    "field-2": lambda x, z, coef: mc.kernel_gradient("l2", x, z, coef[:16]),
    "outer-products": lambda x, z, coef: mc.kernel_agop(GAUSS, x, z, coef[:4], h=300.0),
}


@with_torch
@pytest.mark.parametrize("call", LARGE_CALLS.values(), ids=LARGE_CALLS)
def test_graphs_of_large_calls(rng, home, call):
    """Replayed on points of other sizes, on pairs that cancel and on values that no piece holds."""
    torch = home.library
    values = rng.normal(size=(2100, 260)).astype("f")
    close, far = values.copy(), values * 100
    close[:200] = values[500:700] * (1 + 1e-5)
    far[7] *= 1e6
    far[11, 3] = np.inf
    x, z = home.array(values), home.array(values[300:2000])
    coef = home.array(rng.normal(size=(64, len(z))).astype("f"))
    call(x, z, coef)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x, z, coef)
    for replayed in (close, far, values):
        x.copy_(home.array(replayed))
        graph.replay()
        torch.cuda.synchronize()
        expected = call(x, z, coef)
        for got, wanted in zip(each(result), each(expected), strict=True):
            np.testing.assert_array_equal(home.numpy(got), home.numpy(wanted))


@with_torch
def test_a_cold_plan_inside_a_capture_is_refused(rng, home):
    torch = home.library
    x, z = (home.array(a) for a in points(rng, "float32"))
    out = torch.empty((M, N), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match=r"mercer\.compile"), torch.cuda.graph(graph):
        mc.pairwise("sum(abs(x-z))*1.2345678", x, z, out=out)


@with_torch
def test_compiled_ahead_for_a_capture(rng, home):
    torch = home.library
    f = "sum(abs(x-z))*8.7654321"
    mc.compile(f, shapes=[(M, N, K)], devices=[torch.cuda.current_device()])
    x, z = (home.array(a) for a in points(rng, "float32"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = mc.pairwise(f, x, z)
    graph.replay()
    assert_close(home.numpy(result), mc.pairwise(f, home.numpy(x), home.numpy(z)))


@with_torch
def test_threads_with_streams_of_their_own(rng, home):
    torch = home.library
    x, z = (home.array(a) for a in points(rng, "float32"))
    expected = home.numpy(mc.kernel_product(GAUSS, x, z, z, h=2.0))
    torch.cuda.synchronize()

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            return [home.numpy(mc.kernel_product(GAUSS, x, z, z, h=2.0)) for _ in range(20)][-1]

    for result in in_threads(work):
        np.testing.assert_array_equal(result, expected)


@with_torch
def test_two_devices(rng, home):
    torch = home.library
    if home.devices < 2:
        pytest.skip("one GPU only")
    x, z = points(rng, "float32")
    expected = mc.cdist(x.astype("d"), z.astype("d"))
    first = torch.from_numpy(x).to("cuda:0")
    with pytest.raises(ValueError, match=r"z must lie on the device of x, cuda:0. .* on cuda:1"):
        mc.cdist(first, torch.from_numpy(z).to("cuda:1"))
    for device in ("cuda:1", "cuda:0"):  # not the current device at first
        result = mc.cdist(torch.from_numpy(x).to(device), torch.from_numpy(z).to(device))
        assert str(result.device) == device
        assert_close(home.numpy(result), expected)


class Interface:
    """The CUDA array interface of a tensor, and nothing else."""

    def __init__(self, tensor, stream=None):
        self.tensor = tensor
        self.__cuda_array_interface__ = dict(tensor.__cuda_array_interface__, stream=stream)


class Dlpack:
    """DLPack's methods of a tensor, and nothing else."""

    def __init__(self, tensor):
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__


@with_torch
@pytest.mark.parametrize("wrap", [Interface, Dlpack])
def test_arrays_without_a_library(rng, home, wrap):
    torch = home.library
    x, z = (home.array(a) for a in points(rng, "float32"))
    out = torch.empty((M, N), device="cuda")
    mc.cdist(wrap(x), wrap(z), 1, out=wrap(out))
    assert_close(home.numpy(out), mc.cdist(home.numpy(x), home.numpy(z), 1))


@with_torch
def test_the_stream_of_the_array_interface(rng, home):
    torch = home.library
    x, z = (home.array(a) for a in points(rng, "float32"))
    target, out = torch.zeros_like(x), torch.zeros((M, N), device="cuda")
    expected = home.numpy(mc.cdist(x, z, 1))
    torch.cuda.synchronize()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        target.copy_(x)
    arrays = Interface(target, side.cuda_stream), Interface(z, other.cuda_stream)
    mc.cdist(*arrays, 1, out=Interface(out, other.cuda_stream))
    with torch.cuda.stream(other):
        np.testing.assert_array_equal(home.numpy(out), expected)


@with_torch
def test_the_stream_of_a_workspace(rng, home):
    torch = home.library
    x, z = (home.array(a) for a in points(rng, "float32"))
    size = max(mc.workspace_size("cdist", x, z, 1), 1)
    memory = torch.zeros(size, dtype=torch.uint8, device="cuda")
    out = torch.zeros((M, N), device="cuda")
    torch.cuda.synchronize()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        memory.fill_(255)
    arrays = (Interface(array, other.cuda_stream) for array in (x, z))
    workspace = Interface(memory, side.cuda_stream)
    mc.cdist(*arrays, 1, out=Interface(out, other.cuda_stream), workspace=workspace)
    other.synchronize()
    assert side.query(), "the call did not wait for what was to be written there before"
    np.testing.assert_array_equal(home.numpy(out), home.numpy(mc.cdist(x, z, 1)))


@with_torch
def test_overhead(home):
    """The bar is 12 microseconds on an idle machine; a shared one gets three times that."""
    x = home.library.ones((2, 2), device="cuda")
    f = mc.kernel(POWER)
    calls = timeit.repeat(lambda: mc.pairwise(f, x, p=1.3, h=2.0), number=200, repeat=20)
    assert min(calls) / 200 < 36e-6


@with_torch
@pytest.mark.parametrize(
    ("precision", "least", "most"),
    [("fp32", 0, 1e-6), ("direct", 0, 1e-6), ("tf32", 1e-6, 1e-3), ("bf16", 1e-6, 1e-3)],
)
def test_precision_of_tensor_cores(home, precision, least, most):
    torch = home.library
    x = torch.randn(2000, 600, device="cuda") + 3
    z = torch.randn(1500, 600, device="cuda") + 3
    z[:10] = x[:10]
    with mc.options(precision=precision):
        d = mc.cdist(x, z)
    exact = torch.cdist(x.double(), z.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.all(d[range(10), range(10)] == 0)
    error = ((d - exact).abs() / exact.clamp(min=1e-9)).max().item()
    # GPUs without these tensor cores compute everything directly.
    assert (least if torch.cuda.get_device_capability() == (9, 0) else 0) <= error <= most


@with_torch
@pytest.mark.parametrize("features", [4099, 33000, 100_000])
def test_thousands_of_features(home, features):
    """Sums of sums of chunks: whatever their number, errors are those of float32's own values."""
    torch = home.library
    x = torch.randn(700, features, device="cuda") + 1
    z = torch.randn(600, features, device="cuda") + 1
    z[:5] = x[:5]
    coef = torch.randn(4, 600, device="cuda")
    wide, far = x.double(), z.double()
    distances = torch.cdist(wide, far, compute_mode="donot_use_mm_for_euclid_dist")
    d = mc.cdist(x, z)
    assert torch.all(d[range(5), range(5)] == 0)
    assert torch.all((d - distances).abs() <= 1e-6 * distances)
    sums = torch.cdist(wide, far, 1)
    assert torch.all((mc.cdist(x, z, 1) - sums).abs() <= 1e-6 * sums)
    dots = mc.pairwise("sum(x*z)", x, z)
    assert torch.all((dots - wide @ far.T).abs() <= 1e-6 * (wide.abs() @ far.abs().T))
    power = distances**2 / (2 * features)
    values, v = torch.exp(-power), coef.T.double()
    product = mc.kernel_product(GAUSS, x, z, coef.T, h=2.0 * features)
    assert torch.all((product - values @ v).abs() <= ((2e-6 + 1e-6 * power) * values) @ v.abs())
    nearest, _ = mc.knn("l2", x, z, 7)
    assert torch.all((nearest - distances.sort().values[:, :7]).abs() <= 1e-6 * nearest)
    weights = torch.where(distances == 0, 0.0, 1 / distances)
    for scaled, got in zip(coef.double(), mc.kernel_gradient("l2", x, z, coef), strict=True):
        factors = weights * scaled
        wanted = factors.sum(1, keepdim=True) * wide - factors @ far
        sizes = factors.abs().sum(1, keepdim=True) * wide.abs() + factors.abs() @ far.abs()
        assert torch.all((got - wanted).abs() <= 2e-6 * sizes)


@with_torch
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_precision_of_products_and_gradients(home, precision):
    torch = home.library
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("other GPUs compute some of this directly")
    x = torch.randn(3000, 300, device="cuda")
    z = torch.randn(2000, 300, device="cuda")
    v = torch.randn(2000, 40, device="cuda")
    power = torch.cdist(x.double(), z.double()) ** 2 / 600
    values = torch.exp(-power)
    errors = []
    with mc.options(precision=precision):
        for columns in (1, 16, 40):
            some = v[:, :columns]
            product = mc.kernel_product(GAUSS, x, z, some, h=600.0)
            errors.append((product - values @ some.double()) / (values @ some.abs().double()))
        least = mc.kernel_reduce("sqeuclidean", x, z, "min") / 600
        errors.append((least - power.min(1).values) / power.min(1).values)
        factors = values * v[:, 0].double()
        gradient = mc.kernel_gradient(GAUSS, x, z, v[:, 0].contiguous(), h=600.0) * 300
        wanted = factors @ z.double() - factors.sum(1, keepdim=True) * x.double()
        sizes = factors.abs() @ z.abs().double() + factors.abs().sum(1, keepdim=True) * x.abs()
        errors.append((gradient - wanted) / sizes)
    most = [error.abs().max().item() for error in errors]
    assert max(most) < (4e-6 if precision == "fp32" else 4e-3), most
    if precision != "fp32":  # of a row's pairs errors cancel in sums, not in the least value
        assert most[3] > 4e-6, most


@every_library
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sines_of_large_angles(home, dtype):
    angles = np.concatenate([np.geomspace(0.1, 3e38, 300), -np.geomspace(1e4, 1e30, 100)])
    angles = angles.astype(dtype)
    x, z = home.array(angles[:, None], dtype), home.array(np.ones((19, 1)), dtype)
    for name, exact in (("sin", np.sin), ("cos", np.cos)):
        expected = np.broadcast_to(exact(angles.astype("d"))[:, None], (400, 19))
        for formula in (f"{name}(sum(x*z))", f"sum({name}(x*z))"):
            result = home.numpy(mc.pairwise(formula, x, z))
            np.testing.assert_allclose(result, expected, rtol=4 * np.finfo(dtype).eps)


@every_library
def test_special_values_of_branches(home):
    """NaN of either sign wins a maximum; a branch that is not taken adds nothing to a gradient."""
    x = np.array([[-1, 0, 2], [0.5, 1, 2], [np.inf, 1, 1]], "f")
    z = np.array([[1, 2, 3], [0.5, 0.25, 2], [np.inf, 1, 1]], "f")
    result = home.numpy(mc.pairwise("max(square(x-z))", home.array(x), home.array(z)))
    assert np.argwhere(np.isnan(result)).tolist() == [[2, 2]]
    arrays = home.array(x[:2]), home.array(z[:2]), home.array(np.ones(2, "f"))
    gradient = mc.kernel_gradient("where(min(x) > 0, sum(sqrt(x)*z), 0)", *arrays)
    expected = np.array([[0, 0, 0], 0.5 / np.sqrt([0.5, 1, 2]) * [1.5, 2.25, 5]])
    np.testing.assert_allclose(home.numpy(gradient), expected, rtol=1e-6)
