"""The library's waits for its peer are long in tests: where much else runs, a peer that works is late, too.

A test that is about one of these times sets it.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from aiordma import config as config_module
from aiordma.config import Config
from tests import world

if TYPE_CHECKING:
    import pytest

_FIELDS = ("negotiate_timeout_ms", "head_start_ms", "server_first_wait_ms")
_MADE = Config.__init__
_OF_USERS = _MADE.__kwdefaults__ or {}


def _milliseconds() -> int:
    """Longer than any test waits for anything, so that it is the test that fails, and says where. It is no
    more than a setting may be."""
    return min(round(2 * world.FULL_PATIENCE * 1000), 600_000)


def environment() -> dict[str, str]:
    """For programs that do not get the tests'."""
    return {config_module.variable_of(field): str(_milliseconds()) for field in _FIELDS}


def set_environment() -> None:
    """For this process, and for programs that it starts."""
    for name, value in environment().items():
        os.environ.setdefault(name, value)


def set_defaults() -> None:
    """For configurations that a test makes itself: these do not read the environment."""
    # By the difference, `aiordma.install()` sees that the environment's is no default.
    _MADE.__kwdefaults__ = _OF_USERS | dict.fromkeys(_FIELDS, _milliseconds() - 1)
    config_module._defaults.cache_clear()


def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what these times are when nobody sets them, or of what their environment costs."""
    for name in environment():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_MADE, "__kwdefaults__", _OF_USERS)
    monkeypatch.setattr(config_module, "_defaults", functools.cache(Config))
