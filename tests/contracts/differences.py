"""Where aiordma does something else than plain asyncio. `docs/howto/run.md` gives users the reasons."""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """A behaviour that need not be the plain loop's."""

    carriers: set[str]
    #: The words by which `docs/howto/run.md` gives the reason.
    reason: str
    loops: frozenset[str] = frozenset({"asyncio", "uvloop"})


DIFFERENCES: dict[str, Difference] = {}
