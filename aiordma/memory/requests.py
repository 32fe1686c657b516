"""Requests to the peer's event loop, and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio import BrokenResourceError

from ..errors import RemoteProtocolError
from ..proto.memory import Fault, Op, head
from .errors import MemoryAccessError
from .operation import Operation, given_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..credit import CreditWindow, QueueEntry
    from .outbox import Outbox

    #: Called with the number of a request, the code of the answer, and what follows; what it returns is the
    #: result. It may raise RemoteProtocolError.
    OnAnswer = Callable[[int, int, memoryview], int | None]


def _ignore(number: int, code: int, body: memoryview) -> None:
    """The answer to somebody who does not wait any more."""


class _Pending:
    """One message that is to be answered.

    :param into: where the bytes of the answer go; None: to ``on_answer``.
    :param on_end: called with its result, and what has gone wrong.
    """

    def __init__(
        self,
        number: int,
        message: bytes,
        into: memoryview | None,
        on_answer: OnAnswer,
        on_end: Callable[[int | None, BaseException | None], None],
    ) -> None:
        self.number, self.message = number, message
        self.into, self.on_answer, self.on_end = into, on_answer, on_end


class Requests:
    """The requests of this end.

    :param credit: one for each request under way.
    """

    def __init__(self, outbox: Outbox, credit: CreditWindow) -> None:
        self._outbox, self.credit = outbox, credit
        self._pending: dict[int, _Pending] = {}
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
        on_end: Callable[[int | None, BaseException | None], None],
        *,
        body: memoryview | bytes = b"",
        into: memoryview | None = None,
        on_answer: OnAnswer = _ignore,
    ) -> _Pending | None:
        """Send a request. The caller has its credit. None: the connection is over, ``on_end`` was called."""
        if self._error is not None:
            on_end(None, self._error)
            return None
        self._last = self._last % 0xFFFFFFFF + 1
        request = _Pending(self._last, head(op, self._last) + rest, into, on_answer, on_end)
        self._pending[request.number] = request
        self._outbox.send(request.message, body)
        return request

    def ask(
        self,
        op: Op,
        rest: bytes,
        body: bytes = b"",
        *,
        on_answer: OnAnswer = _ignore,
        keeps_answer: bool = False,
    ) -> Operation[Any]:
        """Send a request, as soon as there is credit for it: an operation with the result of ``on_answer``.

        :param keeps_answer: ``on_answer`` is called also when no task waits any more.
        """
        return _Question(self, op, rest, body, on_answer, keeps_answer).begin()

    def give_up(self, request: _Pending, *, keeps_answer: bool = False) -> None:
        """The user does not wait any more. ``on_end`` is called in any case."""
        request.into = None
        if not keeps_answer:
            request.on_answer = _ignore
        if request.number in self._pending and self._outbox.drop(request.message):
            del self._pending[request.number]
            request.on_end(None, given_up())

    # ---- answers

    def receive(self, op: int, number: int, code: int, body: memoryview) -> None:
        """:raises RemoteProtocolError: no request asked for this."""
        request = self._pending.get(number)
        if request is None:
            raise RemoteProtocolError("an answer to no request")
        if self._outbox.holds(request.message):
            raise RemoteProtocolError("an answer to a request that was not sent")
        result, error = self._take(request, op, code, body)
        del self._pending[number]
        request.into = None
        request.on_end(result, error)

    @staticmethod
    def _take(
        request: _Pending, op: int, code: int, body: memoryview
    ) -> tuple[int | None, MemoryAccessError | None]:
        """:raises RemoteProtocolError: it is no answer; the request fails with the connection."""
        if op == Op.REFUSED:
            try:
                fault = Fault(code)
            except ValueError:
                raise RemoteProtocolError(f"a refusal for an unknown reason ({code})") from None
            return None, MemoryAccessError(fault, bytes(body[:1024]).decode(errors="replace"))
        if request.into is None:
            return request.on_answer(request.number, code, body), None
        if len(body) != len(request.into):
            raise RemoteProtocolError("the peer answers with another number of bytes than was asked for")
        request.into[:] = body
        return None, None

    def end(self, error: BaseException) -> None:
        """The connection is over."""
        self._error = BrokenResourceError(f"the peer is lost: {error}")
        self._error.__cause__ = error
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.into = None
            request.on_end(None, self._error)


class _Question(Operation[Any]):
    """One request as an operation."""

    def __init__(
        self,
        requests: Requests,
        op: Op,
        rest: bytes,
        body: bytes,
        on_answer: OnAnswer,
        keeps_answer: bool,
    ) -> None:
        self._requests, self._op, self._rest, self._body = requests, op, rest, body
        self._on_answer, self._keeps_answer = on_answer, keeps_answer
        self._entry: QueueEntry | None = None
        self._request: _Pending | None = None
        self._credited = False

    def begin(self) -> _Question:
        credit = self._requests.credit
        if credit.try_acquire():
            self._send()
        else:
            self._entry = credit.request(1, self)
        return self

    def set(self) -> None:
        """There is credit, or the connection is over (see :meth:`CreditWindow.request`)."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._send(entry.granted)

    def _send(self, credited: bool = True) -> None:
        self._credited = credited
        self._request = self._requests.begin(
            self._op, self._rest, self._on_end, body=self._body, on_answer=self._on_answer
        )

    def _on_end(self, result: int | None, error: BaseException | None) -> None:
        self._request = None
        if not self.done:
            self._end(result, error)
        if self._credited:
            self._requests.credit.release()

    def cancel(self) -> None:
        """See :class:`Operation`."""
        if self.done:
            return
        self._seen = True
        if self._entry is not None:
            entry, self._entry = self._entry, None
            self._requests.credit.withdraw(entry)
            self._end(None, given_up())
        elif self._request is not None:
            self._requests.give_up(self._request, keeps_answer=self._keeps_answer)
            if not self.done:
                self._end(None, given_up())
