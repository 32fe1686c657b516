"""Streams of every kind, connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.streams.pairs import MAKERS, Pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(params=MAKERS)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    one, other = await MAKERS[request.param]()
    yield one, other
    await one.aclose()
    await other.aclose()
