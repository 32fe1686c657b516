"""CLC messages out of a TCP byte stream."""

from __future__ import annotations

from .clc import Claim, Confirm, Decline, Message, decode
from .clcframe import HEADER, looks_like_clc, message_length
from .errors import RemoteProtocolError


class Splitter:
    """Cuts a TCP byte stream into messages. Holds less than one message of ``MAX_MESSAGE_BYTES``.

    A Decline, Confirm or Claim ends the negotiation: what follows it belongs to the application and comes
    out of :meth:`rest` untouched.

    :param until: the messages that end it, if they are other ones.
    """

    def __init__(self, until: tuple[type[Message], ...] = (Decline, Confirm, Claim)) -> None:
        self._until = until
        self._buffer = bytearray()
        self._done = False
        self._error: RemoteProtocolError | None = None

    @property
    def done(self) -> bool:
        """A message that ends the negotiation was seen."""
        return self._done

    @property
    def pending(self) -> int:
        """Bytes fed that are not part of a message returned so far."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """The messages completed by ``data``.

        :raises RemoteProtocolError: the stream is not CLC; further calls raise the same.
        """
        if self._error is not None:
            raise self._error
        self._buffer += data
        messages: list[Message] = []
        try:
            while not self._done and self._buffer:
                if looks_like_clc(self._buffer) is None:
                    break
                length = message_length(bytes(self._buffer[: HEADER.size]).ljust(HEADER.size, b"\0"))
                if len(self._buffer) < length:
                    break
                message = decode(memoryview(self._buffer)[:length])
                del self._buffer[:length]
                messages.append(message)
                self._done = isinstance(message, self._until)
        except RemoteProtocolError as exc:
            self._error = exc
            raise
        return messages

    def rest(self) -> bytes:
        """The bytes that were fed and are not part of a message returned so far; they are handed out once."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest
