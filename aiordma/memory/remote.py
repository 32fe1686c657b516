"""Memory of a peer, as this end uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..pipes._one_sided import COMPARE_SWAP, FETCH_ADD, READ, WRITE
from ..proto.memory import WORD_BYTES, Fault, Op, Rights, atomic_request, parse_word, span
from ..verbs._spans import Spans
from ..wake.interrupts import uninterrupted
from .errors import MemoryAccessError
from .notes import Notes
from .operation import Operation
from .region import check_slice

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from .local import Memory
    from .opened import Opened

_REQUESTS = {FETCH_ADD: Op.FETCH_ADD, COMPARE_SWAP: Op.COMPARE_SWAP}
_RIGHTS = {READ: Rights.READ, WRITE: Rights.WRITE}


def _refuse_pickle() -> NoReturn:
    raise TypeError(
        "remote memory belongs to a connection and cannot be pickled or copied: send the descriptor, and "
        "open it there"
    )


class _Done(Operation[None]):
    """What had ended when it was started."""

    def __init__(self) -> None:
        self._end(None)

    def cancel(self) -> None:
        """It has ended."""


class RemotePieces:
    """Several pieces of a peer's memory, in order: what :meth:`RemoteMemory.blocks`,
    :meth:`~RemoteMemory.pieces` and :meth:`~RemoteMemory.rows` return. Each operation is one operation for
    all of them.
    """

    def __init__(self, opened: Opened, spans: Spans) -> None:
        self._opened, self._spans = opened, spans

    def __reduce__(self) -> NoReturn:
        _refuse_pickle()

    @property
    def nbytes(self) -> int:
        """Bytes in all of them."""
        return self._spans.nbytes

    def __len__(self) -> int:
        return self.nbytes

    def start_read(self, into: Memory) -> Operation[None]:
        """Begin to READ them, one after the other, into ``into``. See :meth:`RemoteMemory.start_read`."""
        self._opened.check(0, 0, Rights.READ)
        return self._opened.carrier.start_pieces(READ, self._opened, self._spans, into)

    def start_write(self, data: Memory) -> Operation[None]:
        """Begin to WRITE ``data`` into them. See :meth:`RemoteMemory.start_read`."""
        self._opened.check(0, 0, Rights.WRITE)
        return self._opened.carrier.start_pieces(WRITE, self._opened, self._spans, data)

    async def read(self, into: Memory) -> None:
        """READ them, one after the other, into ``into``, which has as many bytes. See
        :meth:`RemoteMemory.read`."""
        await self.start_read(into)

    async def write(self, data: Memory, *, notify: bytes | None = None) -> None:
        """WRITE ``data``, which has as many bytes, into them. See :meth:`RemoteMemory.write`."""
        if notify is not None:
            Notes.check(notify)
        await self.start_write(data)
        if notify is not None:
            await self._opened.holder.notify(notify)

    def __repr__(self) -> str:
        return f"<RemotePieces: {self.nbytes} bytes in {self._spans.count}>"


@uninterrupted
class RemoteMemory:
    """Bytes of a peer's memory: what ``peer.open(descriptor)`` returns, and slices of it.

    A slice shares the descriptor with what it was cut from; :meth:`aclose` ends all of them.

    Operations take any buffer, also arrays with steps (``array[::2]``, columns), a region of this end or
    pieces of it, and lists of these, as one operation. What is written or read has as many bytes as the
    remote memory. Fastest is memory in a region of this end: then nothing is copied.
    """

    __slots__ = ("_nbytes", "_opened", "_start")

    def __init__(self, opened: Opened, start: int, stop: int) -> None:
        self._opened, self._start, self._nbytes = opened, start, stop - start

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self._nbytes

    def __len__(self) -> int:
        return self._nbytes

    @property
    def rights(self) -> Rights:
        """What the descriptor allows."""
        return self._opened.rights

    def __reduce__(self) -> NoReturn:
        _refuse_pickle()

    def __getitem__(self, where: slice) -> RemoteMemory:
        check_slice(where, "remote")
        first, last, step = where.indices(self._nbytes)
        if step != 1:
            raise ValueError("a piece of memory is contiguous: for steps, use rows()")
        return RemoteMemory(self._opened, self._start + first, self._start + max(first, last))

    # ---- several pieces

    def blocks(self, nbytes: int, numbers: Iterable[int]) -> RemotePieces:
        """Blocks of it, in this order: number n begins at byte ``n * nbytes``.

        :raises ValueError: one is not inside of it.
        """
        return RemotePieces(self._opened, Spans.blocks(self._start, self._nbytes, nbytes, numbers))

    def pieces(self, pieces: Iterable[tuple[int, int]]) -> RemotePieces:
        """Pieces of it, in this order, each from a first byte to one before another: ``(start, stop)``.

        :raises ValueError: one is not inside of it.
        """
        return RemotePieces(self._opened, Spans.pieces(self._start, self._nbytes, pieces))

    def rows(self, start: int, nbytes: int, step: int, count: int) -> RemotePieces:
        """``count`` pieces of ``nbytes`` bytes, the first at ``start`` and one every ``step`` bytes: a part
        of the columns of an array.

        :raises ValueError: one is not inside of it.
        """
        return RemotePieces(self._opened, Spans.rows(self._start, self._nbytes, start, nbytes, step, count))

    # ---- READ and WRITE

    def _begin(self, op: int, local: Memory) -> Operation[None] | None:
        opened = self._opened
        if not opened.live:
            opened.check_open()
        if not opened.may[op]:
            opened.check(self._start, self._nbytes, _RIGHTS[op])
        return opened.carrier.start(op, opened, self._start, self._nbytes, local)

    async def read(self, into: Memory) -> None:
        """READ all of it into ``into``, which has as many bytes. Returns when they are there.

        When cancelled, an ordinary buffer is not touched any more; a region may be, until the device has let
        go (its ``aclose()`` waits for that).

        :raises ValueError: another length. :raises BufferError: ``into`` is read-only, or no plain memory.
        :raises MemoryAccessError: not allowed, or taken back. :raises anyio.ClosedResourceError: closed.
        :raises anyio.BrokenResourceError: the peer is lost; ``into`` may have changed.
        """
        opened = self._opened
        waker = opened.waker
        if not waker.may_begin():
            await waker.begin()
        if opened.live and opened.may[READ]:
            operation = opened.carrier.start(READ, opened, self._start, self._nbytes, into)
        else:
            operation = self._begin(READ, into)
        # Copying and polling take time as well: others of the loop get their turn now and then.
        waker.count_polled(self._nbytes >> 16)
        if operation is not None:
            await operation

    async def write(self, data: Memory, *, notify: bytes | None = None) -> None:
        """WRITE ``data``, which has as many bytes. Returns when they are in the peer's memory.

        Do not change ``data`` before that. When cancelled, a part may have been written.

        :param notify: then give the peer this notification (at most 4096 bytes); it comes after the data.
        :raises ValueError: another length; a longer notification. Other errors as of :meth:`read`.
        """
        if notify is not None:
            Notes.check(notify)
        opened = self._opened
        waker = opened.waker
        if not waker.may_begin():
            await waker.begin()
        if opened.live and opened.may[WRITE]:
            operation = opened.carrier.start(WRITE, opened, self._start, self._nbytes, data)
        else:
            operation = self._begin(WRITE, data)
        waker.count_polled(self._nbytes >> 16)  # see read()
        if operation is not None:
            await operation
        if notify is not None:
            await opened.holder.notify(notify)

    def start_read(self, into: Memory) -> Operation[None]:
        """Begin to READ, without waiting: ``await`` the result for its end. For many at once.

        What finds no credit (``peer.credit``) begins in its turn. Errors as of :meth:`read`, at once or from
        the operation.
        """
        return self._begin(READ, into) or _Done()

    def start_write(self, data: Memory) -> Operation[None]:
        """Begin to WRITE, without waiting. See :meth:`start_read`."""
        return self._begin(WRITE, data) or _Done()

    async def flush(self) -> None:
        """A round trip to the peer's loop, behind everything that was written before. For what does not
        follow from the completion alone: that the peer's *program* runs and sees the data."""
        opened = self._opened
        opened.check(self._start, 0, opened.rights)
        await opened.holder.requests.ask(Op.READ, span(opened.number, self._start, 0))

    # ---- atomic operations

    async def fetch_and_add(self, value: int, offset: int = 0) -> int:
        """Add to the 64-bit word at ``offset``, modulo 2**64, in the byte order of the owner's machine; what
        was there. Atomic for all peers: see :attr:`atomics`.

        :param value: may be negative.
        :raises MemoryAccessError: not allowed, outside, or the word is not at a multiple of 8 of the memory.
        """
        return await self.start_fetch_and_add(value, offset)

    async def compare_and_swap(self, expected: int, value: int, offset: int = 0) -> int:
        """Store ``value`` in the word at ``offset`` if ``expected`` is there; what was there. As
        :meth:`fetch_and_add`."""
        return await self.start_compare_and_swap(expected, value, offset)

    def start_fetch_and_add(self, value: int, offset: int = 0) -> Operation[int]:
        """Begin a :meth:`fetch_and_add`, without waiting."""
        return self._atomic(FETCH_ADD, offset, value % (1 << 64), 0)

    def start_compare_and_swap(self, expected: int, value: int, offset: int = 0) -> Operation[int]:
        """Begin a :meth:`compare_and_swap`, without waiting."""
        return self._atomic(COMPARE_SWAP, offset, value % (1 << 64), expected % (1 << 64))

    @property
    def atomics(self) -> str:
        """Who carries out atomic operations: ``"device"``, without the owner's program, or ``"loop"``, the
        owner's event loop."""
        return "device" if self._opened.atomics_by_device else "loop"

    def _atomic(self, op: int, offset: int, value: int, compare: int) -> Operation[int]:
        if not 0 <= offset <= self._nbytes - WORD_BYTES:
            raise MemoryAccessError(Fault.RANGE, f"a word at {offset} of {self._nbytes} bytes")
        opened, at = self._opened, self._start + offset
        opened.check(at, WORD_BYTES, Rights.ATOMIC)
        if opened.atomics_by_device:
            if (opened.address + at) % WORD_BYTES:
                raise MemoryAccessError(Fault.RANGE, "an atomic operation on a word that is not aligned")
            return opened.carrier.start_atomic(op, opened, at, value, compare)
        return opened.holder.requests.ask(
            _REQUESTS[op],
            span(opened.number, at),
            atomic_request(value, compare),
            on_answer=lambda number, code, body: parse_word(body),
        )

    # ---- end

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
        return f"<RemoteMemory of {self._nbytes} bytes, {self._opened.rights!r}>"
