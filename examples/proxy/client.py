"""A Redis client connected to the front."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from .commands import Kind, Transaction, classify, is_shared_by_name
from .lane import BackAway, Lane
from .pipe import join
from .resp import encode_command, parse_command
from .scan import BAD, BIG, MORE, CommandScanner, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .front import Front
    from .pool import SharedLanes

logger = logging.getLogger("redis_proxy.front")

# Longer commands are not buffered: the client gets its own lane and they stream through.
BIG_COMMAND = 64 * 1024
MAX_IN_FLIGHT = 1024  # commands of one client on a shared lane; beyond, the client is not read
MAX_KNOWN = 4096  # cached spellings of command names

# Why reading from the client is paused.
_LANE_FULL, _SLOW, _IN_FLIGHT, _HELD = 1, 2, 4, 8


class Client(asyncio.Protocol):
    """Send whole commands to a lane and receive whole replies.

    Most clients only ever use a shared lane. A client that needs a connection of its own is paused until its
    replies are in, then gets a lane of its own: for a transaction or a blocking command until that is over
    (`_own`), for any lasting state until the client closes, by joining the two transports."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.lanes: SharedLanes = front.shared[2]
        self.protocol = 2
        self.scanner = CommandScanner(front.known, BIG_COMMAND)
        self.lane: Lane | None = None
        self.outstanding = 0
        self._own: Transaction | None = None  # set while `lane` is the client's own
        self._buffer = b""  # incomplete or waiting commands
        self._paused = 0
        self._after: Callable[[], None] | None = None  # called when no reply is outstanding
        self._watch = False  # reply() has more to do than passing bytes on
        self._answer = b""  # the first byte of the reply to a Kind.ASK command
        self._gone = False
        self._joined = False  # keeps its own lane; bytes are forwarded unparsed
        self._ended = False  # the client has sent its last byte
        self._opening: asyncio.Task[None] | None = None

    # called by the client's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # by contract, if not by class in uvloop
        self.front.joined(self)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        if self._paused & _HELD:
            self._buffer = data
            return
        scanner = self.scanner
        count = scanner.feed(data)
        lane = self.lane
        if lane is not None and scanner.end == len(data) and not lane.closed.done():
            # The usual case: only whole commands that may be shared.
            self._buffer = b""
            self._submit(lane, data, count)
        else:
            self._work(data, count)

    def eof_received(self) -> bool:
        self._ended = True
        if self._own is not None and self.lane is not None:
            self.lane.flush()
            self.lane.transport.write_eof()  # also ends blocking commands; the server disconnects
        elif not self._paused & _HELD:
            self._after_replies(self.transport.close)
        return True

    def pause_writing(self) -> None:
        if self._own is not None and self.lane is not None and not self.lane.transport.is_closing():
            self.lane.transport.pause_reading()
        self._pause(_SLOW)

    def resume_writing(self) -> None:
        if self._own is not None and self.lane is not None and not self.lane.transport.is_closing():
            self.lane.transport.resume_reading()
        self._resume(_SLOW)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self.front.left(self)
        self.lanes.leave(self)
        if self._opening is not None:
            self._opening.cancel()
        if self.lane is not None:
            if self._own is not None:
                self._drop_own().close()
            else:
                self.lane.users -= 1

    # called by the client's lane

    def reply(self, data: bytes, done: int) -> None:
        self.outstanding -= done
        if self._gone:
            return
        self.transport.write(data)
        if self._watch:
            if self._own is not None:
                self._own.answered(data)
            self._answer = self._answer or data[:1]
            self._replied()

    def lost(self, count: int, partial: bool, reason: str) -> None:
        self.outstanding -= count
        if self.transport.is_closing():
            return
        if partial:
            logger.warning("closing a client: its reply was cut off (%s)", reason)
            self.transport.close()
        elif not (self._ended and self._own is not None):  # otherwise the client's EOF ended the lane
            error = b"-PROXY the connection to Redis was lost, the command may or may not have run: %b\r\n"
            self.transport.write(error % _line(reason) * count)
            if self._own is None:
                self._replied()

    def lane_writable(self) -> None:
        self._resume(_LANE_FULL)

    # called by the pool of lanes

    def lanes_changed(self) -> None:
        try:
            self._release()
        except Exception:  # as transports do when their protocol fails: otherwise it waits for ever
            self.abort()
            raise

    # called by the front

    def finish(self) -> None:
        """Let running commands finish, then disconnect."""
        self._hold(b"")
        if self._own is not None and self._own.open:
            self.transport.close()
        else:
            self._after_replies(self.transport.close)

    def abort(self) -> None:
        """Disconnect at once."""
        self._gone = True
        self.transport.abort()

    # commands

    def _submit(self, lane: Lane, data: bytes, count: int) -> None:
        self.outstanding += count
        if not lane.submit(self, data, count):
            self._pause(_LANE_FULL)
        if self.outstanding > MAX_IN_FLIGHT:
            self._pause(_IN_FLIGHT)
            self._watch = True

    def _work(self, data: bytes, count: int) -> None:
        """Submit `count` shareable commands at the start of `data`, and handle what follows them."""
        scanner = self.scanner
        at = 0  # what is behind a command is not copied for each: there may be very many
        while True:
            end = scanner.end
            if count:
                lane = self._route()
                if lane is None:
                    if self.lanes.reason is None:
                        self._hold(data[at:])
                        self.lanes.wait(self)
                        return
                    self._away(count)
                else:
                    self._submit(lane, data[at:end], count)
                at = end
            if scanner.verdict == MORE:
                self._buffer = data[at:]
                if self._ended and not self.outstanding:
                    self.transport.close()
                return
            behind = self._look(data, at)
            if behind is None:
                return
            at = behind
            scanner.forget()
            count = scanner.feed(data, at)

    def _route(self) -> Lane | None:
        """Return the lane for the next command, or None."""
        lane = self.lane
        if lane is not None:
            if self._own is not None or not lane.closed.done():
                return lane
            self.lane = None
        lane = self.lanes.pick()
        if lane is not None:
            lane.users += 1
            self.lane = lane
        return lane

    def _look(self, data: bytes, at: int) -> int | None:
        """Handle the command at `at`, which is not simply shared; return its end, or None if it has to
        wait."""
        if self.scanner.verdict == BIG:
            self._need_own(data[at:], for_good=True)
            return None
        try:
            if self.scanner.verdict == BAD:
                raise ProtocolError(self.scanner.error)
            parsed = parse_command(data, at)
        except ProtocolError as exc:
            self._hold(b"")
            error = b"-ERR Protocol error: %b\r\n" % _line(str(exc))
            self._after_replies(lambda: self._part(error))
            return None
        if parsed is None:
            if len(data) - at > BIG_COMMAND:
                self._need_own(data[at:], for_good=True)
            else:
                self._buffer = data[at:]
            return None
        args, end = parsed
        if not args:
            return end
        # Not the client's own bytes: the server must not judge them differently, since that costs the lane.
        command = encode_command(args)
        kind = classify(args)
        if kind is Kind.QUIT:
            self._hold(b"")
            self._after_replies(lambda: self._part(b"+OK\r\n"))
            return None
        if kind is Kind.KEEP or (kind is Kind.HELLO and self._own is not None):
            self._need_own(data[at:], for_good=True)
            return None
        if kind is Kind.HELLO:
            if self.outstanding:
                self._hold(data[at:])
                self._after_replies(self._release)
                return None
            self._change_protocol(int(args[1]))
        elif kind in (Kind.HOLD, Kind.ASK) and self._own is None:
            self._need_own(data[at:], for_good=False)
            return None
        elif kind is Kind.ASK:
            self._ask(data[at:], command, data[end:])
            return None
        if self._own is not None:
            self._own.sent(args)
        elif is_shared_by_name(args) and len(self.front.known) < MAX_KNOWN:
            self.front.known.add(args[0])
        lane = self._route()
        if lane is None:
            if self.lanes.reason is None:
                self._hold(data[at:])
                self.lanes.wait(self)
                return None
            self._away(1)
        else:
            self._submit(lane, command, 1)
        return end

    def _ask(self, data: bytes, command: bytes, rest: bytes) -> None:
        """Send one command on the client's own lane; the reply decides whether the client keeps it."""
        lane = self.lane
        assert lane is not None
        if self.outstanding:
            self._hold(data)
            self._after_replies(self._release)
            return
        self._hold(rest)
        self._answer = b""
        self._submit(lane, command, 1)
        self._after_replies(self._answered)

    def _answered(self) -> None:
        if self._own is not None and self._answer != b"-":
            self._join()
        else:
            self._release()
            self._replied()

    def _change_protocol(self, protocol: int) -> None:
        if protocol == self.protocol:
            return
        self._leave_shared()
        self.protocol = protocol
        self.lanes = self.front.shared[protocol]
        self.lanes.start()

    def _away(self, count: int) -> None:
        error = b"-PROXY Redis cannot be reached (%b); the command was not run, try again\r\n"
        self.transport.write(error % _line(self.lanes.reason or "") * count)

    def _part(self, last_words: bytes) -> None:
        self.transport.write(last_words)
        self.transport.close()

    # waiting

    def _pause(self, why: int) -> None:
        if not self._paused and not self.transport.is_closing():
            self.transport.pause_reading()
        self._paused |= why
        self._watch = True

    def _resume(self, why: int) -> None:
        if self._paused & why:
            self._paused &= ~why
            if not self._paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def _hold(self, data: bytes) -> None:
        """Keep `data` unparsed until `_release()`."""
        self._buffer = data
        self.scanner.forget()
        self._pause(_HELD)

    def _release(self) -> None:
        if self.transport.is_closing() or not self._paused & _HELD:
            return
        self._resume(_HELD)
        data, self._buffer = self._buffer, b""
        self._work(data, self.scanner.feed(data))
        if self._ended and not self._paused & _HELD:
            self.eof_received()

    def _after_replies(self, action: Callable[[], None]) -> None:
        if self.outstanding == 0:
            action()
        else:
            self._after = action
            self._watch = True

    def _replied(self) -> None:
        """After replies, continue with what waits for them."""
        if self._joined:
            return
        if self._paused & _SLOW and self._own is None:
            limit = self.front.client_buffer_bytes
            if self.transport.get_write_buffer_size() > limit:
                logger.warning("closing a client: it left more than %d bytes of replies unread", limit)
                self.abort()
                return
        if self._paused & _IN_FLIGHT and self.outstanding <= MAX_IN_FLIGHT // 2:
            self._resume(_IN_FLIGHT)
        if self.outstanding:
            return
        if self._after is not None:
            action, self._after = self._after, None
            action()
        elif self._own is not None and not self._own.open and not self._ended:
            self._give_back()
        elif self._own is None and not self._paused:
            self._watch = False

    # a lane of its own

    def _need_own(self, data: bytes, *, for_good: bool) -> None:
        """Hold `data`, whose first command needs an exclusive lane, until there is one."""
        self._hold(data)
        if self._own is not None:
            self._join()
        else:
            self._after_replies(lambda: self._get_own(for_good))

    def _get_own(self, for_good: bool) -> None:
        lane = self.front.own.take_idle(self.protocol)
        if lane is not None:
            self._own_ready(lane, for_good)
        else:
            self._opening = self.front.own.spawn(self._open_own(for_good))

    async def _open_own(self, for_good: bool) -> None:
        try:
            lane = await self.front.own.open(self.protocol)
        except BackAway as exc:
            self._opening = None
            self._no_own(str(exc))
            return
        self._opening = None
        if self.transport.is_closing():
            lane.close()
        else:
            self._own_ready(lane, for_good)

    def _no_own(self, reason: str) -> None:
        """Answer the command that needed the lane; a partial long command cannot be answered."""
        if self.transport.is_closing():
            return
        error = b"-PROXY Redis cannot be reached (%b); the command was not run, try again\r\n" % _line(reason)
        try:
            parsed = parse_command(self._buffer, 0)
        except ProtocolError:  # in what came after the lane was asked for
            parsed = None
        if parsed is None:
            self._part(error)
            return
        self.transport.write(error)
        self._buffer = self._buffer[parsed[1] :]
        self._release()

    def _own_ready(self, lane: Lane, for_good: bool) -> None:
        if lane.closed.done():
            self._no_own(lane.closed.result())
            return
        self._leave_shared()
        self.lane = lane
        lane.on_closed = self._own_lost
        self._own = Transaction()
        self._watch = True
        self.front.own.in_use += 1
        if for_good:
            self._join()
        else:
            if self._paused & _SLOW:
                lane.transport.pause_reading()
            self._release()

    def _join(self) -> None:
        """From here on only forward bytes."""
        lane = self.lane
        assert lane is not None
        self._joined = True
        lane.flush()
        if self._paused & _SLOW:
            lane.transport.pause_reading()
        join(self.transport, lane.transport, lambda: self.connection_lost(None))
        if self._buffer:
            lane.transport.write(self._buffer)
            self._buffer = b""
        if self._ended:
            lane.transport.write_eof()
        elif not lane.is_full:
            self.transport.resume_reading()

    def _own_lost(self) -> None:
        """Commands queued or keys watched on the lane are lost; only disconnecting reports that."""
        assert self._own is not None
        over = self._own.open or self._ended
        self._drop_own()
        if over:
            self.transport.close()
        else:
            self._replied()

    def _give_back(self) -> None:
        assert self._own is not None
        refused = self._own.refused
        lane = self._drop_own()
        if self._paused & _SLOW:
            lane.transport.resume_reading()
        self.front.own.give_back(lane, self.protocol, refused)
        if not self._paused:
            self._watch = False

    def _drop_own(self) -> Lane:
        lane = self.lane
        assert lane is not None
        lane.on_closed = None
        self.lane = self._own = None
        self.front.own.in_use -= 1
        return lane

    def _leave_shared(self) -> None:
        if self.lane is not None and self._own is None:
            self.lane.users -= 1
            self.lane = None


def _line(text: str) -> bytes:
    return "".join(c if c.isprintable() else " " for c in text).encode()
