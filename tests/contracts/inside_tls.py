"""What behaviours of other files are inside TLS, by two ways into it: a session in which aiordma has
negotiated and which it goes on with, and start_tls() on a connection, which may be on RDMA. `secure.py` has
the loops' own.
"""

from __future__ import annotations

import array
import io
import socket
import tempfile
from typing import TYPE_CHECKING, Any

from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

from .files import file_of
from .secure_ends import upgraded
from .sockets import shut
from .stage import Stage, Traced, attempt, outcome
from .table import behaviour

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Pairs = Callable[..., Awaitable[tuple[Any, Any]]]


async def in_own_tls(
    stage: Stage, near: Callable[..., Any] = Traced, far: Callable[..., Any] = Traced
) -> tuple[Any, Any]:
    """Both protocols: on transports of aiordma's, where aiordma has an end."""
    client, server = tls_contexts()
    ends: list[Any] = []

    def serve() -> Any:
        ends.append(far(stage, "far"))
        return ends[-1]

    port = stage.keep(await stage.server.create_server(serve, LOCAL, 0, ssl=server, **stage.server.own_tls()))
    made = await stage.client.create_connection(
        stage.near(near), LOCAL, port, ssl=client, **stage.client.own_tls()
    )
    await stage.until(lambda: ends and ends[0].transport)
    return made[1], ends[0]


async def after_start_tls(
    stage: Stage, near: Callable[..., Any] = Traced, far: Callable[..., Any] = Traced
) -> tuple[Any, Any]:
    """Both protocols: on the loop's transports of TLS, which are above aiordma's, or the loop's."""
    ends = await stage.pair(near, far)
    await upgraded(stage, *ends)
    return ends


def each_way(function: Callable[[Stage, Pairs], Awaitable[None]]) -> None:
    """Enter it in the table once for each way: `..._in_own_tls` and `..._after_start_tls`."""
    for pairs in (in_own_tls, after_start_tls):

        async def play(stage: Stage, pairs: Pairs = pairs) -> None:
            await function(stage, pairs)

        play.__name__ = f"{function.__name__}_{pairs.__name__}"
        play.__doc__ = function.__doc__
        behaviour(play)


def closes_by_itself(end: Any) -> None:
    """asyncio's TLS tells an end that has closed by itself of the peer's EOF. No transport of TCP does, and
    none of aiordma's.
    """
    end.events[:] = [event for event in end.events if event != "eof"]


@each_way
async def an_error_of_data_received(stage: Stage, pairs: Pairs) -> None:
    """It ends its own connection with it, which the peer sees, and is reported; another one goes on."""

    class Fails(Traced):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if data == b"fail":
                raise ZeroDivisionError

    one, other = await pairs(stage, far=Fails)
    near, far = await pairs(stage, far=Fails)
    near.transport.write(b"fail")
    await stage.until(lambda: near.ended and far.ended)
    one.transport.write(b"goes on")
    await stage.until(lambda: other.data)


@each_way
async def an_empty_write_to_a_closed_peer(stage: Stage, pairs: Pairs) -> None:
    """It does nothing: what the peer has sent is read, and its end is one in order."""
    near, far = await pairs(stage)
    near.transport.pause_reading()
    far.transport.write(b"no, thank you")
    far.transport.close()
    await stage.turns()
    for empty in (b"", bytearray(), memoryview(b"")):
        stage.note("write", attempt(near.transport.write, empty))
    stage.note("writelines", attempt(near.transport.writelines, [b"", b""]))
    await stage.turns()
    near.transport.resume_reading()
    await stage.both_end()
    closes_by_itself(far)


@each_way
async def an_empty_write_of_the_server_to_a_closed_peer(stage: Stage, pairs: Pairs) -> None:
    """The same at the accepting end."""
    near, far = await pairs(stage)
    far.transport.pause_reading()
    near.transport.write(b"a question")
    near.transport.close()
    await stage.turns()
    for empty in (b"", bytearray(), memoryview(b"")):
        stage.note("write", attempt(far.transport.write, empty))
    stage.note("writelines", attempt(far.transport.writelines, [b"", b""]))
    await stage.turns()
    far.transport.resume_reading()
    await stage.both_end()
    closes_by_itself(near)


@each_way
async def lines_of_an_array(stage: Stage, pairs: Pairs) -> None:
    """All that has bytes is sent, among them numbers of more than one byte."""
    near, far = await pairs(stage)
    doubles = array.array("d", [1.0, 2.0])
    stage.note(
        "writelines", attempt(near.transport.writelines, [b"<", doubles, bytes(70_000), doubles, b"."])
    )
    await stage.until(lambda: far.data.endswith(b"."))
    near.transport.close()
    await stage.both_end()
    closes_by_itself(near)


async def send_file(stage: Stage, sender: Any, receiver: Any) -> None:
    """Files that stand elsewhere, with a descriptor and without one; where they stand then."""
    for file in (file_of(b"0123456789"), io.BytesIO(b"0123456789")):
        with file:
            for args in ((), (2, 3), (20,), (-1,), ("1",), (0, 0), (0, -1), (0, 2.5)):
                file.seek(4)
                stage.note("sent", await outcome(stage.loop.sendfile(sender.transport, file, *args)))
                stage.note("stands", file.tell())
    with tempfile.TemporaryFile("w+") as text:
        wrong: Any = text
        stage.note("text", await outcome(stage.loop.sendfile(sender.transport, wrong)))
    sender.transport.write(b" end")
    await stage.until(lambda: receiver.data.endswith(b"end"))


@each_way
async def a_file_that_stands_elsewhere(stage: Stage, pairs: Pairs) -> None:
    """Inside TLS, asyncio reads it from where it stands, and looks at no argument. By the connecting end."""
    near, far = await pairs(stage)
    await send_file(stage, near, far)
    near.transport.close()
    await stage.both_end()
    closes_by_itself(near)


@each_way
async def a_file_of_the_server_that_stands_elsewhere(stage: Stage, pairs: Pairs) -> None:
    """The same by the accepting end."""
    near, far = await pairs(stage)
    await send_file(stage, far, near)
    far.transport.close()
    await stage.both_end()
    closes_by_itself(far)


@each_way
async def what_came_before_a_write_in_vain(stage: Stage, pairs: Pairs) -> None:
    """Data that arrived is delivered before the end, also to a writer whose peer has closed."""
    near, far = await pairs(stage)
    near.transport.pause_reading()
    far.transport.write(b"no, thank you")
    far.transport.close()
    for part in (b"one", bytearray(b"two"), memoryview(b"three")):
        await stage.turns()
        near.transport.write(part)
    await stage.turns()
    near.transport.resume_reading()
    await stage.both_end()
    del stage.trace["far"]  # its session fails by what comes behind its end, or drops it


@each_way
async def a_shown_socket_that_is_shut_down(stage: Stage, pairs: Pairs) -> None:
    """shutdown() of both directions of the socket below TLS: both ends end."""
    near, far = await pairs(stage)
    near.transport.write(b"before")
    await stage.until(lambda: far.data)
    if not await shut(stage, near, socket.SHUT_RDWR):
        return
    await stage.both_end()
    if pairs is in_own_tls:  # which takes an end without TLS's own for an error: docs/howto/choose-path.md
        stage.note("arrived", bytes(far.data))
        for end in ("near", "far"):
            del stage.trace[end]
