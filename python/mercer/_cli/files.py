"""Files of numbers by their suffix: .npy, .npz, .csv, .tsv, .parquet.

A name may say which part is wanted: ``points.csv:height,width`` for columns of a table,
``several.npz:points`` for one of several arrays.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

import mercer as mc
from mercer._cli import parquet, text
from mercer._cli.command import Refusal

#: How a table with this suffix is read into columns by name, and how it is written.
TABLES = {
    ".csv": (text.reader(","), text.writer(",")),
    ".tsv": (text.reader("\t"), text.writer("\t")),
    ".parquet": (parquet.read, parquet.write),
}
SUFFIXES = (".npy", ".npz", *TABLES)


@dataclass(frozen=True)
class Table:
    """Columns [n] of numbers or of text, by name; ``named``: whether the file has the names."""

    path: str
    columns: dict[str, np.ndarray]
    named: bool

    def numbers(self) -> np.ndarray:
        """[n, K]; refuses columns of text."""
        for name, column in self.columns.items():
            if column.dtype.kind not in "biuf":
                raise Refusal(text.why_no_number(self.path, name, column))
        return np.stack(list(self.columns.values()), axis=1)


@dataclass(frozen=True)
class Numbers:
    """An array with the names of its columns, where its file has some."""

    array: np.ndarray
    names: tuple[str, ...] | None = None


def suffix_of(path: str, wanted: Sequence[str] = SUFFIXES) -> str:
    """Refuses others than those wanted."""
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in wanted:
        raise Refusal(f"{path}: the suffix must be {_either(wanted)}. Received {suffix or 'none'}")
    return suffix


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _split(name: str) -> tuple[str, list[str] | None]:
    """The path, and the parts that are wanted of it."""
    path, colon, parts = name.rpartition(":")
    if not colon or pathlib.Path(name).exists() or pathlib.Path(path).suffix not in SUFFIXES:
        return name, None
    return path, parts.split(",")


def is_table(name: str) -> bool:
    """Whether a file, perhaps with parts of it, has columns with names."""
    return pathlib.Path(_split(name)[0]).suffix.lower() in TABLES


@contextlib.contextmanager
def refusing(sentence: Callable[[str], str]) -> Iterator[None]:
    """For files of others, which may be wrong in any way: what is raised is refused by a sentence
    with its first line."""
    try:
        yield
    except (Refusal, MemoryError, ImportError, mc.CompileError, mc.DeviceError):
        raise
    except Exception as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
        raise Refusal(sentence(str(why).partition("\n")[0])) from error


def _read_as(path: str, kind: str) -> contextlib.AbstractContextManager[None]:
    return refusing(lambda why: f"{path}: cannot be read as a {kind} file ({why})")


def read(name: str, header: str = "auto") -> Numbers:
    """An array of real numbers: of a table [n, K], else of any shape."""
    path, parts = _split(name)
    suffix = suffix_of(path)
    if suffix in TABLES:
        table = read_table(name, header)
        return Numbers(table.numbers(), tuple(table.columns) if table.named else None)
    array = _array(path, suffix, parts)
    if array.dtype.kind not in "biuf":
        raise Refusal(f"{name}: must hold real numbers. Received {array.dtype}")
    return Numbers(array)


def _array(path: str, suffix: str, parts: list[str] | None) -> np.ndarray:
    if suffix == ".npz":
        return _member(path, parts)
    if parts is not None:
        raise Refusal(f"{path}: an .npy file has one array without a name. Received {parts}")
    with _read_as(path, ".npy"):
        return np.lib.format.open_memmap(path, mode="r")


def load(path: str) -> Any:
    """The arrays of an .npz file."""
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no archive of arrays")
    return np.load(path, allow_pickle=False)


def _member(path: str, parts: list[str] | None) -> np.ndarray:
    with _read_as(path, ".npz"), load(path) as found:
        wanted = found.files if parts is None else parts
        if len(wanted) != 1 or wanted[0] not in found.files:
            raise Refusal(
                f"{path}: name one of its arrays, as {path}:NAME; it has "
                f"{', '.join(found.files) or 'none'}. Received {','.join(parts or []) or 'no name'}"
            )
        made = found[wanted[0]]
        if not isinstance(made, np.ndarray):  # NumPy gives the bytes of other members
            raise ValueError(f"{wanted[0]} is no array")
        return made


def read_table(name: str, header: str = "auto") -> Table:
    """Columns by name; those of an array, or of a table without names, are c1, c2 and so on."""
    path, parts = _split(name)
    suffix = suffix_of(path)
    if suffix in TABLES:
        with _read_as(path, suffix):
            columns, named = TABLES[suffix][0](path, header, lambda n: _chosen(path, n, parts))
        table = Table(path, columns, named)
    else:
        array = _array(path, suffix, parts)
        if array.ndim != 2:
            raise Refusal(f"{name}: a table has two axes. Received the shape {array.shape}")
        columns = dict(zip(text.numbered(array.shape[1]), array.T, strict=True))
        table = Table(path, columns, named=False)
    if not table.columns or not len(next(iter(table.columns.values()))):
        raise Refusal(f"{path}: a table must have a row of numbers. Received none")
    return table


def _chosen(path: str, names: list[str], parts: list[str] | None) -> list[str]:
    """The parts, or all names; refuses unknown ones and doubles."""
    for part in parts or ():
        if part not in names:
            raise Refusal(f"{path}: the columns are {', '.join(names)}. Received {part!r}")
    taken = names if parts is None else parts
    for name in taken:
        if taken.count(name) > 1:
            raise Refusal(f"{path}: a column can be taken once. Received {name} twice")
    return taken


def check_output(path: str, wanted: Sequence[str] = SUFFIXES) -> str:
    """Before the work, not after it: the suffix, and whether the folder can be written into."""
    suffix = suffix_of(path, wanted)
    folder = pathlib.Path(path).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise Refusal(f"{path}: cannot be written (no folder {folder} to write into)")
    if pathlib.Path(path).exists() and not pathlib.Path(path).is_file():
        raise Refusal(f"{path}: cannot be written (it is there and is no file)")
    if suffix == ".parquet":
        parquet.library(path)
    return suffix


@contextlib.contextmanager
def replaced(path: str) -> Iterator[BinaryIO]:
    """A file to write that gets its name once it is whole; what fails leaves what was there."""
    final = pathlib.Path(os.path.realpath(path))
    made = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
    try:
        with open(made, "xb") as file:
            yield file
        os.replace(made, final)
    except OSError as error:
        raise Refusal(f"{path}: cannot be written ({error})") from error
    finally:
        made.unlink(missing_ok=True)


def write(path: str, arrays: Mapping[str, np.ndarray], names: Mapping[str, Any]) -> None:
    """Arrays by name. names: in a table, of the columns of each, or the word that they begin by."""
    suffix = check_output(path)
    check_arrays(path, list(arrays))
    with replaced(path) as file:
        if suffix == ".npy":
            np.save(file, next(iter(arrays.values())))
        elif suffix == ".npz":
            write_archive(file, arrays)
        else:
            TABLES[suffix][1](file, _columns(path, arrays, names))
    print(f"{path}: " + ", ".join(_described(key, array) for key, array in arrays.items()))


def write_archive(file: BinaryIO, arrays: Mapping[str, Any]) -> None:
    """An .npz. ``savez`` takes no array named file, and loses one named allow_pickle."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _described(key: str, array: np.ndarray) -> str:
    return f"{key} {array.dtype}{list(array.shape)}"


def _columns(
    path: str, arrays: Mapping[str, np.ndarray], names: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        check_axes(path, array.ndim)
        word = names[key]
        if array.ndim == 1:
            found[word if isinstance(word, str) else word[0]] = array
        elif isinstance(word, str):
            found |= {f"{word}{i}": column for i, column in enumerate(array.T)}
        else:
            found |= dict(zip(word, array.T, strict=True))
    return found


def check_arrays(path: str, names: Sequence[str]) -> None:
    """An .npy file has one array."""
    if pathlib.Path(path).suffix.lower() == ".npy" and len(names) > 1:
        raise Refusal(
            f"{path}: an .npy file has one array; .npz and tables have several. Received "
            f"{' and '.join(names)}"
        )


def check_axes(path: str, ndim: int) -> None:
    """A table has two axes."""
    if pathlib.Path(path).suffix.lower() in TABLES and ndim > 2:
        raise Refusal(
            f"{path}: a table has two axes; .npy and .npz have more. Received a result of {ndim}"
        )
