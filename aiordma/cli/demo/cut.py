"""Both ends of a transfer, each a process: its link is cut in the middle, and every byte must be right.

The receiver prints its port, and at the end the size and the digest of what came. The sender prints its
pid, its events, a line each, and behind an equals sign the size and the digest of what it sent. Its parent
moves the stream back to RDMA meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import random
import sys
import threading
from time import perf_counter

from ... import faults
from ...streams.connector import connect
from ...streams.listener import listen

_CHUNK = 256 << 10
#: How much is sent before the cut, and at the end by RDMA again.
_PART = 32 << 20
#: Seconds; then it ends, on TCP if need be.
PATIENCE_S = 20.0


def say(line: str) -> None:
    """To the parent."""
    with contextlib.suppress(BrokenPipeError):  # it has ended, and so does this
        os.write(1, f"{line}\n".encode())


async def receive() -> None:
    """Take one stream to its end."""
    digest, size = hashlib.sha256(), 0
    async with listen("127.0.0.1", 0, mode="rdma") as listener:
        say(str(listener.port))
        async with await listener.accept() as stream:
            async for data in stream:
                digest.update(data)
                size += len(data)
    say(f"{size} {digest.hexdigest()}")


async def send(port: int) -> None:
    """A part by RDMA, the cut, on by TCP until the stream is back on RDMA, and a part there."""
    begun = perf_counter()
    digest, size, source = hashlib.sha256(), 0, random.Random(7)
    path, cut_at, back_at = "rdma", 0, 0

    def event(what: str) -> None:
        say(f"{perf_counter() - begun:.3f} {size} {what}")

    say(str(os.getpid()))
    async with connect("127.0.0.1", port, mode="rdma") as stream:
        event("rdma")
        while not back_at or size < back_at + _PART:
            if not cut_at and size >= _PART:
                cut_at = size
                event("cut")
                faults.add("disconnect op=write nth=1 times=1")
            chunk = source.randbytes(_CHUNK)
            digest.update(chunk)
            await stream.send(chunk)
            size += len(chunk)
            if stream.path != path:
                path = stream.path
                event("back" if path == "rdma" else "tcp")
                back_at = size if path == "rdma" else 0
            if perf_counter() - begun > PATIENCE_S:
                break
            if path == "tcp":
                await asyncio.sleep(0.01)  # there is time to look at it with `aiordma stat`
        await stream.send_eof()
    event("end")
    say(f"={size} {digest.hexdigest()}")


def _end_with_the_demo() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    logging.getLogger("aiordma").addHandler(logging.NullHandler())  # its parent says what happens
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    asyncio.run(receive() if sys.argv[1] == "receive" else send(int(sys.argv[2])))
