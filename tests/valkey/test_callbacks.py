"""What the user of a pipe has called: that it fails is its own affair, and keeps nobody else waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiordma.errors import LinkError
from tests.world import needs_pyverbs

from .conftest import connected

if TYPE_CHECKING:
    from .model import ModelServer

pytestmark = [pytest.mark.anyio, needs_pyverbs]


def failing() -> None:
    raise RuntimeError("of the program's")


@pytest.mark.parametrize("end", ["lost", "ended"])
async def test_both_directions_learn_of_the_end(server: ModelServer, end: str) -> None:
    async with await connected(server) as stream:
        pipe: Any = stream._pipe
        called: list[str] = []
        pipe.on_readable = failing
        pipe.on_writable = lambda: called.append("writable")
        if end == "lost":
            pipe.break_off(LinkError("a test"))
        else:
            pipe.server_ended()
        assert called == ["writable"]
        pipe.on_readable = pipe.on_writable = None
