"""Models of tables: which columns become which numbers, the estimator, and the file of both.

A file is an .npz of plain arrays: nothing in it is code, and reading it runs none. What an
estimator holds is written as a tree of numbers, text, arrays, formulas by their text, and records
of the classes of ``RECORDS``; a tree with anything else is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import mercer as mc
from mercer._cli import files, text
from mercer._cli.command import Refusal

FORMAT = "mercer model 1"

#: Estimators by what they predict; the first is what a fit takes where nothing is said.
ESTIMATORS = {
    "numbers": ("KernelRidgeCV", "KernelRidge", "GaussianProcessRegressor",
                "SparseGaussianProcessRegressor", "KNeighborsRegressor", "RFMRegressor"),
    "classes": ("KernelRidgeClassifier", "KernelLogisticRegression", "KNeighborsClassifier",
                "RFMClassifier"),
}  # fmt: skip
_MODULES = "mercer.models."
#: Classes of what estimators hold, which a file may name.
RECORDS = {
    "FittedKernel": "_kernels", "FittedDistance": "_distances", "Space": "_arrays",
    "Encoder": "_categories", "ExactPosterior": "_gp_posterior",
    "Posterior": "_gp_posterior", "SparsePosterior": "_gp_posterior",
    "Split": "_tree", "Tree": "_tree",
}  # fmt: skip
#: What is written as another class, which has what predictions read.
AS = {"SolvedPosterior": "Posterior"}
#: What predictions do without; they are made on the host, whatever the device of the fit.
LEFT = ("_problem", "_moments", "_iterative", "device")


@dataclass(frozen=True)
class Columns:
    """How the columns of a table become features: numbers are centred and scaled to a deviation of
    1, text becomes one column of 0 and 1 for each word."""

    names: list[str]
    centres: list[float]  # of columns of numbers; 0 for text
    scales: list[float]
    words: list[list[str]]  # of columns of text; none for numbers

    @classmethod
    def of(cls, table: files.Table, names: list[str], rows: Any = slice(None)) -> Columns:
        """Centres and scales are of the rows, words of all."""
        centres, scales, words = [], [], []
        for name in names:
            column = table.columns[name]
            is_text = column.dtype.kind not in "biuf"
            if is_text and text.is_mixed(column):
                raise Refusal(text.why_no_number(table.path, name, column))
            numbers = np.zeros(1) if is_text else finite(table.path, name, column)[rows]
            centres.append(float(numbers.mean()))
            scales.append(float(numbers.std()) or 1.0)
            words.append(np.unique(column).tolist() if is_text else [])
        return cls(names, centres, scales, words)

    @classmethod
    def read(cls, content: dict[str, Any]) -> Columns:
        """As a file has them; refuses others than ``of`` makes."""
        made = cls(**content)
        for name, centre, scale, words in zip(*vars(made).values(), strict=True):
            if not all(isinstance(text, str) for text in (name, *words)):
                raise ValueError(f"the words {words} of the column {name}")
            if not (math.isfinite(centre) and math.isfinite(scale) and scale > 0):
                raise ValueError(f"the centre {centre} and the scale {scale} of the column {name}")
        return made

    def __call__(self, table: files.Table) -> np.ndarray:
        """[n, d]; refuses columns that are missing and words that the fit did not see."""
        missing = [name for name in self.names if name not in table.columns]
        if missing:
            raise Refusal(
                f"{table.path}: the model needs the columns {', '.join(self.names)}. Received none "
                f"of the name {missing[0]}"
            )
        parts = zip(self.names, self.centres, self.scales, self.words, strict=True)
        return np.concatenate([_features(table, *part) for part in parts], axis=1)


def finite(path: str, name: str, column: np.ndarray) -> np.ndarray:
    """float64; refuses NaN and infinities."""
    numbers = column.astype(np.float64)
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise Refusal(
            f"{path}: column {name} must have finite numbers. Received {numbers[row]} in row "
            f"{row + 1}"
        )
    return numbers


def _features(
    table: files.Table, name: str, centre: float, scale: float, words: list[str]
) -> np.ndarray:
    column = table.columns[name]
    if not words:
        if column.dtype.kind not in "biuf":
            raise Refusal(text.why_no_number(table.path, name, column))
        return (finite(table.path, name, column)[:, None] - centre) / scale
    column = column.astype(str)
    unknown = np.flatnonzero(~np.isin(column, words))
    if len(unknown):
        raise Refusal(
            f"{table.path}: column {name} must have words that the fit saw. Received "
            f"{str(column[unknown[0]])!r} in row {unknown[0] + 1}"
        )
    return (column[:, None] == np.array(words)) * 1.0


@dataclass(frozen=True)
class Model:
    columns: Columns
    target: str
    estimator: Any

    @property
    def has_classes(self) -> bool:
        return type(self.estimator).__name__ in ESTIMATORS["classes"]

    def save(self, path: str) -> None:
        """An .npz; refuses estimators whose state is more than the tree."""
        arrays: dict[str, np.ndarray] = {}
        content = {
            "format": FORMAT,
            "columns": dataclasses.asdict(self.columns),
            "target": self.target,
            "estimator": _written(self.estimator, arrays),
        }
        with files.replaced(path) as file:
            files.write_archive(file, {"model": np.array(json.dumps(content)), **arrays})

    @classmethod
    def load(cls, path: str) -> Model:
        """Refuses what is no model."""
        files.suffix_of(path, (".npz",))
        with refusing(path), files.load(path) as found:
            content = json.loads(str(found["model"]))
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
            target, estimator = content["target"], _read(content["estimator"], found)
            if not isinstance(target, str) or not _is_estimator(estimator):
                raise ValueError(f"{type(estimator).__name__} as estimator of {target!r}")
            return cls(Columns.read(content["columns"]), target, estimator)


def refusing(path: str) -> contextlib.AbstractContextManager[None]:
    """While a model of this file is read or used: what goes wrong is the file's fault."""
    return files.refusing(lambda why: f"{path}: must be a model of mercer fit. Received {why}")


