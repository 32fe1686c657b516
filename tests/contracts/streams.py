"""Behaviours of StreamReader and StreamWriter."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
from typing import TYPE_CHECKING, Any

from tests.roles import LOCAL

from .stage import Stage, attempt, outcome
from .table import behaviour

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LIMIT = 64

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def pair(stage: Stage, limit: int = _LIMIT) -> tuple[Streams, Streams]:
    """The streams of both ends; the server's handler has returned, and its writer stays open."""
    accepted: list[Streams] = []

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append((reader, writer))

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0, limit=limit))
    near = await stage.client.open_connection(LOCAL, port, limit=limit)
    stage.check_path(near[1])
    await stage.until(lambda: accepted)
    stage.writers += [near[1], accepted[0][1]]
    return near, accepted[0]


async def fed(stage: Stage, data: bytes, eof: bool = True) -> asyncio.StreamReader:
    """A reader whose peer has sent this, and perhaps EOF."""
    (reader, _), (_, writer) = await pair(stage)
    writer.write(data)
    if eof:
        writer.write_eof()
    return reader


async def result(awaitable: Awaitable[Any]) -> Any:
    """As outcome(), with what the errors of readers carry."""
    try:
        return await awaitable
    except asyncio.IncompleteReadError as exc:
        return "incomplete", exc.partial, exc.expected
    except asyncio.LimitOverrunError as exc:
        return "overrun", exc.consumed
    except (Exception, asyncio.CancelledError) as exc:
        return type(exc).__name__


@behaviour
async def read_until_eof(stage: Stage) -> None:
    """read() returns everything, then b"" for ever."""
    reader = await fed(stage, b"all of it")
    stage.note("read", [await reader.read(), await reader.read(), await reader.read(5)])
    stage.note("at eof", reader.at_eof())


@behaviour
async def read_nothing(stage: Stage) -> None:
    """read(0) returns b"" at once, and is no end."""
    reader = await fed(stage, b"x", eof=False)
    stage.note("read", [await reader.read(0), await reader.read(1), await reader.read(0)])
    stage.note("at eof", reader.at_eof())


@behaviour
async def read_exactly(stage: Stage) -> None:
    """readexactly(): of 0 bytes, of some, of too many, of a negative number."""
    reader = await fed(stage, b"0123456789")
    stage.note("read", [await result(reader.readexactly(n)) for n in (0, 4, -1, 7, 0, 1)])


@behaviour
async def read_lines(stage: Stage) -> None:
    """readline(): whole lines, an empty one, the rest without an end, then b""."""
    reader = await fed(stage, b"one\n\nthree\nrest")
    stage.note("lines", [await reader.readline() for _ in range(6)])


@behaviour
async def iterate_lines(stage: Stage) -> None:
    """A reader can be iterated by lines."""
    reader = await fed(stage, b"one\ntwo\nrest")
    stage.note("lines", [line async for line in reader])


@behaviour
async def read_until(stage: Stage) -> None:
    """readuntil(): a separator of several bytes, none left, an empty one."""
    reader = await fed(stage, b"a--b-c--rest")
    stage.note("read", [await result(reader.readuntil(b"--")) for _ in range(3)])
    stage.note("empty separator", await result(reader.readuntil(b"")))


@behaviour
async def a_line_above_the_limit(stage: Stage) -> None:
    """readline() of a longer line than the limit is a ValueError, and the reader goes on behind it."""
    reader = await fed(stage, b"x" * (_LIMIT + 10) + b"\nnext\n")
    stage.note("lines", [await result(reader.readline()) for _ in range(2)])


@behaviour
async def a_separator_above_the_limit(stage: Stage) -> None:
    """readuntil() beyond the limit says how much may be skipped, and leaves it in the reader."""
    reader = await fed(stage, b"x" * (_LIMIT + 10) + b"\nnext\n")
    stage.note("until", await result(reader.readuntil()))
    stage.note("skip", len(await reader.readexactly(_LIMIT + 11)))
    stage.note("next", await result(reader.readuntil()))


@behaviour
async def exactly_beyond_the_limit(stage: Stage) -> None:
    """readexactly() is not bound to the limit."""
    reader = await fed(stage, bytes(_LIMIT * 20))
    stage.note("read", await reader.readexactly(_LIMIT * 20) == bytes(_LIMIT * 20))


