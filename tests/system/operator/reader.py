"""A client of feed.py: ``reader.py PORT``. It sends records and reads the answers.

Words on stdin: ``stop`` reading, ``go`` on, and ``more``: two hundred streams more, which it keeps.
"""

from __future__ import annotations

import asyncio
import sys

import aiordma

PORT = int(sys.argv[1])


async def send(stream: aiordma.RdmaStream) -> None:
    while True:
        await stream.send(b"x" * 4096)
        await asyncio.sleep(0.001)


async def read(stream: aiordma.RdmaStream, reads: asyncio.Event) -> None:
    while True:
        await reads.wait()
        await stream.receive()


async def main() -> None:
    reads, kept = asyncio.Event(), []
    reads.set()
    words = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(words)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with await aiordma.connect("127.0.0.1", PORT) as stream, asyncio.TaskGroup() as tasks:
        tasks.create_task(send(stream))
        tasks.create_task(read(stream, reads))
        print("begun", flush=True)
        while word := (await words.readline()).decode().strip():
            if word == "more":
                kept += [await aiordma.connect("127.0.0.1", PORT) for _ in range(200)]
            elif word == "stop":
                reads.clear()
            else:
                reads.set()
            print(word, flush=True)


asyncio.run(main())
