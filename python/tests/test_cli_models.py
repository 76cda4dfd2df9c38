"""``mercer fit`` and ``mercer predict``: what is chosen, scored, saved, and refused."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import sys

import numpy as np
import pytest
from mercer._cli import files, models
from mercer._cli.program import main

sklearn = pytest.importorskip("sklearn")
ROWS = 90


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    """t.csv: a and b, a town, a price of them, and whether it is high. Returns the price."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = 1e3 + 1e2 * rng.normal(size=ROWS), rng.normal(size=ROWS)
    town = rng.integers(0, 2, ROWS)
    price = (a - 1e3) / 1e2 + b**2 + 3 * town
    lines = [
        f"{p},{q},{'NY' if t else 'LA'},{y},{'high' if y > 2 else 'low'},{int(y > 2)}"
        for p, q, t, y in zip(a, b, town, price, strict=True)
    ]
    pathlib.Path("t.csv").write_text("\n".join(["a,b,town,price,level,number", *lines]) + "\n")
    return price


def run(line: str) -> int:
    return main(shlex.split(line))


def fit(rest: str = "", target: str = "price") -> int:
    return run(f"fit t.csv:a,b,town,{target} --target {target} --model m.npz {rest}")


def test_numbers(table, capsys):
    assert fit() == 0
    said = capsys.readouterr().out
    assert "t.csv: 90 rows, 3 columns, and price of numbers" in said
    assert "KernelRidgeCV: kernel gauss, alpha 0.001, bandwidth" in said
    assert float(said.split("R^2 ")[1].split()[0]) > 0.95
    assert "18 rows held out" in said
    assert run("predict t.csv --model m.npz -o p.csv") == 0
    found = files.read_table("p.csv").columns["price"]
    exact = 1 - np.sum((found - table) ** 2) / np.sum((table - table.mean()) ** 2)
    assert f"R^2 {exact:.4f} on the column price of t.csv" in capsys.readouterr().out
    assert exact > 0.99


def test_classes(capsys):
    assert fit("--set probability=true", "level") == 0
    said = capsys.readouterr().out
    assert "level of 2 classes" in said
    assert float(said.split("accuracy ")[1].split()[0]) > 0.8
    assert run("predict t.csv --model m.npz -o p.csv --probability") == 0
    found = files.read_table("p.csv").columns
    assert list(found) == ["level", "p(high)", "p(low)"]
    likely = np.where(found["p(high)"] > found["p(low)"], "high", "low")
    assert np.array_equal(likely, found["level"])
    assert np.allclose(found["p(high)"] + found["p(low)"], 1)


def test_whole_numbers_as_classes():
    assert fit("--estimator KernelLogisticRegression", "number") == 0
    assert run("predict t.csv --model m.npz -o p.npy") == 0
    assert np.load("p.npy").dtype == np.int64


SETTINGS = {
    "KernelRidgeCV": "--set kernel=laplace",
    "KernelRidge": "--set alpha=0.1 --set centers=20",
    "GaussianProcessRegressor": "--set optimizer=none --set solver=cg",
    "SparseGaussianProcessRegressor": "--set optimizer=none --set n_inducing=20",
    "KNeighborsRegressor": "--set n_neighbors=3 --set metric=canberra",
    "RFMRegressor": "--set max_leaf_size=40",
    "KernelRidgeClassifier": "",
    "KernelLogisticRegression": "--set C=10",
    "KNeighborsClassifier": "",
    "RFMClassifier": "",
}


@pytest.mark.parametrize("name", [n for names in models.ESTIMATORS.values() for n in names])
@pytest.mark.filterwarnings("ignore")
def test_a_file_predicts_as_the_estimator_itself(name, monkeypatch):
    target = "level" if name in models.ESTIMATORS["classes"] else "price"
    fitted = []
    saves = models.Model.save
    monkeypatch.setattr(models.Model, "save", lambda m, path: (fitted.append(m), saves(m, path)))
    assert fit(f"--estimator {name} --holdout 0 {SETTINGS[name]}", target) == 0
    found = models.Model.load("m.npz")
    x = found.columns(files.read_table("t.csv"))
    assert np.array_equal(found.estimator.predict(x), fitted[0].estimator.predict(x))
    assert found.columns == fitted[0].columns
    assert found.estimator.get_params() == fitted[0].estimator.get_params()


