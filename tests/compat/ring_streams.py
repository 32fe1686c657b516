"""Streams of asyncio's kind on rings in memory."""

from __future__ import annotations

import asyncio
from typing import Any

from aiordma.compat.streams import ring_streams
from aiordma.testing.memory import MemoryPipe, memory_pipe_pair

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
    for writer in writers:
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def against_pipe(
    ring_bytes: int = 65536, limit: int = 65536, **kwargs: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, MemoryPipe]:
    near, far = memory_pipe_pair(ring_bytes, **kwargs)
    reader, writer = ring_streams(near, limit)
    return reader, writer, far


async def stream_pair(ring_bytes: int = 65536, limit: int = 65536, **kwargs: Any) -> tuple[Streams, Streams]:
    near, far = memory_pipe_pair(ring_bytes, **kwargs)
    return ring_streams(near, limit), ring_streams(far, limit)
