"""Configurations with constants that no user can set, for tests of what happens at their limits."""

from __future__ import annotations

import dataclasses
from typing import Any

from aiordma.config import Config
from aiordma.constants import Constants

__all__ = ["CONSTANTS", "tuned"]

#: What :func:`tuned` may set beside settings.
CONSTANTS = frozenset(name for name in vars(Constants) if not name.startswith("_"))


def tuned(base: Config | None = None, **values: Any) -> Config:
    """A configuration with these settings and constants; the others are those of ``base``."""
    constants = {name: values.pop(name) for name in CONSTANTS & set(values)}
    if base is not None:
        before = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
        values = before | values
        constants = {name: vars(type(base))[name] for name in CONSTANTS & set(vars(type(base)))} | constants
    kind: type[Config] = Config
    if constants:
        kind = type("TunedConfig", (Config,), {"__slots__": (), **constants})
    return kind(**values)
