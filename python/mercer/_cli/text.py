"""Tables of text: .csv and .tsv, with a row of names or without."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from mercer._cli.command import Refusal

Columns = dict[str, np.ndarray]


def numbered(count: int) -> list[str]:
    """The names of columns that have none."""
    return [f"c{i + 1}" for i in range(count)]


def _number(cell: str) -> float | None:
    """Python's floats without its underscores."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


Choose = Callable[[list[str]], list[str]]


def reader(delimiter: str) -> Callable[[str, str, Choose], tuple[Columns, bool]]:
    """What reads (path, header, which of the names to take) into (columns by name, whether the file
    has the names)."""

    def read(path: str, header: str, choose: Choose) -> tuple[Columns, bool]:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = (row for row in csv.reader(file, delimiter=delimiter, strict=True) if row)
            cells, named = _read(path, rows, header)
        return {name: _column(cells[name]) for name in choose(list(cells))}, named

    return read


def _read(path: str, rows: Any, header: str) -> tuple[dict[str, list[str]], bool]:
    try:
        first = next(rows, None)
        if first is None:
            raise Refusal(f"{path}: a table must have a row of numbers. Received an empty file")
        named = _has_names(path, first, header)
        names = _names(path, first) if named else numbered(len(first))
        cells: list[list[str]] = [[] for _ in names]
        for index, row in enumerate(rows if named else itertools.chain([first], rows)):
            if len(row) != len(names):
                raise Refusal(
                    f"{path}: rows must have {len(names)} cells, as the first has. Received "
                    f"{len(row)} in row {index + 1}"
                )
            for column, cell in zip(cells, row, strict=True):
                column.append(cell)
    except csv.Error as error:
        raise ValueError(error) from error
    return dict(zip(names, cells, strict=True)), named


def _has_names(path: str, first: list[str], header: str) -> bool:
    if header != "auto":
        return header == "yes"
    values = [_number(cell) for cell in first]
    if len(values) > 1 and values == list(range(len(values))):
        raise Refusal(
            f"{path}: the first row may be names or numbers: say --header yes or --header no. "
            f"Received {','.join(first[:4])}{',...' if len(first) > 4 else ''}"
        )
    return None in values


def _names(path: str, first: list[str]) -> list[str]:
    names = [cell.strip() for cell in first]
    for index, name in enumerate(names):
        if not name:
            raise Refusal(
                f"{path}: each column must have a name, or none has with --header no. Received "
                f"none for column {index + 1}"
            )
        if names.count(name) > 1:
            raise Refusal(f"{path}: names of columns must differ. Received {name!r} twice")
    return names


def _column(cells: list[str]) -> np.ndarray:
    """Numbers where all cells are some, else text."""
    try:
        if not any("_" in cell for cell in cells):
            return np.array([float(cell) for cell in cells])
    except ValueError:
        pass
    return np.array([cell.strip() for cell in cells])


def why_no_number(path: str, name: str, column: np.ndarray) -> str:
    """What is wrong with a column of text where numbers are needed."""
    row = next(i for i, cell in enumerate(column) if _number(str(cell)) is None)
    return (
        f"{path}: column {name} must have numbers; {path}:NAME,NAME takes other columns. "
        f"Received {str(column[row])!r} in row {row + 1}"
    )


def is_mixed(column: np.ndarray) -> bool:
    """Text of which some is numbers: seldom meant so."""
    return any(_number(str(cell)) is not None for cell in column)


def writer(delimiter: str) -> Callable[[BinaryIO, Mapping[str, np.ndarray]], None]:
    """What writes columns with a row of their names."""

    def write(file: BinaryIO, columns: Mapping[str, np.ndarray]) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        rows = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(zip(*(_cells(column) for column in columns.values()), strict=True))
        text.flush()
        text.detach()

    return write


def _cells(column: np.ndarray) -> list[str]:
    """Numbers by the fewest digits that name them in their dtype, truth values as 0 and 1."""
    return [str(value) for value in (column.astype(int) if column.dtype == bool else column)]