@behaviour
async def two_readers(stage: Stage) -> None:
    """A second task that reads at the same time gets a RuntimeError; the first one its data."""
    (reader, _), (_, writer) = await pair(stage)
    first = asyncio.ensure_future(reader.read(10))
    await stage.turns(2)
    stage.note("second", await result(reader.read(10)))
    writer.write(b"data")
    stage.note("first", await first)


@behaviour
async def a_cancelled_read(stage: Stage) -> None:
    """A read that is cancelled takes nothing."""
    (reader, _), (_, writer) = await pair(stage)
    read = asyncio.ensure_future(reader.readexactly(4))
    await stage.turns(2)
    writer.write(b"ab")
    await stage.turns(5)
    read.cancel()
    stage.note("cancelled", await result(read))
    writer.write(b"cd")
    stage.note("read", await reader.readexactly(4))


@behaviour
async def a_read_that_is_timed_out(stage: Stage) -> None:
    """wait_for() with no time left: the data is there for the next read."""
    (reader, _), (_, writer) = await pair(stage)
    stage.note("timed out", await result(asyncio.wait_for(reader.read(10), 0)))
    writer.write(b"data")
    stage.note("read", await reader.readexactly(4))


@behaviour
async def a_failure_that_is_set(stage: Stage) -> None:
    """After a failure, reads raise it; exception() returns it."""
    (reader, _), _ = await pair(stage)
    reader.set_exception(ZeroDivisionError())
    stage.note("read", await result(reader.read(1)))
    stage.note("line", await result(reader.readline()))
    stage.note("exception", type(reader.exception()).__name__)


@behaviour
async def no_exception(stage: Stage) -> None:
    """A reader that works has no exception."""
    (reader, _), _ = await pair(stage)
    stage.note("exception", reader.exception())


@behaviour
async def drain_and_close(stage: Stage) -> None:
    """drain() after writes, is_closing(), close(), wait_closed()."""
    (_, writer), (reader, _) = await pair(stage)
    writer.write(b"a")
    writer.writelines([b"b", b"c"])
    stage.note("drain", await outcome(writer.drain()))
    stage.note("closing", writer.is_closing())
    writer.close()
    stage.note("closing", writer.is_closing())
    stage.note("closed", await outcome(writer.wait_closed()))
    stage.note("read", await reader.read())


@behaviour
async def drain_after_close(stage: Stage) -> None:
    """drain() and write() of a closed writer."""
    (_, writer), _ = await pair(stage)
    writer.close()
    await writer.wait_closed()
    stage.note("write", attempt(writer.write, b"x"))
    stage.note("drain", await outcome(writer.drain()))
    stage.note("close", attempt(writer.close))
    stage.note("closed", await outcome(writer.wait_closed()))


@behaviour
async def drain_waits_for_the_reader(stage: Stage) -> None:
    """drain() waits until the peer has read, and writes nothing twice."""
    (_, writer), (reader, _) = await pair(stage)
    writer.write(bytes(16_000_000))
    drain = asyncio.ensure_future(writer.drain())
    await stage.turns(20)
    stage.note("drained at once", drain.done())
    stage.note("read", len(await reader.readexactly(16_000_000)))
    stage.note("drain", await outcome(drain))


@behaviour
async def a_cancelled_drain(stage: Stage) -> None:
    """A drain() that is cancelled loses nothing."""
    (_, writer), (reader, _) = await pair(stage)
    writer.write(bytes(16_000_000))
    drain = asyncio.ensure_future(writer.drain())
    await stage.turns(5)
    drain.cancel()
    stage.note("cancelled", await result(drain))
    stage.note("read", len(await reader.readexactly(16_000_000)))
    stage.note("drain", await outcome(writer.drain()))


@behaviour
async def several_drains(stage: Stage) -> None:
    """Several tasks may drain at the same time."""
    (_, writer), (reader, _) = await pair(stage)
    writer.write(bytes(16_000_000))
    drains = [asyncio.ensure_future(writer.drain()) for _ in range(3)]
    await reader.readexactly(16_000_000)
    stage.note("drained", await asyncio.gather(*drains))


