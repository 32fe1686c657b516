"""Fixtures of the protocol tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from .cores import CORES

settings.register_profile("no-deadline", deadline=None)  # timings never decide a test
settings.load_profile("no-deadline")


@pytest.fixture(params=sorted(CORES))
def core(request: pytest.FixtureRequest) -> Any:
    """The modules cursor, cdc, seqack, rpc and calls: interpreted, then compiled."""
    return CORES[request.param]
