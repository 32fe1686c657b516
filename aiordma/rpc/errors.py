"""How a call fails: one code of a small fixed set, a sentence for people, and details for programs.

The codes are gRPC's, with gRPC's numbers and meanings (https://grpc.io/docs/guides/status-codes/), because
authors of services know them, and every gateway and dashboard maps them already.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from ..proto.errors import AioRdmaError

#: Longest message, in characters, and longest details, in bytes, that an error carries. A message is cut
#: there (a failing call must not become a large transfer); longer details are refused where they are made.
MAX_MESSAGE_CHARS = 1024
MAX_DETAILS_BYTES = 16384


class Code(enum.IntEnum):
    """How a call ended. Anything but ``OK`` is raised as an :class:`RpcError`."""

    OK = 0
    #: The caller gave up, or this end withdrew the call.
    CANCELLED = 1
    #: An exception that no other code describes; also a code from a newer peer.
    UNKNOWN = 2
    #: The arguments are wrong, whatever the state of the service.
    INVALID_ARGUMENT = 3
    #: Time ran out. The work may have been done all the same.
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    #: The caller is known and may not do this.
    PERMISSION_DENIED = 7
    #: A quota, a limit of calls in flight or memory is used up.
    RESOURCE_EXHAUSTED = 8
    #: The service is not in a state that allows it; repeating the call alone does not help.
    FAILED_PRECONDITION = 9
    #: A conflict with another caller; repeating the whole transaction may help.
    ABORTED = 10
    OUT_OF_RANGE = 11
    #: The method does not exist, or not for this kind of call.
    UNIMPLEMENTED = 12
    #: Something that must hold does not; a bug.
    INTERNAL = 13
    #: The service cannot be reached now: no connection, a broken link, a server that is draining.
    UNAVAILABLE = 14
    DATA_LOSS = 15
    #: The caller is not known.
    UNAUTHENTICATED = 16

    @classmethod
    def from_wire(cls, number: int) -> Code:
        """The code of a number that a peer sent; one that is not known here is ``UNKNOWN``."""
        try:
            return cls(number)
        except ValueError:
            return cls.UNKNOWN


class RpcError(AioRdmaError):
    """A call failed. Raised by a handler it is what the caller gets; nothing else of the handler's exception
    is sent.

    :param code: why; ``Code.OK`` is not an error.
    :param message: one sentence for people; cut to ``MAX_MESSAGE_CHARS`` characters.
    :param details: anything for programs, at most ``MAX_DETAILS_BYTES``; both ends must agree on its meaning.
    :param metadata: trailing metadata of the failed call; empty when there was none.
    :raises ValueError: the code is ``OK`` or no code; the details are too long.
    :raises TypeError: the message is no ``str``; the details are not bytes-like.
    """

    code: Code
    message: str
    details: bytes | None
    metadata: Mapping[str, str | bytes]
    #: Set by the client: the handler was certainly not run, so the call may be repeated whatever it does.
    #: False with a code that a server sends: not known, for a handler may raise each of them
    #: (``INVALID_ARGUMENT``, too, which the server also answers when the arguments do not fit).
    not_started: bool = False

    def __init__(
        self,
        code: Code | int,
        message: str = "",
        details: bytes | None = None,
        metadata: Mapping[str, str | bytes] | None = None,
    ) -> None:
        self.code = Code(code)
        if self.code is Code.OK:
            raise ValueError("code=OK: a call that ended well is not an error; return a result instead")
        if not isinstance(message, str):
            raise TypeError(f"message={message!r:.64}: must be a str, the sentence for people")
        if details is not None and type(details) is not bytes:
            if not isinstance(details, (bytes, bytearray, memoryview)):
                raise TypeError(f"details={details!r:.64}: must be bytes, for programs; encode a text")
            details = bytes(details)
        if details is not None and len(details) > MAX_DETAILS_BYTES:
            raise ValueError(
                f"details of {len(details)} bytes: at most {MAX_DETAILS_BYTES} travel with an error; "
                "return large data as a result"
            )
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 3] + "..."
        self.message = message
        self.details = details
        self.metadata = metadata if metadata is not None else {}
        super().__init__(f"{self.code.name}: {message}" if message else self.code.name)

    @staticmethod
    def of(
        code: Code | int,
        message: str = "",
        details: bytes | None = None,
        metadata: Mapping[str, str | bytes] | None = None,
    ) -> RpcError:
        """The error of the class that ``code`` has: :class:`RpcTimeout` for ``DEADLINE_EXCEEDED``,
        :class:`RpcCancelled` for ``CANCELLED``, else :class:`RpcError`."""
        return _CLASS.get(code, RpcError)(code, message, details, metadata)

    def __reduce__(self) -> tuple[Any, ...]:
        made = (self.code, self.message, self.details, dict(self.metadata))
        return RpcError.of, made, {"not_started": True} if self.not_started else None


class RpcTimeout(RpcError, TimeoutError):
    """The deadline of a call passed (``Code.DEADLINE_EXCEEDED``); also a built-in ``TimeoutError``."""


class RpcUnreachable(RpcError, ConnectionError):
    """No connection to the server could be made (``Code.UNAVAILABLE``); also a built-in ``ConnectionError``.
    Its cause is the error of the connection: ``ConnectionRefusedError``, ``socket.gaierror`` ..."""

    not_started = True

    def __init__(self, message: str, number: int | None = None) -> None:
        """
        :param number: the cause's ``errno``.
        """
        super().__init__(Code.UNAVAILABLE, message)
        self.errno = number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.errno)


class RpcCancelled(RpcError):
    """The other end, or the end of the connection, withdrew the call (``Code.CANCELLED``).

    Not an event loop's own cancellation: it is raised in a task that is *not* being cancelled.
    """


_CLASS: dict[int, type[RpcError]] = {Code.DEADLINE_EXCEEDED: RpcTimeout, Code.CANCELLED: RpcCancelled}
