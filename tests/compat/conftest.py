"""The asyncio surface runs on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def reported() -> AsyncIterator[list[dict[str, Any]]]:
    """The calls of the loop's exception handler."""
    contexts: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    yield contexts
    loop.set_exception_handler(None)


@pytest.fixture(params=[False, True], ids=["events", "spin"])
def spin(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(autouse=True)
def _collect_garbage() -> Iterator[None]:
    """A transport left open by a test must warn in that test, not in a later one."""
    yield
    gc.collect()
