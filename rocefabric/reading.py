"""Files that others wrote: their size, their syntax, and tables that become dataclasses within limits.

Every error has `file:line`. A field's limits are in its metadata: `least`, `most`, `one_of`.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
import tomllib
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import NetworkError
from .positions import positions

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from .positions import Path

__all__ = ["Reader", "parse_json", "parse_toml", "read_text"]

#: Of a file: its size, and any number in it.
_MOST_BYTES = 4 << 20
_MOST_NUMBER = 1e12

_T = TypeVar("_T")


class Reader:
    """Turns tables into dataclasses, with `file:line` in each error."""

    def __init__(self, file: str, lines: Mapping[Path, int]) -> None:
        self.file = file
        self.lines = lines

    def fail(self, path: Path, text: str) -> NetworkError:
        """With `file:line` of a key, or of the closest table around it."""
        at = path
        while at and at not in self.lines:
            at = at[:-1]
        return NetworkError(f"{self.file}:{self.lines.get(at, 1)}: {text}")

    def rows(self, kind: Callable[..., _T], raw: object, key: str) -> tuple[_T, ...]:
        """The tables of `[[key]]`."""
        if not isinstance(raw, list):
            raise self.fail((key,), f"write [[{key}]], once for each group")
        return tuple(self.table(kind, row, (key, at)) for at, row in enumerate(raw))

    def table(self, kind: Callable[..., _T], raw: object, path: Path) -> _T:
        """One table."""
        if not isinstance(raw, dict):
            raise self.fail(path, f"[{path[0]}] must be a table")
        fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
        if "preset" in fields and "preset" in raw:
            self.value(fields["preset"], raw["preset"], (*path, "preset"))
            presets: Mapping[str, dict[str, Any]] = fields["preset"].metadata["presets"]
            raw = presets[raw["preset"]] | raw
        for key in raw:
            if key not in fields:
                known = ", ".join(fields)
                raise self.fail((*path, key), f"unknown key {key!r} in [{path[0]}]; there are: {known}")
        values = {key: self.value(fields[key], given, (*path, key)) for key, given in raw.items()}
        for each in fields.values():
            required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
            if required and each.name not in values:
                raise self.fail(path, f"[{path[0]}] has no {each.name!r}")
        return kind(**values)

    def value(self, wanted: dataclasses.Field[Any], given: object, path: Path) -> object:
        """One value within its limits."""
        kind = str(wanted.type)
        ok = {
            "int": isinstance(given, int) and not isinstance(given, bool),
            "float": isinstance(given, int | float) and not isinstance(given, bool),
            "bool": isinstance(given, bool),
            "str": isinstance(given, str) and given != "",
            "dict[str, int]": isinstance(given, dict),
            "list[str]": isinstance(given, list) and all(isinstance(each, str) for each in given),
        }[kind]
        if not ok:
            what = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
            what["list[str]"] = "a list of texts"
            wants = what.get(kind, "a table of whole numbers")
            raise self.fail(path, f"{path[-1]} = {reprlib.repr(given)} is not {wants}")
        limits = wanted.metadata
        if isinstance(given, int | float):
            if not -_MOST_NUMBER <= given <= _MOST_NUMBER:  # also what is no number
                raise self.fail(path, f"{path[-1]} is no number up to {_MOST_NUMBER:.0e}")
            if given < limits.get("least", given):
                raise self.fail(path, f"{path[-1]} = {given} is less than {limits['least']}")
            if given > limits.get("most", given):
                raise self.fail(path, f"{path[-1]} = {given} is more than {limits['most']}")
        if given not in limits.get("one_of", (given,)):
            raise self.fail(path, f"{path[-1]} = {given!r} is none of: {', '.join(limits['one_of'])}")
        return float(given) if kind == "float" and isinstance(given, int) else given


def parse_toml(text: str, file: str) -> tuple[dict[str, Any], Mapping[Path, int]]:
    """The tables of a TOML file, and the lines of their keys.

    :raises NetworkError: with `file:line`, if it is none.
    """
    try:
        return tomllib.loads(text), positions(text)
    except RecursionError:
        raise NetworkError(f"{file}:1: tables or lists are nested too deeply") from None
    except ValueError as error:  # tomllib's own, or that of a number with thousands of digits
        line = str(error).rpartition("at line ")[2].split(",")[0]
        at = line if line.isdecimal() else str(len(text.splitlines()) or 1)
        raise NetworkError(f"{file}:{at}: {error}") from None


def parse_json(text: str, file: str) -> Any:
    """The value in a JSON file.

    :raises NetworkError: with `file:line`, if it is none.
    """

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number")

    try:
        found = json.loads(text, parse_constant=refuse)
        if "\\u" in text:  # halves of characters can be written, but not shown
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError:
        raise NetworkError(f"{file}:1: values are nested too deeply") from None
    except ValueError as error:  # also that of a number with thousands of digits
        raise NetworkError(f"{file}:{getattr(error, 'lineno', 1)}: {error}") from None


def read_text(path: str | os.PathLike[str], most_bytes: int = _MOST_BYTES) -> str:
    """The text of a file that is not too large.

    :raises NetworkError: if it is too large, or no UTF-8.
    :raises OSError: if it cannot be read.
    """
    with open(path, "rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise NetworkError(f"{path}:1: the file has more than {most_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NetworkError(f"{path}:{line}: the file is not UTF-8") from None
