"""aiordma's data path and state machines against the sockets of a kernel's SMC-R, in both roles."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma.config import Config
from aiordma.links import engine as links_engine
from aiordma.proto import syn_option
from benchmarks import smc_socket
from tests.health import until

from .ends import HERE, NETDEV, OUR_PORT, PORT, THERE, THERE_COMMAND, kernel_program, kernel_server
from .peer import Fallback, Peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiordma.negotiation.sockops import SynOptions
    from aiordma.streams.stream import RdmaStream

    from .peer import Member

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]

EID = b"AIORDMA-TEST-EID".ljust(32)
OTHER_EID = b"ANOTHER-EID".ljust(32)
CONFIRM_RKEY, TEST_LINK, DELETE_RKEY = 6, 7, 9
TCP_SAVE_SYN, TCP_SAVED_SYN = 27, 28


class Here:
    """This end: its peer, and what is to be released."""

    def __init__(self, peer: Peer, options: SynOptions) -> None:
        self.peer, self.options = peer, options
        self.sockets: list[socket.socket] = []
        self.streams: list[RdmaStream] = []

    async def tcp(self, port: int) -> tuple[socket.socket, syn_option.SynOption | None]:
        sock = socket.socket()
        self.sockets.append(sock)
        sock.setblocking(False)
        sock.bind((HERE, 0))
        entry = self.options.want(sock)
        await asyncio.get_running_loop().sock_connect(sock, (THERE, port))
        was_sent, option = self.options.answer(entry)
        assert was_sent
        return sock, option

    async def connect(self) -> tuple[RdmaStream, Member]:
        sock, answer = await self.tcp(PORT)
        assert answer == syn_option.SynOption()  # a kernel's
        stream, member = await self.peer.connect(sock)
        self.streams.append(stream)
        return stream, member

    def listener(self) -> socket.socket:
        sock = socket.socket()
        self.sockets.append(sock)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, TCP_SAVE_SYN, 1)
        sock.bind((HERE, OUR_PORT))
        self.options.want(sock)
        sock.listen(8)
        return sock

    async def accepted(self, listener: socket.socket) -> socket.socket:
        sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        self.sockets.append(sock)
        sock.setblocking(False)
        syn = sock.getsockopt(socket.IPPROTO_TCP, TCP_SAVED_SYN, 256)
        assert syn_option.find_in_packet(syn) == syn_option.SynOption()
        return sock

    async def close(self) -> None:
        for stream in self.streams:
            stream.abort()
        await self.peer.close()
        for sock in self.sockets:
            sock.close()


@contextlib.asynccontextmanager
async def here(options: SynOptions, eids: tuple[bytes, ...] = (EID,)) -> AsyncIterator[Here]:
    engine = await links_engine.current(Config.from_env())
    made = Here(Peer(engine, NETDEV, eids), options)
    try:
        yield made
    finally:
        await made.close()


async def check_echo(stream: RdmaStream, size: int) -> None:
    await stream.send(b"hello kernel")
    assert await stream.receive_exactly(12) == b"hello kernel"
    data = random.Random(size).randbytes(size)

    async def send() -> None:
        await stream.send(data)
        await stream.send_eof()

    sending = asyncio.ensure_future(send())
    seen = hashlib.sha256()
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            seen.update(await stream.receive())
    await sending
    assert seen.digest() == hashlib.sha256(data).digest()


async def echo(stream: RdmaStream) -> None:
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            await stream.send(await stream.receive())
    await stream.send_eof()


async def test_streams_to_a_kernels_listener(syn_options: SynOptions) -> None:
    async with kernel_server(), here(syn_options) as end:
        first, member = await end.connect()
        assert THERE_COMMAND or smc_socket.modes(PORT) == {"SMC-R"}
        await check_echo(first, 1 << 20)
        await first.aclose()
        await member.done.wait()
        made = [await end.connect() for _ in range(4)]
        assert len(end.peer.links) == 1
        await asyncio.gather(*(check_echo(stream, 300_000 + i) for i, (stream, _) in enumerate(made)))
        for stream, _ in made:
            await stream.aclose()
        for _, member in made:
            await member.done.wait()
        link = end.peer.links[0]
        assert link.kinds.count(CONFIRM_RKEY) >= 1
        await until(lambda: link.kinds.count(DELETE_RKEY) >= 1)
        assert link.ended is None
        assert link.machine is not None
        assert link.machine.refused == 0
        assert link.group is not None
        assert link.group.tokens == set()


async def test_a_kernels_clients(syn_options: SynOptions) -> None:
    async with here(syn_options) as end:
        listener = end.listener()
        for _ in range(2):
            async with kernel_program("client", THERE, HERE, str(OUR_PORT), str(1 << 20)) as program:
                stream, member = await end.peer.accept(await end.accepted(listener))
                end.streams.append(stream)
                await echo(stream)
                await stream.aclose()
                assert await program.line() == "mode SMC-R"
                assert await program.line() == "closed"
                assert await program.process.wait() == 0
                await member.done.wait()
        assert len(end.peer.links) == 1


async def test_a_kernels_server_without_our_id_serves_by_tcp(syn_options: SynOptions) -> None:
    async with kernel_server(), here(syn_options, (OTHER_EID,)) as end:
        sock, answer = await end.tcp(PORT)
        assert answer is not None
        with pytest.raises(Fallback, match="0x0303000") as fallback:
            await end.peer.connect(sock)
        assert fallback.value.rest == b""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"by TCP")
        assert await loop.sock_recv(sock, 100) == b"by TCP"


async def test_a_kernels_client_goes_on_behind_our_decline(syn_options: SynOptions) -> None:
    """Its connect() failed when the Decline had 28 bytes."""
    async with here(syn_options, (OTHER_EID,)) as end:
        listener = end.listener()
        async with kernel_program("client", THERE, HERE, str(OUR_PORT), "100000") as program:
            sock = await end.accepted(listener)
            with pytest.raises(Fallback, match="0x03030008"):
                await end.peer.accept(sock)
            loop = asyncio.get_running_loop()
            while data := await loop.sock_recv(sock, 65536):
                await loop.sock_sendall(sock, data)
            sock.shutdown(socket.SHUT_WR)
            assert await program.line() == "mode TCP"
            assert await program.line() == "closed"


async def test_a_plain_server_has_no_option(syn_options: SynOptions) -> None:
    """So nothing is proposed, and its first byte is the stream's."""
    if THERE_COMMAND:
        pytest.skip("the plain server is of this namespace")
    async with here(syn_options) as end:
        with socket.create_server((THERE, 7779)):
            _, answer = await end.tcp(7779)
            assert answer is None


@pytest.fixture
def tested_each_second() -> Iterator[None]:
    interval = Path("/proc/sys/net/smc/smcr_testlink_time")
    if THERE_COMMAND:
        pytest.skip("the interval is of another namespace")
    before = interval.read_text()
    interval.write_text("1")
    yield
    interval.write_text(before)


@pytest.mark.usefixtures("tested_each_second")
async def test_an_idle_link_is_tested_and_lives(syn_options: SynOptions) -> None:
    async with kernel_server(), here(syn_options) as end:
        stream, _ = await end.connect()
        link = end.peer.links[0]
        await until(lambda: link.kinds.count(TEST_LINK) >= 2)
        await check_echo(stream, 1000)
        assert link.ended is None


async def test_a_link_that_this_end_deletes(syn_options: SynOptions) -> None:
    """The kernel's program reads the end."""
    async with kernel_server() as program, here(syn_options) as end:
        stream, _ = await end.connect()
        await stream.send(b"hello kernel")
        assert await stream.receive_exactly(12) == b"hello kernel"
        link = end.peer.links[0]
        assert link.machine is not None
        link.machine.close()
        link.pump()
        assert await program.line() == "end"
