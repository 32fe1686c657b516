"""The manners that the software device has in the programs of a test."""

from __future__ import annotations

#: ``softdev/personalities`` has a file for each.
NAMES = (
    "bnxt_re",
    "efa",
    "erdma",
    "irdma",
    "iwarp",
    "mlx5",
    "qedr",
    "rxe",
    "siw",
    "soft",
    "unordered",
)


class Personality:
    """The limits and manners of programs that are started from now on: ``"mlx5"``, ``"efa"`` ..."""

    def __init__(self, name: str = "soft") -> None:
        self.set(name)

    def set(self, name: str) -> None:
        """Have another one.

        :raises ValueError: there is none of that name. The text has all.
        """
        # The device would say so on standard error, be itself, and the test would pass.
        if name not in NAMES:
            raise ValueError(f"there is no personality {name!r}; there are: {' '.join(NAMES)}")
        self.name = name
