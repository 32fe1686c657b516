"""What other processes do in tests of Valkey's protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiordma.valkey

if TYPE_CHECKING:
    from tests.program import Control


def command(*words: bytes) -> bytes:
    """A command of RESP."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


async def holder(control: Control, port: int) -> None:
    """Keeps a connection until it is killed."""
    stream = await aiordma.valkey.connect("127.0.0.1", port)
    await stream.send(command(b"CLIENT", b"SETNAME", b"doomed"))
    control.say((await stream.receive()).decode())
    await stream.receive()
