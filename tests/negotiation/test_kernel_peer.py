"""connect() and listen() with a peer that is a kernel's SMC-R: here a simulated one, on the software device.

The peer is made of ``proto``'s state machines and the data path only (tests/vm/smc/peer.py), as one that
shares nothing of ``links``. ``make test-smc`` has the kernel itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma import wake
from aiordma.admin.describe import Moment, describe_connection
from aiordma.compat.server import RdmaServer
from aiordma.errors import Code, FallbackReason, NegotiationError
from aiordma.links.smcr import peers
from aiordma.links.smcr.group import KernelGroup
from aiordma.links.smcr.rings import RingPlaces
from aiordma.negotiation import peer_cache, smc_option, sockops
from aiordma.negotiation.question import Answer, ask
from aiordma.negotiation.smc_map import PINNED_AT
from aiordma.observe import connections
from aiordma.proto.clc import Decline
from aiordma.proto.syn_option import SynOption
from aiordma.verbs.memory.budget import MemoryLimitError
from tests.health import until
from tests.kernel_option import Options, options
from tests.kernel_peer import CONFIG, Kernel, check, echo, engine, kernel
from tests.processes import PATIENCE
from tests.vm.smc.peer import Fallback

if TYPE_CHECKING:
    from aiordma.links.engine import Engine
    from aiordma.streams.stream import RdmaStream
    from tests.vm.smc.peer import Member

__all__ = ["engine", "kernel", "options"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]


async def to(kernel: Kernel) -> tuple[RdmaStream, RdmaStream, Member]:
    """A stream of connect(), and the kernel's end of it."""
    ours, (theirs, member) = await asyncio.gather(
        aiordma.connect(*kernel.address, config=CONFIG), kernel.accept()
    )
    return ours, theirs, member


ACCEPT, DECLINE = 2, 4
DATA = random.Random(1).randbytes(600_000)  # nine times the ring


@pytest.mark.usefixtures("options")
async def test_a_client_shares_a_link_and_every_byte_arrives(kernel: Kernel, engine: Engine) -> None:
    made = [await to(kernel) for _ in range(3)]
    for ours, _, _ in made:
        assert ours.path == "rdma"
        assert ours.smc_peer == "SMC-R v2.1 of aiordma"
    assert len(kernel.peer.links) == 1
    links = [row for row in engine.statistics()["links"] if row["connections"]]
    assert [(row["side"], row["state"], row["connections"]) for row in links] == [("client", "active", 3)]
    assert "(SMC-R v2.1 of aiordma)" in links[0]["peer"]
    rows = [describe_connection(entry, 0.0, Moment(0.0, 0)) for entry in connections.of_loop(wake.current())]
    assert [(row.path, row.mode) for row in rows if row is not None] == [("rdma", "SMC-R")] * 3
    echoing = [asyncio.ensure_future(echo(theirs)) for _, theirs, _ in made]
    await asyncio.gather(*(check(ours, DATA[i:]) for i, (ours, _, _) in enumerate(made)))
    await asyncio.gather(*echoing)
    for ours, theirs, member in made:
        await asyncio.gather(ours.aclose(), theirs.aclose())
        await member.done.wait()
    await until(lambda: not any(row["connections"] for row in engine.statistics()["links"]))
    assert kernel.peer.links[0].ended is None


@pytest.mark.usefixtures("options")
async def test_a_listener_serves_kernels(kernel: Kernel, engine: Engine) -> None:
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        for i in range(3):
            theirs, member = await kernel.connect(listener.port)
            ours = await listener.accept()
            assert (ours.path, ours.smc_peer) == ("rdma", "SMC-R v2.1 of aiordma")
            echoing = asyncio.ensure_future(echo(ours))
            await check(theirs, DATA[i:])
            await echoing
            await asyncio.gather(ours.aclose(), theirs.aclose())
            await member.done.wait()
        assert listener.statistics().rdma == 3
    assert len(kernel.peer.links) == 1
    await until(lambda: not any(row["connections"] for row in engine.statistics()["links"]))


