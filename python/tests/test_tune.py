"""mercer.tune, its command and mercer.kron.tune. Tiles are measured on a GPU alone."""

from __future__ import annotations

import os
import subprocess
import sys

import mercer as mc
import numpy as np
import pytest
from mercer import _tune
from mercer.__main__ import main
from mercer.benchmarks import gpu_kron, gpu_rows, gpu_runs
from mercer.benchmarks.gpu_settings import GpuSettings

TEXT = "sum(abs(x-z)*1.00390625)"


@pytest.fixture
def points(rng):
    return rng.normal(size=(7, 5)).astype("f")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verb": "knm"}, r'verb must be pairwise, .*Received "knm"'),
        ({"verb": "kernel_product"}, "v belongs to kernel_product.*Received no v"),
        ({"v": np.ones(7, "f")}, "v belongs to kernel_product.*Received a v for pairwise"),
        ({"verb": "kernel_reduce"}, "reduce belongs to kernel_reduce"),
        ({"verb": "kernel_reduce", "reduce": "mean"}, "reduce must be sum, max"),
        ({"q": 2.0}, r'no parameter "q"|CUDA device'),
    ],
)
def test_arguments_are_checked(points, options, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        mc.tune(TEXT, points, **options)


def test_the_cpu_is_refused(points):
    with pytest.raises(NotImplementedError, match=r"CUDA device.*Received float32\[7, 5\]"):
        mc.tune(TEXT, points)


def test_text_marks_the_chosen_tile():
    found = _tune.Tuned("fast", "slow", [("fast", 1.5), ("slow", 2.0), ("slower", 3.0)])
    assert str(found).splitlines() == [
        "*     1.5000 ms  fast",
        "      2.0000 ms  slow (model)",
        "      3.0000 ms  slower",
    ]


def test_command_hands_its_arguments_on(monkeypatch, capsys):
    calls = []

    def tune_shape(*arguments, **params):
        calls.append((arguments, params))
        return _tune.Tuned("fast", "fast", [("fast", 1.0)])

    monkeypatch.setattr(_tune, "tune_shape", tune_shape)
    command = ["tune", "exp(-sum(abs(x-z)^p)/h)", "--shape", "64x32x16", "--dtype", "float64"]
    assert main([*command, "--p", "1.3", "--param", "h=2", "--verb", "kernel_product"]) == 0
    assert calls == [
        (
            ("exp(-sum(abs(x-z)^p)/h)", (64, 32, 16), "float64", "cuda:0", "kernel_product"),
            {"h": 2.0, "p": 1.3},
        )
    ]
    assert capsys.readouterr().out == "*     1.0000 ms  fast (model)\n"


def test_benchmarks_tune_when_asked_to(monkeypatch):
    pytest.importorskip("torch")
    calls = []
    monkeypatch.setattr(mc, "tune", lambda *arguments, **options: calls.append(options))
    settings = GpuSettings("cpu", quick=True, floors="sm_90", tunes=True)
    settings.scale = 1e-9
    pairs = next(row for row in gpu_rows.PAIRS if row.name == "laplace-k3")
    list(gpu_runs.pairs_lines(pairs, settings))
    list(gpu_runs.product_lines(gpu_rows.PRODUCTS[0], settings))
    assert [options.get("verb", "pairwise") for options in calls] == ["pairwise", "kernel_product"]
    monkeypatch.setattr(mc.kron, "tune", lambda *arguments, **options: calls.append(options))
    gpu_kron.GpuKronCase(gpu_kron.ROWS[0], settings)
    assert len(calls) == 3


X = np.ones((7, 6), "f")

KRON_ON_CPU = """
import sys
import numpy as np
import mercer as mc

random = np.random.default_rng(0)
x, factors = random.normal(size=(60, 4**5)), [random.normal(size=(4, 4)) for _ in range(5)]
exact = mc.kron.matmul(x, factors)
if sys.argv[1] == "tune":
    out = np.full_like(x, np.nan)
    found = mc.kron.tune(x, factors, out=out)
    assert {found.chosen, found.model} <= {text for text, _ in found.tiles}
    assert len(found.tiles) >= 2
    assert np.abs(out - exact).max() < 1e-10 * np.abs(exact).max()
    assert np.array_equal(out, mc.kron.matmul(x, factors))
    print(found.chosen)
assert np.abs(mc.kron.matmul(x, factors) - exact).max() < 1e-10 * np.abs(exact).max()
"""


def test_kron_keeps_its_choice_on_the_cpu(tmp_path):

    def run(mode):
        environment = os.environ | {"MERCER_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", KRON_ON_CPU, mode]
        found = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return found.stdout.strip()

    chosen = run("tune")
    files = [path for path in tmp_path.rglob("*") if path.is_file() and chosen in read(path)]
    assert len(files) == 1, "one choice of one product"
    assert "60 rows, 4 x 4, 4 x 4, 4 x 4, 4 x 4, 4 x 4, float64: merged" in read(files[0])
    run("use")


def read(path):
    return path.read_bytes().decode("latin-1")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"verb": "solve"}, ValueError, r'verb must be matmul or kron_matmul.*Received "solve"'),
        ({"factors": np.ones((3, 3))}, TypeError, "kron.tune: factors must be a list or tuple"),
        ({"alpha": "a"}, TypeError, "alpha must be a number|kron.tune"),
        ({"transpose_factors": 3}, TypeError, "kron.tune: transpose_factors must be a bool"),
        ({"x": 3}, ValueError, "kron.tune: x must be an array"),
        ({"alpha": 0}, NotImplementedError, "kron.tune: the call must multiply by factors"),
        ({"out": X}, ValueError, "Received an out that is x"),
    ],
)
def test_arguments_of_kron_are_checked(options, error, message):
    x = options.pop("x", X)
    factors = options.pop("factors", [np.ones((3, 2), "f"), np.ones((2, 3), "f")])
    with pytest.raises(error, match=message):
        mc.kron.tune(x, factors, **options)


