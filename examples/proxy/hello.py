"""The handshake between front and back before the first command on a stream.

The front sends first (a server that waits for its peer's first bytes can detect the protocol at once). The
back answers when it has connected to Redis, or with the reason if that fails. After that both directions
carry plain RESP, unchanged.
"""

from __future__ import annotations

HELLO = b"redis-proxy 1\r\n"
READY = b"+redis-proxy 1 ready\r\n"
MAX_LINE = 512


class Line:
    """Collect the first line of a stream, split anywhere."""

    def __init__(self) -> None:
        self.text = b""

    def feed(self, data: bytes) -> bytes | None:
        """Return the bytes behind the line once it is complete (then `text` is the line), else None.

        Raises ValueError when the line is longer than MAX_LINE.
        """
        self.text += data
        end = self.text.find(b"\n", 0, MAX_LINE) + 1
        if end:
            rest = self.text[end:]
            self.text = self.text[:end]
            return rest
        if len(self.text) >= MAX_LINE:
            raise ValueError(f"no line end in the first {MAX_LINE} bytes: {self.text[:32]!r} ...")
        return None


def refusal(reason: str) -> bytes:
    """The back's answer when it cannot serve: a RESP error, so that a Redis client shows it too."""
    printable = "".join(c if c.isprintable() else "?" for c in reason)
    return b"-PROXY " + printable.encode()[: MAX_LINE - 16] + b"\r\n"
