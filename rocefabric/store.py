"""Where outcomes of simulations are kept, so that what is there is not computed again: SQLite, or Parquet."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from .errors import NetworkError
from .simulate import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ParquetStore", "SqliteStore", "Store", "open_store"]

_NAME = re.compile(r"[a-z0-9-]+")


class Store(Protocol):
    """Outcomes by the key of their network and senders, traffic model and seed."""

    def get(self, network: str, name: str, seed: int) -> Outcome | None:
        """The outcome, if it is there."""

    def put(self, network: str, outcome: Outcome, settings: Mapping[str, Any]) -> None:
        """Keep one outcome; it stays if the program is killed right after.

        :raises NetworkError: it cannot be kept, because the disk is full, for example.
        """

    def close(self) -> None:
        """Close files."""


class SqliteStore:
    """Outcomes in one SQLite file, as JSON.

    :raises NetworkError: if the file is no SQLite database.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        try:
            self._file = sqlite3.connect(self._path)
        except sqlite3.Error as error:
            raise NetworkError(f"{path}: no database of simulations ({error}); name another file") from None
        columns = (
            "network TEXT, traffic TEXT, seed INTEGER, settings TEXT, outcome TEXT, "
            "PRIMARY KEY (network, traffic, seed)"
        )
        try:
            with self._file:
                self._file.execute(f"CREATE TABLE IF NOT EXISTS outcomes ({columns})")
                self._file.execute("SELECT network, traffic, seed, settings, outcome FROM outcomes LIMIT 0")
        except sqlite3.Error as error:
            self._file.close()
            raise NetworkError(f"{path}: no database of simulations ({error}); name another file") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def get(self, network: str, name: str, seed: int) -> Outcome | None:
        """The outcome, if it is there."""
        row = self._file.execute(
            "SELECT outcome FROM outcomes WHERE (network, traffic, seed) = (?, ?, ?)",
            (network, name, seed),
        ).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=Outcome)

    def put(self, network: str, outcome: Outcome, settings: Mapping[str, Any]) -> None:
        """Write one outcome; it stays if the program is killed right after. :raises NetworkError:"""
        texts = [msgspec.json.encode(each).decode() for each in (settings, outcome)]
        row = (network, outcome.traffic, outcome.seed, *texts)
        try:
            with self._file:
                self._file.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise NetworkError(f"{self._path}: the outcome cannot be kept ({error})") from None


class ParquetStore:
    """Outcomes in a folder of Parquet files, one each: Dask, polars and pandas read the folder as one table.

    Its columns are the fields of `Outcome`, `network` (the key), and one for each setting of a sweep, such as
    `ecn.kmin_cells`. Needs the extra `aiordma[fabric]`.

    :raises ImportError: without pyarrow.
    :raises NetworkError: if `path` is a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import pyarrow.parquet

        self._parquet = pyarrow.parquet
        self._folder = Path(path)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NetworkError(f"{path}: no folder for Parquet files ({error.strerror})") from None

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _file(self, network: str, name: str, seed: int) -> Path:
        for part in (network, name):
            if not _NAME.fullmatch(part):
                raise NetworkError(f"{part!r} cannot be a part of a file's name")
        return self._folder / f"{network}-{name}-{seed}.parquet"

    def get(self, network: str, name: str, seed: int) -> Outcome | None:
        """The outcome, if it is there.

        :raises NetworkError: if its file holds something else.
        """
        path = self._file(network, name, seed)
        if not path.exists():
            return None
        try:
            (row,) = self._parquet.ParquetFile(path).read().to_pylist()
            row["pauses_by_port"] = dict(row["pauses_by_port"])
            return msgspec.convert(row, Outcome)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NetworkError(f"{path}: no outcome of a simulation ({error}); remove it") from None

    def put(self, network: str, outcome: Outcome, settings: Mapping[str, Any]) -> None:
        """Write one file, and give it its name only when it is whole. :raises NetworkError:"""
        import pyarrow

        row = {"network": network, **settings, **msgspec.to_builtins(outcome)}
        row["pauses_by_port"] = list(row["pauses_by_port"].items())
        nested = {
            "queue": pyarrow.list_(pyarrow.int64()),
            "pauses_by_window": pyarrow.list_(pyarrow.int64()),
            "rates": pyarrow.list_(pyarrow.list_(pyarrow.float64())),
            "pauses_by_port": pyarrow.map_(pyarrow.string(), pyarrow.int64()),
        }
        # By the field's annotation, not by the value: all files must have the same columns.
        plain = {"int": pyarrow.int64(), "float": pyarrow.float64(), "str": pyarrow.string()}
        kinds = {name: nested.get(name) or plain[kind] for name, kind in Outcome.__annotations__.items()}
        columns = {
            name: pyarrow.array([value], kinds.get(name) or _setting(pyarrow, value))
            for name, value in row.items()
        }
        path = self._file(network, outcome.traffic, outcome.seed)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._parquet.write_table(pyarrow.table(columns), part)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise NetworkError(f"{path}: the outcome cannot be kept ({error.strerror or error})") from None


def _setting(pyarrow: Any, value: object) -> Any:
    """Numbers of a sweep are floating in all files: 1 and 0.5 may be values of one setting."""
    return pyarrow.float64() if isinstance(value, int | float) else pyarrow.string()


def open_store(path: str | os.PathLike[str]) -> Store:
    """A folder of Parquet files if the name ends with `.parquet`, an SQLite file otherwise.

    :raises ImportError: for Parquet, without pyarrow.
    :raises NetworkError: if there is something else.
    """
    return ParquetStore(path) if Path(path).suffix == ".parquet" else SqliteStore(path)