def test_kron_refuses_jax():
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(NotImplementedError, match=r"kron.tune: .*Received arrays of JAX"):
        mc.kron.tune(jnp.ones((2, 3)), [jnp.ones((3, 3))])


@pytest.fixture
def gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    return torch


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("pairwise", {}),
        ("kernel_product", {"v": True}),
        ("kernel_reduce", {"reduce": "argmin"}),
    ],
)
def test_results_stay_the_same_bit_by_bit(gpu, verb, options):
    x, z = gpu.randn(1531, 70, device="cuda"), gpu.randn(1603, 70, device="cuda")
    options = {**options, "v": gpu.randn(1603, 3, device="cuda")} if "v" in options else options

    def run():
        arguments = tuple(options.values())
        return getattr(mc, verb)(TEXT, x, z, *arguments)

    before = run()
    found = mc.tune(TEXT, x, z, verb=verb, **options)
    assert {found.chosen, found.model} <= {text for text, _ in found.tiles}
    assert gpu.equal(run(), before)


def test_out_decides_on_the_kernel(gpu):
    x = gpu.randn(300, 20, device="cuda")
    out = gpu.empty(300, 300, dtype=gpu.bfloat16, device="cuda")
    assert mc.tune(TEXT, x, out=out).tiles
    assert gpu.equal(out, mc.pairwise(TEXT, x, out=gpu.empty_like(out)))


def test_a_capture_is_refused(gpu):
    x = gpu.randn(300, 20, device="cuda")
    out = mc.pairwise(TEXT, x)
    graph = gpu.cuda.CUDAGraph()
    with gpu.cuda.graph(graph), pytest.raises(ValueError, match="while a CUDA graph is captured"):
        mc.tune(TEXT, x, out=out)


def test_command_measures(gpu, capsys):
    assert main(["tune", TEXT, "--shape", "300x200x20"]) == 0
    assert "(model)" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["matmul", "kron_matmul"])
def test_products_stay_right(gpu, verb):
    shapes = [(16, 12), (33, 40), (8, 8)]
    factors = [gpu.randn(*shape, device="cuda") / shape[0] ** 0.5 for shape in shapes]
    rows, columns = 16 * 33 * 8, 12 * 40 * 8
    x = gpu.randn(50, rows, device="cuda", requires_grad=True)
    y = gpu.randn(50, columns, device="cuda")
    turned = {"transpose_factors": False}
    if verb == "kron_matmul":
        x, y, turned = x.T, y.T, {"transpose_factors": True}

    def run(dtype=gpu.float32):
        wide = [f.to(dtype) for f in factors]
        pair = (x.detach().to(dtype), wide) if verb == "matmul" else (wide, x.detach().to(dtype))
        product = getattr(mc.kron, verb)
        return product(*pair, alpha=2, beta=-1, y=y.to(dtype), **turned)

    out = gpu.full_like(y, gpu.nan)
    found = mc.kron.tune(x, factors, verb=verb, alpha=2, beta=-1, y=y, out=out, **turned)
    assert {found.chosen, found.model} <= {text for text, _ in found.tiles}
    assert "(model)" in str(found)
    exact = run(gpu.float64)
    for product in (out, run()):
        assert (product - exact).norm() < 1e-6 * exact.norm()


def test_outputs_that_are_inputs_are_refused(gpu):
    x, factors = gpu.randn(20, 64, device="cuda"), [gpu.randn(8, 8, device="cuda")] * 2
    before = x.clone()
    with pytest.raises(ValueError, match="Received an out that is x"):
        mc.kron.tune(x, factors, out=x)
    with pytest.raises(ValueError, match="Received an out that is y"):
        mc.kron.tune(gpu.randn(20, 64, device="cuda"), factors, beta=1, y=x, out=x)
    assert gpu.equal(x, before)


def test_a_capture_of_kron_is_refused(gpu):
    x, factors = gpu.randn(20, 64, device="cuda"), [gpu.randn(8, 8, device="cuda")] * 2
    out = mc.kron.matmul(x, factors)
    graph = gpu.cuda.CUDAGraph()
    with gpu.cuda.graph(graph), pytest.raises(ValueError, match="while a CUDA graph is captured"):
        mc.kron.tune(x, factors, out=out)
