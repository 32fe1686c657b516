"""Messages of a channel on a TCP connection, or TLS on one: ``contracts.Channel`` without RDMA.

``proto/channel_frames.py`` has the frames, and when the connection ends in order.

Writing. The first message of a turn of the loop goes to the kernel at once, those that follow it in the
same turn go together at its end: a lone message is not delayed, and a burst costs one system call. What the
kernel does not take waits here, up to a limit. Reading stops, and leaves the rest to the kernel's window,
while no messages are taken.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from typing import TYPE_CHECKING

from anyio import BrokenResourceError, ClosedResourceError

from .. import wake
from ..errors import LinkError, RemoteProtocolError
from ..plain import check_plain
from ..proto.channel_frames import (
    CLOSE_FRAME,
    SHORT_BYTES,
    ChannelAssembler,
    greeting,
    lazy_memory,
    message_header,
)
from ..proto.message import ChannelStatistics, check_size
from ..wake.draining import Draining
from ..wake.escaping import contain
from .end_report import EndReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from ..wake.base import Handle
    from .contracts import Message, Placer
    from .placement import Placement
    from .tcp import TcpPipe

_log = logging.getLogger("aiordma.channel")

_READ_BYTES = 256 * 1024
#: Handled in one turn of the loop before others have theirs.
_TURN_BYTES = 256 * 1024
_TURN_MESSAGES = 512
#: What a read counts at least: inside TLS, each record is one.
_LEAST_BYTES = 1024
#: What waits for the kernel at most, but for one message that is longer.
_QUEUE_BYTES = 256 * 1024
#: How long a closed channel may take to deliver something of what is left, and to receive the peer's end.
_DRAIN_S = 30.0


def _memory() -> Callable[[int], memoryview]:
    """What gives memory for long messages."""
    try:
        from ..datapath._fill import unfilled_view  # compiled: a heap that is used again costs no page faults
    except ImportError:
        return lazy_memory
    return unfilled_view


class TcpChannel:
    """One end of a channel on ``pipe``, which it owns. Sends its greeting at once.

    :param kind: what the messages mean (``clc.Kind``).
    :param max_message_bytes: longest message this end takes, and, once the peer's greeting is there, sends.
    """

    path = "tcp"

    def __init__(self, pipe: TcpPipe, *, kind: int, max_message_bytes: int) -> None:
        self.max_message_bytes = max_message_bytes
        self.on_writable: Callable[[], None] | None = None
        self.on_greeted: Callable[[], None] | None = None
        self.error: BaseException | None = None
        self._on_message: Callable[[Message], None] | None = None
        self._placer: Placer | None = None
        self._placement: Placement | None = None  # where the message goes that is being received
        self._read_bytes = _READ_BYTES
        self._pipe = pipe
        self._waker = wake.current()
        self._end_report = EndReport(self._waker.call_soon)
        self._incoming = ChannelAssembler(kind, max_message_bytes, _memory())
        # sending
        self._queue: deque[bytearray | memoryview] = deque()
        self._queued_bytes = 0
        self._offset = 0  # of what the kernel has not taken in the first of the queue
        self._turn_begun = False
        self._blocked = False
        self._in_pipe = 0  # calls that send: one that fails has what came before handed over, and no later
        # receiving
        self._reading = self._read_again = False
        # the end
        self._closed = False  # by this end's user
        self._over = False  # it has ended, in one way or another
        self._takes_nothing = False  # a send has failed, and what had come before waits for its user
        self._released = False
        self._close_sent = False
        self._peer_closed = False
        self._timer: Handle | None = None
        self._left = 0  # of the queue, when the timer was set
        self._sent = self._received = self._bytes_sent = self._bytes_received = 0
        self._large_sent = self._large_received = self._large_placed = self._times_blocked = 0
        pipe.on_writable = self._flush
        self._put(greeting(kind, max_message_bytes))
        self._push()
        pipe.on_readable = self._readable
        self._read_soon()

    @property
    def greeted(self) -> bool:
        """Whether the peer's greeting is here."""
        return self._incoming.greeted

    @property
    def on_message(self) -> Callable[[Message], None] | None:
        """Called with every message."""
        return self._on_message

    @on_message.setter
    def on_message(self, callback: Callable[[Message], None] | None) -> None:
        self._on_message = callback
        if callback is not None:
            self._read_soon()

    @property
    def on_closed(self) -> Callable[[BaseException | None], None] | None:
        """Called with the end."""
        return self._end_report.callback

    @on_closed.setter
    def on_closed(self, callback: Callable[[BaseException | None], None] | None) -> None:
        self._end_report.callback = callback

    @property
    def placer(self) -> Placer | None:
        """See ``Channel.placer``."""
        return self._placer

    @placer.setter
    def placer(self, placer: Placer | None) -> None:
        self._placer = placer
        if placer is None:
            self._let_go()
        self._incoming.place = None if placer is None else self._place
        # What is read together with the front of a long message has to be copied to where that goes.
        self._read_bytes = _READ_BYTES if placer is None else SHORT_BYTES

    def _place(self, head: bytes, body_bytes: int) -> memoryview | None:
        assert self._placer is not None
        self._placement = self._placer.place(head, body_bytes)
        return None if self._placement is None else self._placement.view

    def withdraw(self, placement: Placement) -> None:
        """See ``Channel.withdraw``."""
        if placement is self._placement:
            self._let_go()
        placement.release()

    def _let_go(self) -> None:
        """Put no more where the user has said."""
        if self._placement is not None:
            self._incoming.withdraw()
            self._placement.release()

    def statistics(self) -> ChannelStatistics:
        """See ``Channel.statistics``. What waits in the kernel is not counted."""
        return ChannelStatistics(
            messages_sent=self._sent,
            messages_received=self._received,
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            large_sent=self._large_sent,
            large_received=self._large_received,
            large_placed=self._large_placed,
            times_blocked=self._times_blocked,
            outstanding=self._queued_bytes,
            receive_high_water=0,
        )

    # -- sending

    def try_send(self, head: bytes, body: Buffer = b"") -> bool:
        """See ``Channel.try_send``."""
        if self._closed or self._over or self.error is not None:
            self._refuse()
        check_plain(body)
        if isinstance(body, bytes):
            return self._accept(head, body)
        with memoryview(body) as given, given.cast("B") as view:
            return self._accept(head, view)

    def _accept(self, head: bytes, view: bytes | memoryview) -> bool:
        size = len(head) + len(view)
        check_size(len(head), size, self.max_message_bytes)
        if self._queued_bytes and self._queued_bytes + size > _QUEUE_BYTES:
            self._times_blocked += 1
            self._blocked = True
            return False
        self._put(message_header(size, len(head)) + head)
        if size <= SHORT_BYTES:
            self._put(view)
        else:
            self._large_sent += 1
            self._push()
            self._put_long(view)
        self._sent += 1
        self._bytes_sent += size
        if not self._turn_begun:
            self._turn_begun = True
            self._push()
            self._waker.call_soon(self._end_turn)
        return True

    def _refuse(self) -> None:
        if self._closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self.error is not None:
            raise BrokenResourceError(f"the connection is lost: {self.error}") from self.error
        cause = LinkError("the peer has closed the connection")
        raise BrokenResourceError(str(cause)) from cause

    def _put(self, data: bytes | memoryview) -> None:
        """Append short data to the queue."""
        last = self._queue[-1] if self._queue else None
        self._queued_bytes += len(data)
        if not isinstance(last, bytearray) or len(last) >= _QUEUE_BYTES:
            self._queue.append(bytearray(data))
            return
        try:
            last += data
        except BufferError:  # the pipe has it: a send has just failed, and what came before is handed over
            self._queue.append(bytearray(data))

    def _put_long(self, data: bytes | memoryview) -> None:
        """Send long data, or queue what the kernel leaves of it."""
        done = 0
        if not self._queue and self.error is None:
            try:
                done = self._hand_to_pipe(data)
            except BrokenResourceError as error:
                self._lost(error)
        if done < len(data) and self.error is None:
            # Memory that may change is copied, what cannot is kept.
            rest = memoryview(data)[done:] if isinstance(data, bytes) else memoryview(bytes(data[done:]))
            self._queue.append(rest)
            self._queued_bytes += len(rest)

    def _hand_to_pipe(self, data: bytearray | bytes | memoryview, start: int = 0) -> int:
        self._in_pipe += 1
        try:
            return self._pipe.try_send(data, start)
        finally:
            self._in_pipe -= 1

    def _push(self) -> None:
        """Hand to the kernel what it takes of the queue."""
        queue = self._queue
        try:
            while queue and self.error is None:
                first = queue[0]
                done = self._hand_to_pipe(first, self._offset)
                if self._released:  # meanwhile: what was read before a failure has been handed over
                    return
                self._queued_bytes -= done
                self._offset += done
                if self._offset < len(first):
                    return
                queue.popleft()
                self._offset = 0
        except BrokenResourceError as error:
            self._lost(error)

    def _end_turn(self) -> None:
        self._turn_begun = False
        self._flush()

    def _flush(self) -> None:
        """The kernel takes more, or the turn is over."""
        self._push()
        if self._queue or self._released or self.error is not None:
            return
        if self._close_sent:
            self._pipe.send_eof()
            if self._closed and self._peer_closed:
                self._release()
        elif self._blocked:
            self._blocked = False
            if self.on_writable is not None:
                self._guarded(self.on_writable)

    # -- receiving

    def spin(self) -> bool:
        """Send what was put off. TCP gains nothing from polling."""
        if self._queue:
            self._flush()
        return self._over or self._closed

    def _read_soon(self) -> None:
        if not self._read_again:
            self._read_again = True
            self._waker.call_soon(self._go_on_reading)

    def _go_on_reading(self) -> None:
        self._read_again = False
        self._readable()

    def _readable(self) -> None:
        """Take what has come; if it is much, others have their turn before the rest."""
        if self._reading or self._released:
            return
        self._reading = True
        taken = 0
        try:
            while self._take_messages() and not self._released:
                if taken >= _TURN_BYTES and not self._in_pipe:
                    self._read_soon()
                    return
                count = self._receive()
                if count == 0:
                    self._at_eof()
                if count <= 0:
                    return
                taken += max(count, _LEAST_BYTES)
        except RemoteProtocolError as error:
            self._fail(error)
        except BrokenResourceError as error:
            self._lost(error)
        except BaseException as error:
            _log.exception("a callback of a channel failed: the channel is broken")
            self._fail(error)
            contain(error)
        finally:
            self._reading = False

    def _receive(self) -> int:
        """Read once: the number of bytes, 0 at the end, -1 when there is nothing now."""
        incoming = self._incoming
        room = incoming.room
        if room is not None:
            count = self._pipe.try_receive_into(room)
            incoming.filled(max(count, 0))
            return count
        data = self._pipe.try_receive(self._read_bytes)
        if data is None:
            return -1
        greeted = incoming.greeted
        incoming.feed(data)
        if incoming.greeted and not greeted:
            self._on_greeting()
        return len(data)

    def _on_greeting(self) -> None:
        self.max_message_bytes = min(self.max_message_bytes, self._incoming.peer_limit)
        if self.on_greeted is not None:
            self.on_greeted()

    def _take_messages(self) -> bool:
        """Hand over the messages that are whole. False: none is taken now, or none will come."""
        incoming = self._incoming
        if not incoming.greeted:
            return True
        most = _TURN_MESSAGES
        while not self._released and (self._on_message is not None or self._closed):
            message = incoming.take()
            if message is not None:
                self._hand_over(message)
                most -= 1
                if most <= 0 and not self._in_pipe:
                    self._read_soon()
                    return False
            elif incoming.closed:
                self._at_close()
                return False
            else:
                return True
        return False

    def _hand_over(self, message: Message) -> None:
        placement, placer = self._placement, self._placer
        callback = self._on_message
        if self._incoming.placed:
            assert placement is not None
            self._placement = None
            placement.release()
            self._bytes_received += placement.nbytes
            self._large_received += 1
            self._large_placed += 1
            callback = None if placer is None else lambda head: placer.placed(bytes(head), placement)
        if callback is None:
            return  # this end was closed
        self._received += 1
        self._bytes_received += len(message)
        self._large_received += isinstance(message, memoryview)
        self._guarded(functools.partial(callback, message))

    def _guarded(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:
            _log.exception("a callback of a channel failed: the channel is broken")
            if not self._closed:
                self._fail(error)
            contain(error)

    # -- the end

    def _at_close(self) -> None:
        """The peer has closed in order."""
        self._peer_closed = True
        if self._closed:
            if not self._queue:
                self._release()
            return
        self._pipe.on_readable = None
        if self._takes_nothing:
            self.error = None  # what could not be sent was for one that had closed in order
            self._release(abort=True)
        else:
            self._send_close()
        self._report(None)

    def _at_eof(self) -> None:
        if self._closed:
            self._release()
        else:
            self._fail(LinkError("the peer's process has ended or closed the TCP connection"))

    def _lost(self, error: BaseException) -> None:
        reason = LinkError(f"the TCP connection is lost: {error.__cause__ or error}")
        if self._on_message is None and not self._closed and self._has_unread():
            self._keep_unread(reason)
        else:
            self._fail(reason)

    def _has_unread(self) -> bool:
        """Whether something whole has come, of which the user, who takes nothing now, does not know."""
        incoming = self._incoming
        if self._released or self._peer_closed or not incoming.greeted:
            return False
        try:
            while not incoming.whole and self._receive() > 0:
                pass
        except BrokenResourceError:
            pass
        return incoming.whole

    def _keep_unread(self, reason: BaseException) -> None:
        """Nothing is sent any more. The end comes behind what had come before: when that is taken."""
        self._takes_nothing = True
        self.error = reason
        self._queue.clear()
        self._queued_bytes = 0
        if self.on_writable is not None:  # who waits for room may take what has come only when it has sent
            self._waker.call_soon(self._refuse_waiting)

    def _refuse_waiting(self) -> None:
        if self.on_writable is not None:
            self._guarded(self.on_writable)

    def _fail(self, error: BaseException) -> None:
        """It broke. on_closed is called soon, not now: this may be in the middle of its user's try_send()."""
        if (self.error is None or self._takes_nothing) and not self._released:
            self.error = error
            self._release(abort=True)
            self._waker.call_soon(functools.partial(self._report, error))

    def _report(self, error: BaseException | None) -> None:
        if self._over:
            return
        self._over = True
        self._on_message = self.on_writable = self.placer = None
        if self.on_greeted is not None:
            self.on_greeted()
        self._end_report.end(error)

    def _send_close(self) -> None:
        if not self._close_sent:
            self._close_sent = True
            self._put(CLOSE_FRAME)
            self._flush()

    def _release(self, *, abort: bool = False) -> None:
        """Let go of the connection."""
        if self._released:
            return
        self._released = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        self._queued_bytes = 0
        self._let_go()
        self._incoming.drop()
        _draining.discard(self._waker, self)
        if abort:
            self._pipe.abort()
        else:
            self._pipe.close()

    def close(self) -> None:
        """See ``Channel.close``. What is left is delivered in the background."""
        if self._closed:
            return
        self._closed = self._over = True
        self._on_message = self.on_writable = self.on_greeted = self.placer = None
        self._end_report.drop()
        if self._released:
            return
        if self._takes_nothing or (self._peer_closed and not self._queue):
            self._release(abort=self._takes_nothing)
            return
        # A socket that is closed with something unread in it sends a reset, which can destroy what the peer
        # has not read yet. So the peer's end is waited for, for a limited time.
        _draining.add(self._waker, self)
        self._send_close()
        self._read_soon()
        self._wait_on()

    def _wait_on(self) -> None:
        if not self._released:
            self._left = self._queued_bytes
            self._timer = self._waker.call_at(self._waker.now() + _DRAIN_S, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._queued_bytes < self._left:
            self._wait_on()  # it takes its time, but it reads
        else:
            self._release(abort=bool(self._queue))  # what is cut off must not be taken for the whole

    def abort(self) -> None:
        """See ``Channel.abort``."""
        self._closed = self._over = True
        self._on_message = self.on_writable = self.on_greeted = self.placer = None
        self._end_report.drop()
        self._release(abort=True)

    def _deliver(self) -> bool:
        """The event loop ends: send what the kernel takes, and drop what would cause a reset if it stayed
        unread; whether nothing is left."""
        self._flush()
        self._readable()
        return self._released or not self._queue

    def _end_with_loop(self) -> None:
        self._release(abort=bool(self._queue))  # what is cut off must not be taken for the whole


_draining = Draining[TcpChannel](TcpChannel._end_with_loop, TcpChannel._deliver)
