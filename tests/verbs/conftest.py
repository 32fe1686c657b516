"""An open device for the tests that need one: the one aiordma would use here, or what AIORDMA_DEVICE says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aiordma.verbs.backend import open_backend
from aiordma.verbs.cq import CompletionQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.verbs.device import Backend

DEVICE = os.environ.get("AIORDMA_DEVICE") or None


@pytest.fixture
def backend() -> Iterator[Backend]:
    opened = open_backend(DEVICE)
    yield opened
    opened.close()


@pytest.fixture
def queue(backend: Backend) -> Iterator[CompletionQueue]:
    made = CompletionQueue(backend, 64)
    yield made
    made.close()