@pytest.mark.usefixtures("options")
async def test_asyncio_streams_both_ways(kernel: Kernel) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("aiordma.smc_peer"))
        writer.write(await reader.read(100))
        await writer.drain()
        writer.close()

    seen: list[object] = []
    server = await aiordma.start_server(serve, "127.0.0.1", 0, config=CONFIG)
    assert isinstance(server, RdmaServer)
    async with server:
        theirs, _ = await kernel.connect(server.sockets[0].getsockname()[1])
        await theirs.send(b"to a server")
        assert await theirs.receive_exactly(11) == b"to a server"
        with pytest.raises(anyio.EndOfStream):
            await theirs.receive()
        await theirs.aclose()
    (reader, writer), (theirs, _) = await asyncio.gather(
        aiordma.open_connection(*kernel.address, config=CONFIG), kernel.accept()
    )
    seen.append(writer.get_extra_info("aiordma.smc_peer"))
    writer.write(b"to a client")
    assert await theirs.receive_exactly(11) == b"to a client"
    await theirs.send(b"back")
    await theirs.send_eof()
    assert await reader.read() == b"back"
    assert writer.get_extra_info("aiordma.path") == "rdma"
    writer.close()
    await writer.wait_closed()
    assert seen == ["SMC-R v2.1 of aiordma"] * 2


@pytest.mark.usefixtures("options")
async def test_an_abort_is_an_error_at_the_other_end(kernel: Kernel) -> None:
    ours, theirs, _ = await to(kernel)
    theirs.abort()
    with pytest.raises(anyio.BrokenResourceError):
        await ours.receive()
    await ours.aclose()
    ours, theirs, _ = await to(kernel)
    ours.abort()
    with pytest.raises(anyio.BrokenResourceError):
        await theirs.receive()


@pytest.mark.usefixtures("options")
async def test_a_reset_of_the_tcp_connection_is_the_end_of_the_peer(kernel: Kernel) -> None:
    """Its end is none: a kernel says it with its program's shutdown, while RDMA goes on."""
    ours, theirs, _ = await to(kernel)
    kernel.sockets[-1].shutdown(socket.SHUT_WR)
    await theirs.send(b"still here")
    assert await ours.receive() == b"still here"
    ours.abort()
    ours, _, _ = await to(kernel)
    sock = kernel.sockets[-1]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    with pytest.raises(anyio.BrokenResourceError):
        await ours.receive()
    ours.abort()


@pytest.mark.usefixtures("options")
async def test_a_deleted_link_ends_its_streams_and_the_next_has_another(kernel: Kernel) -> None:
    ours, _, _ = await to(kernel)
    link = kernel.peer.links[0]
    assert link.machine is not None
    link.machine.close()
    link.pump()
    with pytest.raises(anyio.BrokenResourceError):
        await ours.receive()
    link.end(ConnectionResetError("a test"))
    ours.abort()
    ours, theirs, _ = await to(kernel)
    await theirs.send(b"again")
    assert await ours.receive() == b"again"
    assert len(kernel.peer.links) == 2
    ours.abort()


@pytest.mark.usefixtures("options")
async def test_a_declined_client_goes_on_over_tcp(engine: Engine) -> None:
    other = Kernel(engine, b"ANOTHER-EID".ljust(32))
    connecting = asyncio.ensure_future(aiordma.connect(*other.address, config=CONFIG))
    with pytest.raises(Fallback) as fallback:
        await other.accept()
    async with await connecting as ours:
        assert ours.path == "tcp"
        assert ours.fallback_reason is not None
        assert ours.fallback_reason.peer == Code.NO_COMMON_EID
        assert ours.smc_peer is None
        await by_tcp(ours, fallback.value.socket)
    with pytest.raises(Fallback):
        await asyncio.gather(connect_strictly(other), other.accept())
    await other.close()


async def by_tcp(ours: RdmaStream, sock: socket.socket) -> None:
    """Nothing of the negotiation is among the bytes."""
    loop = asyncio.get_running_loop()
    await ours.send(b"by TCP")
    assert await loop.sock_recv(sock, 100) == b"by TCP"
    await loop.sock_sendall(sock, b"and back")
    assert await ours.receive() == b"and back"


async def connect_strictly(other: Kernel) -> None:
    with pytest.raises(NegotiationError) as refused:
        await aiordma.connect(*other.address, config=CONFIG, mode="rdma")
    assert refused.value.code == Code.NO_COMMON_EID


@pytest.mark.usefixtures("options")
async def test_a_listener_declines_and_serves_by_tcp(kernel: Kernel) -> None:
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG, max_negotiations=0) as listener:
        with pytest.raises(Fallback) as fallback:
            await kernel.connect(listener.port)
        async with await listener.accept() as ours:
            assert ours.path == "tcp"
            assert ours.fallback_reason is not None
            assert ours.fallback_reason.code == Code.LIMIT_REACHED
            await by_tcp(ours, fallback.value.socket)


