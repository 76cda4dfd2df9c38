"""``mercer show`` and ``mercer bench --plot``."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shlex
import sys

import mercer as mc
import numpy as np
import pytest
from mercer._cli import show
from mercer._cli.program import main

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def points(tmp_path, monkeypatch):
    """x.npy: three clusters of ten points, shuffled. Returns the points and their clusters."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    clusters = rng.permutation(np.repeat([0, 1, 2], 10))
    x = 20.0 * clusters[:, None] + rng.normal(size=(30, 2))
    np.save("x.npy", x)
    return x, clusters


def run(line: str) -> int:
    return main(shlex.split(line))


def options(line: str):
    """Parsed arguments of a command line."""
    from mercer._cli import program

    return program._options(shlex.split(line))


def test_the_matrix_in_the_order_of_its_clusters(points):
    x, _ = points
    k = show.matrix(options("show laplace x.npy --param bandwidth=2"))
    plain = mc.kernel_matrix("laplace", x, bandwidth=2.0)
    assert np.array_equal(np.sort(k.ravel()), np.sort(plain.ravel()))
    assert np.array_equal(k, k.T)
    blocks = k > 1e-4  # of one cluster
    assert np.array_equal(blocks, np.kron(np.eye(3), np.ones((10, 10))))
    assert np.array_equal(
        show.matrix(options("show laplace x.npy --order file --param bandwidth=2")), plain
    )


def test_some_of_many_points(points):
    k = show.matrix(options("show gauss x.npy --most 12 --order file --seed 3"))
    chosen = np.sort(np.random.default_rng(3).permutation(30)[:12])
    assert np.array_equal(k, mc.kernel_matrix("gauss", points[0][chosen]))


def test_blocks_of_characters():
    k = np.repeat(np.repeat([[0.0, 1.0], [0.5, 0.25]], 6, 0), 3, 1)  # [12, 6]
    lines = show.as_text(k, 4, show.SHADES[0]).splitlines()
    assert lines == ["  ██", "▒▒░░", "' ' from 0  '░' from 0.2  '▒' from 0.4  '▓' from 0.6  "
                     "'█' from 0.8  to 1"]  # fmt: skip
    assert show.as_text(np.ones((2, 2)), 80, show.SHADES[1]).startswith("    \n")


def test_means_of_blocks_are_of_equal_parts():
    k = np.random.default_rng(0).normal(size=(7, 5))
    exact = [[k[a:b, c:d].mean() for c, d in ((0, 2), (2, 5))] for a, b in ((0, 2), (2, 4), (4, 7))]
    assert np.allclose(show.shrunk(k, 3, 2), exact, rtol=1e-14)
    assert np.array_equal(show.shrunk(k, 10, 10), k)


def test_in_the_terminal(capsys, monkeypatch):
    assert run("show gauss x.npy --width 20") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert all(len(line) == 20 for line in lines[:10])
    assert show._shades("utf-8") == show.SHADES[0]
    assert show._shades("ascii") == show.SHADES[1]
    assert show._shades(None) == show.SHADES[1]


def test_as_a_picture(capsys):
    pytest.importorskip("matplotlib")
    assert run("show 'exp(-sum(abs(x-z)))' x.npy x.npy -o k.png") == 0
    assert pathlib.Path("k.png").read_bytes()[:8] == PNG
    assert "k.png: 30 x 30 values from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("show gauss x.npy -o k.jpg", "k.jpg: the suffix must be .png. Received .jpg"),
        ("show gauss x.npy -o no/k.png", "no/k.png: cannot be written"),
        ("show gauss x.npy --param bandwidth=1,2", "one value each. Received several"),
        ("show gauss line.npy", "points must be of two axes. Received 1"),
        ("show log(sum(x*z)) x.npy", "values must be finite. Received"),
        ("bench --from none.json --plot b.png", "none.json: must be a JSON file"),
        ("bench --from x.npy --plot b.png", "x.npy: must be a JSON file"),
        ("bench --from empty.json --plot b.png", "b.png: a plot needs a row with a time"),
        ("bench --device cpu --only l9 --plot b.png", "no such row: l9. The rows are l1,"),
        ("bench --quick --plot b.svg", "b.svg: the suffix must be .png"),
    ],
)
def test_refusals(capsys, points, line, words):
    pytest.importorskip("matplotlib")
    np.save("line.npy", np.ones(3))
    np.save("x.npy", points[0] - 20)
    empty = {"machine": {"cpu": "a"}, "lines": []}
    pathlib.Path("empty.json").write_text(json.dumps(empty))
    assert run(line) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
    assert not list(pathlib.Path().glob("*.png"))