def test_a_fit_of_a_device_predicts_on_the_host():
    """As a fit with --set device=cuda leaves it: tensors, in a space of PyTorch."""
    torch = pytest.importorskip("torch")
    table = files.read_table("t.csv")
    columns = models.Columns.of(table, ["a", "b", "town"])
    x, y = columns(table), table.columns["price"]
    fitted = models.package().KernelRidge(device="cpu").fit(torch.tensor(x), torch.tensor(y))
    assert isinstance(fitted.X_fit_, torch.Tensor)
    models.Model(columns, "price", fitted).save("m.npz")
    found = models.Model.load("m.npz")
    assert found.estimator.device is None
    exact = models.package().KernelRidge().fit(x, y).predict(x)
    np.testing.assert_allclose(found.estimator.predict(x), exact, rtol=1e-8)


def test_columns_are_scaled_and_words_become_columns():
    columns = models.Columns.of(files.read_table("t.csv"), ["a", "town"], slice(0, 50))
    x = columns(files.read_table("t.csv"))
    assert x.shape == (ROWS, 3)
    assert np.allclose((x[:50, 0].mean(), x[:50, 0].std()), (0, 1))
    assert set(map(tuple, x[:, 1:].tolist())) == {(1.0, 0.0), (0.0, 1.0)}


def test_a_table_without_names(capsys):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    np.save("t.npy", rows)
    assert run("fit t.npy --target c3 --model m.npz --holdout 0") == 0
    np.savetxt("new.csv", rows[:, :2], delimiter=",")
    assert run("predict new.csv --model m.npz -o p.csv") == 0
    np.savetxt("new.csv", rows[:, :1])
    assert run("predict new.csv --model m.npz -o p.csv") == 2
    assert "the model needs the columns c1, c2. Received none of the name c2" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("t.csv --target cost", "must be a column of t.csv: a, b, town, price, level, number."),
        ("t.csv --target price --estimator KNeighborsClassifier --set k=3", "Received k"),
        ("t.csv --target level --estimator KernelRidge", "for a target of text. Received Kern"),
        ("t.csv:a --target a", "a column other than the target is needed"),
        ("t.csv --target price --set kernel=gaus", "no metric or kernel of this name"),
        ("t.csv --target price --set alphas=x", "alphas"),
        ("nan.csv --target y", "column x must have finite numbers. Received nan in row 2"),
        ("nan.csv --target x", "column x must have finite numbers. Received nan in row 2"),
        ("mixed.csv --target y", "column x must have numbers"),
        ("mixed.csv --target x", "column x must have numbers"),
        ("short.csv --target y", "two rows are needed at least. Received 1"),
    ],
)
def test_fits_that_are_refused(capsys, line, words):
    pathlib.Path("nan.csv").write_text("x,y\n1,2\nnan,3\n4,5\n")
    pathlib.Path("mixed.csv").write_text("x,y\n1,2\n1 2,3\n4,5\n")
    pathlib.Path("short.csv").write_text("x,y\n1,2\n")
    assert run(f"fit {line} --model m.npz") == 2
    message = capsys.readouterr().err
    assert words in message
    assert "Traceback" not in message
    assert not pathlib.Path("m.npz").exists()
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_predictions_that_are_refused(capsys):
    assert fit("--holdout 0 --estimator KernelRidge") == 0
    pathlib.Path("new.csv").write_text("a,b,town\n1,2,SF\n")
    pathlib.Path("less.csv").write_text("a,b\n1,2\n")
    pathlib.Path("text.csv").write_text("a,b,town\nq,2,LA\n")
    for line, words in (
        ("new.csv", "column town must have words that the fit saw. Received 'SF' in row 1"),
        ("less.csv", "Received none of the name town"),
        ("text.csv", "column a must have numbers"),
        ("t.csv --probability", "--probability needs an estimator of classes"),
    ):
        assert run(f"predict {line} --model m.npz -o p.csv") == 2
        assert words in capsys.readouterr().err
    assert run("predict t.csv --model t.csv -o p.csv") == 2
    assert "t.csv: the suffix must be .npz" in capsys.readouterr().err
    assert not pathlib.Path("p.csv").exists()


def change(**words) -> None:
    """Writes the model anew with other words in its description."""
    with np.load("m.npz") as found:
        arrays = dict(found)
    content = json.loads(str(arrays.pop("model")))
    np.savez("m.npz", model=np.array(json.dumps(content | words)), **arrays)


