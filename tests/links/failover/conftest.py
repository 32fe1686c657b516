"""Fixtures of the tests of streams that change their transport."""

from __future__ import annotations

from tests.shadow.fixture import shadows

__all__ = ["shadows"]
