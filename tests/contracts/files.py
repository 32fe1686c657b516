"""Behaviours of loop.sendfile()."""

from __future__ import annotations

import asyncio
import io
import socket
import tempfile
from typing import TYPE_CHECKING, Any

from tests.roles import LOCAL

from .stage import KeepsOpen, Stage, Traced, attempt, outcome
from .table import behaviour
from .writing import Counts, Quiet

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

_DATA = bytes(range(256)) * 400
#: More than the kernel's buffers, or a ring, hold.
_MUCH = 16_000_000
#: More than small buffers of the kernel, less than a ring.
_SMALL = bytes(256 * 1024 + 1)


def file_of(data: bytes = _DATA) -> BinaryIO:
    """A file that stands at its beginning."""
    file = tempfile.TemporaryFile()  # its caller closes it
    file.write(data)
    file.flush()
    file.seek(0)
    return file


async def send(stage: Stage, *args: Any, stands: int = 0, **options: Any) -> None:
    """Send a file, or a part; what arrived, and where the file stands then."""
    near, _far = await stage.pair()
    with file_of() as file:
        file.seek(stands)
        stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file, *args, **options)))
        stage.note("stands", file.tell())
    near.transport.close()
    await stage.both_end()


@behaviour
async def a_file(stage: Stage) -> None:
    """The whole file."""
    await send(stage)


@behaviour
async def a_file_that_stands_elsewhere(stage: Stage) -> None:
    """The whole file, wherever it stands."""
    await send(stage, stands=1000)


@behaviour
async def a_part_of_a_file(stage: Stage) -> None:
    """An offset and a count."""
    await send(stage, 100, 5000)


@behaviour
async def a_count_beyond_the_end(stage: Stage) -> None:
    """A count beyond the end sends what there is."""
    await send(stage, 100_000, 50_000)


@behaviour
async def an_offset_beyond_the_end(stage: Stage) -> None:
    """An offset beyond the end sends nothing."""
    await send(stage, 200_000)


@behaviour
async def counts_that_are_wrong(stage: Stage) -> None:
    """A count of 0, and one that is negative, are refused; so is a negative offset."""
    near, _ = await stage.pair()
    with file_of() as file:
        for args in ((0, 0), (0, -1)):
            stage.note("error", await outcome(stage.loop.sendfile(near.transport, file, *args)))


@behaviour
async def data_around_a_file(stage: Stage) -> None:
    """What is written before and after comes before and after."""
    near, _far = await stage.pair()
    with file_of(b"file") as file:
        near.transport.write(b"before ")
        stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file)))
        near.transport.write(b" after")
        near.transport.close()
    await stage.both_end()


@behaviour
async def a_file_to_a_closed_transport(stage: Stage) -> None:
    """A closing transport is refused."""
    near, _ = await stage.pair()
    near.transport.close()
    with file_of() as file:
        stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file)))
    await stage.both_end()


class Leaves(Traced):
    """Closes at the first bytes."""

    def got(self, data: bytes) -> None:
        super().got(data)
        self.transport.close()


@behaviour
async def a_file_whose_peer_closes(stage: Stage) -> None:
    """A peer that closes in the middle is an error of the caller's."""
    near, _ = await stage.pair(far=Leaves)
    with file_of(bytes(_MUCH)) as file:
        sent = await outcome(stage.loop.sendfile(near.transport, file))
        kinds = {"ConnectionError", "ConnectionResetError", "BrokenPipeError"}
        stage.note("sent", "an error of the connection" if sent in kinds else sent)
    near.transport.close()
    await stage.both_end()
    for end in ("near", "far"):
        del stage.trace[end]  # how much arrived, and who heard of it first, is not the same twice


