"""A program of the demo, in plain asyncio: a client that asks the service as often as it can, then uploads.

It knows nothing of aiordma. Its arguments are a port and the seconds of each part. It prints two numbers:
requests a second, and bytes a second.
"""

from __future__ import annotations

import asyncio
import os
import sys
from time import perf_counter

_ASK = b"GET /item HTTP/1.1\r\nHost: demo\r\n\r\n"
_CHUNK = 1 << 20
_CHUNKS = 64


async def _reply(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.rpartition(b"Content-Length:")[2]))


async def main(port: int, seconds: float) -> None:
    """Do both, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for warm in (True, False):
        asked, begun = 0, perf_counter()
        while (took := perf_counter() - begun) < (seconds / 10 if warm else seconds):
            writer.write(_ASK)
            await _reply(reader)
            asked += 1
    requests = asked / took
    # Not one piece again and again, which would stay in the processor's cache.
    data = memoryview(os.urandom(_CHUNK) * _CHUNKS)
    sent, begun = 0, perf_counter()
    while (took := perf_counter() - begun) < seconds:
        writer.write(b"PUT /item HTTP/1.1\r\nHost: demo\r\nContent-Length: %d\r\n\r\n" % len(data))
        for at in range(0, len(data), _CHUNK):
            writer.write(data[at : at + _CHUNK])
            await writer.drain()
        await _reply(reader)
        sent += len(data)
    sys.stdout.write(f"{requests} {sent / took}\n")
    writer.close()
    await writer.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
