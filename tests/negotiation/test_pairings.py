"""Who meets whom on one port: aiordma, plain TCP, ends without a device, and those who only seem to."""

from __future__ import annotations

import errno
import logging
import socket
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from aiordma.config import Config
from aiordma.errors import Code, CompletionError, LinkError, NegotiationError
from aiordma.links import engine as links_engine
from aiordma.negotiation import peer_cache
from aiordma.negotiation.connect import connect_and_negotiate
from aiordma.negotiation.options import ConnectOptions
from aiordma.proto.clc import Proposal
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from aiordma.verbs.softlib import Shortage
from tests.health import until
from tests.tuned import tuned
from tests.virtual import in_virtual_time

from .fake import ClientContact, Engine, Trouble
from .serving import LOCAL, check_echo, echo, echo_plain, plain_server, serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiordma.streams.stream import RdmaStream

pytestmark = pytest.mark.anyio

# ---- aiordma and aiordma


async def test_another_kind_is_an_error_at_both_ends_and_no_fallback(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as listener:
        with pytest.raises(NegotiationError) as caught:
            await connect_and_negotiate(LOCAL, listener.port, ConnectOptions.of(LOCAL), kind=2)
        assert caught.value.code == Code.WRONG_KIND
        assert caught.value.text == (
            "the two ends expect different kinds of connection: the client wants calls (aiordma.rpc), "
            "the server serves streams (aiordma.connect, aiordma.listen)"
        )
        await until(lambda: listener.statistics().failed == 1)
        assert caplog.text.count(caught.value.text) == 1
        assert caplog.text.count("different kinds") == 1
        async with await connect(LOCAL, listener.port) as stream:
            assert stream.path == "rdma"


@pytest.mark.parametrize("first_contact", [True, False])
async def test_two_ends_that_can(engine: Engine, first_contact: bool) -> None:
    engine.first_contact = first_contact
    async with serving() as listener, await connect(LOCAL, listener.port) as stream:
        assert stream.path == "rdma"
        assert stream.fallback_reason is None
        assert stream.extra(SocketAttribute.remote_address) == (LOCAL, listener.port)
        await check_echo(stream)
        assert listener.statistics().rdma == 1


async def test_both_ends_tell_path_and_addresses(engine: Engine) -> None:
    async with await listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            accepted: list[RdmaStream] = []

            async def accept() -> None:
                accepted.append(await listener.accept())

            tasks.start_soon(accept)
            client = await connect(LOCAL, listener.port)
        async with client, accepted[0] as server:
            assert (client.path, server.path) == ("rdma", "rdma")
            for mine, theirs in (("local", "remote"), ("remote", "local")):
                assert client.extra(getattr(SocketAttribute, f"{mine}_address")) == server.extra(
                    getattr(SocketAttribute, f"{theirs}_address")
                )


async def test_neither_end_has_a_device(no_engine: None) -> None:
    async with serving() as listener, await connect(LOCAL, listener.port) as stream:
        assert stream.path == "tcp"
        assert stream.fallback_reason is not None
        assert stream.fallback_reason.code == Code.NO_DEVICE
        await check_echo(stream)


async def test_server_declines(engine: Engine) -> None:
    """The server has no device: it says so, and the same connection carries the stream."""

    async def refuse() -> None:
        raise NegotiationError(Code.NO_DEVICE, "none here")

    engine.trouble = Trouble(answer=refuse)
    reasons = []

    async def handler(stream: RdmaStream) -> None:
        reasons.append(stream.fallback_reason)
        await echo(stream)

    async with serving(handler) as listener:
        for _ in range(2):
            async with await connect(LOCAL, listener.port) as stream:
                assert stream.path == "tcp"
                assert stream.fallback_reason is not None
                assert stream.fallback_reason.peer == Code.NO_DEVICE
                assert stream.fallback_reason.local == Code.PEER_DECLINED
                await check_echo(stream)
        assert [r.code for r in reasons if r] == [Code.NO_DEVICE] * 2
        assert listener.statistics().accepted == 2


async def test_a_server_that_declines_for_what_the_client_lacks(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw the client's QP fail, and the client alone knows why. By rare timing, the reason was lost."""

    async def fail() -> None:
        raise NegotiationError(Code.DEVICE_FAILURE, "ibv_modify_qp")

    engine.trouble = Trouble(answer=fail)
    lacked = Shortage("this process has no file descriptors left", errno.EMFILE)
    monkeypatch.setattr(ClientContact, "shortage", lambda _contact: lacked)
    async with serving() as listener:
        async with await connect(LOCAL, listener.port) as stream:
            reason = stream.fallback_reason
            assert reason is not None
            assert (reason.local, reason.peer) == (Code.PEER_DECLINED, Code.DEVICE_FAILURE)
            assert reason.text.endswith(lacked.text)
            await check_echo(stream)
        with pytest.raises(NegotiationError, match=lacked.text):
            await connect(LOCAL, listener.port, mode="rdma")


async def test_client_declines_after_the_accept(engine: Engine) -> None:
    async def refuse() -> None:
        raise NegotiationError(Code.OUT_OF_MEMORY, "no room")

    engine.trouble = Trouble(accepted=refuse)
    reasons = []

    async def handler(stream: RdmaStream) -> None:
        reasons.append(stream.fallback_reason)
        await echo(stream)

    async with serving(handler) as listener, await connect(LOCAL, listener.port) as stream:
        assert stream.fallback_reason is not None
        assert stream.fallback_reason.local == Code.OUT_OF_MEMORY
        await check_echo(stream)
    assert [r.peer for r in reasons if r] == [Code.OUT_OF_MEMORY]


@pytest.mark.parametrize("mode", ["auto", "rdma"])
@pytest.mark.parametrize(
    "failure", [LinkError("no Confirm Link came"), CompletionError(12), NegotiationError(Code.OUT_OF_SYNC)]
)
@pytest.mark.parametrize("step", ["established", "confirmed"])
@in_virtual_time
async def test_trouble_after_agreement_is_an_error_on_both_ends_or_tcp_on_both(
    engine: Engine, mode: str, failure: Exception, step: str
) -> None:
    async def fail() -> None:
        raise failure

    engine.trouble = Trouble(**{step: fail})
    ended: list[bytes] = []

    async def watch_tcp(stream: RdmaStream) -> None:
        """The server's end may be up already; then the end of the TCP connection tells it."""
        if stream.path == "tcp":
            await echo(stream)
            return
        async with stream:
            sock = stream._pipe._sock  # type: ignore[attr-defined]
            await anyio.wait_readable(sock)
            ended.append(sock.recv(1))

    # A client whose link failed waits for the server's word.
    soon = tuned(Config.from_env(negotiate_timeout_ms=700), link_timeout_ms=300)
    async with serving(watch_tcp, mode=mode) as listener:
        try:
            stream = await connect(LOCAL, listener.port, mode=mode, config=soon)  # type: ignore[arg-type]
        except NegotiationError:
            with anyio.fail_after(5):
                await until(lambda: bool(listener.statistics().failed or ended))
            assert ended in ([], [b""])
            assert listener.statistics().tcp == 0
        else:
            # The server could still decline, so both agree on TCP.
            assert (mode, step) == ("auto", "confirmed")
            assert isinstance(failure, NegotiationError)
            async with stream:
                assert stream.path == "tcp"
                await check_echo(stream)


async def test_server_dies_after_its_accept(engine: Engine) -> None:
    """The client waits for the link; the end of the TCP connection ends the wait."""

    async def die() -> None:
        raise LinkError("gone")

    async def wait_for_ever() -> None:
        await anyio.sleep_forever()

    engine.trouble = Trouble(confirmed=die, established=wait_for_ever)
    async with serving() as listener:
        with anyio.fail_after(5), pytest.raises(NegotiationError):
            await connect(LOCAL, listener.port)


@pytest.mark.parametrize("mode", ["tcp", "auto"])
async def test_server_switched_to_tcp_still_declines(engine: Engine, mode: str) -> None:
    async with serving(mode="tcp") as listener:
        async with await connect(LOCAL, listener.port, mode=mode) as stream:  # type: ignore[arg-type]
            assert stream.fallback_reason is not None
            assert stream.fallback_reason.code == Code.DISABLED
            await check_echo(stream)
        assert engine.proposals == (mode == "auto")


@pytest.mark.parametrize("where", ["client", "server"])
async def test_mode_rdma_fails_with_the_reason(
    engine: Engine, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def current(config: Config) -> Engine:
        nonlocal calls
        calls += 1
        if where == "client" or calls == 3:  # the listener, the client, the server
            raise NegotiationError(Code.NO_SOFT_DEVICE, "not loaded")
        return engine

    monkeypatch.setattr(links_engine, "current", current)
    async with serving() as listener:
        with pytest.raises(
            NegotiationError, match="not loaded" if where == "client" else "declined"
        ) as caught:
            await connect(LOCAL, listener.port, mode="rdma")
        assert isinstance(caught.value, OSError)
        assert caught.value.code == Code.NO_SOFT_DEVICE


async def test_config_brings_the_mode(engine: Engine) -> None:
    async with serving() as listener:
        async with await connect(LOCAL, listener.port, config=Config(mode="tcp")) as stream:
            assert stream.path == "tcp"
        async with await connect(LOCAL, listener.port, config=Config(mode="tcp"), mode="rdma") as stream:
            assert stream.path == "rdma"


async def test_device_none_is_tcp() -> None:
    config = Config(device="none")
    async with serving(config=config) as listener:
        async with await connect(LOCAL, listener.port, config=config) as stream:
            assert stream.fallback_reason is not None
            assert stream.fallback_reason.code == Code.DISABLED


# ---- plain clients


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n", b"x", b"\xe2", b"\xe2\xd4\xc3", b"\xe2\xd4\xc3\xd9"]
)
async def test_plain_client_is_served_and_no_byte_is_lost(engine: Engine, first: bytes) -> None:
    config = Config(negotiate_timeout_ms=50)
    async with serving(config=config) as listener, await anyio.connect_tcp(LOCAL, listener.port) as client:
        await client.send(first)
        got = b""
        with anyio.fail_after(5):
            while len(got) < len(first):
                got += await client.receive()
        assert got == first
        await client.send(b"more")
        assert await client.receive() == b"more"
        assert listener.statistics().tcp == 1


async def test_plain_client_that_finishes_at_once(engine: Engine) -> None:
    """Even with the beginning of an eye catcher: nothing more can come."""
    for first in (b"", b"\xe2\xd4"):
        async with serving() as listener, await anyio.connect_tcp(LOCAL, listener.port) as client:
            if first:
                await client.send(first)
            await client.send_eof()
            with anyio.fail_after(5):
                if first:
                    assert await client.receive() == first
                with pytest.raises(anyio.EndOfStream):
                    await client.receive()


async def test_server_that_speaks_first(engine: Engine) -> None:
    async def greet(stream: RdmaStream) -> None:
        async with stream:
            await stream.send(b"220 ready\r\n")
            assert await stream.receive() == b"QUIT\r\n"

    async with serving(greet, config=Config(server_first_wait_ms=10)) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:
            with anyio.fail_after(5):
                assert await client.receive() == b"220 ready\r\n"
            await client.send(b"QUIT\r\n")
            with pytest.raises(anyio.EndOfStream):
                await client.receive()


@pytest.mark.parametrize("greeting", [b"", b"220 ready\r\n"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_late_proposal_never_reaches_the_application(
    engine: Engine, greeting: bytes, at_once: bool
) -> None:
    """A client so slow that it was taken for a silent plain one."""
    got = []
    proposal = (await engine.propose()).proposal.encode()
    engine.offers.clear()

    async def handler(stream: RdmaStream) -> None:
        async with stream:
            if greeting:
                await stream.send(greeting)
            got.append(b"".join([part async for part in stream]))

    async with serving(handler, config=Config(server_first_wait_ms=0)) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:
            with anyio.fail_after(5):
                await until(lambda: bool(listener.statistics().tcp))
                if greeting:
                    assert await client.receive() == greeting
                for part in [proposal + b"real"] if at_once else [proposal[:5], proposal[5:], b"re", b"al"]:
                    await client.send(part)
                    await anyio.wait_all_tasks_blocked()
                await client.send_eof()
                if not greeting:
                    answer = await client.receive()
                    assert answer.startswith(b"\xe2\xd4\xc3\xd9\x04")
                with pytest.raises(anyio.EndOfStream):
                    await client.receive()
    assert got == [b"real"]


async def test_mode_rdma_turns_plain_clients_away(engine: Engine) -> None:
    async with serving(mode="rdma") as listener, await anyio.connect_tcp(LOCAL, listener.port) as client:
        await client.send(b"hello")
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await client.receive()


async def test_mode_rdma_waits_for_a_silent_client(engine: Engine) -> None:
    """Nobody can take it for a plain one who speaks later, so it has the time of a message to begin."""
    proposal = (await engine.propose()).proposal.encode()
    engine.offers.clear()
    async with serving(mode="rdma", config=Config(server_first_wait_ms=0)) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:
            await until(lambda: bool(listener.statistics().accepted))
            await anyio.wait_all_tasks_blocked()
            await client.send(proposal)
            with anyio.fail_after(5):
                answer = await client.receive()
            assert answer.startswith(b"\xe2\xd4\xc3\xd9\x02")


# ---- plain servers


async def test_plain_server_that_waits_for_a_request_line(engine: Engine) -> None:
    """It never answers the Proposal. Its application sees at most a connection that says nothing sensible."""
    seen: list[bytes] = []

    async def line_server(stream: SocketStream) -> None:
        got = b""
        try:
            while not got.endswith(b"\n"):
                got += await stream.receive()
            await stream.send(b"answer to " + got)
        finally:
            seen.append(got)

    async with plain_server(line_server) as port:
        for attempt in range(3):
            async with await connect(LOCAL, port, config=Config(head_start_ms=10)) as stream:
                assert stream.path == "tcp"
                assert stream.fallback_reason is not None
                assert stream.fallback_reason.code == Code.PLAIN_TCP_PEER
                await stream.send(b"question\n")
                assert await stream.receive() == b"answer to question\n"
            assert engine.proposals == 1, attempt
    assert seen.count(b"question\n") == 3
    assert len(seen) == 4


async def close_at_once(stream: SocketStream) -> None:
    await stream.receive()


async def say_bad_request(stream: SocketStream) -> None:
    request = await stream.receive()
    while request != b"question":
        await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return
    await stream.send(b"answer")


async def greet_first(stream: SocketStream) -> None:
    await stream.send(b"220 ready\r\n")
    await stream.receive()
    await stream.send(b"500 what?\r\n")


async def fake_accept(stream: SocketStream) -> None:
    """An Accept that anybody could have sent."""
    proposal = await stream.receive()
    if proposal.startswith(b"\xe2\xd4\xc3\xd9"):
        from .fake import ServerContact

        offer = ServerContact(Engine(), Proposal(engine_id=bytes(16)))
        await stream.send(offer.accept.encode())
        await stream.receive()


@pytest.mark.parametrize(
    "handler",
    [close_at_once, say_bad_request, greet_first, echo_plain, fake_accept],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("mode", ["auto", "rdma"])
async def test_plain_server_that_reacts(
    engine: Engine, handler: Callable[[SocketStream], Awaitable[object]], mode: str
) -> None:
    async with plain_server(handler) as port:
        for _ in range(2):
            if mode == "rdma":
                with pytest.raises(NegotiationError) as caught:
                    await connect(LOCAL, port, mode="rdma")
                assert caught.value.code == Code.PLAIN_TCP_PEER
            else:
                async with await connect(LOCAL, port) as stream:
                    assert stream.path == "tcp"
                    if handler is echo_plain:
                        await check_echo(stream)
                    elif handler is greet_first:
                        assert await stream.receive() == b"220 ready\r\n"
                    elif handler is say_bad_request:
                        await stream.send(b"question")
                        assert await stream.receive() == b"answer"
        assert engine.proposals == (2 if mode == "rdma" else 1)


async def test_plain_peers_are_asked_again_after_a_while(engine: Engine) -> None:
    async with plain_server(echo_plain) as port:
        for _ in range(2):
            async with await connect(LOCAL, port, config=Config(plain_peer_memory_ms=0)) as stream:
                await check_echo(stream)
    assert engine.proposals == 2


async def test_a_thousand_connections_ask_an_unknown_peer_once(engine: Engine) -> None:
    async with plain_server(echo_plain) as port, anyio.create_task_group() as tasks:

        async def one() -> None:
            async with await connect(LOCAL, port) as stream:
                await stream.send(b"x")
                assert await stream.receive() == b"x"

        for _ in range(100):
            tasks.start_soon(one)
    assert engine.proposals == 1


async def test_server_with_room_for_one_connection_only(engine: Engine) -> None:
    """The second connection is refused, so the first one's answer decides."""
    with socket.create_server((LOCAL, 0), backlog=0) as listening:
        port = listening.getsockname()[1]
        listening.setblocking(False)
        config = Config(head_start_ms=1)

        async def answer_late() -> None:
            await anyio.wait_readable(listening)
            sock, _ = listening.accept()
            listening.close()
            with sock:
                await anyio.sleep(0.05)
                sock.send(b"late garbage")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_late)
            with anyio.fail_after(5), pytest.raises(ConnectionRefusedError):
                await connect(LOCAL, port, config=config)


async def test_slow_answer_of_a_known_peer_is_awaited(engine: Engine) -> None:
    """Only an unknown peer gets a plain connection beside."""
    async with serving() as listener:
        async with await connect(LOCAL, listener.port) as stream:
            assert stream.path == "rdma"

        async def think() -> None:
            await anyio.sleep(0.05)

        engine.trouble = Trouble(answer=think)
        async with await connect(LOCAL, listener.port, config=Config(head_start_ms=0)) as stream:
            assert stream.path == "rdma"
        assert listener.statistics().accepted == 2


async def test_paths_are_logged_once_per_peer(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiordma.clc")
    async with serving() as listener:
        for _ in range(3):
            async with await connect(LOCAL, listener.port):
                pass
    assert caplog.messages.count(f"server {LOCAL}:{listener.port}: RDMA") == 1
    assert caplog.messages.count(f"client {LOCAL}: RDMA") == 1
    caplog.clear()
    async with plain_server(echo_plain) as port:
        for _ in range(3):
            async with await connect(LOCAL, port):
                pass
        lines = [m for m in caplog.messages if str(port) in m]
        assert len(lines) == 1
        assert "plain TCP" in lines[0]


def test_tables_of_peers_are_bounded() -> None:
    for n in range(10_000):
        peer_cache.remember_clc(n)
        peer_cache.announce("client", str(n), "RDMA", None)
    assert len(peer_cache._known) == len(peer_cache._announced) == 4096
    assert peer_cache.is_known(9_999)
    assert not peer_cache.is_known(1)
