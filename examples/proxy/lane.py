"""A lane: one stream to the back, that is, one connection to Redis, used by many clients or by one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from .hello import HELLO, READY, Line
from .resp import encode_command
from .scan import ProtocolError, ReplyScanner

if TYPE_CHECKING:
    from collections.abc import Callable


class BackAway(ConnectionError):
    """Redis is unreachable now; the text gives the reason."""


class Owner(Protocol):
    """A receiver of replies of a lane."""

    def reply(self, data: bytes, done: int) -> None:
        """The next bytes of the owner's replies; `done` of them are now complete."""

    def lost(self, count: int, partial: bool, reason: str) -> None:
        """`count` replies will not arrive; if `partial`, part of the first one has been delivered."""

    def lane_writable(self) -> None:
        """The lane accepts commands again after `submit()` returned False."""


class Lane(asyncio.Protocol):
    """Sends commands in batches, one write per loop iteration; dispatches replies to their owners in the
    same order."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport = transport
        self.closed: asyncio.Future[str] = self.loop.create_future()
        self.on_closed: Callable[[], None] | None = None  # called after the owners have been notified
        self.users = 0
        self.commands = 0
        self.writes = 0
        self._scanner = ReplyScanner()
        self._pending: deque[list[Any]] = deque()  # [owner, replies still to come]
        self._out: list[bytes] = []
        self.is_full = False
        self._blocked: set[Owner] = set()
        self._fault = ""
        transport.set_protocol(self)

    def submit(self, owner: Owner, data: bytes, count: int) -> bool:
        """Send `count` whole commands. False: the owner should wait for `lane_writable()` before sending
        more."""
        pending = self._pending
        if pending and pending[-1][0] is owner:
            pending[-1][1] += count
        else:
            pending.append([owner, count])
        self.commands += count
        out = self._out
        if not out:
            self.loop.call_soon(self.flush)
        out.append(data)
        if self.is_full:
            self._blocked.add(owner)
            return False
        return True

    def flush(self) -> None:
        """Write what this loop iteration has collected."""
        out = self._out
        if out:
            self.writes += 1
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            self._out = []

    async def ask(self, *args: bytes) -> bytes:
        """Send one of the proxy's own commands. Raises BackAway when the lane is lost."""
        answer = Answer(self.loop.create_future())
        self.submit(answer, encode_command(list(args)), 1)
        return await answer.future

    def abort(self, reason: str) -> None:
        self._fault = self._fault or reason
        self.transport.abort()

    def close(self) -> None:
        self.flush()
        self.transport.close()

    # called by the transport

    def data_received(self, data: bytes) -> None:
        size = len(data)
        pending = self._pending
        feed = self._scanner.feed
        start = 0
        while start < size:
            if not pending:
                self.abort(f"{data[start : start + 40]!r} came without a request")
                return
            entry = pending[0]
            try:
                end = feed(data, start, entry[1])
            except ProtocolError as exc:
                self.abort(f"not RESP from the server: {exc}")
                return
            done = self._scanner.done
            if done == entry[1]:
                pending.popleft()
            else:
                entry[1] -= done
            entry[0].reply(data if end - start == size else data[start:end], done)
            start = end

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        blocked, self._blocked = self._blocked, set()
        for owner in blocked:
            owner.lane_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._fault or (str(exc) if exc else "the back closed the stream")
        if not self.closed.done():
            self.closed.set_result(reason)
        self._out.clear()
        partial = self._scanner.partial
        while self._pending:
            owner, count = self._pending.popleft()
            owner.lost(count, partial, reason)
            partial = False
        self.resume_writing()
        if self.on_closed is not None:
            self.on_closed()


class Answer:
    """The owner of one command that the proxy itself sends."""

    def __init__(self, future: asyncio.Future[bytes]) -> None:
        self.future = future
        self.parts: list[bytes] = []

    def reply(self, data: bytes, done: int) -> None:
        self.parts.append(data)
        if done and not self.future.done():
            self.future.set_result(b"".join(self.parts))

    def lost(self, count: int, partial: bool, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(BackAway(reason))

    def lane_writable(self) -> None:
        """One command needs no flow control."""


class Greeting(asyncio.Protocol):
    """The handshake on a stream to the back, before it becomes a lane."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line = Line()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(HELLO)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        try:
            rest = self.line.feed(data)
        except ValueError as exc:
            self._fail(f"not a redis_proxy.py back: {exc}")
            return
        if rest is None or self.ready.done():
            return
        if self.line.text == READY and not rest:
            self.ready.set_result(None)
        elif self.line.text.startswith(b"-PROXY "):
            self._fail(self.line.text[7:].decode(errors="replace").strip())
        else:
            self._fail(f"not a redis_proxy.py back: it answered {self.line.text[:40]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "the stream was closed before the back was ready")

    def _fail(self, reason: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(BackAway(reason))