def test_pictures_name_what_they_need(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run("show gauss x.npy -o k.png") == 2
    assert "pip install matplotlib" in capsys.readouterr().err


LINES = [
    {"row": "l1", "shape": [64, 32, 8], "dtype": "float32", "target": "x86_avx2", "seconds": 2e-3,
     "gelem": 8.0, "floor": 0.5, "peer": "one", "peer_seconds": 4e-3},
    {"row": "l1", "shape": [64, 32, 8], "dtype": "float32", "target": "x86_avx2", "seconds": 2e-3,
     "floor": None, "peer": "two", "peer_seconds": 8e-3},
    {"row": "jit", "shape": [64, 64, 8], "dtype": "float64", "target": "auto",
     "seconds": float("nan"), "floor": None, "peer": "", "peer_seconds": None},
]  # fmt: skip
GPU_LINE = {"row": "l2", "shape": [64, 64, 8], "dtype": "float64", "data": "normal", "ms": 4.0,
            "of_floor": 0.8, "peer": "torch", "peer_ms": 2.0}  # fmt: skip


def test_lines_of_one_row_are_one_group():
    from mercer.benchmarks import plot

    (group,) = plot.groups(LINES)
    assert group == plot.Group("l1, 64x32x8", 8.0, 2e-3, 0.5, [("one", 4e-3), ("two", 8e-3)])
    (gpu,) = plot.groups([GPU_LINE])
    assert gpu.name == "l2, 64x64x8, float64"
    assert gpu.rate == pytest.approx(64 * 64 * 8 / 4e-3 / 1e9)
    assert (gpu.seconds, gpu.share, gpu.peers) == (4e-3, 0.8, [("torch", 2e-3)])


@pytest.mark.parametrize("machine", [{"cpu": "a CPU"}, {"gpu": "a GPU"}])
def test_a_plot_of_an_earlier_run(machine):
    pytest.importorskip("matplotlib")
    lines = LINES if "cpu" in machine else [GPU_LINE]
    pathlib.Path("b.json").write_text(json.dumps({"machine": machine, "lines": lines}))
    assert run("bench --from b.json --plot b.png") == 0
    assert pathlib.Path("b.png").read_bytes()[:8] == PNG


def test_bench_draws_what_it_measured(monkeypatch):
    pytest.importorskip("matplotlib")
    from mercer.benchmarks import command
    from mercer.benchmarks.result import Line

    line = Line("l1", (4, 4, 4), seconds=1e-3, gelem=1.0, floor=0.5)
    monkeypatch.setattr(command.cpu_machine, "describe", lambda: {"cpu": "a CPU"})
    monkeypatch.setattr(command, "_describe", lambda _: None)
    monkeypatch.setattr(command, "one_thread", contextlib.nullcontext)
    monkeypatch.setattr(command.runs, "all_rows", lambda: {"l1": lambda _: [line]})
    assert run("bench --device cpu --json b.json --plot b.png") == 0
    assert pathlib.Path("b.png").read_bytes()[:8] == PNG


def test_plots_need_no_measurement_only_with_a_picture(capsys):
    with pytest.raises(SystemExit):
        run("bench --from b.json")
    assert "--from needs --plot" in capsys.readouterr().err
