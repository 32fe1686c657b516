"""One descriptor of a peer that this end has opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from anyio import ClosedResourceError

from .. import wake
from ..proto.memory import Fault, Rights
from .errors import MemoryAccessError

if TYPE_CHECKING:
    from .operation import OperationPath
    from .requests import Requests


class OpenedPeer(Protocol):
    """The peer, as what was opened of it sees it."""

    requests: Requests
    carrier: OperationPath

    def check_open(self) -> None:
        """:raises anyio.ClosedResourceError: or BrokenResourceError: the connection is over."""

    def release(self, opened: Opened) -> None:
        """Nothing uses it any more."""

    def idle(self) -> None:
        """The last operation in one that may not be used any more has ended."""

    async def notify(self, payload: bytes) -> None:
        """Send a notification."""


class Opened:
    """One descriptor that was opened, under the number of its request."""

    __slots__ = (
        "_released",
        "address",
        "atomics_by_device",
        "carrier",
        "closing",
        "holder",
        "length",
        "live",
        "may",
        "number",
        "rights",
        "rkey",
        "users",
        "waker",
        "why",
    )

    def __init__(self, holder: OpenedPeer, length: int, rights: Rights) -> None:
        self.holder, self.length, self.rights = holder, length, rights
        self.carrier, self.waker = holder.carrier, wake.current()
        self.number = self.address = self.rkey = 0
        #: The rights to READ and to WRITE: a look at the flags takes as long as a short operation.
        self.may = bool(rights & Rights.READ), bool(rights & Rights.WRITE)
        #: Whether the device carries out atomic operations; if not, the owner's loop does.
        self.atomics_by_device = False
        self.why: Fault | None = None
        #: Whether it may be used. (False is no reason yet: see :meth:`check_open`.)
        self.live = False
        #: Requests that are under way, or wait for their turn.
        self.users = 0
        self.closing = self._released = False

    def check(self, offset: int, length: int, right: Rights) -> None:
        """:raises MemoryAccessError: it is not allowed. :raises anyio.ClosedResourceError: it was closed."""
        if not self.live:
            self.check_open()
        if not self.rights & right:
            raise MemoryAccessError(Fault.RIGHTS, f"the descriptor does not allow {right.name}")
        if offset + length > self.length:
            raise MemoryAccessError(Fault.RANGE, f"{length} bytes at {offset} of {self.length}")

    def check_open(self) -> None:
        """See :class:`.operation.Remote`."""
        if self.why is not None:
            what = "its time is over" if self.why is Fault.EXPIRED else "its owner has taken it back"
            raise MemoryAccessError(self.why, f"this memory cannot be used any more: {what}")
        if self.closing:
            raise ClosedResourceError("this remote memory was closed")
        self.holder.check_open()

    def end_use(self) -> None:
        """See :class:`.operation.Remote`."""
        self.users -= 1
        if not self.users and not self.live:
            self.settle()

    def recall(self, fault: Fault) -> None:
        """Its owner takes it back: what was begun ends, and nothing else begins."""
        self.why, self.live = fault, False
        self.settle()

    def close(self) -> None:
        """It is not needed any more. Idempotent."""
        self.closing, self.live = True, False
        self.settle()

    def settle(self) -> None:
        """Give it back when it is not to be used any more, and nothing of it is under way."""
        if self.users:
            return
        if self.number and not self._released and (self.closing or self.why is not None):
            self._released = True
            self.holder.release(self)
        self.holder.idle()
