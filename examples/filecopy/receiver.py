"""Receive files from one connection."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from .store import Partial, Refused, check_name
from .wire import Channel, PeerError, integer, text

if TYPE_CHECKING:
    from aiordma import RdmaStream

logger = logging.getLogger("file_copy")

WRITE_BYTES = 4 * 1024 * 1024  # buffered before a thread writes them


async def receive_files(stream: RdmaStream, directory: str, peer: object) -> None:
    """Receive until the sender is done or disconnects. Sender errors are logged, never raised."""
    channel = Channel(stream)
    try:
        while not await channel.at_end():
            try:
                await _receive_file(channel, directory, peer)
            except Refused as exc:
                logger.warning("%s: %s", peer, exc)
                await channel.refuse(str(exc))
                return
            except OSError as exc:
                logger.error("%s: cannot store: %s", peer, exc)
                await channel.refuse(f"cannot store: {exc.strerror or exc}")
                return
    except (anyio.IncompleteRead, anyio.BrokenResourceError) as exc:
        logger.warning("%s: the sender is gone: %s", peer, str(exc) or "the stream ended early")
    except PeerError as exc:
        logger.warning("%s: %s", peer, exc)


async def _receive_file(channel: Channel, directory: str, peer: object) -> None:
    offer = await channel.receive("offer")
    size = integer(offer, "size", 0, 1 << 62)
    name = check_name(text(offer, "name"))
    partial = await to_thread.run_sync(Partial, directory, name)
    try:
        held, blocks = await to_thread.run_sync(partial.blocks)
        await channel.send("have", size=held, blocks=blocks)
        start = integer(await channel.receive("data"), "start", 0, min(held, size))
        await to_thread.run_sync(partial.start_at, start)
        await _receive_content(channel, partial, size)
        end = await channel.receive("end")
        await to_thread.run_sync(partial.finish, text(end, "sha256"))
    finally:
        partial.close()
    logger.info("%s: received %r, %d bytes%s", peer, name, size, f" (from byte {start})" if start else "")
    await channel.send("done")


async def _receive_content(channel: Channel, partial: Partial, size: int) -> None:
    pieces: list[bytes] = []
    waiting = 0
    missing = size - partial.size
    try:
        while missing:
            piece = await channel.receive_bytes(min(missing, WRITE_BYTES))
            missing -= len(piece)
            waiting += len(piece)
            pieces.append(piece)
            if waiting >= WRITE_BYTES:
                full, pieces, waiting = pieces, [], 0
                await to_thread.run_sync(partial.append, full)
    finally:
        # Keep what has arrived, also if the sender disconnected or this task is cancelled.
        if pieces:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(partial.append, pieces)
