"""READs and WRITEs as requests to the peer's event loop: the carrier of connections on TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..pipes._one_sided import READ
from ..proto.memory import PIECE_BYTES, Op, span
from ..verbs._spans import Spans
from .local import resolve_exactly
from .operation import Operation, given_up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from ..credit import QueueEntry
    from .local import Memory
    from .operation import Remote
    from .requests import Requests, _Pending


class MessageCarrier:
    """The operations of one peer whose loop carries them out."""

    path = "tcp"

    def __init__(self, requests: Requests) -> None:
        self.requests = requests

    def start(
        self, op: int, remote: Remote, start: int, nbytes: int, local: Memory
    ) -> Operation[None] | None:
        """See :class:`.operation.OperationPath`."""
        return self.start_pieces(op, remote, Spans.one(start, nbytes), local)

    def start_pieces(self, op: int, remote: Remote, places: Spans, local: Memory) -> Operation[None]:
        """See :class:`.operation.OperationPath`."""
        spans, region = resolve_exactly(local, places.nbytes, writable=op == READ)
        if region is not None and region.opaque:
            raise BufferError(
                "this region is memory of a device, and this connection is on TCP: only RDMA reaches it"
            )
        return _InMessages(self.requests, op, remote, places, spans).begin()

    def start_atomic(self, op: int, remote: Remote, offset: int, value: int, compare: int) -> Operation[int]:
        """See :class:`.operation.OperationPath`."""
        raise NotImplementedError  # no peer says on TCP that its device does them

    def close(self) -> None:
        """See :class:`.operation.OperationPath`. Nothing is begun without the peer object."""


class _InMessages(Operation[None]):
    """A READ or WRITE as messages of at most 64 KiB, so many at a time as there is credit for.

    Messages have copies of their bytes: when the operation is given up, this end's memory is free at once.
    """

    def __init__(self, requests: Requests, op: int, remote: Remote, places: Spans, local: Spans) -> None:
        self._requests, self._op, self._remote, self._local = requests, op, remote, local
        self._left = _messages(places)
        self._messages = sum(-(-length // PIECE_BYTES) for _, length in places.pairs())
        self._at = 0
        self._entry: QueueEntry | None = None
        self._credited = self._parts = 0
        self._out: set[_Pending] = set()
        self._failed: BaseException | None = None

    def begin(self) -> Self:
        """Send what there is credit for."""
        self._remote.users += 1
        try:
            self._round()
        except BaseException:
            self._remote.end_use()
            raise
        return self

    def _round(self) -> None:
        """:raises BaseException: the connection is over."""
        if not self._messages or self._failed is not None or self.done:
            self._close()
            return
        credit = self._requests.credit
        count = min(self._messages, credit.limit)
        if credit.try_acquire(count):
            self._send(count, credited=True)
        else:
            self._entry = credit.request(count, self)

    def set(self) -> None:
        """There is credit, or the connection is over (see :meth:`CreditWindow.request`)."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._send(entry.n, credited=entry.granted)

    def _send(self, count: int, *, credited: bool) -> None:
        self._credited = count if credited else 0
        self._parts = count + 1  # not over before the last one has begun
        self._messages -= count
        for _ in range(count):
            offset, length = next(self._left)
            self._begin(offset, length)
        self._part_ended()

    def _begin(self, offset: int, length: int) -> None:
        at, piece, number = self._at, memoryview(bytearray(length)), self._remote.number
        self._at += length
        request: _Pending | None = None

        def on_end(_: int | None, error: BaseException | None) -> None:
            if request is not None:
                self._out.discard(request)
            if self._op == READ and error is None and not self.done:
                self._local.scatter(at, piece)
            self._part_ended(error)

        if self._op == READ:
            request = self._requests.begin(Op.READ, span(number, offset, length), on_end, into=piece)
        else:
            self._local.gather(at, piece)
            request = self._requests.begin(Op.WRITE, span(number, offset), on_end, body=piece)
        if request is not None:
            self._out.add(request)

    def _part_ended(self, error: BaseException | None = None) -> None:
        self._parts -= 1
        if error is not None and self._failed is None:
            self._failed = error
        if self._parts:
            return
        count, self._credited = self._credited, 0
        if count:
            self._requests.credit.release(count)
        try:
            self._round()
        except Exception as failure:
            self._failed = failure
            self._close()

    def _close(self) -> None:
        self._local.release()
        self._remote.end_use()
        if not self.done:
            self._end(None, self._failed)

    def cancel(self) -> None:
        """See :class:`Operation`."""
        if self.done:
            return
        self._seen = True
        self._end(None, given_up())
        self._local.release()
        if self._entry is not None:
            entry, self._entry = self._entry, None
            self._requests.credit.withdraw(entry)
            self._close()
        for request in list(self._out):
            self._requests.give_up(request)


def _messages(places: Spans) -> Iterator[tuple[int, int]]:
    """Offset and length of each message."""
    for start, length in places.pairs():
        for at in range(start, start + length, PIECE_BYTES):
            yield at, min(PIECE_BYTES, start + length - at)
