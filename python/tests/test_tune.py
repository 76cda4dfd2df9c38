"""mercer.tune and its command. Measuring needs a GPU; what is refused does not."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest
from mercer import _tune
from mercer.__main__ import main
from mercer.benchmarks import gpu_rows, gpu_runs

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
    settings = gpu_runs.GpuSettings("cpu", quick=True, floors="sm_90", tunes=True)
    settings.scale = 1e-9
    pairs = next(row for row in gpu_rows.PAIRS if row.name == "laplace-k3")
    list(gpu_runs.pairs_lines(pairs, settings))
    list(gpu_runs.product_lines(gpu_rows.PRODUCTS[0], settings))
    assert [options.get("verb", "pairwise") for options in calls] == ["pairwise", "kernel_product"]


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