@behaviour
async def a_cancelled_wait_closed(stage: Stage) -> None:
    """The writer is closed all the same: its peer reads to the end."""
    (_, writer), (reader, _) = await pair(stage)
    writer.write(b"the last")
    writer.close()
    waiting = asyncio.ensure_future(writer.wait_closed())
    waiting.cancel()
    stage.note("cancelled", await outcome(waiting))
    stage.note("read", await reader.read())
    stage.note("closing", writer.is_closing())


@behaviour
async def half_close_of_streams(stage: Stage) -> None:
    """write_eof() of a writer: the peer reads everything and may answer."""
    (reader, writer), (far_reader, far_writer) = await pair(stage)
    writer.write(b"question")
    stage.note("can", writer.can_write_eof())
    writer.write_eof()
    stage.note("question", await far_reader.read())
    far_writer.write(b"answer")
    far_writer.close()
    stage.note("answer", await reader.read())
    stage.note("write", attempt(writer.write, b"x"))


@behaviour
async def eof_while_waiting(stage: Stage) -> None:
    """A read that waits returns what there was when the peer closes."""
    (reader, _), (_, writer) = await pair(stage)
    read = asyncio.ensure_future(result(reader.readexactly(10)))
    await stage.turns(2)
    writer.write(b"some")
    writer.close()
    stage.note("read", await read)


@behaviour
async def buffered_data_after_own_close(stage: Stage) -> None:
    """A reader that holds data gives it after its writer was closed."""
    (reader, writer), (_, far) = await pair(stage)
    far.write(b"held data")
    stage.note("first", await reader.readexactly(4))
    writer.close()
    await writer.wait_closed()
    stage.note("rest", await reader.read())


@behaviour
async def handlers_of_three_kinds(stage: Stage) -> None:
    """client_connected_cb may be a coroutine function or a function; a coroutine runs as a task."""
    seen: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(asyncio.current_task() is not None)
        writer.write(await reader.readline())
        writer.close()

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    reader, writer = await stage.client.open_connection(LOCAL, port)
    stage.writers.append(writer)
    writer.write(b"line\n")
    stage.note("echo", await reader.read())
    stage.note("in a task", seen)


@behaviour
async def a_handler_that_drops_its_writer(stage: Stage) -> None:
    """It is told of the open connection, which is closed, or the connection stays open, as Python has it."""
    told: list[str] = []
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del writer
            gc.collect()
        told.extend(str(each.message).split(" transport=")[0] for each in caught)
        stage.note("closes", transport.is_closing())
        if not transport.is_closing():
            transport.close()
        done.set()

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    reader, writer = await stage.client.open_connection(LOCAL, port)
    stage.writers.append(writer)
    stage.check_path(writer)
    await done.wait()
    stage.note("told", told)
    stage.note("end", await reader.read())


@behaviour
async def a_full_reader_is_not_reading(stage: Stage) -> None:
    """A transport does not read while more than twice the limit waits for the program."""
    (reader, writer), (_, far) = await pair(stage)
    near: Any = writer.transport
    stage.note("empty", near.is_reading())
    far.write(bytes(2 * _LIMIT))
    far.write(bytes(2 * _LIMIT))
    await stage.until(lambda: not near.is_reading())
    stage.note("read", len(await reader.readexactly(4 * _LIMIT)))
    stage.note("empty again", near.is_reading())


@behaviour
async def context_of_a_handler(stage: Stage) -> None:
    """What a handler sets in its context is not seen outside."""
    variable = contextvars.ContextVar("variable", default="outside")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        variable.set("inside")
        writer.write(variable.get().encode())
        writer.close()
        await reader.read()

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    reader, writer = await stage.client.open_connection(LOCAL, port)
    stage.writers.append(writer)
    stage.note("inside", await reader.read())
    stage.note("outside", variable.get())


