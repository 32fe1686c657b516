"""The messages between sender and receiver: a length, then JSON. File contents follow unframed."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from aiordma import RdmaStream

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
BLOCK_BYTES = 4 * 1024 * 1024  # what one digest of a partial file covers
MAX_BLOCKS = 65536  # that a receiver reports; later blocks are sent again

REFUSAL_S = 10  # time for the peer to read the refusal

_LENGTH = struct.Struct(">I")


class PeerError(Exception):
    """The peer broke the protocol or refused; the text gives the reason."""


class Channel:
    """Messages and bytes on one stream."""

    def __init__(self, stream: RdmaStream) -> None:
        self.stream = stream
        self._ahead = b""

    async def send(self, kind: str, **fields: object) -> None:
        body = json.dumps({"kind": kind, **fields}).encode()
        await self.stream.send(_LENGTH.pack(len(body)) + body)

    async def receive(self, kind: str) -> dict[str, Any]:
        """Return the next message, which must be of this kind.

        Raises PeerError, also for a "refused" message; anyio.IncompleteRead when the stream ends.
        """
        (length,) = _LENGTH.unpack(await self._exactly(_LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise PeerError(f"a message of {length} bytes (limit {MAX_MESSAGE_BYTES}); is it file_copy.py?")
        try:
            message = json.loads(await self._exactly(length))
        except ValueError as exc:
            raise PeerError(f"a message that is no JSON: {exc}") from None
        if not isinstance(message, dict):
            raise PeerError("a message that is no object")
        if message.get("kind") == "refused":
            raise PeerError(f"refused: {message.get('reason')}")
        if message.get("kind") != kind:
            raise PeerError(f"a message {message.get('kind')!r} where {kind!r} was due")
        return message

    async def refuse(self, reason: str) -> None:
        """Send the reason and let the peer read it: closing with unread input would reset a TCP stream."""
        await self.send("refused", reason=reason)
        with anyio.move_on_after(REFUSAL_S), contextlib.suppress(anyio.EndOfStream):
            while True:
                await self.stream.receive()

    async def receive_bytes(self, limit: int) -> bytes:
        """Return the next available bytes, at most `limit`. Raises anyio.IncompleteRead when the stream
        ends."""
        if self._ahead:
            data, self._ahead = self._ahead[:limit], self._ahead[limit:]
            return data
        try:
            return await self.stream.receive(limit)
        except anyio.EndOfStream:
            raise anyio.IncompleteRead from None

    async def check_refusal(self) -> None:
        """Raise PeerError if the peer has refused the file being sent."""
        with contextlib.suppress(anyio.WouldBlock, anyio.EndOfStream):
            self._ahead += self.stream.receive_nowait()
            await self.receive("nothing")

    async def at_end(self) -> bool:
        """Wait for the next message or the end of the stream; True for the end."""
        try:
            self._ahead = self._ahead or await self.stream.receive()
        except anyio.EndOfStream:
            return True
        return False

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await self.receive_bytes(size - len(data))
        return data


def integer(message: dict[str, Any], field: str, low: int, high: int) -> int:
    """Return a checked field of a message. Raises PeerError."""
    value = message.get(field)
    if type(value) is not int or not low <= value <= high:
        raise PeerError(f"{field} is {value!r}, not a number from {low} to {high}")
    return value


def text(message: dict[str, Any], field: str) -> str:
    """Return a checked field of a message. Raises PeerError."""
    value = message.get(field)
    if not isinstance(value, str):
        raise PeerError(f"{field} is {value!r}, not text")
    return value
