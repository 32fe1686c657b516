"""One request and its answer, between turns of the loop.

A tool can cost the program little: one request of bounded length, a few seconds to send it and to take the
answer, and no more work in a turn of the loop than a millisecond.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING

from .answers import answer
from .messages import HEADER, MAX_REQUEST_BYTES, GarbageError, Refused, length_of, packed, parse_request
from .pause import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from msgspec import Struct

    from ..wake.base import Handle, Waker

_log = logging.getLogger("aiordma.admin")

#: For the request, and for each time that the tool takes nothing of the answer.
_PATIENCE_S = 5.0
#: Longest work in one turn of the loop.
_TURN_S = 0.001
#: What waits for the tool, at most (and one message).
_AHEAD_BYTES = 64 * 1024

Asker = tuple[int, int]
"""Process id and user id."""


class Session:
    """:param done: called with this object at the end."""

    def __init__(
        self, waker: Waker, sock: socket.socket, asker: Asker, done: Callable[[Session], None]
    ) -> None:
        self._waker, self._sock, self._asker, self._done = waker, sock, asker, done
        self._input = bytearray()
        self._output = bytearray()
        self._answer: Iterator[Struct | Pause] | None = None
        self._timer: Handle | None = None
        self._watching_writable = self._closed = False

    def begin(self) -> None:
        self._be_patient()
        self._waker.watch_fd(self._sock.fileno(), self._read)

    def _be_patient(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._waker.call_at(self._waker.now() + _PATIENCE_S, self.close)

    def _read(self) -> None:
        try:
            data = self._sock.recv(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except (OSError, MemoryError):
            data = b""
        if not data:  # also in the middle of the answer: the tool is gone
            self.close()
            return
        if self._answer is not None:
            self.close()  # one request
            return
        try:
            self._input += data
            self._take_request()
        except GarbageError as error:
            self._begin_answer(iter([Refused(str(error))]))
        except MemoryError:
            self.close()

    def _take_request(self) -> None:
        """:raises GarbageError:"""
        if len(self._input) < HEADER.size:
            return
        end = HEADER.size + length_of(bytes(self._input[: HEADER.size]), MAX_REQUEST_BYTES)
        if len(self._input) > end:
            raise GarbageError("more than one request")
        if len(self._input) == end:
            request = parse_request(bytes(self._input[HEADER.size :]))
            self._input.clear()
            if self._is_given_up():
                self.close()
                return
            self._begin_answer(answer(self._waker, request, self._asker))

    def _is_given_up(self) -> bool:
        """The tool has not waited: the change is not expected any more."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _begin_answer(self, parts: Iterator[Struct | Pause]) -> None:
        self._answer = parts
        self._be_patient()
        self._go_on()

    def _go_on(self) -> None:
        try:
            self._answer_on()
        except MemoryError:  # the tool would wait for the rest
            self.close()

    def _answer_on(self) -> None:
        """Make some of the answer, and send some of it."""
        if self._closed or self._answer is None or self._watching_writable:
            return
        until = time.perf_counter() + _TURN_S
        over = paused = False
        while len(self._output) < _AHEAD_BYTES:
            try:
                part = next(self._answer)
            except StopIteration:
                over = True
                break
            except Exception as error:
                _log.exception("a request on the admin socket failed")
                self._output += packed(Refused(f"it failed there: {type(error).__name__}: {error}"))
                over = True
                break
            if isinstance(part, Pause):
                if part.is_over:
                    continue
                part.then, paused = self._go_on, True
                if self._timer is not None:
                    self._timer.cancel()  # it is this end that takes its time
                break
            self._output += packed(part)
            if time.perf_counter() > until:
                break
        self._send(over, paused)

    def _send(self, over: bool, paused: bool) -> None:
        try:
            sent = self._sock.send(self._output) if self._output else 0
        except BlockingIOError:
            sent = 0
        except OSError:  # it was killed
            self.close()
            return
        if sent:
            del self._output[:sent]
        if sent and not paused:
            self._be_patient()
        if self._output:
            self._answer = iter(()) if over else self._answer
            self._watching_writable = True
            self._waker.watch_writable(self._sock.fileno(), self._writable)
        elif over:
            self.close()
        elif not paused:
            self._waker.call_soon(self._go_on)

    def _writable(self) -> None:
        self._stop_watching()
        self._go_on()

    def _stop_watching(self) -> None:
        if self._watching_writable:
            self._watching_writable = False
            self._waker.unwatch_writable(self._sock.fileno())

    def close(self) -> None:
        """Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._stop_watching()
        self._waker.unwatch_fd(self._sock.fileno())
        self._sock.close()
        self._answer = None
        self._done(self)

    def abandon(self) -> None:
        """In a forked child: leave the loop alone, which is the parent's."""
        self._closed = True
        self._sock.close()