async def send_to_one_who_leaves(stage: Stage, file: Any, far: Callable[..., Any]) -> None:
    """Send what no buffer of TCP holds, and a ring does, to a peer that closes at the first bytes."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listening.bind((LOCAL, 0))
    port = stage.keep(await stage.server.create_server(stage.far(far), sock=listening))
    near = await stage.connect(stage.near(), port)
    near.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    near.transport.set_write_buffer_limits(high=4096)
    sent = await outcome(stage.loop.sendfile(near.transport, file))
    kinds = {"ConnectionError", "ConnectionResetError", "BrokenPipeError"}
    stage.note("sent", "an error of the connection" if sent in kinds else sent)
    stage.note("stands in the middle", 0 < file.tell() < len(_SMALL))
    if sent == "NotImplementedError":  # uvloop has none
        near.transport.close()
    await stage.both_end()
    stage.note("closing", near.transport.is_closing())
    arrived = stage.made("far")[0].data
    stage.note("a part arrived", 0 < len(arrived) < len(_SMALL))
    for end in ("near", "far"):
        del stage.trace[end]  # as above


@behaviour
async def a_small_file_whose_peer_closes(stage: Stage) -> None:
    """A peer that closes in the middle of a file that would fit into a ring is an error, too."""
    with file_of(_SMALL) as file:
        await send_to_one_who_leaves(stage, file, Leaves)


@behaviour
async def a_file_in_memory_whose_peer_closes(stage: Stage) -> None:
    """The same where the file is read and written."""
    await send_to_one_who_leaves(stage, io.BytesIO(_SMALL), Leaves)


@behaviour
async def a_text_file(stage: Stage) -> None:
    """A file that was opened as text is a ValueError, and the connection goes on."""
    near, far = await stage.pair()
    with tempfile.TemporaryFile("w+") as text:
        file: Any = text
        stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file)))
    near.transport.write(b"goes on")
    await stage.until(lambda: far.data)


@behaviour
async def offsets_and_counts_of_other_types(stage: Stage) -> None:
    """A negative offset, and numbers that are no integers, are refused; nothing is sent."""
    near, far = await stage.pair()
    with file_of() as file:
        for args in ((-1,), ("1",), (1.5,), (0, "1"), (0, 2.5)):
            stage.note("error", await outcome(stage.loop.sendfile(near.transport, file, *args)))
        stage.note("stands", file.tell())
    near.transport.write(b"goes on")
    await stage.until(lambda: far.data)


@behaviour
async def an_empty_file(stage: Stage) -> None:
    """Of an empty file, nothing is sent."""
    near, far = await stage.pair()
    with file_of(b"") as file:
        stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file)))
    near.transport.write(b"goes on")
    await stage.until(lambda: far.data)


@behaviour
async def a_file_in_memory(stage: Stage) -> None:
    """What has no descriptor is read: from where it stands, or from an offset."""
    near, far = await stage.pair()
    file = io.BytesIO(b"0123456789")
    file.seek(4)
    stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file)))
    stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file, 8)))
    stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file, 1, 2)))
    near.transport.write(b" end")
    await stage.until(lambda: far.data.endswith(b"end"))


@behaviour
async def a_file_of_the_server(stage: Stage) -> None:
    """The accepting end sends a file, and closes."""
    near, far = await stage.pair()
    near.transport.write(b"GET")
    await stage.until(lambda: far.data)
    with file_of() as file:
        stage.note("sent", await outcome(stage.loop.sendfile(far.transport, file)))
    far.transport.close()
    await stage.both_end()
    stage.note("whole", bytes(near.data) == _DATA)


@behaviour
async def a_file_of_the_server_that_stands_elsewhere(stage: Stage) -> None:
    """The accepting end sends the whole file, wherever it stands, a part, and one in memory from there."""
    near, far = await stage.pair()
    with file_of() as file, io.BytesIO(b"0123456789") as buffer:
        file.seek(1000)
        stage.note("sent", await outcome(stage.loop.sendfile(far.transport, file)))
        stage.note("stands", file.tell())
        stage.note("a part", await outcome(stage.loop.sendfile(far.transport, file, 100, 50)))
        stage.note("stands", file.tell())
        buffer.seek(4)
        stage.note("sent", await outcome(stage.loop.sendfile(far.transport, buffer)))
    far.transport.close()
    await stage.both_end()
    stage.note("length", len(near.data))


@behaviour
async def files_one_after_the_other(stage: Stage) -> None:
    """Two files, and a half-close behind them."""
    near, far = await stage.pair(far=KeepsOpen)
    for data in (b"first ", b"second"):
        with file_of(data) as file:
            stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file)))
    near.transport.write_eof()
    await stage.until(lambda: "eof" in far.events)


@behaviour
async def a_file_while_reading_is_paused(stage: Stage) -> None:
    """Reading that was paused before stays paused behind a file; reading that was not goes on."""
    near, far = await stage.pair()
    for paused in (True, False):
        if paused:
            near.transport.pause_reading()
        else:
            near.transport.resume_reading()
        with file_of(b"file") as file:
            stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file)))
        stage.note("reading", near.transport.is_reading())
    far.transport.write(b"answer")
    await stage.until(lambda: near.data)
    near.transport.write(b" end")
    await stage.until(lambda: far.data.endswith(b"end"))


@behaviour
async def a_file_that_is_cancelled(stage: Stage) -> None:
    """A cancelled sendfile() leaves the transport to its protocol."""
    near, far = await stage.pair(Quiet, Quiet)
    far.transport.pause_reading()
    with file_of(bytes(_MUCH)) as file:
        sending = asyncio.ensure_future(stage.loop.sendfile(near.transport, file))
        await stage.turns(3)
        sending.cancel()
        stage.note("cancelled", await outcome(sending))
    stage.note("protocol", near.transport.get_protocol() is near)
    stage.note("reading", near.transport.is_reading())
    far.transport.write(b"answer")
    await stage.until(lambda: near.data)


@behaviour
async def a_write_while_a_file_is_sent(stage: Stage) -> None:
    """While a file is sent, others may neither write nor send one; behind it they may."""
    near, far = await stage.pair(Quiet, Counts)
    far.transport.pause_reading()
    with file_of(bytes(_MUCH)) as file, file_of(b"another") as other:
        sending = asyncio.ensure_future(stage.loop.sendfile(near.transport, file))
        await stage.turns(3)
        stage.note("write", attempt(near.transport.write, b"between"))
        stage.note("a buffer", attempt(near.transport.write, bytearray(b"between")))
        stage.note("nothing", attempt(near.transport.write, b""))
        stage.note("writelines", attempt(near.transport.writelines, [b"be", b"tween"]))
        another = await outcome(stage.loop.sendfile(near.transport, other))
        stage.note("another is refused", isinstance(another, str))
        far.transport.resume_reading()
        stage.note("sent", await outcome(sending))
    stage.note("behind it", attempt(near.transport.write, b"behind"))
    near.transport.close()
    await stage.both_end()
    stage.note("arrived", far.count)


@behaviour
async def a_write_behind_a_file_that_was_cancelled(stage: Stage) -> None:
    """Once a sendfile() is cancelled, everybody may write again."""
    near, far = await stage.pair(Quiet, Counts)
    far.transport.pause_reading()
    with file_of(bytes(_MUCH)) as file:
        sending = asyncio.ensure_future(stage.loop.sendfile(near.transport, file))
        await stage.turns(3)
        sending.cancel()
        stage.note("cancelled", await outcome(sending))
        far.transport.resume_reading()
        stage.note("write", attempt(near.transport.write, b"behind"))
        with file_of(b"another") as other:
            stage.note("another", await outcome(stage.loop.sendfile(near.transport, other)))
    near.transport.close()
    await stage.both_end()


@behaviour
async def a_file_without_the_kernels_help(stage: Stage) -> None:
    """fallback=False: the file is sent by the kernel, or refused."""
    near, far = await stage.pair()
    with file_of(b"file") as file:
        stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file, fallback=False)))
    near.transport.write(b" end")
    await stage.until(lambda: far.data.endswith(b"end"))