def _module(name: str) -> Any:
    return importlib.import_module(_MODULES + name)


def package() -> Any:
    """``mercer.models``, which needs scikit-learn."""
    return importlib.import_module("mercer.models")


def _written(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """[kind, content] of a value, of JSON; arrays go by their number."""
    for kind, (is_kind, write, _) in _KINDS.items():
        if is_kind(value):
            return [kind, write(value, lambda part: _written(part, arrays), arrays)]
    raise Refusal(f"a model file holds numbers, text, arrays and formulas. Received {value!r}")


def _read(written: Any, arrays: Any) -> Any:
    kind, content = written
    return _KINDS[kind][2](content, lambda part: _read(part, arrays), arrays)


def _write_array(value: np.ndarray, _: Any, arrays: dict[str, np.ndarray]) -> str:
    arrays[f"a{len(arrays)}"] = np.asarray(_module("_arrays").host(value))
    return f"a{len(arrays) - 1}"


def _write_formula(value: Any, *_: Any) -> str:
    carried = value.__reduce__()[1][1]
    if carried:
        raise Refusal(f"a model file holds formulas without arrays. Received {value}")
    return str(_without_code(value))


def _without_code(formula: Any) -> Any:
    if "ptx(" in str(formula):
        raise Refusal(f"a model file holds formulas without PTX. Received {formula}")
    return formula


def _write_record(value: Any, write: Callable[[Any], Any], _: Any) -> list[Any]:
    name = AS.get(type(value).__name__, type(value).__name__)
    fields = [field.name for field in dataclasses.fields(_record(name))]
    value = _of_host(value) if name == "Space" else value
    return [name, [[field, write(getattr(value, field))] for field in fields]]


def _read_record(content: Any, read: Callable[[Any], Any], _: Any) -> Any:
    name, fields = content
    made = _record(name)(**{key: read(part) for key, part in fields})
    return _of_host(made) if name == "Space" else made


def _of_host(space: Any) -> Any:
    """Where arrays of a file are. A space imports its library by name, which no file may say."""
    if space.dtype not in ("float32", "float64"):
        raise ValueError(f"the dtype {space.dtype!r}")
    return type(space)("numpy", "cpu", space.dtype)


def _record(name: str) -> Any:
    return getattr(_module(RECORDS[name]), name)


def _is_record(value: Any) -> bool:
    home = RECORDS.get(AS.get(type(value).__name__, type(value).__name__))
    return home is not None and type(value).__module__ == _MODULES + home


def _is_estimator(value: Any) -> bool:
    name = type(value).__name__
    return name in (*ESTIMATORS["numbers"], *ESTIMATORS["classes"]) and type(
        value
    ).__module__.startswith(_MODULES)


def _write_estimator(value: Any, write: Callable[[Any], Any], _: Any) -> list[Any]:
    """The name and the attributes of an estimator; those of a tree include its leaves."""
    state = [[key, write(part)] for key, part in vars(value).items() if key not in LEFT]
    return [type(value).__name__, state]


def _read_estimator(content: Any, read: Callable[[Any], Any], _: Any) -> Any:
    name, state = content
    if name not in (*ESTIMATORS["numbers"], *ESTIMATORS["classes"]):
        raise ValueError(f"the estimator {name!r}")
    estimator = getattr(package(), name)()
    vars(estimator).update({key: read(part) for key, part in state if key not in LEFT})
    return estimator


def _is_array(value: Any) -> bool:
    """Whether this is an array of numbers, of NumPy or on a device."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biufU"
    return type(value).__module__.partition(".")[0] in ("torch", "cupy") and hasattr(value, "shape")


#: Kind -> (whether a value is one, what is written, what is read back).
_KINDS: dict[str, tuple[Callable, Callable, Callable]] = {
    "plain": (
        lambda v: v is None or type(v) in (bool, int, float, str),
        lambda v, write, arrays: v,
        lambda c, read, arrays: c,
    ),
    "array": (_is_array, _write_array, lambda c, read, arrays: arrays[c][()]),
    "list": (
        lambda v: type(v) is list,
        lambda v, write, arrays: [write(part) for part in v],
        lambda c, read, arrays: [read(part) for part in c],
    ),
    "tuple": (
        lambda v: type(v) is tuple,
        lambda v, write, arrays: [write(part) for part in v],
        lambda c, read, arrays: tuple(read(part) for part in c),
    ),
    "dict": (
        lambda v: type(v) is dict,
        lambda v, write, arrays: [[write(key), write(part)] for key, part in v.items()],
        lambda c, read, arrays: {read(key): read(part) for key, part in c},
    ),
    "formula": (
        lambda v: isinstance(v, mc.Kernel),
        _write_formula,
        lambda c, read, arrays: _without_code(mc.kernel(c)),
    ),
    "record": (_is_record, _write_record, _read_record),
    "estimator": (_is_estimator, _write_estimator, _read_estimator),
}

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def setting(word: str) -> tuple[str, Any]:
    """NAME=VALUE of an estimator: a whole number, a number, true, false, none, or text."""
    name, sign, value = word.partition("=")
    if not sign or not name.isidentifier():
        raise ValueError(f"must be name=value. Received {word}")
    plain = {"true": True, "false": False, "none": None}
    if value.lower() in plain:
        return name, plain[value.lower()]
    if re.fullmatch(r"[-+]?\d+", value):
        return name, int(value)
    return name, float(value) if _NUMBER.fullmatch(value) else value