async def test_a_plain_server_behind_an_echo_gets_plain_tcp(options: Options) -> None:
    """Something between the ends returns the option: the Proposal ends in the server's program, which then
    answers or closes. The stream has a connection of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(1)
        if first != b"h":
            writer.close()  # it does not understand CLC
            return
        writer.write(b"plain " + await reader.readexactly(4))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with aiordma.connect("127.0.0.1", port, config=CONFIG) as ours:
            assert ours.path == "tcp"
            await ours.send(b"hello")
            assert await ours.receive_exactly(10) == b"plain ello"
        options.lost = True  # nothing is known of the SYN-ACK: another connection, without the question
        async with aiordma.connect("127.0.0.1", port, config=CONFIG, mode="auto") as ours:
            await ours.send(b"hello")
            assert await ours.receive_exactly(10) == b"plain ello"


@pytest.mark.parametrize(
    ("what", "says"),
    [("lost", "what its SYN-ACK says of SMC-R is lost: "), ("full", "its SYN could not ask for SMC-R: ")],
)
async def test_a_question_that_fails_is_a_part_of_the_reason(
    options: Options, what: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server may be a kernel's SMC-R for all that. Each connection on TCP counts with it."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    setattr(options, what, True)
    before = connections.counts.fallbacks.copy()
    caplog.set_level("INFO", "aiordma.clc")
    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        for _ in range(2):
            async with aiordma.connect(*server.sockets[0].getsockname(), config=CONFIG) as ours:
                assert ours.path == "tcp"
                assert ours.fallback_reason is not None
                assert f"({says}" in ours.fallback_reason.text
                with pytest.raises(anyio.EndOfStream):
                    await ours.receive()
    counted = connections.counts.fallbacks - before
    assert sum(times for (*_, text), times in counted.items() if f"({says}" in text) == 2
    assert f"({says}" in caplog.text


@pytest.mark.usefixtures("options")
async def test_a_client_of_another_address_gets_a_link_of_its_own(kernel: Kernel) -> None:
    """It names the same port. It would have this end write to the other one's memory."""
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        await kernel.connect(listener.port)
        await kernel.connect(listener.port, "127.0.0.2")
        await kernel.connect(listener.port, "127.0.0.2")
        assert len(kernel.peer.links) == 2
        for _ in range(3):
            (await listener.accept()).abort()


@pytest.mark.usefixtures("options")
async def test_a_client_that_finds_no_device_behind_its_syn(engine: Engine) -> None:
    """It declines before anything is proposed."""
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        with socket.socket() as sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", listener.port))
            await loop.sock_sendall(sock, Decline(diagnosis=Code.NO_DEVICE, version=2).encode() + b"hello")
            async with await listener.accept() as ours:
                assert ours.path == "tcp"
                assert ours.fallback_reason is not None
                assert ours.fallback_reason.peer == Code.NO_DEVICE
                assert await ours.receive() == b"hello"
                await ours.send(b"by TCP")
                assert await loop.sock_recv(sock, 100) == b"by TCP"


@pytest.mark.usefixtures("options")
async def test_a_client_that_stalls_behind_the_accept_harms_nobody_else(
    kernel: Kernel, engine: Engine
) -> None:
    """It may write into the ring that it was offered, so nothing else gets that as long as its link lasts."""
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        theirs, _ = await kernel.connect(listener.port)
        ours = await listener.accept()
        (group,) = [each for each in engine.all_groups if isinstance(each, KernelGroup)]
        with socket.socket() as sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", listener.port))
            await loop.sock_sendall(sock, kernel.peer.port.proposal().encode())
            assert await loop.sock_recv(sock, 8)
            assert len(group.members) == 2
            (offered,) = [member.ring.address for member in group.members if member.connection is None]
        await until(lambda: len(group.members) == 1)
        assert listener.statistics().failed == 1
        more = [await kernel.connect(listener.port) for _ in range(3)]
        accepted = [await listener.accept() for _ in more]
        assert len(group.members) == 4
        assert offered not in {member.ring.address for member in group.members}
        await theirs.send(b"unharmed")
        assert await ours.receive() == b"unharmed"
        for stream in (ours, *accepted):
            stream.abort()


