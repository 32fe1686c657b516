"""`loop.sendfile()` on transports of aiordma: from where the caller says, as on a socket.

Where the kernel does not send a file by itself, asyncio reads it from wherever it stands when the offset is
0. On a socket the same call sends it from its beginning.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from typing import BinaryIO

__all__ = ["from_the_beginning"]


def from_the_beginning(loop: asyncio.AbstractEventLoop) -> None:
    """Have this loop send files to a transport of aiordma from their beginning, where the offset is 0.

    asyncio asks the transport what it can do right before it begins, so nothing is changed in loops that do
    not use it.
    """
    vars(loop).setdefault("_sendfile_fallback", functools.partial(_send, loop))


async def _send(loop: Any, transport: Any, file: BinaryIO, offset: int, count: int | None) -> int:
    own = type(loop)._sendfile_fallback
    if not type(transport).__module__.startswith("aiordma.") or not hasattr(file, "seek"):
        sent: int = await own(loop, transport, file, offset, count)
        return sent
    if count is not None and count <= 0:
        raise ValueError(f"count must be a positive integer (got {count!r})")
    stood = file.tell()
    if not offset:
        file.seek(0)
    sent = await own(loop, transport, file, offset, count)
    if not sent and _puts_back(loop):
        file.seek(stood)
    return sent


def _puts_back(loop: Any) -> bool:
    """Whether a file of which nothing was sent stays where it stood on a socket, too.

    It does in the releases whose loops move it only behind what was sent. Later ones (3.13.15, 3.14.8) move
    it to the offset in any case, and so does their way of sending without the kernel.
    """
    moves = getattr(type(loop), "_sock_sendfile_update_filepos", None)
    return moves is None or "total_sent" in moves.__code__.co_varnames
