"""The command line's files: tables, archives, columns by name; results against float64."""

from __future__ import annotations

import importlib.util
import os
import pathlib

import mercer as mc
import numpy as np
import pytest
from conftest import assert_close
from mercer._cli import files, parquet
from mercer._cli.program import main

SUFFIXES = (
    ".npy",
    ".npz",
    ".csv",
    ".tsv",
    pytest.param(
        ".parquet",
        marks=pytest.mark.skipif(
            not any(map(importlib.util.find_spec, parquet.LIBRARIES)),
            reason="neither pyarrow nor polars",
        ),
    ),
)
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def points(rng, tmp_path, monkeypatch):
    """x [7, 4], z [9, 4], v [9, 2] in float64, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return rng.normal(size=(7, 4)), rng.normal(size=(9, 4)), rng.normal(size=(9, 2))


def write(path: str, array: np.ndarray, names=None) -> str:
    files.write(path, {"values": array}, {"values": names or NAMES[: array.shape[-1]]})
    return path


def read(path: str) -> np.ndarray:
    return np.asarray(files.read(path).array)


def distances(x, z, w=1.0):
    return np.sqrt((w * (x[:, None] - z) ** 2).sum(-1))


def leftovers() -> list[str]:
    return [name for name in os.listdir() if name.startswith(".")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_suffix_is_read_and_written(points, suffix):
    x, z, _ = points
    arguments = [write(f"x{suffix}", x), write(f"z{suffix}", z), "-o", f"d{suffix}"]
    assert main(["cdist", *arguments]) == 0
    assert_close(read(f"d{suffix}"), distances(x, z), tolerance=1e-14)
    assert leftovers() == []


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "?"])
def test_tables_keep_every_bit(points, dtype):
    array = (100 * points[0]).astype(dtype)
    write("t.csv", array)
    assert np.array_equal(read("t.csv").astype(dtype), array)


def test_columns_by_name_and_members(points, capsys):
    x, z, _ = points
    write("x.csv", x)
    np.savez("several.npz", first=x, second=z[:, [2, 0]])
    assert main(["cdist", "x.csv:c,a", "several.npz:second", "-o", "d.npz"]) == 0
    with np.load("d.npz") as found:
        assert_close(found["values"], distances(x[:, [2, 0]], z[:, [2, 0]]), tolerance=1e-14)
    pathlib.Path("x.csv:a").write_bytes(pathlib.Path("x.csv").read_bytes())
    assert main(["cdist", "x.csv:a", "-o", "d.npz"]) == 2  # a file of this name comes first
    assert "x.csv:a: the suffix must be" in capsys.readouterr().err


def test_a_row_of_names_or_none(points):
    pathlib.Path("n.csv").write_text("1,2.5\n3,-4e1\n")
    assert read("n.csv").tolist() == [[1, 2.5], [3, -40]]
    pathlib.Path("n.tsv").write_text('\ufeffp\t"q, r"\n1\tnan\n\n3\tinf\n', encoding="utf-8")
    found = files.read("n.tsv")
    assert found.names == ("p", "q, r")
    assert np.array_equal(found.array, [[1, np.nan], [3, np.inf]], equal_nan=True)
    assert files.read("n.csv", "yes").names == ("1", "2.5")
    pathlib.Path("n.csv").write_text("0,1\n3,4\n")
    assert files.read("n.csv", "no").array.tolist() == [[0, 1], [3, 4]]


def test_weights(points):
    x, z, _ = points
    w = np.array([1.0, 0.5, 2, 3])
    np.save("x.npy", x), np.save("z.npy", z), np.save("w.npy", w)
    write("column.csv", w[:, None])
    write("row.csv", w[None])
    for given in ("w.npy", "column.csv", "row.csv", "1,0.5,2,3"):
        assert main(["cdist", "x.npy", "z.npy", "-o", "d.npy", "--weights", given]) == 0
        assert_close(np.load("d.npy"), distances(x, z, w), tolerance=1e-14)
    formula = "exp(-sum(w*abs(x-z)))"
    assert main(["kernel", formula, "x.npy", "-o", "k.npy", "--weights", "w.npy"]) == 0
    exact = np.exp(-(w * abs(x[:, None] - x)).sum(-1))
    assert_close(np.load("k.npy"), exact, tolerance=1e-14)


def test_knn(points):
    x, z, _ = points
    write("x.csv", x), write("z.csv", z)
    assert main(["knn", "euclidean", "x.csv", "z.csv", "-o", "n.csv", "-k", "3"]) == 0
    exact = distances(x, z)
    order = np.argsort(exact, axis=1)[:, :3]
    found = files.read_table("n.csv").columns
    assert list(found) == ["value0", "value1", "value2", "index0", "index1", "index2"]
    assert_close(read("n.csv")[:, :3], np.take_along_axis(exact, order, 1), tolerance=1e-14)
    assert np.array_equal(read("n.csv")[:, 3:], order)
    assert main(["knn", "euclidean", "x.csv", "-o", "n.npz", "-k", "1"]) == 0
    with np.load("n.npz") as found:
        assert found["indices"].ravel().tolist() == list(range(7))


@pytest.mark.parametrize(
    ("by", "exact"),
    [
        ("sum", lambda k: k.sum(1)),
        ("max", lambda k: k.max(1)),
        ("min", lambda k: k.min(1)),
        ("argmax", lambda k: k.argmax(1)),
        ("argmin", lambda k: k.argmin(1)),
        ("logsumexp", lambda k: np.log(np.exp(k).sum(1))),
    ],
)
def test_reduce(points, by, exact):
    x, z, _ = points
    np.save("x.npy", x), np.save("z.npy", z)
    assert main(["reduce", "sum(abs(x-z))", "x.npy", "z.npy", "-o", "r.csv", "--by", by]) == 0
    assert_close(read("r.csv")[:, 0], exact(abs(x[:, None] - z).sum(-1)), tolerance=1e-14)


def test_gradient(points):
    x, z, v = points
    write("x.csv", x), np.save("z.npy", z)
    write("v.csv", v, ("first", "second")), np.save("coef.npy", v[:, 0])
    difference = x[:, None] - z
    slopes = -np.exp(-(difference**2).sum(-1) / 2)[..., None] * difference
    assert main(["gradient", "gauss", "x.csv", "z.npy", "coef.npy", "-o", "g.csv"]) == 0
    assert tuple(files.read_table("g.csv").columns) == NAMES
    assert_close(read("g.csv"), np.einsum("n,mnk->mk", v[:, 0], slopes), tolerance=1e-13)
    assert main(["gradient", "gauss", "x.csv", "z.npy", "v.csv", "-o", "g.npy"]) == 0
    assert_close(read("g.npy"), np.einsum("no,mnk->omk", v, slopes), tolerance=1e-13)
    assert main(["gradient", "gauss", "x.csv", "z.npy", "v.csv:second", "-o", "g.csv"]) == 0
    assert_close(read("g.csv"), np.einsum("n,mnk->mk", v[:, 1], slopes), tolerance=1e-13)


def test_product_has_the_names_of_its_columns(points):
    x, z, v = points
    np.save("x.npy", x), np.save("z.npy", z)
    write("v.csv", v, ("first", "second"))
    assert main(["product", "gauss", "x.npy", "z.npy", "v.csv", "-o", "y.csv"]) == 0
    assert tuple(files.read_table("y.csv").columns) == ("first", "second")
    k = np.exp(-(distances(x, z) ** 2) / 2)
    assert_close(read("y.csv"), k @ v, tolerance=1e-14)
    line = "product gauss x.npy z.npy v.csv:second -o y.npy --normalize sum"
    assert main(line.split()) == 0
    assert_close(read("y.npy"), (k @ v[:, 1:]) / k.sum(1)[:, None], tolerance=1e-14)


REFUSED = [
    ("x.jpg", "-o d.csv", "x.jpg: the suffix must be .npy, .npz, .csv, .tsv or .parquet."),
    ("text.csv", "-o d.csv", "column b must have numbers"),
    ("text.csv", "-o d.csv", "Received 'no' in row 2"),
    ("text.csv:c", "-o d.csv", "the columns are a, b. Received 'c'"),
    ("text.csv:a,a", "-o d.csv", "Received a twice"),
    ("ragged.csv", "-o d.csv", "Received 3 in row 2"),
    ("empty.csv", "-o d.csv", "Received an empty file"),
    ("names.csv", "-o d.csv", "must have a row of numbers. Received none"),
    ("pandas.csv", "-o d.csv", "Received none for column 1"),
    ("twice.csv", "-o d.csv", "names of columns must differ. Received 'a' twice"),
    ("counted.csv", "-o d.csv", "say --header yes or --header no. Received 0,1,2"),
    ("quote.csv", "-o d.csv", "cannot be read as a .csv file"),
    ("bytes.csv", "-o d.csv", "cannot be read as a .csv file"),
    ("missing.csv", "-o d.csv", "missing.csv: cannot be read as a .csv file"),
    ("underscore.csv", "-o d.csv", "Received '1_0' in row 1"),
    ("x.npy:a", "-o d.csv", "has one array without a name. Received ['a']"),
    ("several.npz:q", "-o d.csv", "it has p, z. Received q"),
    ("fake.npz", "-o d.csv", "fake.npz: cannot be read as a .npz file"),
    ("pickle.npz:p", "-o d.csv", "cannot be read as a .npz file"),
    ("x.npy", "-o d.csv --metric gauss --param bandwidth=1,2", "Received a result of 3"),
    ("x.npy", "-o d.csv --weights 1,2", "w"),
    ("x.npy", "-o d.csv --weights w.tx", "w.tx: the suffix must be"),
    ("x.npy", "-o folder.csv", "it is there and is no file"),
]


@pytest.mark.parametrize(("x", "rest", "words"), REFUSED)
def test_refusals(points, capsys, x, rest, words):
    texts = {
        "text.csv": "a,b\n1,2\n3,no\n", "ragged.csv": "a,b\n1,2\n3,4,5\n", "empty.csv": "",
        "names.csv": "a,b\n", "pandas.csv": ",a\n0,2\n", "twice.csv": "a,a\n1,2\n",
        "counted.csv": "0,1,2\n3,4,5\n", "quote.csv": 'a,"b\n1,2\n', "underscore.csv": "a\n1_0\n",
        "fake.npz": "PK",
    }  # fmt: skip
    for name, text in texts.items():
        pathlib.Path(name).write_text(text)
    pathlib.Path("bytes.csv").write_bytes(b"a,\xff\n1,2\n")
    np.save("x.npy", points[0])
    np.savez("several.npz", p=points[0], z=points[1])
    np.savez("pickle.npz", p=np.array([{}], object))
    pathlib.Path("folder.csv").mkdir()
    assert main(["cdist", x, *rest.split()]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.startswith("mercer cdist: ")
    assert message.count("\n") == 1
    assert not pathlib.Path("d.csv").exists()
    assert leftovers() == []


def test_two_arrays_are_not_one_file(points, capsys, monkeypatch):
    np.save("x.npy", points[0])
    monkeypatch.setattr(mc, "knn", lambda *_, **__: pytest.fail("was computed"))
    assert main(["knn", "cityblock", "x.npy", "-o", "n.npy", "-k", "1"]) == 2
    assert "an .npy file has one array" in capsys.readouterr().err


def test_what_fails_leaves_what_was_there(points, capsys, monkeypatch):
    np.save("x.npy", points[0])
    pathlib.Path("d.csv").write_text("before")

    def broken(file, columns):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setitem(files.TABLES, ".csv", (None, broken))
    assert main(["cdist", "x.npy", "-o", "d.csv"]) == 2
    assert "d.csv: cannot be written (no space left)" in capsys.readouterr().err
    assert pathlib.Path("d.csv").read_text() == "before"
    assert leftovers() == []


def test_a_link_stays_one(points):
    np.save("x.npy", points[0])
    pathlib.Path("there.npy").write_bytes(b"")
    pathlib.Path("d.npy").symlink_to("there.npy")
    assert main(["cdist", "x.npy", "-o", "d.npy"]) == 0
    assert pathlib.Path("d.npy").is_symlink()
    assert np.load("there.npy").shape == (7, 7)


def test_parquet_without_a_library_names_the_command(points, capsys, monkeypatch):
    np.save("x.npy", points[0])
    monkeypatch.setattr(parquet, "LIBRARIES", ())
    for command in (["x.npy", "-o", "d.parquet"], ["x.parquet", "-o", "d.npy"]):
        pathlib.Path("x.parquet").write_bytes(b"")
        assert main(["cdist", *command]) == 2
        assert "pip install pyarrow" in capsys.readouterr().err


@pytest.mark.parametrize("library", parquet.LIBRARIES)
def test_parquet_of_other_writers(points, capsys, monkeypatch, library):
    table = pytest.importorskip(library)
    monkeypatch.setattr(parquet, "LIBRARIES", (library,))
    columns = {"a": [1, 2], "b": [0.5, None], "c": ["u", "v"], "e": [True, False]}
    if library == "pyarrow":
        from pyarrow import parquet as writer

        writer.write_table(table.table(columns), "t.parquet")
    else:
        table.DataFrame(columns).write_parquet("t.parquet")
    assert read("t.parquet:a,e").tolist() == [[1, 1], [2, 0]]
    for part, words in (("b", "Received 1 without"), ("c", "Received 'u' in row 1")):
        assert main(["cdist", f"t.parquet:{part}", "-o", "d.npy"]) == 2
        assert words in capsys.readouterr().err
    pathlib.Path("t.parquet").write_bytes(b"PAR1")
    assert main(["cdist", "t.parquet", "-o", "d.npy"]) == 2
    assert "cannot be read as a .parquet file" in capsys.readouterr().err