@pytest.mark.usefixtures("options")
async def test_first_contacts_that_stall_are_few(kernel: Kernel, engine: Engine) -> None:
    """Each has a queue pair and memory. Clients beyond them use TCP, and others are not kept out."""
    loop = asyncio.get_running_loop()

    async def propose(stack: contextlib.ExitStack, port: int) -> bytes:
        sock = stack.enter_context(socket.socket())
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, kernel.peer.port.proposal().encode())
        return await loop.sock_recv(sock, 4096)

    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        with contextlib.ExitStack() as stack:
            answers = [await propose(stack, listener.port) for _ in range(6)]
            assert [answer[4] for answer in answers] == [ACCEPT] * 4 + [DECLINE] * 2
            for _ in range(2):
                async with await listener.accept() as plain:
                    assert plain.path == "tcp"
            await kernel.connect(listener.port, "127.0.0.2")
            (await listener.accept()).abort()
        await until(lambda: sum(isinstance(each, KernelGroup) for each in engine.all_groups) == 1)


@pytest.mark.usefixtures("options")
async def test_a_link_that_has_lost_many_rings_gets_no_more_connections(
    kernel: Kernel, engine: Engine
) -> None:
    loop = asyncio.get_running_loop()
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        await kernel.connect(listener.port)
        first = await listener.accept()
        for number in range(1, 17):
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", listener.port))
                await loop.sock_sendall(sock, kernel.peer.port.proposal().encode())
                await loop.sock_recv(sock, 8)
            await until(lambda n=number: listener.statistics().failed == n)  # type: ignore[misc]
        await kernel.connect(listener.port)
        second = await listener.accept()
        assert len(kernel.peer.links) == 2
        assert sum(isinstance(each, KernelGroup) for each in engine.all_groups) == 2
        for stream in first, second:
            stream.abort()


@pytest.mark.usefixtures("options")
@pytest.mark.parametrize("cancelled_after", ["Proposal", "Confirm"])
async def test_a_cancelled_connect_leaves_nothing(
    kernel: Kernel, engine: Engine, cancelled_after: str
) -> None:
    before = len(engine.all_groups)
    connecting = asyncio.ensure_future(aiordma.connect(*kernel.address, config=CONFIG))
    sock, _ = await asyncio.get_running_loop().sock_accept(kernel.listener)
    with sock:
        sock.setblocking(False)
        if cancelled_after == "Confirm":
            accepting = asyncio.ensure_future(kernel.peer.accept(sock))
            with anyio.fail_after(PATIENCE):
                # In each turn: the peer must not get to its answer.
                while len(engine.all_groups) == before:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        else:
            accepting = None
            assert await asyncio.get_running_loop().sock_recv(sock, 8)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        if accepting is not None:
            with pytest.raises((ConnectionAbortedError, Fallback)):
                await accepting
    await until(lambda: len(engine.all_groups) == before)


@pytest.mark.usefixtures("options")
async def test_without_memory_the_connection_is_tcp(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_: object) -> None:
        raise MemoryLimitError("none is left")

    monkeypatch.setattr(RingPlaces, "take", no_memory)
    connecting = asyncio.ensure_future(aiordma.connect(*kernel.address, config=CONFIG))
    with pytest.raises(Fallback):
        await kernel.accept()
    async with await connecting as ours:
        assert ours.path == "tcp"
        assert ours.fallback_reason is not None
        assert ours.fallback_reason.code == Code.OUT_OF_MEMORY
        assert "none is left" in ours.fallback_reason.text
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        with pytest.raises(Fallback):
            await kernel.connect(listener.port)
        async with await listener.accept() as ours:
            assert ours.path == "tcp"


@pytest.mark.usefixtures("options")
async def test_where_the_device_reaches_no_kernel_it_is_tcp(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: object) -> None:
        raise NegotiationError(Code.NO_SMCR_DEVICE, "a test")

    monkeypatch.setattr(peers, "check_device", none)
    connecting = asyncio.ensure_future(aiordma.connect(*kernel.address, config=CONFIG))
    with pytest.raises(Fallback) as fallback:
        await kernel.accept()
    async with await connecting as ours:
        await by_tcp(ours, fallback.value.socket)
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        with pytest.raises(Fallback) as fallback:
            await kernel.connect(listener.port)
        async with await listener.accept() as ours:
            await by_tcp(ours, fallback.value.socket)


