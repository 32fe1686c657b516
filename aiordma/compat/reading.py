"""The reading half of an asyncio transport on a ring pipe: how data reaches the protocol.

There are three paths:

* `asyncio.Protocol`: data_received() with bytes taken from the ring,
* `asyncio.BufferedProtocol`: the ring is copied straight into the protocol's buffer,
* a pulling reader (`aiordma.compat.stream_reader`): nothing is pushed. The reader takes what it wants from
  the ring when it wants it, so the ring is its buffer and the peer's credit its flow control.

The ring's callbacks may come while a task of this loop runs: a task that polls before it parks lets the
engine dispatch whatever has arrived, for others too. A protocol is not called in such a moment, in which
asyncio would never call it, but from the loop right after.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

import anyio

from .contracts import PullProtocol
from .flow import FlowControl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..pipes.contracts import Pipe
    from .contracts import PullReader

#: bytes asked from the ring at once for data_received(), as much as asyncio asks from a socket
_RECEIVE_BYTES = 256 * 1024
#: receives in one callback before other callbacks of the loop get their turn
_RECEIVE_BUDGET = 16
#: most bytes that a protocol is given although it has paused reading, see `read_ahead()`
_READ_AHEAD_BYTES = 4 * 1024 * 1024


class ReadingTransport(FlowControl):
    """The reading half of a transport; the other half says what an end and a failure mean to it."""

    __slots__ = (
        "_ahead",
        "_closing",
        "_context",
        "_cut",
        "_ending",
        "_eof_received",
        "_inside",
        "_paused",
        "_pipe",
        "_protocol",
        "_pumping",
        "_reader",
        "_reads_ahead",
        "_receive",
        "_started",
    )

    _extra: dict[str, Any]
    _loop: asyncio.AbstractEventLoop

    def __init__(self, loop: asyncio.AbstractEventLoop, pipe: Pipe, extra: Mapping[str, Any]) -> None:
        super().__init__(extra, loop)
        self._pipe = pipe
        self._context = contextvars.copy_context()
        self._inside = False  # a callback of the loop runs in this context: it cannot be entered again
        self._reads_ahead = False
        self._ahead = 0  # bytes that were delivered although reading is paused
        self._closing = False
        self._eof_received = False
        self._cut = False  # shutdown() of the socket has ended reading, where what has come ends
        self._ending = False  # the end has been met, and has a callback of its own
        self._paused = False
        self._started = False
        self._pumping = False
        self._reader: PullReader | None = None

    # ---- the other half

    def ring_finished(self) -> None:
        """The peer will send nothing more and everything it sent is taken: eof_received(), once."""
        raise NotImplementedError

    def ring_failed(self, exc: BaseException) -> None:
        """The pipe does not work any more: connection_lost() with a ConnectionError."""
        raise NotImplementedError

    def _fatal_error(self, exc: BaseException, message: str) -> None:
        """The protocol does not work any more."""
        raise NotImplementedError

    def _call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(self._run, callback, args, context=self._context)

    def _run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._inside = True
        try:
            callback(*args)
        finally:
            self._inside = False

    # ---- protocol -------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol; what has not been read goes to the new one."""
        if self._reader is not None:
            self._reader.ring_detached()
        self._set_protocol(protocol)
        self._look_again()

    def _set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._reader = None
        if isinstance(protocol, PullProtocol):
            self._reader = protocol.pull_reader()
            self._attach_reader()
        self._pipe.pushes = self._reader is None
        if self._reader is None:
            self._pipe.reads_ahead = 0  # the protocol gets what it takes
        self._receive: Callable[[], bool] = (
            self._receive_into_protocol
            if isinstance(protocol, asyncio.BufferedProtocol)
            else self._receive_for_protocol
        )

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol in use."""
        return self._protocol

    # ---- reading --------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        """Neither paused nor closing; nor is a stream's reader so full that asyncio's would have paused."""
        return self._delivers() and (self._reader is None or not self._reader.is_full())

    def _delivers(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        """Deliver nothing until resume_reading(); the peer may go on until the ring is full."""
        if self._closing or self._paused:
            return
        self._paused = True
        self._attach_reader()

    def resume_reading(self) -> None:
        """Deliver again; what has arrived meanwhile comes from a callback of its own."""
        if self._closing or not self._paused:
            return
        self._paused = False
        self._ahead = 0
        self._attach_reader()
        self._look_again()

    def read_ahead(self, on: bool) -> None:
        """Deliver a few MiB although reading is paused: the program writes, and its reader keeps them.

        See `RingStreamReader.read_ahead()`. This is for asyncio's own reader.
        """
        self._reads_ahead = on
        self._look_again()

    def read_ahead_of(self, n: int) -> None:
        """The reader has taken `n` bytes."""
        if self._paused:
            self._ahead += n

    def _may_read_ahead(self) -> bool:
        return self._reads_ahead and self._ahead < _READ_AHEAD_BYTES

    def _attach_reader(self) -> None:
        if self._reader is not None:
            takes = self._delivers() and not (self._cut and self._eof_received)
            self._pipe.reads_ahead = self._reader.takes_ahead() if takes else 0
            self._reader.ring_attached(self, self._pipe if takes else None)

    def _start_reading(self) -> None:
        if not self._closing:
            self._started = True
            self._pipe.on_readable = self._on_readable
            self._look_again()  # what connection_made() has scheduled comes first, as in every loop

    def _look_again(self) -> None:
        if self._started:
            self._call_soon(self._pump)

    def _on_readable(self) -> None:
        reader = self._reader
        if reader is not None:
            if self._pipe.readable:
                reader.ring_news()
            else:
                self._wake_reader()
        elif self._pumping:
            pass  # the pump is at work and looks until nothing is left
        elif self._inside or asyncio.current_task(self._loop) is not None:
            self._call_soon(self._pump)
        else:
            self._context.run(self._pump)

    def _pump(self) -> None:
        """Deliver what there is, within the budget of one callback."""
        if self._reader is not None:
            self._wake_reader()
            return
        self._pumping = True
        try:
            for _ in range(_RECEIVE_BUDGET):
                if (self._paused and not self._may_read_ahead()) or self._closing or self._eof_received:
                    return
                if self._cut and not self._pipe.readable:
                    self._end_of_data()
                    return
                if not self._receive():
                    return
        except (SystemExit, KeyboardInterrupt):
            self._look_again()  # the loop may be run again: what is still there comes then, as from a socket
            raise
        finally:
            self._pumping = False
        self._call_soon(self._pump)

    def _wake_reader(self) -> None:
        if self._paused or self._closing or self._reader is None:
            return
        if self._cut:
            self._reader.ring_attached(self, None)  # takes what has come, and finds the end behind it
        elif self._pipe.readable:
            self._reader.ring_news()
        else:
            self.ring_empty()

    def park_reading(self) -> None:
        """A reader is about to wait: the engine measures from here whether polling would have paid."""
        self._pipe.on_readable = self._on_readable

    def _receive_for_protocol(self) -> bool:
        try:
            data = self._pipe.try_receive(_RECEIVE_BYTES)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self.ring_failed(exc)
            return False
        if not data:
            if data is not None:
                self._end_of_data()
            return False
        try:
            self._protocol.data_received(data)  # type: ignore[attr-defined]
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._fatal_error(exc, "Fatal error: protocol.data_received() call failed.")
            return False
        return True

    def _receive_into_protocol(self) -> bool:
        pipe = self._pipe
        if not pipe.readable and not pipe.at_eof and pipe.error is None:
            return False
        protocol: asyncio.BufferedProtocol = self._protocol  # type: ignore[assignment]
        try:
            buffer = protocol.get_buffer(-1)
            if not len(buffer):  # type: ignore[arg-type]
                raise RuntimeError("get_buffer() returned an empty buffer")
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._fatal_error(exc, "Fatal error: protocol.get_buffer() call failed.")
            return False
        try:
            n = pipe.try_receive_into(buffer)  # type: ignore[arg-type]
        except (SystemExit, KeyboardInterrupt):
            raise
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self.ring_failed(exc)
            return False
        except BaseException as exc:
            self._fatal_error(_as_on_a_socket(exc), "Fatal read error on ring transport")
            return False
        if n <= 0:
            if n == 0:
                self._end_of_data()
            return False
        try:
            protocol.buffer_updated(n)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._fatal_error(exc, "Fatal error: protocol.buffer_updated() call failed.")
            return False
        return True

    def _end_of_data(self) -> None:
        """EOF has a callback of its own, after what the protocol has scheduled when it got the last data.

        Which may have been in another callback of this turn of the loop.
        """
        if not self._ending:
            self._ending = True
            self._call_soon(self._end)

    def _end(self) -> None:
        self._ending = False
        if (self._paused and not self._may_read_ahead()) or self._closing or self._eof_received:
            return  # where reading is paused, it is met again behind that
        try:
            self.ring_finished()
        except (SystemExit, KeyboardInterrupt):
            self._look_again()
            raise

    def ring_empty(self) -> None:
        """Nothing is readable: see whether this is the end, or the connection has failed.

        A link that fails after the end of the data is a matter for writes only, as on TCP.
        """
        if self._cut:
            self.ring_finished()
            return
        try:
            if self._pipe.try_receive(1) == b"":
                self.ring_finished()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self.ring_failed(exc)


def _as_on_a_socket(exc: BaseException) -> BaseException:
    """The error of a read: to a socket, a buffer that is read-only is one of another type."""
    return TypeError(str(exc)) if isinstance(exc, BufferError) else exc
