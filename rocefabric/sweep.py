"""Variants of a network: each combination of values for some of the keys of its file."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from . import model
from .errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .model import Network

__all__ = ["parse_settings", "variants"]

#: Tables whose numbers a sweep can set.
TABLES = ("marking", "pfc", "ecn", "goals", "senders")


def parse_settings(texts: Sequence[str]) -> dict[str, list[float]]:
    """From texts like `ecn.kmin_cells=10,20,40`.

    :raises NetworkError: if a text has another form. Names and limits are judged by `variants`.
    """
    found: dict[str, list[float]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        try:
            numbers = [float(each) for each in values.split(",")]
            if not all(map(math.isfinite, numbers)):
                raise ValueError(values)
        except ValueError:
            raise NetworkError(
                f"{text!r}: write TABLE.KEY=VALUE,VALUE, such as ecn.kmin_cells=10,20,40"
            ) from None
        found[key.strip()] = numbers
    return found


def variants(
    network: Network, settings: Mapping[str, Sequence[float]]
) -> Iterator[tuple[dict[str, float], Network]]:
    """Each combination, with the network it makes.

    :raises NetworkError: if there is no such key, or a value is outside its limits.
    """
    for values in itertools.product(*settings.values()):
        chosen = dict(zip(settings, values, strict=True))
        tables: dict[str, dict[str, float]] = {}
        for key, value in chosen.items():
            table, _, field = key.partition(".")
            if table not in TABLES or not field:
                raise NetworkError(
                    f"{key!r} cannot be swept; write TABLE.KEY, TABLE one of: {', '.join(TABLES)}"
                )
            tables.setdefault(table, {})[field] = int(value) if value == int(value) else value
        changed = {
            table: model.checked(table, getattr(network, table), fields) for table, fields in tables.items()
        }
        found = replace(network, **changed)
        model.judge_numbers(found)
        yield chosen, found
