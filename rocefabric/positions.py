"""Where a key stands in a TOML file: `tomllib` does not say, and an error without a line helps little."""

from __future__ import annotations

import re
from typing import TypeAlias

__all__ = ["Path", "positions"]

#: Of a table or a key: ("switches", 0, "name").
Path: TypeAlias = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([\w.\"-]+)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*([\w.\"-]+)\s*=")


def positions(text: str) -> dict[Path, int]:
    """The line (from 1) of each table and key, for files that write one key per line.

    Text that `tomllib` accepts never fails here. Keys in inline tables have no line of their own: ask for
    the key that holds the table.
    """
    found: dict[Path, int] = {}
    counts: dict[str, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = header[2].replace('"', "")
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
                table = (*name.split("."), counts[name])
            else:
                table = tuple(name.split("."))
            found[table] = number
        elif key := _KEY.match(line):
            found.setdefault((*table, *key[1].replace('"', "").split(".")), number)
    return found
