"""One operation under way: its parts, and who waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .. import wake

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Carrier", "Operation", "Remote", "Use"]


class Remote(Protocol):
    """What a peer's descriptor was opened as."""

    number: int
    address: int
    rkey: int

    def begin_use(self) -> None:
        """A request to the device begins.

        :raises MemoryAccessError: it was taken back. :raises anyio.ClosedResourceError: it was closed.
        """

    def check_peer(self) -> None:
        """:raises anyio.ClosedResourceError: or BrokenResourceError: the connection is over."""

    def end_use(self) -> None:
        """It has ended."""


class Use(Protocol):
    """Registered memory of this end, in use by one request."""

    lkey: int

    def end(self) -> None:
        """The device has let go of it."""


class Operation:
    """A READ or WRITE, or a request to the peer's loop.

    :param on_end: called once when no device and no message uses its memory any more, also when the
        user has given it up.
    """

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self.waiter = wake.current().new_waiter()
        self.parts = 0
        self.error: BaseException | None = None
        self.ended = False
        self._on_end = on_end

    def part_ended(self, error: BaseException | None = None) -> None:
        """One of its parts has ended."""
        self.parts -= 1
        if error is not None and self.error is None:
            self.error = error
        if not self.parts and not self.ended:
            self.ended = True
            on_end, self._on_end = self._on_end, None
            if on_end is not None:
                on_end()
            self.waiter.set()


class Carrier(Protocol):
    """What carries operations to a peer: a link, or messages to the peer's loop."""

    path: str

    async def read(self, remote: Remote, offset: int, into: memoryview, use: Use | None) -> None:
        """READ as many bytes as ``into`` has.

        :param use: of registered memory around ``into``; ended by the carrier in any case.
        """

    async def write(self, remote: Remote, offset: int, data: memoryview, use: Use | None) -> None:
        """WRITE ``data``."""

    def close(self) -> None:
        """Begin nothing more."""
