"""Claims that are refused, lost, or reach another server: an error with the reason, and nothing is left."""

from __future__ import annotations

import contextlib
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import CompletionError, LinkError, RemoteProtocolError
from aiordma.links import engine as engines
from aiordma.proto import clc, clcstream, llcown
from tests.health import check_echo, check_end, nothing_left, until
from tests.negotiation.serving import serving
from tests.processes import process
from tests.roles import LOCAL, echo
from tests.tuned import tuned
from tests.world import DEVICE

from .known import Known, forbid_asking, known_peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

pytestmark = pytest.mark.anyio
SOFT = Config(device=DEVICE)
ECHO = "tests.roles:echo_server"


async def broken(stream: aiordma.RdmaStream) -> str:
    """The reason why a stream is broken; it breaks while something waits in it."""
    async with stream:
        with anyio.fail_after(20), pytest.raises(anyio.BrokenResourceError) as caught:
            await stream.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(b"x")
    assert isinstance(caught.value.__cause__, LinkError | CompletionError)
    return str(caught.value.__cause__)


@asynccontextmanager
async def listening(port: int = 0) -> AsyncIterator[aiordma.RdmaListener]:
    """A listener that the test may close."""

    async def serve() -> None:
        with contextlib.suppress(anyio.ClosedResourceError):
            await listener.serve(echo, tasks)

    async with await aiordma.listen(LOCAL, port, config=SOFT) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        yield listener
        tasks.cancel_scope.cancel()


@contextlib.contextmanager
def uninformed(known: Known) -> Iterator[None]:
    """The client does not learn that its grants have ended, and may not negotiate in full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(known.holder), "forget", lambda self, service: None)
        forbid_asking(patch, known.engine)
        yield
    for service in list(known.holder._unused):
        known.holder.forget(service)


async def works(known: Known) -> None:
    async with await known.connect() as stream:
        await check_echo(stream, b"and on it goes" * 100)
        await check_end(stream)


async def test_a_forged_claim() -> None:
    """The secret of the link is missing: the server keeps the ring for the client that has it."""
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        group = known.client
        secret, group.secret = group.secret, b"guessed"
        stream = await known.connect()
        group.secret = secret
        assert "the peer broke the negotiation protocol" in await broken(stream)
        assert listener.statistics().failed == 1
        await until(lambda: not any(count for _, count in known.counts()), known.counts)
        await works(known)


async def test_a_grant_that_the_server_does_not_know() -> None:
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        tickets = next(iter(known.holder._unused.values()))
        tickets.append(tickets.pop().changed(number=4711))
        assert "does not know the ticket" in await broken(await known.connect())
        await works(known)


async def test_a_claim_is_good_once() -> None:
    """A copy of a claim, on another client's TCP connection, is declined."""
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        seen: list[bytes] = []
        encode = clc.Claim.encode

        def record(claim: clc.Claim) -> bytes:
            seen.append(encode(claim))
            return seen[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clc.Claim, "encode", record)
            stream = await known.connect()
        async with stream:
            await check_echo(stream, b"first")
            async with await anyio.connect_tcp(LOCAL, listener.port) as thief:
                await thief.send(seen[0])
                splitter = clcstream.Splitter()
                (answer,) = splitter.feed(await thief.receive())
                assert isinstance(answer, clc.Decline)
                assert answer.diagnosis == aiordma.Code.TICKET_UNKNOWN
                with pytest.raises(anyio.EndOfStream):
                    await thief.receive()
            await check_echo(stream, b"second")
            await check_end(stream)


async def test_another_listener_on_the_same_port() -> None:
    """In the same process, on the same link: still not the listener that granted the ring."""
    async with listening() as first, known_peer(first.port) as known:
        with uninformed(known):
            await first.aclose()
            async with listening(first.port):
                assert "does not know the ticket" in await broken(await known.connect())
        async with listening(first.port):
            await works(known)


async def test_a_listener_that_closes_takes_its_grants_back() -> None:
    async with listening() as listener, known_peer(listener.port) as known:
        await listener.aclose()
        await until(lambda: not any(count for _, count in known.counts()), known.counts)
        assert not known.engine.early_servers
        with pytest.raises(ConnectionRefusedError):
            await known.connect()


async def test_a_connection_that_the_closing_listener_never_accepted() -> None:
    """The kernel had completed the TCP connection; now it resets it."""
    async with listening() as listener, known_peer(listener.port) as known:
        stream = await known.connect()
        stream.send_nowait(b"to nobody")
        await listener.aclose()
        assert "TCP connection" in await broken(stream)


async def swallow(stream: anyio.abc.SocketStream) -> None:
    await stream.receive()
    await anyio.sleep_forever()


async def send_back(stream: anyio.abc.SocketStream) -> None:
    await stream.send(await stream.receive())
    await anyio.sleep_forever()


async def close(stream: anyio.abc.SocketStream) -> None:
    await stream.receive()


async def talk(stream: anyio.abc.SocketStream) -> None:
    await stream.send(b"220 mail.example ESMTP\r\n")
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (swallow, f"did not take the connection within {SOFT.negotiate_timeout_ms} ms"),
        (send_back, "unexpected bytes"),
        (close, "TCP connection"),
        (talk, "unexpected bytes"),
    ],
    ids=["swallows", "echoes", "closes", "talks first"],
)
async def test_a_plain_server_has_taken_the_port(
    behave: Callable[[anyio.abc.SocketStream], Awaitable[None]], words: str
) -> None:
    """The application's stream is broken; the next one is negotiated from the beginning."""

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await behave(stream)

    async with listening() as listener, known_peer(listener.port) as known:
        with uninformed(known):
            await listener.aclose()
            plain = await anyio.create_tcp_listener(local_host=LOCAL, local_port=listener.port)
            async with plain, anyio.create_task_group() as tasks:
                stream = await known.connect()
                tasks.start_soon(plain.serve, handle)
                if behave is swallow:
                    (early_open,) = known.holder.early_opens.values()
                    early_open.look(early_open.deadline - 0.001)
                    assert stream._pipe.error is None
                    early_open.look(early_open.deadline)
                assert words in await broken(stream)
                tasks.cancel_scope.cancel()


