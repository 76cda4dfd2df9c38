"""The command line, in process; and once as a program."""

from __future__ import annotations

import importlib.metadata
import io
import os
import pathlib
import shlex
import struct
import subprocess
import sys
import time
import zipfile

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close, minkowski
from mercer._cli.program import EXAMPLES, main
from mercer.benchmarks import engine

pytestmark = pytest.mark.quick


@pytest.fixture
def files(rng, tmp_path, monkeypatch):
    """x.npy, z.npy, v.npy in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    arrays = {
        "x": rng.normal(size=(7, 5)).astype("f"),
        "z": rng.normal(size=(9, 5)).astype("f"),
        "v": rng.normal(size=(9, 2)).astype("f"),
    }
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    return arrays


def test_cdist(files, capsys):
    assert main(["cdist", "x.npy", "z.npy", "-o", "d.npy", "--p", "1.3"]) == 0
    assert capsys.readouterr().out == "d.npy: values float32[7, 9]\n"
    assert_close(np.load("d.npy"), minkowski(files["x"], files["z"], 1.3))


def test_cdist_with_itself_by_a_metric(files):
    assert main(["cdist", "x.npy", "-o", "d.npy", "--metric", "minkowski", "--p", "3"]) == 0
    assert_close(np.load("d.npy"), minkowski(files["x"], files["x"], 3))


def test_kernel_with_parameters(files):
    command = ["kernel", "exp(-sum(abs(x-z)^p)/h)", "x.npy", "z.npy", "-o", "k.npy"]
    assert main([*command, "--param", "p=1", "--param", "h=1,2,5"]) == 0
    distances = minkowski(files["x"], files["z"], 1)
    assert_close(np.load("k.npy"), np.stack([np.exp(-distances / h) for h in (1, 2, 5)]))


def test_product(files):
    assert main(["product", "laplace", "x.npy", "z.npy", "v.npy", "-o", "y.npy"]) == 0
    exact = np.exp(-minkowski(files["x"], files["z"], 1)) @ files["v"]
    assert_close(np.load("y.npy"), exact)


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        ("f2", "f4"),
        (">f4", "f4"),
        (">f8", "f8"),
        ("g", "f8"),
        ("?", "f4"),
        ("i2", "f4"),
        ("i1", "f4"),
        ("i4", "f8"),
        ("i8", "f8"),
    ],
)
def test_other_types_of_numbers_are_converted(files, dtype, computed):
    points = (100 * files["x"]).astype(dtype)
    np.save("t.npy", points)
    assert main(["cdist", "t.npy", "-o", "d.npy", "--p", "1"]) == 0
    assert np.load("d.npy").dtype == np.dtype(computed)
    points = points.astype("d")
    assert_close(np.load("d.npy"), minkowski(points, points, 1))


def test_of_two_widths_the_wider(files):
    np.save("t.npy", files["z"].astype(">f8"))
    assert main(["cdist", "x.npy", "t.npy", "-o", "d.npy"]) == 0
    assert np.load("d.npy").dtype == np.float64


def test_p_as_a_parameter(files):
    assert main(["cdist", "x.npy", "z.npy", "-o", "d.npy", "--param", "p=3"]) == 0
    assert_close(np.load("d.npy"), minkowski(files["x"], files["z"], 3))


def test_whole_numbers_are_converted(files):
    np.save("i.npy", np.arange(12).reshape(4, 3))
    assert main(["cdist", "i.npy", "-o", "d.npy", "--p", "1"]) == 0
    assert np.load("d.npy").dtype == np.float64
    assert np.load("d.npy")[0, 1] == 9


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["info"], f"mercer {mc.__version__}"),
        (["env"], "MERCER_THREADS"),
        (["zoo"], "canberra"),
        (["zoo", "laplace"], "bandwidth = 1"),
        (["zoo", "manhattan"], "cityblock (metric)"),
        (["explain", "sum(abs(x-z))", "--shape", "30x40x16"], "abs"),
        (["explain", "laplace", "--target", "x86_avx2", "--dtype", "float64"], "exp"),
        (["explain", "laplace", "--target", "sm_90"], "on an NVIDIA H200"),
        (["cache", "path"], "mercer"),
        (["cache", "list"], "files"),
    ],
)
def test_prints(capsys, tmp_path, monkeypatch, command, words):
    monkeypatch.setenv("MERCER_CACHE_DIR", str(tmp_path / "mercer"))
    assert main(command) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["zoo", "canbera"], "no metric or kernel of this name"),
        (["cdist", "none.npy", "-o", "d.npy"], "none.npy: cannot be read"),
        (["cdist", "text.npy", "-o", "d.npy"], "text.npy: cannot be read"),
        (
            ["cdist", "several.npz", "-o", "d.npy"],
            "several.npz: name one of its arrays, as several.npz:NAME; it has x, z, v",
        ),
        (["cdist", "c.npy", "-o", "d.npy"], "c.npy: must hold real numbers. Received complex64"),
        (["cdist", "s.npy", "-o", "d.npy"], "s.npy: must hold real numbers. Received <U"),
        (["product", "gauss", "x.npy", "x.npy", "c.npy", "-o", "y.npy"], "c.npy: must hold real"),
        (["cdist", "x.npy", "-o", "no/such/d.npy"], "no/such/d.npy: cannot be written"),
        (["cdist", "x.npy", "-o", "d.npy", "--param", "p=1,2"], "p must be a number. Received [1"),
        (["kernel", "exp(sum(x", "x.npy", "-o", "k.npy"], "^"),
        (["knn", "x.npy", "x.npy", "-o", "k.npy", "-k", "2"], "before the files. Received the fi"),
        (["kernel", "sum(x*z)*h", "x.npy", "-o", "k.npy"], "h"),
        (["cdist", "x.npy", "-o", "d.npy", "--target", "avx"], "x86_avx2"),
        (["explain", "sum(x*z)", "--target", "sm_75"], "sm_120"),
    ],
)
def test_refuses_in_one_message(files, capsys, command, words):
    pathlib.Path("text.npy").write_text("1,2\n3,4\n")
    np.savez("several.npz", **files)
    np.save("c.npy", files["x"].astype("F"))
    np.save("s.npy", files["x"].astype(str))
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"mercer {command[0]}: ")
    assert words in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cdist none.npy -o d.npy", "(no such file or directory)"),
        ("cdist damaged.npz -o d.npy", "as a .npz file (it is no archive of arrays)"),
        ("cdist texts.npz -o d.npy", "as a .npz file (a.txt is no array)"),
        ("predict x.npy --model damaged.npz -o y.npy", "a model of mercer fit"),
        ("cdist x.npy -o d.npy --p 3 --param p=4", "are one number. Received both"),
        ("tune sum(abs(x-z)^p) --p 2 --param p=2", "are one number. Received both"),
        ("product gauss x.npy z.npy v.npy -o y.npy --param bandwith=3", "no parameter"),
        ("product gauss x.npy z.npy v.npy -o y.npy --param out=3", "Received out"),
        ("cdist x.npy -o d.npy --param progress=3", "Received progress"),
        ("tune gauss --param out=2", "Received out"),
        ("tune gauss --param shape=3", "Received shape"),
        ("show gauss x.npy --param i_offset=2", "the name must be one of the formula's"),
        ("kernel gauss x.npy -o k.npy --param bandwidth=1 --param bandwidth=2", "given once"),
        ("show gauss empty.npy", "a point on each side. Received none"),
    ],
)
def test_refuses_parameters_and_files(files, capsys, line, words):
    np.save("empty.npy", files["x"][:0])
    pathlib.Path("damaged.npz").write_text("nothing")
    with zipfile.ZipFile("texts.npz", "w") as archive:
        archive.writestr("a.txt", "nothing")
    assert main(line.split()) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("given", "kept"), [("replace", "replace"), ("strict", "surrogateescape")])
def test_a_handler_of_the_user_stays(monkeypatch, given, kept):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=given)
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["zoo"]) == 0
    assert stream.errors == kept


@pytest.mark.parametrize(
    "command",
    [[], ["nonsense"], ["cdist"], ["explain", "1", "--shape", "1x2"],
     *(["cdist", "x.npy", "-o", "d.npy", "--param", wrong]
       for wrong in ("p", "p=", "=3", "p=abc", "p=3,", "p=nan", "a b=1")),
     ["fit", "x.csv", "--target", "y", "--model", "m.npz", "--seed", "-1"],
     ["explain", "1", "--columns", "99999999999999999999"]],
)  # fmt: skip
def test_usage(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    assert "usage: mercer" in capsys.readouterr().err


def test_help_teaches_by_examples(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert 'mercer explain "sum(abs(x-z))"' in capsys.readouterr().out


def test_an_output_that_cannot_be_written_is_refused_before_the_work(files, monkeypatch):
    monkeypatch.setattr(mc, "kernel_matrix", lambda *_, **__: pytest.fail("was computed"))
    for output in ("no/such/k.npy", "k.jpg", "k", "."):
        assert main(["kernel", "gauss", "x.npy", "-o", output]) == 2


def test_a_reader_that_stops_early():
    run = subprocess.run(
        f"{shlex.quote(sys.executable)} -m mercer zoo | head -n 1",
        shell=True, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout == "metrics:\n"
    assert run.stderr == ""


@pytest.mark.parametrize("command", ["zoo", "env", "cdist x.npy -o d.npy", "show gauss x.npy"])
@pytest.mark.parametrize(
    ("streams", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), (">/dev/full", 1)]
)
def test_streams_that_are_closed_or_full(files, command, streams, code):
    run = subprocess.run(
        f"{shlex.quote(sys.executable)} -m mercer {command} {streams}",
        shell=True, capture_output=True, text=True,
    )  # fmt: skip
    name = command.split()[0]
    full = f"mercer {name}: [Errno 28] No space left on device\n"
    assert (run.returncode, run.stderr) == (code, full if code else "")
    if name == "cdist":
        assert np.load("d.npy").shape == (7, 7)


def test_a_refusal_that_cannot_be_printed(files):
    run = subprocess.run(
        f"{shlex.quote(sys.executable)} -m mercer cdist none.npy -o d.npy 2>/dev/full", shell=True
    )
    assert run.returncode == 2


EXAMPLE_LINES = [line.split("#")[0].strip() for line in EXAMPLES.splitlines()]
# `tune` needs a GPU, `bench` a minute.
RUNNABLE = [
    line
    for line in EXAMPLE_LINES
    if line.startswith("mercer ") and line.split()[1] not in ("tune", "bench")
]


@pytest.mark.parametrize("line", RUNNABLE)
def test_the_examples_of_the_help(files, line):
    np.save("a.npy", files["x"])
    np.save("b.npy", files["z"])
    np.save("coef.npy", files["v"][:, 0])
    for name, n in (("train", 30), ("test", 5)):
        rows = np.random.default_rng(n).normal(size=(n, 3)).tolist()
        text = "\n".join(",".join(map(str, row)) for row in rows)
        pathlib.Path(f"{name}.csv").write_text(f"a,b,y\n{text}\n")
    if shlex.split(line)[1] == "predict":
        assert main(shlex.split("fit train.csv --target y --model model.npz")) == 0
    assert main(shlex.split(line)[1:]) == 0


def test_as_a_program():
    run = subprocess.run(
        [sys.executable, "-m", "mercer", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"mercer {mc.__version__}\n"


def test_cache_lists_kernels_by_name(tmp_path):
    files = [("cubin", "sum(abs(x-z))", "sm_90a"), ("cubin", "gauss", "sm_80"),
             ("tile", "gauss: 64x64", "sm_90a"), ("kron", "3 rows, 8 x 8", "sm_90a"),
             ("cpu", "AMD EPYC", "1-1a-2")]  # fmt: skip
    for index, (kind, name, architecture) in enumerate(files):
        key, payload = f"{kind}\n{architecture}\n13.0\n0123".encode(), f"{name}\ncode".encode()
        header = struct.pack("<8s4Q", b"Mercerk1", len(key), len(payload), 0, 0)
        (tmp_path / f"{index}.mk").write_bytes(header + key + payload)
        os.utime(tmp_path / f"{index}.mk", (time.time() - 7300 * index,) * 2)
    (tmp_path / "5.mk").write_bytes(b"foreign")
    tmp_path.chmod(0o700)
    run = subprocess.run(  # the cache of a process is chosen once
        [sys.executable, "-m", "mercer", "cache", "list"],
        env={**os.environ, "MERCER_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert len(lines) == 7
    assert lines[0].split()[3:] == ["sm_90a", "sum(abs(x-z))"]
    assert lines[1].split()[1:] == ["2", "h", "sm_80", "gauss"]
    assert lines[2].endswith("  tile of gauss: 64x64")
    assert lines[3].endswith("  plan of 3 rows, 8 x 8")
    assert lines[4].endswith("1-1a-2    costs of AMD EPYC")
    assert lines[5].startswith("6 files, ")


@pytest.mark.skipif(engine.targets() == ["interpreter"], reason="no AVX2, or no code may run")
def test_costs_of_this_cpu_are_measured_and_kept(tmp_path):
    tmp_path.chmod(0o700)
    environment = {**os.environ, "MERCER_CACHE_DIR": str(tmp_path)}

    def output(*command):
        run = subprocess.run(
            [sys.executable, "-m", "mercer", *command],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "the clock must be measured alike" in run.stderr:
            pytest.skip("other work changes the clock of this machine while it is measured")
        assert run.returncode == 0, run.stderr
        return run.stdout

    assert "measured here" not in output("info")
    assert "costs of ways: measured on Zen 5" in output("info")
    table = output("tune", "--cpu")
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line.strip()}
    for kind in ("multiply", "add", "extreme", "compare", "select", "round", "logic", "permute"):
        assert float(rows[kind][0]) > 0
        assert set(rows[kind][1]) <= set("0123")
    assert rows["divide"][1] == rows["root64"][1] == "own"
    assert float(rows["logic"][0]) < float(rows["divide"][0])  # whatever else runs here
    assert "\nkept" in table
    assert "measured here" in output("info")
    assert "measured here" in output("explain", "sum(abs(x-z))")
    assert float(rows["gemm_term"][0]) > 0
    for shown in (output("info"), output("explain", "sum(abs(x-z))")):
        assert "costs of ways: this processor's own (mercer tune --cpu)" in shown
    assert "costs of " in output("cache", "list")


def test_tune_takes_a_formula_or_the_cpu_or_a_gpu(capsys):
    for command in (["tune"], ["tune", "gauss", "--cpu"], ["tune", "--cpu", "--gpu"]):
        assert main(command) == 2
        assert "takes a formula, for a GPU, or --cpu" in capsys.readouterr().err


def test_info_tells_of_gpus_or_why_not():
    text = mc.info()
    assert "GPU" in text
    assert "NVRTC: " in text


def test_the_wheel_of_nvrtc_is_found():
    try:
        importlib.metadata.distribution("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    assert "NVRTC: none" not in mc.info()
