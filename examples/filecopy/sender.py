"""Send files on one connection."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from anyio import to_thread

from .store import block_digest
from .wire import BLOCK_BYTES, Channel, PeerError, integer

if TYPE_CHECKING:
    from typing import BinaryIO

PIECE_BYTES = 1024 * 1024


class Sent(NamedTuple):
    size: int
    start: int  # the receiver had the bytes before this one
    sha256: str


class Progress(Protocol):
    def __call__(self, done: int, total: int) -> None:
        """Called when the receiver has `done` of `total` bytes."""


async def send_file(channel: Channel, path: Path, progress: Progress) -> Sent:
    """Send one file, or the part that the receiver lacks.

    Raises OSError (the file), PeerError (refused; the text gives the reason) and anyio's stream errors
    (connection lost: call again on a new connection to resume).
    """
    with await to_thread.run_sync(path.open, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        await channel.send("offer", name=path.name, size=size)
        have = await channel.receive("have")
        sha256 = hashlib.sha256()
        start = await to_thread.run_sync(_common, file, sha256, size, _blocks(have, size))
        progress(start, size)
        await channel.send("data", start=start)
        done = start
        while done < size:
            piece = await to_thread.run_sync(_next, file, sha256, min(PIECE_BYTES, size - done))
            if not piece:
                raise OSError(f"{path} became shorter while it was being sent")
            await channel.stream.send(piece)
            await channel.check_refusal()
            done += len(piece)
            progress(done, size)
        await channel.send("end", sha256=sha256.hexdigest())
        await channel.receive("done")
        return Sent(size, start, sha256.hexdigest())


def _blocks(have: dict[str, Any], size: int) -> list[tuple[int, str]]:
    """Size and digest of each block that the receiver reports."""
    held = integer(have, "size", 0, 1 << 63)
    digests = have.get("blocks")
    if not isinstance(digests, list) or len(digests) != -(-held // BLOCK_BYTES):
        raise PeerError("a list of digests that does not fit its size")
    sizes = [min(BLOCK_BYTES, held - at) for at in range(0, held, BLOCK_BYTES)]
    blocks = list(zip(sizes, digests, strict=True))
    return blocks[: size // BLOCK_BYTES + 1]


def _common(file: BinaryIO, sha256: Any, size: int, blocks: list[tuple[int, str]]) -> int:
    """Return the length of the common prefix; file and digest are then positioned behind it."""
    start = 0
    for length, digest in blocks:
        block = file.read(length)
        if len(block) < length or block_digest(block) != digest:
            break
        sha256.update(block)
        start += length
    file.seek(start)
    return start


def _next(file: BinaryIO, sha256: Any, limit: int) -> bytes:
    piece = file.read(limit)
    sha256.update(piece)
    return piece
