"""Where the map of SMC's TCP option is. It imports next to nothing: short programs may need no more."""

from __future__ import annotations

import os

PINNED_AT = "/run/aiordma-smcr/map"
"""Where the map is, on a host that is set up for all."""


def map_path(setting: str) -> str | None:
    """``fd:`` and a number, or a path; None: this process does without.

    :param setting: ``Config.smcr``.
    """
    if setting == "auto":
        return PINNED_AT if os.path.lexists(PINNED_AT) else None
    return None if setting == "off" else setting
