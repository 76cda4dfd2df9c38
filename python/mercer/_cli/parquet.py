"""Tables in Parquet files, by pyarrow or polars, whichever is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from mercer._cli.command import Refusal

Columns = dict[str, np.ndarray]
LIBRARIES = ("pyarrow", "polars")


def library(path: str) -> str:
    """The first that is installed; refuses where none is."""
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is not None:
            return name
    raise Refusal(
        f"{path}: Parquet files need pyarrow or polars: pip install pyarrow. Received neither"
    )


def read(path: str, _: str, choose: Callable[[list[str]], list[str]]) -> tuple[Columns, bool]:
    """(the chosen columns by name, True)."""
    found = (_by_pyarrow if library(path) == "pyarrow" else _by_polars)(path, choose)
    return {name: _column(path, name, *column) for name, column in found.items()}, True


def _by_pyarrow(path: str, choose: Callable) -> dict[str, tuple[Any, int, str]]:
    from pyarrow import parquet

    table = parquet.read_table(path, columns=choose(parquet.read_schema(path).names))
    columns = zip(table.column_names, table.columns, strict=True)
    return {
        name: (column.to_numpy(), column.null_count, str(column.type)) for name, column in columns
    }


def _by_polars(path: str, choose: Callable) -> dict[str, tuple[Any, int, str]]:
    import polars

    try:
        table = polars.read_parquet(path, columns=choose(list(polars.read_parquet_schema(path))))
    except polars.exceptions.PolarsError as error:
        raise ValueError(error) from error
    return {
        column.name: (column.to_numpy(), column.null_count(), str(column.dtype))
        for column in table.get_columns()
    }


def _column(path: str, name: str, values: np.ndarray, missing: int, kind: str) -> np.ndarray:
    if missing:
        raise Refusal(f"{path}: column {name} must have a value in each row. Received {missing} "
                      "without")  # fmt: skip
    if values.dtype.kind in "biuf":
        return values
    if values.dtype == object and all(isinstance(value, str) for value in values):
        return values.astype(str)
    raise Refusal(f"{path}: column {name} must have numbers or text. Received {kind}")


def write(file: BinaryIO, columns: Mapping[str, np.ndarray]) -> None:
    """float16, which readers lack, as float32."""
    columns = {
        name: np.ascontiguousarray(column, np.float32 if column.dtype == np.float16 else None)
        for name, column in columns.items()
    }
    if library("") == "pyarrow":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(dict(columns)), file)
    else:
        import polars

        polars.DataFrame(columns).write_parquet(file)
