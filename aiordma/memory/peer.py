"""A connection for memory: :class:`Peer`, the same at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.abc
from anyio import BrokenResourceError, ClosedResourceError

from .. import wake
from ..addresses import show
from ..credit import CreditWindow
from ..errors import RemoteProtocolError
from ..negotiation.opening import opening
from ..proto.memory import (
    ATOMICS_BY_DEVICE,
    HEADER,
    PIECE_BYTES,
    Descriptor,
    Fault,
    Op,
    head,
    parse_open_answer,
)
from ..wake.interrupts import uninterrupted
from .by_link import LinkCarrier
from .by_messages import MessageCarrier
from .errors import MemoryAccessError
from .notes import Notes, Notifications
from .opened import Opened
from .outbox import Outbox
from .owner import Owner
from .region import GRACE_S
from .remote import RemoteMemory
from .requests import Requests

if TYPE_CHECKING:
    from ..addresses import Address
    from ..channels.channel import ConnectedChannel
    from ..errors import FallbackReason
    from ..pipes.contracts import Message
    from ..wake.base import Waiter
    from .operation import OperationPath

CREDIT = 64
"""Pieces of 64 KiB that an end has under way at most."""
_REQUESTS = frozenset({Op.OPEN, Op.READ, Op.WRITE, Op.FETCH_ADD, Op.COMPARE_SWAP})
_ANSWERS = frozenset({Op.OPENED, Op.DONE, Op.REFUSED})


@uninterrupted
class Peer(anyio.abc.AsyncResource):
    """One peer, whose memory can be opened, and which opens this end's. Belongs to one event loop. Made by
    :func:`~aiordma.memory.connect`, and for each client by :func:`~aiordma.memory.serve`.
    """

    def __init__(self, connected: ConnectedChannel) -> None:
        self._connected = connected
        channel = connected.channel
        self._channel = channel
        self.path: str = connected.path
        """``"rdma"``: READs and WRITEs are one-sided; ``"tcp"``: the peer's loop does them."""
        self.fallback_reason: FallbackReason | None = connected.fallback_reason
        """Why the path is TCP."""
        self.remote_address: Address = connected.remote_address
        """The peer's end of the TCP connection that it began on."""
        self.credit = CreditWindow(CREDIT)
        """Back-pressure: one credit for each 64 KiB under way. Operations wait for it in order."""
        self._opened: dict[int, Opened] = {}
        self._idle_waiters: list[Waiter] = []
        self._closing = self._closed = self._over = False
        self._error: BaseException | None = None
        self._outbox = Outbox(channel)
        self._notes = Notes(self, self._outbox)
        # On TCP, READs and WRITEs are requests. On RDMA these do not wait for READs and WRITEs.
        credit = CreditWindow(CREDIT) if self.path == "rdma" else self.credit
        self.requests = Requests(self._outbox, credit)
        self._windows = {self.credit, credit}
        self._end_waiters: list[Waiter] = []
        self.carrier: OperationPath = MessageCarrier(self.requests)
        self.memory = None
        if self.path == "rdma":
            link_channel: Any = channel
            self.memory = link_channel.own.link_memory
            self.carrier = LinkCarrier(self.memory, self.credit, PIECE_BYTES)
        self._owner = Owner(self._outbox, self.memory)
        channel.on_closed = self._on_closed
        channel.on_message = self._on_message

    # ---- the peer's memory

    @opening
    async def open(self, descriptor: bytes) -> RemoteMemory:
        """Open memory of the peer by its descriptor (:meth:`Region.descriptor`).

        :raises MemoryAccessError: it is none, is not of this peer, or is over.
        :raises anyio.BrokenResourceError: the peer is lost. :raises anyio.ClosedResourceError: closed.
        """
        self.check_open()
        try:
            meant = Descriptor.decode(bytes(descriptor))
        except ValueError as error:
            raise MemoryAccessError(Fault.MALFORMED, str(error)) from error
        opened = Opened(self, meant.length, meant.rights)
        # The answer is taken where it comes: with a caller that was cancelled, the opening is given back.
        try:
            await self.requests.ask(
                Op.OPEN,
                b"",
                bytes(descriptor),
                on_answer=lambda number, code, body: self._open(opened, number, code, body),
                keeps_answer=True,
            )
        except BaseException:
            opened.close()
            raise
        return RemoteMemory(opened, 0, opened.length)

    def _open(self, opened: Opened, number: int, code: int, body: memoryview) -> None:
        address, length, rkey, rights = parse_open_answer(body)
        if (length, rights) != (opened.length, opened.rights):
            raise RemoteProtocolError("the peer opened something else than the descriptor says")
        opened.number, opened.address, opened.rkey = number, address, rkey
        opened.atomics_by_device = bool(
            code & ATOMICS_BY_DEVICE and self.memory is not None and self.memory.atomics
        )
        self._opened[number] = opened
        opened.live = not self._closing and not opened.closing
        opened.settle()

    @property
    def _in_use(self) -> bool:
        """Whether a device may still have requests of this end. (On TCP nothing has to be waited for.)"""
        return self.memory is not None and any(opened.users for opened in self._opened.values())

    def idle(self) -> None:
        """See :class:`.opened.OpenedPeer`."""
        if (self._closing or self._over) and not self._in_use:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                waiter.set()
            if self._closing:
                self._close_channel()

    def release(self, opened: Opened) -> None:
        """Nothing uses it any more: give it back."""
        if self._opened.pop(opened.number, None) is not None and not self._over:
            self._outbox.send(head(Op.RELEASE, opened.number))

    # ---- notifications

    async def notify(self, payload: bytes) -> None:
        """Give the peer a notification of at most 4096 bytes. Waits while it has not taken the last 64.

        :raises ValueError: it is longer. :raises anyio.BrokenResourceError: the peer is lost.
        """
        self.check_open()
        await self._notes.send(payload)

    def notifications(self) -> Notifications:
        """The peer's notifications, in order: ``async for note in peer.notifications()``. Ends when the peer
        closes in order.

        :raises anyio.BrokenResourceError: (while iterating) the peer is lost.
        :raises anyio.ClosedResourceError: (while iterating) this end was closed.
        """
        return Notifications(self._notes)

    @property
    def peer_closed(self) -> bool:
        """Whether the peer has closed the connection in order."""
        return self._over and self._error is None

    # ---- messages

    def _on_message(self, message: Message) -> None:
        try:
            self._receive(memoryview(message))
        except RemoteProtocolError as error:
            self._channel.abort()
            self._on_closed(error)

    def _receive(self, message: memoryview) -> None:
        if len(message) < HEADER.size:
            raise RemoteProtocolError("a message about memory that is shorter than its header")
        op, code, number = HEADER.unpack(message[: HEADER.size])
        body = message[HEADER.size :]
        if op in _REQUESTS:
            self._owner.receive(op, number, body)
        elif op in _ANSWERS:
            self.requests.receive(op, number, code, body)
        elif op == Op.RELEASE:
            self._owner.release(number)
        elif op == Op.RECALL:
            opened = self._opened.get(number)
            if opened is not None:
                opened.recall(Fault.EXPIRED if code == Fault.EXPIRED else Fault.REVOKED)
        elif op == Op.NOTE:
            self._notes.arrived(body)
        elif op == Op.TAKEN:
            self._notes.taken()
        else:
            raise RemoteProtocolError(f"a message about memory with an unknown operation ({op})")

    # ---- end

    def check_open(self) -> None:
        """:raises anyio.ClosedResourceError: closed here. :raises anyio.BrokenResourceError: lost."""
        if self._closing:
            raise ClosedResourceError("this connection was closed")
        if self._over:
            why = self._error if self._error is not None else "the peer has closed the connection"
            raise BrokenResourceError(f"the peer is lost: {why}") from self._error

    def _on_closed(self, error: BaseException | None) -> None:
        """The peer sends no more."""
        if self._over:
            return
        self._over, self._error = True, error
        self._no_more()
        reason = error if error is not None else ConnectionError("the peer has closed the connection")
        self.carrier.close()
        self.requests.end(reason)
        lost = BrokenResourceError(f"the peer is lost: {reason}")
        for window in self._windows:
            window.close(lost)
        self._owner.end()
        self._notes.end(lost)
        waiters, self._end_waiters = self._end_waiters, []
        for waiter in waiters:
            waiter.set()

    def _no_more(self) -> None:
        for opened in self._opened.values():
            opened.live = False

    async def wait_closed(self) -> None:
        """Wait until the connection is over, for whatever reason."""
        while not self._over:
            waiter = wake.current().new_waiter()
            self._end_waiters.append(waiter)
            await waiter.wait()
        await wake.current().checkpoint()

    def close(self) -> None:
        """Begin to close: nothing new begins, and what was begun ends first. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._no_more()
        self.carrier.close()
        if not self._in_use:
            self._close_channel()

    def _close_channel(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_closed(ClosedResourceError("this end was closed"))
        self._connected.detach()
        self._channel.close()

    async def aclose(self) -> None:
        """Close in order: peers end what they do in this end's memory (or lose their access after 5 s), and
        operations of this end that were begun end. Cancelled: at once, in the same order."""
        try:
            if not self._over and not self._closing:
                await self._owner.recall_all(GRACE_S)
        finally:
            self.close()
        while self._in_use:
            waiter = wake.current().new_waiter()
            self._idle_waiters.append(waiter)
            await waiter.wait()
        await wake.current().checkpoint()

    def __repr__(self) -> str:
        return f"<Peer {self.path} {show(self.remote_address)}>"