@pytest.mark.usefixtures("options")
async def test_what_rules_keep_plain_is_declined(kernel: Kernel) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.readexactly(4))
        writer.close()

    server = await aiordma.start_server(serve, "127.0.0.1", 0, config=CONFIG, permits=lambda _: False)
    assert isinstance(server, RdmaServer)
    async with server:
        with pytest.raises(Fallback) as fallback:
            await kernel.connect(server.sockets[0].getsockname()[1])
        loop, sock = asyncio.get_running_loop(), fallback.value.socket
        await loop.sock_sendall(sock, b"that")
        assert await loop.sock_recv(sock, 100) == b"got that"


async def test_a_program_that_asks_first_asks_by_the_option(
    kernel: Kernel, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``aiordma run`` does, before it loads anything. The kernel's program sees nothing of it."""
    monkeypatch.setenv("AIORDMA_SMCR", "/a/map")
    monkeypatch.setattr(smc_option, "of_setting", lambda _: options)
    addresses = [(int(socket.AF_INET), kernel.address)]
    assert await asyncio.to_thread(ask, addresses, 50) is Answer.NEGOTIATES
    loop = asyncio.get_running_loop()
    sock, _ = await loop.sock_accept(kernel.listener)
    with sock:
        sock.setblocking(False)
        assert await loop.sock_recv(sock, 100) == b""
    options.said = None
    asking = asyncio.ensure_future(asyncio.to_thread(ask, addresses, 50))
    sock, _ = await loop.sock_accept(kernel.listener)
    with sock:
        sock.setblocking(False)
        assert await loop.sock_recv(sock, 4)
    assert await asking in (Answer.CLOSED, Answer.SILENT)
    options.lost = True
    assert await asyncio.to_thread(ask, addresses, 50) is Answer.UNREACHABLE
    with (await loop.sock_accept(kernel.listener))[0]:
        pass


@pytest.mark.usefixtures("options")
async def test_a_drained_device_takes_no_new_ones(kernel: Kernel, engine: Engine) -> None:
    ours, theirs, _ = await to(kernel)
    engine.drain("a test")
    try:
        async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
            with pytest.raises(Fallback):
                await kernel.connect(listener.port)
            async with await listener.accept() as plain:
                assert plain.path == "tcp"
        await ours.send(b"this one stays")
        assert await theirs.receive() == b"this one stays"
    finally:
        engine.drained = None
        ours.abort()


async def test_without_the_set_up_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def lexists(path: str) -> bool:
        asked.append(path)
        return False

    def not_at_all(*_: object) -> None:
        raise AssertionError("a connection asks for the option")

    smc_option.of_setting.cache_clear()
    monkeypatch.setattr(os.path, "lexists", lexists)
    for name in "Question", "find_in_packet":
        monkeypatch.setattr(smc_option, name, not_at_all)
    monkeypatch.setattr(sockops, "_bpf", not_at_all)
    try:
        async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
            for _ in range(3):
                async with aiordma.connect("127.0.0.1", listener.port, config=CONFIG) as ours:
                    assert ours.path == "rdma"
                    await (await listener.accept()).aclose()
    finally:
        smc_option.of_setting.cache_clear()
    assert asked == [PINNED_AT]


async def test_aiordma_peers_keep_their_own_protocol(options: Options) -> None:
    options.said = SynOption(1, in_answer=True)
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        async with aiordma.connect("127.0.0.1", listener.port, config=CONFIG) as ours:
            theirs = await listener.accept()
            assert (ours.path, theirs.path) == ("rdma", "rdma")
            assert (ours.smc_peer, theirs.smc_peer) == (None, None)
            await theirs.aclose()


@pytest.mark.parametrize(
    ("said", "path"),
    [(SynOption(1, in_answer=True), "rdma"), (SynOption(1), "tcp"), (None, "tcp")],
    ids=["aiordma", "echo", "none"],
)
async def test_a_syn_ack_of_aiordma_s_counts_more_than_what_is_remembered(
    options: Options, said: SynOption | None, path: str
) -> None:
    options.said = said
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        plain = FallbackReason.of_local(Code.PLAIN_TCP_PEER)
        peer_cache.remember_plain(("127.0.0.1", listener.port, False), plain, 600.0, announced=True)
        async with aiordma.connect("127.0.0.1", listener.port, config=CONFIG) as ours:
            assert ours.path == path
            ours.abort()
    peer_cache.forget()
