"""First contacts in another client's name: they never hold up or redirect the true one."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.links import engine as engines
from aiordma.proto import clc
from tests.health import check_echo, check_end, nothing_left, until
from tests.roles import LOCAL, echo
from tests.system.adversity.test_hostile_handshake import Raw, own_engine
from tests.tuned import tuned
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiordma.links.contact import ClientContact

pytestmark = pytest.mark.anyio

#: Longer than any test: who waits for an impostor waits for ever.
PATIENT = tuned(device=DEVICE, negotiate_timeout_ms=600_000, link_timeout_ms=600_000)
#: An address that the true client does not have.
ELSEWHERE = "127.0.0.2"


async def proposes(raw: Raw, name: bytes) -> None:
    """And takes the Accept, and says nothing more."""
    await raw.accepted(engine_id=name)


async def begins_its_confirm(raw: Raw, name: bytes) -> None:
    offer, accept = await raw.accepted(engine_id=name)
    confirm = await offer.accepted(accept)
    await raw.stream.send(confirm.changed(engine_id=name).encode()[:20])


async def does_not_confirm_its_link(raw: Raw, name: bytes) -> None:
    """The server asks for that on the link, and gets no answer."""
    offer, accept = await raw.accepted(engine_id=name)
    confirm = await offer.accepted(accept)
    offer.group.link.on_llc = lambda data: None
    await raw.say(confirm.changed(engine_id=name))


STALLS: dict[str, Callable[[Raw, bytes], Awaitable[None]]] = {
    each.__name__.replace("_", " "): each
    for each in (proposes, begins_its_confirm, does_not_confirm_its_link)
}


@contextlib.asynccontextmanager
async def an_impostor(address: str, port: int, friend: engines.Engine) -> AsyncIterator[Raw]:
    """Connected from this address."""
    async with own_engine() as engine:
        offer = await engine.propose()
        sock = socket.create_connection((LOCAL, port), source_address=(address, 0))
        sock.setblocking(False)
        async with await anyio.abc.SocketStream.from_socket(sock) as stream:
            yield Raw(stream, engine, friend, offer)


@contextlib.asynccontextmanager
async def a_server() -> AsyncIterator[tuple[int, engines.Engine]]:
    await engines.current(PATIENT)
    async with nothing_left() as engine, await aiordma.listen(LOCAL, config=PATIENT) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            yield listener.port, engine
            tasks.cancel_scope.cancel()


def being_set_up(engine: engines.Engine) -> list[Any]:
    return [group for group in engine.all_groups if group.setting_up and group.key.side == "server"]


async def the_true_one_works(port: int) -> None:
    async with await aiordma.connect(LOCAL, port, mode="rdma", config=PATIENT) as stream:
        await check_echo(stream, b"this is the true one")
        await check_end(stream)


@pytest.mark.parametrize("stalls", STALLS)
async def test_an_impostor_at_another_address(stalls: str) -> None:
    """It knows what the server calls the client."""
    async with a_server() as (port, engine):
        async with an_impostor(ELSEWHERE, port, engine) as raw:
            await STALLS[stalls](raw, engine.id_towards(LOCAL))
            await until(lambda: len(being_set_up(engine)) == 1)
            (group,) = being_set_up(engine)
            assert group.key.engine_id == engine.id_towards(LOCAL)
            await the_true_one_works(port)
            assert being_set_up(engine) == [group]


@pytest.mark.parametrize("stalls", STALLS)
async def test_an_impostor_at_the_client_s_address(stalls: str) -> None:
    """The client does not wait for its end."""
    async with a_server() as (port, engine):
        async with an_impostor(LOCAL, port, engine) as raw:
            await STALLS[stalls](raw, engine.id_towards(LOCAL))
            await until(lambda: len(being_set_up(engine)) == 1)
            (group,) = being_set_up(engine)
            await the_true_one_works(port)
            assert being_set_up(engine) == [group]


async def test_an_impostor_that_has_made_its_link() -> None:
    """The server names the impostor's link to the client, which has none; it gets one of its own."""
    async with a_server() as (port, engine):
        name = engine.id_towards(LOCAL)
        async with an_impostor(LOCAL, port, engine) as raw:
            offer = raw.offer
            offer.engine_id, offer.proposal = name, offer.proposal.changed(engine_id=name)
            pipe = await goes_through(raw, offer)
            await the_true_one_works(port)
            pipe.close()


async def goes_through(raw: Raw, offer: ClientContact) -> Any:
    await raw.say(offer.proposal)
    accept = await raw.hear()
    assert isinstance(accept, clc.Accept)
    await raw.say(await offer.accepted(accept))
    return await offer.established()


async def test_other_servers_do_not_learn_what_a_server_calls_its_client() -> None:
    await engines.current(PATIENT)
    async with own_engine() as one, own_engine() as other:
        names = {engine.id_towards(host) for engine in (one, other) for host in ("10.0.0.1", "10.0.0.2")}
        assert len(names) == 4
        assert one.engine_id not in names
        assert one.id_towards("10.0.0.1") == one.id_towards("10.0.0.1")
        contact = await one.propose(peer="10.0.0.1:7000")
        assert contact.proposal.engine_id == one.id_towards("10.0.0.1")


async def test_connections_of_one_client_share_the_link_that_the_first_one_makes() -> None:
    async with a_server() as (port, engine):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(the_true_one_works, port)
        assert len(engine.all_groups) == 2
