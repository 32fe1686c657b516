"""Memory of a peer, as this end uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from anyio import ClosedResourceError

from ..proto.memory import WORD_BYTES, Fault, Op, Rights, atomic_request, parse_word, span
from ..verbs._window import bytes_of
from .errors import MemoryAccessError
from .notes import Notes
from .region import Piece, Region

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

    from ..links.link_memory import LinkMemory
    from .by_messages import Requests
    from .operation import Carrier

__all__ = ["Opened", "RemoteMemory"]


class Holder(Protocol):
    """The peer, as what was opened of it sees it."""

    requests: Requests
    carrier: Carrier
    #: The link's; None on TCP.
    memory: LinkMemory | None

    def check_open(self) -> None:
        """:raises anyio.ClosedResourceError: or BrokenResourceError: the connection is over."""

    def use_begins(self) -> None: ...
    def use_ends(self) -> None: ...
    def release(self, opened: Opened) -> None:
        """Nothing uses it any more."""

    async def notify(self, payload: bytes) -> None:
        """Send a notification."""


class Opened:
    """One descriptor that was opened, under the number of its request."""

    def __init__(
        self, holder: Holder, number: int, address: int, rkey: int, length: int, rights: Rights
    ) -> None:
        self.holder = holder
        self.number, self.address, self.rkey = number, address, rkey
        self.length, self.rights = length, rights
        self.why: Fault | None = None
        self._closing = self._released = False
        self._users = 0

    def check(self, offset: int, length: int, right: Rights) -> None:
        """:raises MemoryAccessError: it is not allowed. :raises anyio.ClosedResourceError: it was closed."""
        self._check_open()
        if not self.rights & right:
            raise MemoryAccessError(Fault.RIGHTS, f"the descriptor does not allow {right.name}")
        if offset + length > self.length:
            raise MemoryAccessError(Fault.RANGE, f"{length} bytes at {offset} of {self.length}")

    def _check_open(self) -> None:
        if self.why is not None:
            what = "its time is over" if self.why is Fault.EXPIRED else "its owner has taken it back"
            raise MemoryAccessError(self.why, f"this memory cannot be used any more: {what}")
        if self._closing:
            raise ClosedResourceError("this remote memory was closed")
        self.holder.check_open()

    def begin_use(self) -> None:
        """See :class:`.operation.Remote`."""
        self._check_open()
        self._users += 1
        self.holder.use_begins()

    def check_peer(self) -> None:
        """See :class:`.operation.Remote`."""
        self.holder.check_open()

    def end_use(self) -> None:
        """See :class:`.operation.Remote`."""
        self._users -= 1
        self.settle()
        self.holder.use_ends()

    def recall(self, fault: Fault) -> None:
        """Its owner takes it back: what was begun ends, and nothing else begins."""
        self.why = fault
        self.settle()

    def close(self) -> None:
        """It is not needed any more. Idempotent."""
        self._closing = True
        self.settle()

    def settle(self) -> None:
        """Give it back when it is not to be used any more, and nothing of it is under way."""
        if not self.number or self._users or self._released:
            return
        if self._closing or self.why is not None:
            self._released = True
            self.holder.release(self)


class _Use:
    """A region of this end in use by one request."""

    def __init__(self, region: Region, memory: LinkMemory) -> None:
        region._begin_use()
        try:
            self.lkey = region._lkey(memory)
        except BaseException:
            region._end_use()
            raise
        self.end = region._end_use


class RemoteMemory:
    """Bytes of a peer's memory: what ``peer.open(descriptor)`` returns, and slices of it.

    A slice shares the descriptor with what it was cut from; :meth:`aclose` ends all of them.
    """

    def __init__(self, opened: Opened, start: int, stop: int) -> None:
        self._opened, self._start, self._stop = opened, start, stop

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self._stop - self._start

    def __len__(self) -> int:
        return self.nbytes

    @property
    def rights(self) -> Rights:
        """What the descriptor allows."""
        return self._opened.rights

    def __getitem__(self, where: slice) -> RemoteMemory:
        first, last, step = where.indices(self.nbytes)
        if step != 1:
            raise ValueError("a piece of memory is contiguous: no steps")
        return RemoteMemory(self._opened, self._start + first, self._start + max(first, last))

    def _use(self, local: object) -> _Use | None:
        memory = self._opened.holder.memory
        if memory is None or not isinstance(local, (Region, Piece)):
            return None
        return _Use(local.region if isinstance(local, Piece) else local, memory)

    def _whole(self, local: Buffer | Piece, what: str) -> memoryview:
        view = local.view if isinstance(local, Piece) else memoryview(local)
        if not view.c_contiguous:
            raise BufferError(f"{what} must be contiguous")
        if view.nbytes != self.nbytes:
            raise ValueError(f"{what} has {view.nbytes} bytes, this remote memory {self.nbytes}: slice it")
        return bytes_of(view)

    async def read(self, into: Buffer | Piece) -> None:
        """READ all of it into ``into``, which has as many bytes. Returns when they are there.

        Fastest into a region of this end, or a piece of one. When cancelled, an ordinary buffer is not
        touched any more; a region may be, until the device has let go (its ``aclose()`` waits for that).

        :raises ValueError: another length. :raises BufferError: ``into`` is read-only or not contiguous.
        :raises MemoryAccessError: not allowed, or taken back. :raises anyio.ClosedResourceError: closed.
        :raises anyio.BrokenResourceError: the peer is lost; ``into`` may have changed.
        """
        view = self._whole(into, "what is read into")
        if view.readonly:
            raise BufferError("what is read into must be writable")
        self._opened.check(self._start, self.nbytes, Rights.READ)
        await self._opened.holder.carrier.read(self._opened, self._start, view, self._use(into))

    async def write(self, data: Buffer | Piece, *, notify: bytes | None = None) -> None:
        """WRITE ``data``, which has as many bytes. Returns when they are in the peer's memory.

        Do not change ``data`` before that. When cancelled, a part may have been written.

        :param notify: then give the peer this notification (at most 4096 bytes); it comes after the data.
        :raises ValueError: another length; a longer notification. Other errors as of :meth:`read`.
        """
        view = self._whole(data, "what is written")
        if notify is not None:
            Notes.check(notify)
        self._opened.check(self._start, self.nbytes, Rights.WRITE)
        holder = self._opened.holder
        await holder.carrier.write(self._opened, self._start, view, self._use(data))
        if notify is not None:
            await holder.notify(notify)

    async def flush(self) -> None:
        """A round trip to the peer's loop, behind everything that was written before. For what does not
        follow from the completion alone: that the peer's *program* runs and sees the data."""
        self._opened.check(self._start, 0, self._opened.rights)
        await self._opened.holder.requests.ask(
            Op.READ, span(self._opened.number, self._start, 0), on_answer=lambda number, body: None
        )

    async def fetch_and_add(self, value: int, offset: int = 0) -> int:
        """Add to the 64-bit word at ``offset``, modulo 2**64, in the byte order of the owner's machine; what
        was there. Done by the owner's loop, and atomic for all peers and the owner's own CPUs.

        :param value: may be negative.
        :raises MemoryAccessError: not allowed, outside, or the word is not at a multiple of 8 of the memory.
        """
        return await self._atomic(Op.FETCH_ADD, offset, value % (1 << 64), 0)

    async def compare_and_swap(self, expected: int, value: int, offset: int = 0) -> int:
        """Store ``value`` in the word at ``offset`` if ``expected`` is there; what was there. As
        :meth:`fetch_and_add`."""
        return await self._atomic(Op.COMPARE_SWAP, offset, value % (1 << 64), expected % (1 << 64))

    async def _atomic(self, op: Op, offset: int, operand: int, compare: int) -> int:
        if not 0 <= offset <= self.nbytes - WORD_BYTES:
            raise MemoryAccessError(Fault.RANGE, f"a word at {offset} of {self.nbytes} bytes")
        self._opened.check(self._start + offset, WORD_BYTES, Rights.ATOMIC)
        where = span(self._opened.number, self._start + offset)
        words = []
        await self._opened.holder.requests.ask(
            op,
            where,
            atomic_request(operand, compare),
            on_answer=lambda number, body: words.append(parse_word(body)),
        )
        return words[0]

    def close(self) -> None:
        """Give the descriptor back, when what is under way has ended. Idempotent."""
        self._opened.close()

    async def aclose(self) -> None:
        """As :meth:`close`."""
        self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._opened.close()

    def __repr__(self) -> str:
        return f"<RemoteMemory of {self.nbytes} bytes, {self._opened.rights!r}>"