@pytest.mark.parametrize(
    "words",
    [
        {"format": "mercer model 9"},
        {"estimator": ["estimator", ["Popen", []]]},
        {"estimator": ["record", ["Popen", []]]},
        {"estimator": ["code", "import os"]},
        {"estimator": ["estimator", ["KernelRidge", [["X_fit_", ["array", "a99"]]]]]},
        {"columns": {"name": "a"}},
        {"columns": {"names": ["a"], "centres": [0], "scales": [0], "words": [[]]}},
        {"columns": {"names": [1], "centres": [0], "scales": [1], "words": [[]]}},
        {"target": 3},
        {"estimator": ["plain", None]},
        {"estimator": ["estimator", ["KernelRidge", []]]},
        {"estimator": ["formula", 'y = ptx("trap;", x, meaning=0*x); sum(y*z)']},
    ],
)
def test_a_file_names_nothing_but_what_a_model_has(capsys, words):
    assert fit("--holdout 0 --estimator KernelRidge") == 0
    change(**words)
    assert run("predict t.csv --model m.npz -o p.csv") == 2
    assert "m.npz: must be a model of mercer fit. Received" in capsys.readouterr().err
    np.savez("m.npz", model=np.array([{}], object))
    assert run("predict t.csv --model m.npz -o p.csv") == 2
    assert "Object arrays cannot be loaded" in capsys.readouterr().err


def state() -> list:
    """The estimator in the model: [name, value] of each attribute."""
    with np.load("m.npz") as found:
        return json.loads(str(found["model"]))["estimator"][1][1]


def test_a_file_imports_nothing(monkeypatch, tmp_path):
    """A space imports its library, and computes on its device."""
    assert fit("--holdout 0 --estimator KernelRidge") == 0
    assert run("predict t.csv --model m.npz -o p.npy") == 0
    pathlib.Path("strange.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    names = {"library": "strange", "device": "cuda:0", "dtype": "float64"}
    space = ["record", ["Space", [[key, ["plain", value]] for key, value in names.items()]]]
    made = [[name, space if name == "_space" else value] for name, value in state()]
    change(estimator=["estimator", ["KernelRidge", [*made, ["device", ["plain", "cuda:0"]]]]])
    assert run("predict t.csv --model m.npz -o q.npy") == 0
    assert "strange" not in sys.modules
    assert np.array_equal(np.load("p.npy"), np.load("q.npy"))


def test_what_a_prediction_lacks_is_the_fault_of_the_file(capsys):
    assert fit("--holdout 0 --estimator KernelRidge") == 0
    for missing in ("_kernel", "dual_coef_"):
        kept = [pair for pair in state() if pair[0] != missing]
        change(estimator=["estimator", ["KernelRidge", kept]])
        assert run("predict t.csv --model m.npz -o p.csv") == 2
        message = capsys.readouterr().err
        assert "m.npz: must be a model of mercer fit. Received" in message
        assert message.count("\n") == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "nested"])
def test_damaged_files(capsys, damage):
    assert fit("--holdout 0 --estimator KernelRidge") == 0
    whole = bytearray(pathlib.Path("m.npz").read_bytes())
    if damage == "nested":
        np.savez("m.npz", model=np.array("[" * 100_000))
    else:
        whole[500] ^= 255
        pathlib.Path("m.npz").write_bytes(whole[:900] if damage == "cut" else whole)
    capsys.readouterr()
    assert run("predict t.csv --model m.npz -o p.csv") == 2
    assert "m.npz: must be a model of mercer fit. Received" in capsys.readouterr().err
    if damage == "cut":
        assert run("show gauss m.npz") == 2
        assert "m.npz: cannot be read as a .npz file" in capsys.readouterr().err
    assert not pathlib.Path("p.csv").exists()


@pytest.mark.parametrize("name", ["file", "allow_pickle"])
def test_a_target_of_any_name(name):
    """They are arguments of numpy.savez."""
    pathlib.Path("u.csv").write_text(pathlib.Path("t.csv").read_text().replace("price", name, 1))
    line = f"--target {name} --model m.npz --holdout 0 --estimator KernelRidge"
    assert run(f"fit u.csv:a,b,{name} {line}") == 0
    assert run("predict u.csv --model m.npz -o p.npz") == 0
    with np.load("p.npz") as found:
        assert found.files == [name]
        assert found[name].shape == (ROWS,)
