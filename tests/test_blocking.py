"""Who may block an event loop in these tests: they themselves, and nothing of the library (`conftest.py`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from blockbuster import BlockingError

import aiordma
from tests.loops import LOOPS

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[name for name in LOOPS if name != "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Those in which blocking calls are found."""
    return LOOPS[request.param]


def of_the_library(source: str) -> dict[str, Any]:
    """What a file of the library with this source would define."""
    defined: dict[str, Any] = {}
    exec(compile(source, f"{aiordma.__path__[0]}/planted.py", "exec"), defined)
    return defined


async def test_the_library_may_not_block() -> None:
    block = of_the_library("import time\ndef block(): time.sleep(0)")["block"]
    with pytest.raises(BlockingError):
        block()


async def test_a_test_may_block_where_the_library_has_woken_it() -> None:
    wake: Callable[..., None] = of_the_library("def wake(task): task()")["wake"]
    wake(lambda: time.sleep(0))
