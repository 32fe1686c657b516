"""Requests to the peer's event loop: READs and WRITEs on TCP, and everything that is not one-sided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import BrokenResourceError

from ..errors import RemoteProtocolError
from ..proto.memory import PIECE_BYTES, Fault, Op, head, span
from .errors import MemoryAccessError
from .operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..credit import CreditWindow
    from .operation import Remote, Use
    from .outbox import Outbox

__all__ = ["Requests"]


def _ignore(number: int, body: memoryview) -> None:
    """The answer to somebody who does not wait any more."""


class _Request:
    """One message that is to be answered.

    :param into: where the bytes of the answer go; None: to ``on_answer``.
    """

    def __init__(self, number: int, message: bytes, operation: Operation) -> None:
        self.number, self.message, self.operation = number, message, operation
        self.into: memoryview | None = None
        self.on_answer: Callable[[int, memoryview], None] | None = None


class Requests:
    """The requests of this end, and READs and WRITEs made of them.

    :param credit: one for each request under way.
    """

    path = "tcp"

    def __init__(self, outbox: Outbox, credit: CreditWindow) -> None:
        self._outbox, self._credit = outbox, credit
        self._pending: dict[int, _Request] = {}
        self._last = 0
        self._error: BaseException | None = None

    @property
    def under_way(self) -> int:
        """Requests that were not answered."""
        return len(self._pending)

    def begin(
        self,
        op: Op,
        rest: bytes,
        operation: Operation,
        *,
        body: memoryview | bytes = b"",
        into: memoryview | None = None,
        on_answer: Callable[[int, memoryview], None] | None = None,
    ) -> _Request:
        """Send a request as a part of ``operation``. The caller has its credit."""
        self._last = self._last % 0xFFFFFFFF + 1
        request = _Request(self._last, head(op, self._last) + rest, operation)
        request.into, request.on_answer = into, on_answer
        operation.parts += 1
        if self._error is not None:
            self._fail(request, self._error)
            return request
        self._pending[request.number] = request
        self._outbox.send(request.message, body)
        return request

    def _fail(self, request: _Request, error: BaseException) -> None:
        request.into = None
        request.operation.part_ended(error)

    async def ask(
        self, op: Op, rest: bytes, body: bytes = b"", *, on_answer: Callable[[int, memoryview], None]
    ) -> None:
        """Send a request and wait for its answer.

        :param on_answer: called with the number of the request and the answer, also when no caller waits any
            more. It may raise RemoteProtocolError.
        :raises MemoryAccessError: the peer refuses. :raises anyio.BrokenResourceError: the peer is lost.
        """
        await self._credit.acquire()
        operation = Operation(self._credit.release)
        request = self.begin(op, rest, operation, body=body, on_answer=on_answer)
        try:
            await operation.waiter.wait()
        except BaseException:
            self._give_up([request])
            raise
        if operation.error is not None:
            raise operation.error

    def _give_up(self, requests: list[_Request]) -> None:
        """The user does not wait any more."""
        for request in requests:
            if request.into is not None:
                request.into, request.on_answer = None, _ignore
            if request.number in self._pending and self._outbox.drop(request.message):
                del self._pending[request.number]
                request.operation.part_ended()

    # ---- READs and WRITEs

    async def read(self, remote: Remote, offset: int, into: memoryview, use: Use | None) -> None:
        """See :class:`.operation.Carrier`."""
        assert use is None  # no device has a part in it
        await self._in_pieces(Op.READ, remote, offset, into)

    async def write(self, remote: Remote, offset: int, data: memoryview, use: Use | None) -> None:
        """See :class:`.operation.Carrier`."""
        assert use is None
        await self._in_pieces(Op.WRITE, remote, offset, data)

    async def _in_pieces(self, op: Op, remote: Remote, offset: int, data: memoryview) -> None:
        room = self._credit.limit * PIECE_BYTES
        for at in range(0, len(data), room):
            await self._some(op, remote, offset + at, data[at : at + room])

    async def _some(self, op: Op, remote: Remote, offset: int, data: memoryview) -> None:
        count = -(-len(data) // PIECE_BYTES)
        await self._credit.acquire(count)
        operation = Operation(lambda: self._credit.release(count))
        requests = []
        operation.parts += 1  # not over before the last piece has begun
        for at in range(0, len(data), PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            if op is Op.READ:
                where = span(remote.number, offset + at, len(piece))
                requests.append(self.begin(op, where, operation, into=piece))
            else:
                requests.append(self.begin(op, span(remote.number, offset + at), operation, body=piece))
        operation.part_ended()
        try:
            await operation.waiter.wait()
        except BaseException:
            self._give_up(requests)
            raise
        if operation.error is not None:
            raise operation.error

    # ---- answers

    def receive(self, op: int, number: int, code: int, body: memoryview) -> None:
        """:raises RemoteProtocolError: no request asked for this."""
        request = self._pending.get(number)
        if request is None:
            raise RemoteProtocolError("an answer to no request")
        error = self._take(request, op, code, body)
        del self._pending[number]
        request.into = None
        request.operation.part_ended(error)

    @staticmethod
    def _take(request: _Request, op: int, code: int, body: memoryview) -> MemoryAccessError | None:
        """:raises RemoteProtocolError: it is no answer; the request fails with the connection."""
        if op == Op.REFUSED:
            try:
                fault = Fault(code)
            except ValueError:
                raise RemoteProtocolError(f"a refusal for an unknown reason ({code})") from None
            return MemoryAccessError(fault, bytes(body[:1024]).decode(errors="replace"))
        if request.into is not None:
            if len(body) != len(request.into):
                raise RemoteProtocolError("the peer answers with another number of bytes than was asked for")
            request.into[:] = body
        elif request.on_answer is not None:
            request.on_answer(request.number, body)
        return None

    def end(self, error: BaseException) -> None:
        """The connection is over."""
        self._error = BrokenResourceError(f"the peer is lost: {error}")
        self._error.__cause__ = error
        pending, self._pending = self._pending, {}
        for request in pending.values():
            self._fail(request, self._error)

    def close(self) -> None:
        """See :class:`.operation.Carrier`. Nothing is begun without the peer object."""
