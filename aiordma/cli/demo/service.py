"""A program of the demo, in plain asyncio: a server that answers small requests and takes uploads.

It knows nothing of aiordma. It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

_BODY = b"x" * 64
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_READ = 1 << 20


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"PUT "):
                left = int(head.rpartition(b"Content-Length:")[2])
                while left:
                    left -= len(await reader.read(min(left, _READ))) or left
            writer.write(_REPLY)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has gone
    finally:
        writer.close()


async def main() -> None:
    """Serve until standard input ends."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=_READ)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, b"%d\n" % server.sockets[0].getsockname()[1])
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
