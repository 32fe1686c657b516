"""An endpoint that is closed, or forgets its peers, while an operation gives others their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.datagrams import peer_table
from tests.processes import PATIENCE
from tests.roles import LOCAL
from tests.wake.meanwhile import in_the_next, in_the_next_checkpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.datagrams.endpoint import DatagramEndpoint

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pair() -> AsyncIterator[tuple[DatagramEndpoint, DatagramEndpoint]]:
    one, other = [await aiordma.open_datagram_endpoint((LOCAL, 0), mode="auto") for _ in range(2)]
    yield one, other
    await one.aclose()
    await other.aclose()


async def test_closed_before_it_waits_for_the_query(
    pair: tuple[DatagramEndpoint, DatagramEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query's task tells who waits for it that it has ended, and then nobody does."""
    one, other = pair
    in_the_next_checkpoint(monkeypatch, one.aclose)
    with anyio.fail_after(PATIENCE), pytest.raises(anyio.ClosedResourceError):
        await one.resolve(other.local_address)


async def test_a_peer_that_was_forgotten_meanwhile_is_asked_anew(
    pair: tuple[DatagramEndpoint, DatagramEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair

    async def forget() -> None:
        one._table.forget_all()

    in_the_next_checkpoint(monkeypatch, forget)
    with anyio.fail_after(PATIENCE):
        assert await one.resolve(other.local_address) == "rdma"


@pytest.mark.parametrize("operation", ["resolve", "send"])
async def test_nobody_is_asked_by_an_endpoint_that_was_closed_while_a_name_was_looked_up(
    pair: tuple[DatagramEndpoint, DatagramEndpoint], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    one, other = pair

    async def look_up(*_: object, **__: object) -> list[Any]:
        one.close()
        return [(None, None, None, None, other.local_address)]

    monkeypatch.setattr(peer_table, "getaddrinfo", look_up)
    address = ("a.name", 7)
    with anyio.fail_after(PATIENCE), pytest.raises(anyio.ClosedResourceError):
        await (one.resolve(address) if operation == "resolve" else one.send((b"x", address)))
    assert not one._table.peers


async def test_nor_by_a_send_that_it_is_closed_under(
    pair: tuple[DatagramEndpoint, DatagramEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    one._waker.share = 0
    for passed in ("checkpoint", "cancel_check"):  # of asyncio, and of trio
        in_the_next(passed, monkeypatch, one.aclose)
    with anyio.fail_after(PATIENCE), pytest.raises(anyio.ClosedResourceError):
        await one.send((b"x", other.local_address))
    assert not one._table.peers