async def test_the_tcp_connection_breaks_while_the_server_takes_it() -> None:
    """In any order of events both ends agree whether the rings are free (nothing is left)."""
    for turns in range(12):
        async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
            stream = await known.connect()
            *_, early_open = known.holder.early_opens.values()  # one before it may have no answer yet
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            if stream._pipe.error is None:
                early_open._member.lose_tcp("in this test")
            assert "in this test" in await broken(stream)
            await works(known)


async def test_a_server_that_died_and_came_again() -> None:
    """Streams may break; after that everything works as with a new server."""
    async with nothing_left() as engine:
        with process(ECHO) as server:
            port = await server.heard()
            async with known_peer(port) as known:
                server.kill()
                streams = []
                for _ in range(3):
                    try:
                        streams.append(await known.connect())
                    except OSError:
                        pass
                for stream in streams:
                    async with stream:
                        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                            await stream.receive()
                await until(lambda: not engine.all_groups, known.counts)
        async with await aiordma.listen(LOCAL, port, config=SOFT) as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, echo)
                for _ in range(4):
                    await works(known)
                tasks.cancel_scope.cancel()


async def test_unused_grants_are_returned_after_a_while() -> None:
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        now = known.engine.waker.now()
        known.holder.look(now + 9.9)
        assert len(known.holder)
        known.holder.look(now + 10.1)
        assert not len(known.holder)
        await until(lambda: not len(known.granter), known.counts)
        assert known.granter.ring_bytes == 0
        # A client that returns begins again: its first connection in full brings the next grant.
        await works(known)
        await known.has_grant()


async def test_an_idle_link_is_closed_with_its_grants() -> None:
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        await until(lambda: not any(g.members for g in known.engine.all_groups), known.counts)
        known.engine.retire_idle(known.engine.waker.now() + 61)
        assert not known.engine.early_servers
        await until(lambda: not known.engine.all_groups, known.counts)
        await works(known)


async def test_no_grants_when_memory_is_short() -> None:
    """Half of the limit stays for connections."""
    config = tuned(device=DEVICE, memory_limit_bytes=4 << 20, slab_bytes=1 << 20, ring_bytes=256 << 10)
    engine = await engines.current(config)
    async with nothing_left(), serving(echo, config=config) as listener:
        known = Known(engine, listener.port)
        streams = [await known.connect()]
        held = [group.rings.allocate(1 << 20) for group in engine.all_groups]
        streams += [await known.connect() for _ in range(3)]
        assert not len(known.granter)
        for block in held:
            block.free()
        for stream in streams:
            await check_echo(stream, b"enough for all")
            await check_end(stream)
            await stream.aclose()


async def test_no_grants_when_the_listener_is_full() -> None:
    async with serving(echo, config=SOFT, max_pending=50) as listener, known_peer(listener.port) as known:
        assert len(known.granter) == 1
        listener._waiting += 48  # besides the connection itself
        await works(known)
        assert len(known.granter) == 1
        listener._waiting += 1
        await works(known)
        assert not len(known.granter)
        listener._waiting -= 49
        await works(known)


TICKET = llcown.Ticket(number=77, service=1, token=3, rkey=4, ring_addr=5, ring_bytes=16384)


async def test_messages_that_break_the_rules() -> None:
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        (service,) = known.holder._unused
        good = llcown.Ticket(number=77, service=service, token=3, rkey=4, ring_addr=5, ring_bytes=16384)
        known.holder.on_message(good)
        with pytest.raises(RemoteProtocolError, match="came twice"):
            known.holder.on_message(good)
        with pytest.raises(RemoteProtocolError, match="gave a ticket back"):
            known.holder.on_message(llcown.TicketBack(number=1, service=service))
        tickets = known.holder._unused[service]
        tickets.pop()
        for number in range(100, 100 + known.engine.config.tickets - len(tickets)):
            known.holder.on_message(good.changed(number=number))
        with pytest.raises(RemoteProtocolError, match="more tickets than"):
            known.holder.on_message(good)
        while tickets[-1].number >= 100:
            tickets.pop()
        for message in (
            good,
            llcown.TicketBack(service=service),
            llcown.TicketBack(number=1, service=1, response=True),
        ):
            with pytest.raises(RemoteProtocolError, match="as only a server may"):
                known.granter.on_message(message)
        # An answer without a question, and a grant of an unknown listener, do no harm.
        known.holder.on_message(llcown.TicketBack(number=12345, service=service, response=True))
        known.holder.on_message(TICKET)
        known.granter.on_message(llcown.TicketBack(number=999, service=service))
        await works(known)


async def test_a_client_that_speaks_like_a_server_loses_its_link() -> None:
    """The link is broken with the reason, and the listener goes on."""
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        async with await known.connect() as stream:
            await check_echo(stream, b"x")
            known.client.queue_llc(TICKET.encode())
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()
        await until(lambda: not known.engine.all_groups, known.counts)
        await works(known)


async def test_the_claim_finds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The TCP connection is gone before the claim: the grant is returned unused."""
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(False)
            one.shutdown(socket.SHUT_WR)
            before = len(known.holder)
            service = next(iter(known.holder._unused))
            assert known.holder.open(service, one) is None
            assert len(known.holder) == before - 1
        await until(lambda: len(known.granter) == 0, known.counts)
        await works(known)
