"""What code of the program raises in `on_peer` that is no `Exception`: it ends its own peer's connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import memory
from tests.processes import PATIENCE
from tests.roles import LOCAL

from .pairs import PATHS, config_of, pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Odd(BaseException):
    """A program's own."""


class Raising:
    """The `on_peer` of a server: the first peer's raises when it has got a note, others echo theirs."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.first = True

    async def __call__(self, peer: memory.Peer) -> None:
        fails, self.first = self.first, False
        async for note in peer.notifications():
            if fails:
                raise self.error
            await peer.notify(note)


async def ask(peer: memory.Peer, note: bytes) -> bytes:
    await peer.notify(note)
    async for answer in peer.notifications():
        return answer
    raise anyio.EndOfStream


@contextlib.asynccontextmanager
async def served(path: str, error: type[BaseException]) -> AsyncIterator[tuple[memory.Peer, int]]:
    """A client whose peer raises when it is asked, and the port."""
    config = config_of(path)
    async with (
        memory.serve(LOCAL, config=config, on_peer=Raising(error)) as server,
        await memory.connect(LOCAL, server.port, config=config) as client,
    ):
        assert client.path == path
        yield client, server.port


@pytest.mark.anyio
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("error", [asyncio.CancelledError, Odd])
async def test_others_are_served(error: type[BaseException], path: str, handler_failures: list[str]) -> None:
    with anyio.fail_after(PATIENCE):
        async with pair(path) as (one, other), served(path, error) as (client, port):
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await ask(client, b"fail")
            async with await memory.connect(LOCAL, port, config=config_of(path)) as second:
                assert await ask(second, b"echo") == b"echo"
            await one.notify(b"as ever")
            assert await anext(other.notifications()) == b"as ever"
    (failure,) = handler_failures
    assert error.__name__ in failure
    handler_failures.clear()
