"""``mercer predict``: what a model of ``mercer fit`` says of the rows of a table."""

from __future__ import annotations

import argparse

import numpy as np

from mercer._cli import arguments as a
from mercer._cli import files
from mercer._cli.command import Command, Refusal, argument
from mercer._cli.models import Model, refusing


def _probabilities(model: Model, x: np.ndarray) -> dict[str, np.ndarray]:
    if not hasattr(model.estimator, "predict_proba"):
        raise Refusal(
            "--probability needs an estimator of classes with probabilities: KernelRidgeClassifier "
            "has them after --set probability=true, KernelLogisticRegression always. Received "
            f"{type(model.estimator).__name__}"
        )
    table = model.estimator.predict_proba(x)
    return {f"p({c})": table[:, i] for i, c in enumerate(model.estimator.classes_)}


def _score(model: Model, table: files.Table, y: np.ndarray) -> str | None:
    """Where the table has what was to be predicted."""
    known = table.columns.get(model.target)
    if known is None or (known.dtype.kind == "U") != (y.dtype.kind == "U"):
        return None
    if model.has_classes:
        return f"accuracy {np.mean(known == y):.4f}"
    spread = np.sum((known - known.mean()) ** 2)
    return f"R^2 {1 - np.sum((known - y) ** 2) / spread:.4f}" if spread > 0 else None


def _run(options: argparse.Namespace) -> None:
    suffix = files.check_output(options.output)
    if suffix == ".npy" and options.probability:
        raise Refusal(f"{options.output}: an .npy file has one array. Received --probability")
    model = Model.load(options.model)
    table = files.read_table(options.table, options.header)
    x = model.columns(table)
    with refusing(options.model):
        y = model.estimator.predict(x)
        more = _probabilities(model, x) if options.probability else {}
        score = _score(model, table, y)
    made = {model.target: y, **more}
    files.write(options.output, made, {name: name for name in made})
    if score is not None:
        print(f"{score} on the column {model.target} of {table.path}")


COMMANDS = (
    Command(
        "predict",
        "what a model of mercer fit says of the rows of a table",
        _run,
        (
            argument("table", help="the file, with the columns of the fit by their names"),
            argument("--model", required=True, help="the .npz that mercer fit wrote"),
            a.OUTPUT,
            argument("--probability", action="store_true", help="a column for each class as well"),
            a.HEADER,
        ),
        "mercer predict new.csv --model price.npz -o prices.csv",
    ),
)
