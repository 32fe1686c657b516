"""`loop.sendfile()` on transports of aiordma: the same files, from where the caller says, as on a socket.

Where the kernel does not send a file by itself, asyncio reads it from wherever it stands when the offset is
0, and looks at none of the arguments. On a socket the same call sends a file from its beginning, and refuses
one that was opened as text. What is no file of the kernel's is read on a socket, too. So is every file inside
TLS: there asyncio's own way is the right one.
"""

from __future__ import annotations

import errno
import functools
import io
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from typing import BinaryIO


def from_the_beginning(loop: asyncio.AbstractEventLoop) -> None:
    """Have this loop send files to a transport of aiordma from their beginning, where the offset is 0.

    asyncio asks the transport what it can do right before it begins, so nothing is changed in loops that do
    not use it.
    """
    vars(loop).setdefault("_sendfile_fallback", functools.partial(_send, loop))


async def _send(loop: Any, transport: Any, file: BinaryIO, offset: int, count: int | None) -> int:
    own = type(loop)._sendfile_fallback
    sent: int
    if not type(transport).__module__.startswith("aiordma."):
        sent = await own(loop, transport, file, offset, count)
        return sent
    wanted: Any = _Wanted(file, transport)
    # Also of a connection by RDMA that was negotiated inside TLS: its program does not know of the path.
    if transport.get_extra_info("ssl_object") is not None:
        sent = await own(loop, transport, wanted, offset, count)
        return sent
    _check(file, offset, count)
    with transport.sends_file():
        if not _is_of_the_kernel(file):
            sent = await own(loop, transport, wanted, offset, count)
            return sent
        stood = file.tell()
        if not offset:
            file.seek(0)
        sent = await own(loop, transport, wanted, offset, count)
        if not sent and _puts_back(loop):
            file.seek(stood)
        return sent


class _Wanted:
    """A file whose reading ends with an error once the peer takes nothing more.

    asyncio would read and write on. What is written behind the peer's end is discarded for a while, so that
    what the peer has sent before is read, and a small file would seem to have been sent.
    """

    def __init__(self, file: Any, transport: Any) -> None:
        self._file, self._transport = file, transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def readinto(self, buffer: memoryview) -> int:
        """See io, but for an end that has been met by a write before. Called in a thread of the loop's."""
        n: int = self._file.readinto(buffer)
        if n and self._transport.discards:
            raise BrokenPipeError(errno.EPIPE, "the other end has closed the connection")
        return n


def _check(file: Any, offset: Any, count: Any) -> None:
    """The arguments, judged as `loop.sock_sendfile()` judges them.

    :raises ValueError: a text file, or a number that is too small.
    :raises TypeError: a number that is no integer.
    """
    if "b" not in getattr(file, "mode", "b"):
        raise ValueError("file should be opened in binary mode")
    if count is not None:
        if not isinstance(count, int):
            raise TypeError(f"count must be a positive integer (got {count!r})")
        if count <= 0:
            raise ValueError(f"count must be a positive integer (got {count!r})")
    if not isinstance(offset, int):
        raise TypeError(f"offset must be a non-negative integer (got {offset!r})")
    if offset < 0:
        raise ValueError(f"offset must be a non-negative integer (got {offset!r})")


def _is_of_the_kernel(file: Any) -> bool:
    """Whether a socket would have the kernel send it, and not read it from where it stands."""
    try:
        os.fstat(file.fileno())
    except (AttributeError, io.UnsupportedOperation, OSError):
        return False
    return True


def _puts_back(loop: Any) -> bool:
    """Whether a file of which nothing was sent stays where it stood on a socket, too.

    It does in the releases whose loops move it only behind what was sent. Later ones (3.13.15, 3.14.8) move
    it to the offset in any case, and so does their way of sending without the kernel.
    """
    moves = getattr(type(loop), "_sock_sendfile_update_filepos", None)
    return moves is None or "total_sent" in moves.__code__.co_varnames
