"""How connections inside TLS end: nothing written is lost at close, and no end is clean that the peer did not
mean. Plain asyncio and uvloop are the peers and the reference; the transports of aiordma are those of
connections that were negotiated inside TLS and stay there (`rdma_outside_tls=True` without a device)."""

from __future__ import annotations

import array
import asyncio
import contextlib
import socket
import ssl
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

import aiordma
from aiordma.compat.connection import create_connection, open_connection, start_server
from aiordma.compat.tls import TlsTransport
from aiordma.config import Config
from aiordma.testing import VirtualLoop
from tests.health import until
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL, port_of
from tests.streams.pairs import tls_contexts
from tests.virtual import on_virtual_asyncio

from .recorder import BufferedRecorder, Recorder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.anyio
NONE = Config(device="none")
BIG = bytes(range(256)) * 12_000

Handler = Any


async def serve(who: str, handler: Handler) -> Any:
    _, context = tls_contexts()
    if who == "plain":
        return await asyncio.start_server(handler, LOCAL, 0, ssl=context)
    return await start_server(handler, LOCAL, 0, ssl=context, rdma_outside_tls=True, config=NONE)


async def connected(who: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context, _ = tls_contexts()
    if who == "plain":
        return await asyncio.open_connection(LOCAL, port, ssl=context)
    return await open_connection(LOCAL, port, ssl=context, rdma_outside_tls=True, config=NONE)


@pytest.mark.parametrize("writes", ["server", "client"])
@pytest.mark.parametrize("peer", ["plain", "aiordma"])
async def test_a_slow_reader_gets_all_that_was_written_before_the_close(peer: str, writes: str) -> None:
    """uvloop's TLS drops what it has not read when TCP ends before it has answered TLS's end."""
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    written = asyncio.Event()

    async def write(_: Any, writer: asyncio.StreamWriter) -> None:
        assert isinstance(writer.transport, TlsTransport)
        writer.write(BIG)
        writer.close()
        # The reader begins when nothing moves any more: all of it is in buffers.
        size = -1
        while size != (size := writer.transport.get_write_buffer_size()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        written.set()
        await writer.wait_closed()

    async def read(reader: Any, writer: asyncio.StreamWriter) -> None:
        await written.wait()
        got.set_result(await reader.read())
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    serving: tuple[str, Handler]
    calling: tuple[str, Handler]
    if writes == "server":
        serving, calling = ("aiordma", write), (peer, read)
    else:
        serving, calling = (peer, read), ("aiordma", write)
    async with await serve(*serving) as server:
        await calling[1](*await connected(calling[0], port_of(server)))
        assert await got == BIG


@contextlib.contextmanager
def blocking_server(talk: Callable[[ssl.SSLSocket], object]) -> Iterator[int]:
    """A server of the standard library, in a thread, for one connection."""
    _, context = tls_contexts()
    with socket.create_server((LOCAL, 0)) as listener:

        def run() -> None:
            sock, _ = listener.accept()
            with context.wrap_socket(sock, server_side=True, suppress_ragged_eofs=False) as tls:
                talk(tls)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def read_all(tls: ssl.SSLSocket) -> bytes:
    """:raises ssl.SSLEOFError, ConnectionError: it ended otherwise than by TLS's end"""
    got = b""
    while part := tls.recv(65536):
        got += part
    return got


async def write_and_wait(port: int) -> None:
    _, writer = await connected("aiordma", port)
    writer.write(BIG)
    writer.close()
    await writer.wait_closed()


async def write_and_drop(port: int) -> None:
    """What drain() leaves unsent, at most its low-water mark, is lost with asyncio."""
    _, writer = await connected("aiordma", port)
    writer.transport.set_write_buffer_limits(0)
    writer.write(BIG)
    await writer.drain()
    writer.close()


async def send_and_close(port: int) -> None:
    context, _ = tls_contexts()
    async with await aiordma.connect(LOCAL, port, ssl=context, config=NONE) as stream:
        await stream.send(BIG)


async def send_and_leave(port: int) -> None:
    context, _ = tls_contexts()
    stream = await aiordma.connect(LOCAL, port, ssl=context, config=NONE)
    await stream.send(BIG)
    await stream.aclose()


@pytest.mark.parametrize("program", [write_and_wait, write_and_drop, send_and_close, send_and_leave])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_program_that_ends_has_sent_all(
    program: Callable[[int], Awaitable[None]], run: Callable[..., object]
) -> None:
    """The reader begins late, and is done before anything else may end the program's loop."""
    got: list[bytes] = []
    done = threading.Event()

    def talk(tls: ssl.SSLSocket) -> None:
        done.wait(0.3)
        got.append(read_all(tls))
        with contextlib.suppress(OSError):
            tls.unwrap()

    with blocking_server(talk) as port:
        run(program(port))
        done.set()
    assert got == [BIG]


def cut(tls: ssl.SSLSocket) -> None:
    tls.sendall(b"half a mess")
    with socket.socket(fileno=tls.detach()) as sock:
        sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(65536):
                pass


@pytest.mark.parametrize("ignores", [True, False])
async def test_tcp_that_ends_without_tls_is_an_error(ignores: bool) -> None:
    """The contexts of some Pythons ignore it by default, those of others do not."""
    context, _ = tls_contexts()
    option = getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0x80)
    before = context.options
    context.options = before | option if ignores else before & ~option
    try:
        with blocking_server(cut) as port:
            reader, writer = await connected("aiordma", port)
            assert await reader.readexactly(11) == b"half a mess"
            with pytest.raises(ConnectionError):
                await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    finally:
        context.options = before


@on_virtual_asyncio
async def test_a_peer_that_does_not_read_gets_no_clean_end() -> None:
    """`ssl_shutdown_timeout`, as with asyncio; what was not delivered by then is known to be lost."""
    ended: list[BaseException] = []
    lost = threading.Event()

    def talk(tls: ssl.SSLSocket) -> None:
        lost.wait()
        try:
            read_all(tls)
        except OSError as exc:
            ended.append(exc)

    context, _ = tls_contexts()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    with blocking_server(talk) as port:
        release = loop.hold_time()  # the server's thread takes part in the handshake as soon as it runs
        made: Any = await create_connection(
            Recorder, LOCAL, port, ssl=context, ssl_shutdown_timeout=0.1, rdma_outside_tls=True, config=NONE
        )
        release()
        transport, protocol = made
        transport.write(bytes(12_000_000))
        await until(lambda: transport.get_write_buffer_size() < 12_000_000)
        transport.close()
        await asyncio.sleep(60)  # while bytes wait in the queue there is no limit, as on TCP
        assert not protocol.lost.done()
        transport.abort()
        await protocol.lost
        lost.set()
    assert ended


async def test_a_peer_that_does_not_answer() -> None:
    """The end of TLS is awaited, for a limited time. What was sent is there all the same."""
    got: list[bytes] = []
    lost = threading.Event()

    def talk(tls: ssl.SSLSocket) -> None:
        lost.wait()
        got.append(read_all(tls))

    context, _ = tls_contexts()
    with blocking_server(talk) as port:
        made: Any = await create_connection(
            Recorder, LOCAL, port, ssl=context, ssl_shutdown_timeout=0.1, rdma_outside_tls=True, config=NONE
        )
        transport, protocol = made
        transport.write(b"data")
        transport.close()
        assert isinstance(await protocol.lost, TimeoutError)
        lost.set()
    assert got == [b"data"]


async def test_abort_while_the_peer_is_waited_for() -> None:
    lost = threading.Event()
    context, _ = tls_contexts()
    with blocking_server(lambda _: lost.wait()) as port:
        made: Any = await create_connection(
            Recorder, LOCAL, port, ssl=context, rdma_outside_tls=True, config=NONE
        )
        transport, protocol = made
        transport.close()
        await asyncio.sleep(0)
        assert not protocol.lost.done()
        transport.abort()
        assert await protocol.lost is None
        lost.set()


async def test_a_peer_that_goes_on_sending_is_stopped() -> None:
    """As plain TCP, which resets the connection that nobody reads from any more."""
    stopped: list[BaseException] = []

    def talk(tls: ssl.SSLSocket) -> None:
        try:
            while True:
                tls.sendall(bytes(1000))
        except OSError as exc:
            stopped.append(exc)

    with blocking_server(talk) as port:
        _, writer = await connected("aiordma", port)
        writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            await writer.wait_closed()
    assert stopped


async def test_abort_reads_nothing_more() -> None:
    """Who is aborted learns that what it goes on sending is not read."""
    stopped: list[BaseException] = []
    aborted = threading.Event()

    def talk(tls: ssl.SSLSocket) -> None:
        tls.sendall(b"first")
        aborted.wait()
        try:
            for _ in range(8):
                tls.sendall(bytes(1_000_000))
        except OSError as exc:
            stopped.append(exc)

    with blocking_server(talk) as port:
        reader, writer = await connected("aiordma", port)
        assert await reader.read(100) == b"first"
        writer.transport.abort()
        await writer.wait_closed()
        aborted.set()
        await until(lambda: bool(stopped), lambda: "nothing has failed")


@pytest.mark.parametrize("peer", ["plain", "aiordma"])
async def test_a_file_whose_peer_aborts(peer: str, anyio_backend: Any) -> None:
    """An error of the caller's; plain asyncio may say that it has sent all of it."""
    if anyio_backend[1]["use_uvloop"]:
        pytest.skip("uvloop sends no files to transports of others")

    async def serve_and_abort(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async with await serve(peer, serve_and_abort) as server:
        _, writer = await connected("aiordma", port_of(server))
        with tempfile.TemporaryFile() as file:
            file.truncate(8_000_000)
            with pytest.raises(ConnectionError):
                await asyncio.get_running_loop().sendfile(writer.transport, file)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_the_end_comes_after_what_the_last_data_has_scheduled(kind: Any) -> None:
    """As outside TLS; asyncio's own TLS calls eof_received() in the callback of the last data."""

    class Scheduling(kind):  # type: ignore[misc]
        def _record_data(self, data: bytes) -> None:
            super()._record_data(data)
            asyncio.get_running_loop().call_soon(self.events.append, "scheduled")

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"last")
        writer.close()
        said.set()  # a read finds both

    said = asyncio.Event()
    context, _ = tls_contexts()
    async with await serve("plain", say) as server:
        made: Any = await create_connection(
            Scheduling, LOCAL, port_of(server), ssl=context, rdma_outside_tls=True, config=NONE
        )
        transport, protocol = made
        assert isinstance(transport, TlsTransport)
        transport.pause_reading()
        transport.write(b"?")
        await asyncio.wait_for(said.wait(), FULL_PATIENCE)
        transport.resume_reading()
        await protocol.lost
    assert protocol.events == ["made", "data", "scheduled", "eof", "lost"]


async def test_lines_are_judged_before_any_is_sent() -> None:
    """A number of an array is more than one byte, whatever len() says of it."""
    doubles = array.array("d", range(12_000))
    good: list[Any] = [b"one", memoryview(b"t-w-o-")[::2], doubles, memoryview(doubles)[::3], bytearray(b"!")]
    expected = b"onetwo" + doubles.tobytes() + doubles[::3].tobytes() + b"!"

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(2 * len(expected)))
        writer.close()

    async with await serve("plain", echo) as server:
        reader, writer = await connected("aiordma", port_of(server))
        assert isinstance(writer.transport, TlsTransport)
        for size in (10, 70_000):
            for bad in ("text", None, 5):
                lines: list[Any] = [bytes(size), doubles, bad]
                with pytest.raises(TypeError):
                    writer.writelines(lines)
        writer.writelines(good)
        for each in good:
            writer.write(memoryview(each))
        assert await reader.read() == 2 * expected
        writer.close()
        await writer.wait_closed()


async def test_close_during_the_handshake() -> None:
    """The peer sees the connection end, and nothing stays."""
    context, _ = tls_contexts()
    with socket.create_server((LOCAL, 0)) as listener:
        task = asyncio.ensure_future(
            open_connection(LOCAL, listener.getsockname()[1], ssl=context, rdma_outside_tls=True, config=NONE)
        )
        sock, _ = await asyncio.to_thread(listener.accept)
        with sock:
            assert await asyncio.to_thread(sock.recv, 65536)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(sock.recv, 65536) == b""
