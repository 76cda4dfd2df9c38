"""``mercer fit``: a model of one column of a table by the others."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from mercer._cli import arguments as a
from mercer._cli import files, models, text
from mercer._cli.command import Command, Refusal, argument
from mercer._cli.models import Columns, Model

#: What is said of a fitted estimator, where it has it.
_SAID = ("kernel", "metric", "alpha_", "C", "bandwidth_", "lengthscale_", "amplitude_", "noise_",
         "n_neighbors", "weights", "best_round_", "solver_")  # fmt: skip


def _setting(word: str) -> tuple[str, Any]:
    try:
        return models.setting(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _fraction(word: str) -> float:
    found = a.numbers(word)
    if not found or len(found) != 1 or not 0 <= found[0] < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to below 1. Received {word}")
    return found[0]


def _target(table: files.Table, name: str) -> np.ndarray:
    """Text for classes, float64 for numbers."""
    if name not in table.columns:
        raise Refusal(
            f"--target must be a column of {table.path}: {', '.join(table.columns)}. "
            f"Received {name!r}"
        )
    column = table.columns[name]
    if column.dtype.kind in "biuf":
        return models.finite(table.path, name, column)
    if text.is_mixed(column):
        raise Refusal(text.why_no_number(table.path, name, column))
    return column


def _estimator(options: argparse.Namespace, y: np.ndarray) -> str:
    numbers = y.dtype.kind == "f"
    name = options.estimator or models.ESTIMATORS["numbers" if numbers else "classes"][0]
    if not numbers and name in models.ESTIMATORS["numbers"]:
        raise Refusal(
            f"--estimator must be one of {', '.join(models.ESTIMATORS['classes'])} for a target of "
            f"text. Received {name}"
        )
    return name


def _as_classes(y: np.ndarray) -> np.ndarray:
    """Whole numbers as such."""
    return y.astype(np.int64) if y.dtype.kind == "f" and (y == np.rint(y)).all() else y


def _made(name: str, given: dict[str, Any], seed: int, x: np.ndarray, y: np.ndarray) -> Any:
    """An estimator; ridge and bandwidth of a classifier are those that KernelRidgeCV chooses."""
    kind = getattr(models.package(), name)
    known = kind().get_params()
    unknown = [key for key in given if key not in known]
    if unknown:
        raise Refusal(
            f"--set: the parameters of {name} are {', '.join(known)}. Received {unknown[0]}"
        )
    if "random_state" in known:
        given = {"random_state": seed, **given}
    if name != "KernelRidgeClassifier" or {"alpha", "bandwidth"} & given.keys():
        return kind(**given)
    chooser = models.package().KernelRidgeCV
    shared = {k: v for k, v in given.items() if k in chooser().get_params()}
    targets = np.where(y[:, None] == np.unique(y), 1.0, -1.0)
    chosen = chooser(**shared).fit(x, targets)
    bandwidth = {} if chosen.bandwidth_ is None else {"bandwidth": chosen.bandwidth_}
    return kind(alpha=chosen.alpha_, **bandwidth, **given)


def _held_out(y: np.ndarray, share: float, seed: int, classes: bool) -> np.ndarray:
    """A mask [n] of the rows that are held out, of each class its share."""
    drawn = np.zeros(len(y), bool)
    rng = np.random.default_rng(seed)
    for value in np.unique(y) if classes else [None]:
        rows = np.arange(len(y)) if value is None else np.flatnonzero(y == value)
        drawn[rng.permutation(rows)[: int(share * len(rows))]] = True
    return drawn


def _said(estimator: Any) -> str:
    parts = []
    for name in _SAID:
        value = getattr(estimator, name, None)
        if isinstance(value, str):
            parts.append(f"{name.rstrip('_')} {value}")
        elif isinstance(value, (int, float, np.number)):
            parts.append(f"{name.rstrip('_')} {value:.4g}")
        elif isinstance(value, np.ndarray) and 0 < value.size <= 8:
            numbers = ", ".join(f"{number:.4g}" for number in value.ravel())
            parts.append(f"{name.rstrip('_')} {numbers}")
    return f"{type(estimator).__name__}: {', '.join(parts)}"


def _run(options: argparse.Namespace) -> None:
    files.check_output(options.model, (".npz",))
    table = files.read_table(options.table, options.header)
    y = _target(table, options.target)
    names = [name for name in table.columns if name != options.target]
    if not names:
        raise Refusal(f"{table.path}: a column other than the target is needed. Received none")
    name = _estimator(options, y)
    classes = name in models.ESTIMATORS["classes"]
    y = _as_classes(y) if classes else y
    held = _held_out(y, options.holdout, options.seed, classes)
    if np.count_nonzero(~held) < 2:
        raise Refusal(f"{table.path}: two rows are needed at least. Received {np.sum(~held)}")
    kind = f"{len(np.unique(y))} classes" if classes else "numbers"
    print(f"{table.path}: {len(y)} rows, {len(names)} columns, and {options.target} of {kind}")
    given = dict(options.set)
    if held.any():
        columns = Columns.of(table, names, ~held)
        x = columns(table)
        tried = _made(name, given, options.seed, x[~held], y[~held]).fit(x[~held], y[~held])
        score = tried.score(x[held], y[held])
        word = "accuracy" if classes else "R^2"
        print(f"{word} {score:.4f} on {np.count_nonzero(held)} rows held out of a first fit")
    columns = Columns.of(table, names)
    x = columns(table)
    model = Model(columns, options.target, _made(name, given, options.seed, x, y).fit(x, y))
    print(_said(model.estimator))
    model.save(options.model)
    print(f"{options.model}: fitted to all {len(y)} rows")


COMMANDS = (
    Command(
        "fit",
        "a kernel model of one column of a table by the others, saved to a file",
        _run,
        (
            argument("table", help="the file: a row a point; text becomes columns of 0 and 1"),
            argument("--target", required=True, help="the column to predict; text for classes"),
            argument("--model", required=True, metavar="OUT", help="the .npz to write"),
            argument(
                "--estimator",
                choices=[n for names in models.ESTIMATORS.values() for n in names],
                metavar="NAME",
                help="of mercer.models (KernelRidgeCV; of text KernelRidgeClassifier)",
            ),
            argument("--set", action="append", default=[], type=_setting, metavar="NAME=VALUE",
                     help="a parameter of the estimator"),
            argument("--holdout", type=_fraction, default=0.2, metavar="SHARE",
                     help="rows on which a first fit is scored (0.2)"),
            argument("--seed", type=a.seed, default=0, help="of all that is drawn (0)"),
            a.HEADER,
        ),
        "mercer fit houses.csv --target price --model price.npz\n"
        "mercer fit iris.csv --target species --model iris.npz --set kernel=laplace",
    ),
)  # fmt: skip
