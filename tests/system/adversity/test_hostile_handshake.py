"""Clients that break the rules of the negotiation: each loses its connection, nobody else anything."""

from __future__ import annotations

import contextlib
import secrets
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import aiordma
from aiordma import wake
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.links.devices import Devices
from aiordma.links.first_device import look_around
from aiordma.proto import clc, clcstream
from aiordma.proto.failover import MAGIC
from aiordma.proto.proof import accept_proof
from tests.health import check_echo, check_end, nothing_left
from tests.processes import process
from tests.roles import LOCAL, echo, say_statistics
from tests.tuned import tuned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiordma.links.contact import ClientContact
    from tests.processes import Process
    from tests.program import Control

pytestmark = pytest.mark.anyio

ECHO = "tests.roles:echo_server"
SERVERS = "tests.system.adversity.test_hostile_handshake:servers"


class Raw:
    """A client that negotiates by hand, with an engine of its own.

    It has made its offer before it connects: to a server that has to wait for it, it would be a plain client.
    """

    def __init__(
        self,
        stream: anyio.abc.SocketStream,
        engine: engines.Engine,
        friend: engines.Engine,
        offer: ClientContact,
    ) -> None:
        self.stream, self.engine, self.friend, self.offer = stream, engine, friend, offer
        self._splitter = clcstream.Splitter()

    async def say(self, message: Any) -> None:
        await self.stream.send(message.encode())

    async def hear(self, data: bytes = b"") -> Any:
        """The server's next message. :param data: the beginning of it."""
        messages = self._splitter.feed(data)
        while not messages:
            messages = self._splitter.feed(await self.stream.receive())
        return messages[0]

    async def accepted(self, **proposed: Any) -> tuple[Any, clc.Accept]:
        """Propose with the changes and get the Accept."""
        await self.say(self.offer.proposal.changed(**proposed))
        accept = await self.hear()
        assert isinstance(accept, clc.Accept), accept
        return self.offer, accept

    async def refused(self) -> None:
        """The server declines, closes, or goes on without a link that does not come up."""
        try:
            data = await self.stream.receive()
            if data.startswith(MAGIC):
                return
            answer = await self.hear(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return
        assert isinstance(answer, clc.Decline), answer

    async def confirms(self, **changes: Any) -> None:
        """A proper Confirm but for the changes; the server does not let that pass."""
        offer, accept = await self.accepted()
        try:
            await self.say((await offer.accepted(accept)).changed(**changes))
            await self.refused()
        finally:
            offer.abandon()

    async def lies_about_its_ring(self, **changes: Any) -> None:
        """The link is proper and comes up; what the server writes there does not arrive."""
        offer, accept = await self.accepted()
        try:
            await self.say((await offer.accepted(accept)).changed(**changes))
            pipe = await offer.established()
            pipe.try_send(b"x" * 1000)
            pipe.spin_readable()
            waiter = self.engine.waker.new_waiter()
            pipe.on_readable = waiter.set
            while pipe.error is None:
                await waiter.wait()
                waiter.clear()
            pipe.close()
        finally:
            offer.abandon()


async def leaves_after_the_proposal(raw: Raw) -> None:
    await raw.say(raw.offer.proposal)


async def leaves_after_the_accept(raw: Raw) -> None:
    await raw.accepted()


async def is_silent_after_the_accept(raw: Raw) -> None:
    await raw.accepted()
    await raw.refused()


async def stops_in_the_middle_of_a_message(raw: Raw) -> None:
    await raw.stream.send(raw.offer.proposal.encode()[:30])
    await raw.refused()


async def answers_garbage(raw: Raw) -> None:
    await raw.accepted()
    await raw.stream.send(b"\x00" * 200)
    await raw.refused()


async def proposes_twice(raw: Raw) -> None:
    offer, _ = await raw.accepted()
    await raw.say(offer.proposal)
    await raw.refused()


async def answers_with_an_accept(raw: Raw) -> None:
    _, accept = await raw.accepted()
    await raw.say(accept)
    await raw.refused()


async def names_the_friends_qp(raw: Raw) -> None:
    (group,) = raw.friend.all_groups
    own = group.link.address
    await raw.confirms(qpn=own.qp_num, psn=own.psn, gid=own.gid)


async def pretends_to_be_the_friend(raw: Raw) -> None:
    """It knows what this server calls the friend, and the friend's QP number: who sees their packets does."""
    (group,) = raw.friend.all_groups
    friend_id = raw.friend.id_towards(LOCAL)
    offer, accept = await raw.accepted(engine_id=friend_id)
    assert not accept.first_contact
    confirm = clc.Confirm(
        first_contact=False, gid=accept.gid, qpn=group.link.parts.qp.number, psn=1, mtu=accept.mtu,
        rkey=0xBAD, rmb_addr=0xBAD0000, ring_bytes=16384, token=77, engine_id=friend_id,
        host_id=raw.friend.host_id, window=accept.window,
    )  # fmt: skip
    await raw.say(confirm)
    await raw.refused()
    offer.abandon()


#: Those in which the server waits for what does not come.
LATE = {"is silent after the accept", "stops in the middle of a message"}
ATTACKS: dict[str, Callable[[Raw], Awaitable[None]]] = {
    attack.__name__.replace("_", " "): attack
    for attack in (
        leaves_after_the_proposal,
        leaves_after_the_accept,
        is_silent_after_the_accept,
        stops_in_the_middle_of_a_message,
        answers_garbage,
        proposes_twice,
        answers_with_an_accept,
        names_the_friends_qp,
        pretends_to_be_the_friend,
    )
} | {
    "no such QP": lambda raw: raw.confirms(qpn=0xFFFFFF),
    "QP 0": lambda raw: raw.confirms(qpn=0),
    "no such GID": lambda raw: raw.confirms(gid=secrets.token_bytes(16)),
    "GID of zeros": lambda raw: raw.confirms(gid=bytes(16)),
    "another engine": lambda raw: raw.confirms(engine_id=secrets.token_bytes(16)),
    "another window": lambda raw: raw.confirms(window=2),
    "not a first contact": lambda raw: raw.confirms(first_contact=False),
    "not from aiordma": lambda raw: raw.confirms(engine_id=bytes(16)),
    "nonsense ring": lambda raw: raw.lies_about_its_ring(rmb_addr=0x1000),
    "ring at the end of memory": lambda raw: raw.lies_about_its_ring(rmb_addr=(1 << 64) - 8),
    "nonsense key": lambda raw: raw.lies_about_its_ring(rkey=0xFFFFFFFF),
    "ring of another index": lambda raw: raw.lies_about_its_ring(rmbe_index=255),
}


async def links_of(server: Process) -> list[dict[str, Any]]:
    server.say("statistics?")
    links: list[dict[str, Any]] = (await server.heard())["links"]
    return links


async def servers(control: Control) -> None:
    """Echo at two ports, which it says; one of them waits briefly for what its clients have to say."""
    async with (
        await aiordma.listen(LOCAL, 0, config=tuned()) as patient,
        await aiordma.listen(LOCAL, 0, config=tuned(negotiate_timeout_ms=300)) as impatient,
        anyio.create_task_group() as tasks,
    ):
        for listener in patient, impatient:
            tasks.start_soon(listener.serve, echo)
        control.say([patient.port, impatient.port])
        await say_statistics(control)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def own_engine() -> AsyncIterator[engines.Engine]:
    make = partial(engines.open_another, await anyio.to_thread.run_sync(look_around))
    engine = Devices(wake.current(), Config(), [Config().device], make).best()
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_attacks() -> None:
    """All of them on one engine, while a friend's stream stays open and works."""
    with process(SERVERS) as server:
        port, impatient = await server.heard()
        async with nothing_left() as friend, await aiordma.connect(LOCAL, port, mode="rdma") as stream:
            for name, attack in ATTACKS.items():
                async with own_engine() as engine:
                    attacked = impatient if name in LATE else port
                    offer = await engine.propose()
                    async with await anyio.connect_tcp(LOCAL, attacked) as sock:
                        try:
                            with anyio.fail_after(10):
                                await attack(Raw(sock, engine, friend, offer))
                        except BaseException as error:
                            error.add_note(f"attack: {name}")
                            raise
                await check_echo(stream)
                with anyio.fail_after(10):
                    while [link["connections"] for link in await links_of(server)] != [1]:
                        pass
                async with await aiordma.connect(LOCAL, port, mode="rdma") as another:
                    await check_echo(another, b"still there")
                    await check_end(another)
            await check_end(stream)


async def impostor(listening: socket.socket, answer: Callable[[clc.Proposal], clc.Accept]) -> None:
    """A server that answers one Proposal with what it likes, and waits for the client to go."""
    await anyio.wait_readable(listening)
    sock, _ = listening.accept()
    async with await anyio.abc.SocketStream.from_socket(sock) as stream:
        splitter = clcstream.Splitter()
        messages: list[Any] = []
        while not messages:
            messages = splitter.feed(await stream.receive())
        await stream.send(answer(messages[0]).encode())
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await stream.receive()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("first_contact", [True, False])
async def test_a_server_pretends_to_be_another(first_contact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the other's engine id and QP, as every client of that one does: its client's streams to the
    other go on, and it gets none of its own."""
    with process(ECHO) as server, socket.create_server((LOCAL, 0)) as listening:
        listening.setblocking(False)
        port = await server.heard()
        async with nothing_left() as engine, await aiordma.connect(LOCAL, port, mode="rdma") as stream:
            (group,) = engine.all_groups

            def answer(proposal: clc.Proposal) -> clc.Accept:
                return clc.Accept(
                    first_contact=first_contact, gid=group.link.address.gid, qpn=group.link.peer_qpn, psn=1,
                    mtu=3, rkey=0xBAD, rmb_addr=0xBAD0000, ring_bytes=16384, token=77,
                    engine_id=group.key[0], host_id=engine.host_id, window=engine.config.window,
                    proof=accept_proof(proposal.nonce, group.key[0]),
                )  # fmt: skip

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(impostor, listening, answer)
                with monkeypatch.context() as soon:  # of the impostor nothing comes; others have their time
                    config = tuned(link_timeout_ms=300, negotiate_timeout_ms=2000)
                    soon.setattr(engine, "config", config)
                    with pytest.raises(aiordma.NegotiationError):
                        await aiordma.connect(LOCAL, listening.getsockname()[1], mode="rdma", config=config)
            await check_echo(stream)
            async with await aiordma.connect(LOCAL, port) as another:
                await check_echo(another, b"still there")
                await check_end(another)
            await check_end(stream)