@behaviour
async def what_a_writer_tells(stage: Stage) -> None:
    """get_extra_info() of a writer: addresses, a socket, a default for what is unknown."""
    (_, writer), (_, far) = await pair(stage)
    get: Callable[..., Any] = writer.get_extra_info
    stage.note("same ends", get("sockname") == far.get_extra_info("peername"))
    stage.note("socket", get("socket").getsockname() == get("sockname"))
    stage.note("unknown", [get("nothing"), get("nothing", 7)])
    stage.note("ssl", get("ssl_object"))


@behaviour
async def a_greeting_of_a_handler(stage: Stage) -> None:
    """A server that speaks first: its client reads the greeting before it has written anything."""
    writers: list[asyncio.StreamWriter] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b"220 ready\r\n")
        writer.write((await reader.readline()).upper())
        writer.close()

    port = stage.keep(await stage.server.start_server(greet, LOCAL, 0))
    reader, writer = await stage.client.open_connection(LOCAL, port)
    stage.check_path(writer)
    stage.writers += [writer, *writers]
    stage.note("greeting", await reader.readline())
    writer.write(b"hello\n")
    stage.note("rest", await reader.read())


@behaviour
async def a_limit_of_nothing(stage: Stage) -> None:
    """A limit of 0 is refused."""
    port = await stage.listen()
    opened = await outcome(stage.client.open_connection(LOCAL, port, limit=0))
    stage.note("limit", opened if isinstance(opened, str) else "accepted")


@behaviour
async def read_until_several(stage: Stage) -> None:
    """readuntil() with a tuple of separators, or its refusal, as Python has it."""
    reader = await fed(stage, b"one;two\nthree")
    for _ in range(3):
        stage.note("read", await result(reader.readuntil((b";", b"\n"))))  # type: ignore[arg-type]


@behaviour
async def separators_that_are_wrong(stage: Stage) -> None:
    """readuntil() of no text, and of nothing."""
    reader = await fed(stage, b"one;two\n", eof=False)
    wrongs: tuple[Any, ...] = ("text", 5, None)
    for wrong in wrongs:
        stage.note("read", await result(reader.readuntil(wrong)))
    stage.note("line", await reader.readline())


@behaviour
async def a_last_line_above_the_limit(stage: Stage) -> None:
    """A line that is longer than the limit and has no end: a ValueError, and then the end."""
    reader = await fed(stage, b"x" * (_LIMIT + 10))
    stage.note("lines", [await result(reader.readline()) for _ in range(3)])


@behaviour
async def read_more_than_there_is(stage: Stage) -> None:
    """read(n) returns what there is, in one piece, and read(-1) the rest."""
    (reader, _), (_, writer) = await pair(stage)
    writer.write(b"some of it")
    stage.note("first", await reader.readexactly(1))
    stage.note("piece", await reader.read(1000))
    writer.write(b"the rest")
    writer.close()
    stage.note("rest", await reader.read(-1))
    stage.note("end", [await reader.read(-1), reader.at_eof()])


@behaviour
async def not_yet_at_eof(stage: Stage) -> None:
    """at_eof() is false as long as there is something to read."""
    reader = await fed(stage, b"12")
    stage.note("one", [await reader.readexactly(1), reader.at_eof()])
    stage.note("other", [await reader.readexactly(1), await reader.read(1), reader.at_eof()])


@behaviour
async def an_exception_of_the_reader(stage: Stage) -> None:
    """drain() raises what was set as the reader's exception."""
    (reader, writer), _ = await pair(stage)
    reader.set_exception(ZeroDivisionError())
    writer.write(b"x")
    stage.note("drain", await outcome(writer.drain()))
    stage.note("until", await result(reader.readuntil(b"x")))
    stage.note("exactly", await result(reader.readexactly(1)))


@behaviour
async def an_exception_while_waiting(stage: Stage) -> None:
    """set_exception() ends a read that waits."""
    (reader, _), _ = await pair(stage)
    read = asyncio.ensure_future(reader.read(10))
    await stage.turns(2)
    reader.set_exception(ZeroDivisionError())
    stage.note("read", await result(read))


@behaviour
async def eof_leaves_the_writer_open(stage: Stage) -> None:
    """A writer whose peer has half-closed is not closing, and its answer arrives."""
    (reader, writer), (far_reader, far_writer) = await pair(stage)
    far_writer.write_eof()
    stage.note("read", await reader.read())
    stage.note("closing", writer.is_closing())
    writer.write(b"answer")
    stage.note("drain", await outcome(writer.drain()))
    writer.close()
    stage.note("answer", await far_reader.read())


