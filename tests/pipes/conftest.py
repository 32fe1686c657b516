"""Fixtures of the tests of pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipes import link_pairs

if TYPE_CHECKING:
    from tests.pipes.link_pairs import Open


@pytest.fixture
def open_engine() -> Open:
    """Opens an engine on the tests' device, with settings given by keyword."""
    return link_pairs.open_engine