@behaviour
async def drain_to_a_peer_that_has_closed(stage: Stage) -> None:
    """Writing on ends with a ConnectionError of drain()."""
    (_, writer), (_, far) = await pair(stage)
    far.close()
    await far.wait_closed()
    errors: list[Any] = []

    async def write() -> Any:
        writer.write(b"x" * 1000)
        return await outcome(writer.drain())

    while not errors:
        error = await write()
        if error is not None:
            errors.append(error)
        await asyncio.sleep(0)
    stage.note("error", errors[0] in ("ConnectionResetError", "BrokenPipeError"))
    writer.close()
    closed = await outcome(writer.wait_closed())
    stage.note("closed", closed in (None, "ConnectionResetError", "BrokenPipeError"))


async def empty_writes(stage: Stage, near: Streams, far: Streams) -> None:
    far[1].write(b"no, thank you")
    far[1].close()
    await far[1].wait_closed()
    reader, writer = near
    for empty in (b"", bytearray(), memoryview(b"")):
        writer.write(empty)
        stage.note("drained", await outcome(writer.drain()))
    writer.writelines([b"", b""])
    stage.note("read", await result(reader.read()))
    writer.close()
    stage.note("closed", await outcome(writer.wait_closed()))


@behaviour
async def an_empty_write_of_a_writer_to_a_closed_peer(stage: Stage) -> None:
    """It does nothing: what the peer has sent is read to its end. So at the accepting end."""
    near, far = await pair(stage)
    await empty_writes(stage, near, far)
    near, far = await pair(stage)
    await empty_writes(stage, far, near)


@behaviour
async def a_writer_that_is_aborted(stage: Stage) -> None:
    """transport.abort() of a writer: wait_closed() returns, and reads end."""
    (reader, writer), _ = await pair(stage)
    read = asyncio.ensure_future(result(reader.read()))
    await stage.turns(2)
    writer.transport.abort()
    stage.note("closed", await outcome(writer.wait_closed()))
    stage.note("read", await read)


@behaviour
async def limits_that_are_wrong(stage: Stage) -> None:
    """A negative limit is refused, and one that is no number."""
    port = await stage.listen()
    wrongs: tuple[Any, ...] = (-1, "text")
    for wrong in wrongs:
        opened = await outcome(stage.client.open_connection(LOCAL, port, limit=wrong))
        stage.note("limit", opened if isinstance(opened, str) else "accepted")


@behaviour
async def a_connection_refused_to_streams(stage: Stage) -> None:
    """open_connection() to a port where nothing listens is a ConnectionRefusedError."""
    port = stage.keep(await stage.server.start_server(lambda r, w: None, LOCAL, 0))
    server = stage.servers[0]
    server.close()
    await server.wait_closed()
    stage.note("opened", await outcome(stage.client.open_connection(LOCAL, port)))


@behaviour
async def a_plain_handler_that_fails(stage: Stage) -> None:
    """An error of a handler that is a function is reported; the next client is served."""
    calls: list[None] = []

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(None)
        if len(calls) == 1:
            stage.writers.append(writer)
            raise ZeroDivisionError
        writer.write(b"served")
        writer.close()

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    _, first = await stage.client.open_connection(LOCAL, port)
    stage.writers.append(first)
    await stage.until(lambda: "reported" in stage.trace)
    reader, second = await stage.client.open_connection(LOCAL, port)
    stage.writers.append(second)
    stage.note("second", await reader.read())


@behaviour
async def more_than_a_reader_holds(stage: Stage) -> None:
    """A reader with a small limit gets a large message whole, by every kind of read."""
    (reader, _), (_, writer) = await pair(stage)
    writer.write(bytes(range(256)) * 4000)
    writer.write(b"\n")
    writer.close()
    data = bytearray()
    while len(data) < 600_000:
        data += await reader.read(100_000)
    data += await reader.readexactly(1_024_000 - len(data))
    stage.note("whole", bytes(data) == bytes(range(256)) * 4000)
    stage.note("rest", await reader.read())
