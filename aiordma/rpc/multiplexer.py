# cython: annotation_typing=False
"""What both ends of a connection of calls have in common: a channel, a machine, and a queue between them.

The machine (``proto/calls.py``) decides, the channel (``pipes/contracts.py``) transfers, and access to the
event loop goes through ``aiordma.wake``. Nothing here waits but :meth:`Multiplexer.sent`: what arrives is
handled in the channel's callback.

The queue is for messages that the channel has no room for now. It is bounded without a limit of its own:
calls and items wait in it together with the task that sends them, and of everything else (replies, credit,
cancellations, a pong) there is no more than a few for each call in flight, whose number the server grants.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio import BrokenResourceError, ClosedResourceError

from ..errors import LinkError, RemoteProtocolError
from ..observe.calls import fold
from ..proto.message import MAX_HEAD_BYTES
from ..proto.objects import MAX_KEYS, MAX_OBJECTS
from ..proto.rpc import ITEM, RpcMessage
from ..wake import current
from ..wake.draining import UNCLOSED_SECONDS, Draining
from ..wake.escaping import contain
from .bulk import Bulk
from .codec import Encoding
from .errors import Code, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..pipes.contracts import Channel, Message
    from ..pipes.placement import Placement
    from ..proto.call import Call
    from ..proto.client_calls import ClientCalls
    from ..proto.server_calls import ServerCalls
    from ..wake.base import Handle, Waiter

    Buffer = bytes | bytearray | memoryview
    Instead = Callable[[Exception], bytes]

_log = logging.getLogger("aiordma.rpc")
_BULK = int(Encoding.BULK)

#: Longest message that overtakes others.
SHORT_BYTES = 4096


class Parcel:
    """A message in the queue."""

    def __init__(self, head: bytes, body: Buffer, waiter: Waiter | None, key: object) -> None:
        self.head = head
        self.body = body
        self.nbytes = len(head) + len(body)
        #: set when it has left, or never will
        self.waiter = waiter
        #: later messages with this key are merged into this one
        self.key = key
        self.sent = False
        #: why it will never leave, though the connection goes on
        self.error: MemoryError | None = None
        #: makes the message that leaves in that case
        self.instead: Instead | None = None


class Multiplexer:
    """One end.

    The machine's message is kept for the next one. Its payload may be a view of registered memory, so
    ``_on_message()`` must take it out again: the connection, which may be idle or lost, would keep it.

    :param channel: belongs to this object from now on.
    :param machine: its HELLO has not been sent yet.
    :param peer: the other end, as shown to people.
    """

    #: "client" or "server"
    side = ""

    def __init__(self, channel: Channel, machine: ClientCalls | ServerCalls, peer: str) -> None:
        self.channel = channel
        self.peer = peer
        #: objects that a message of the peer may be decoded into (``Config.max_message_objects``)
        self.most_objects = MAX_OBJECTS
        #: and the keys in it that may collide (``Config.max_message_keys``)
        self.most_keys = MAX_KEYS
        self.waker = current()
        #: why the connection ended; None while it has not
        self.ended: BaseException | None = None
        #: called once when the connection has ended
        self.on_end: Callable[[], None] | None = None
        self._channel_try_send = channel.try_send
        self._deadlines = machine.deadlines
        self._base = machine
        self._queue: OrderedDict[Parcel, None] = OrderedDict()
        self._queued_bytes = 0
        #: with more than so many bytes in the queue nothing more is received; 0: no limit
        self._most_queued_bytes = 0
        self._receives = True
        #: short messages that no other one has to come before
        self._urgent: deque[tuple[bytes, Buffer]] = deque()
        self._mergeable: dict[object, Parcel] = {}
        self._timer: Handle | None = None
        self._timer_at = math.inf
        #: of tasks that wait until the calls in flight are over: each task that closes has its own
        self._drained: list[Waiter] = []
        self._receive: Callable[[Message], int] = machine.receive
        #: the message of a head that came before its body
        self._front = RpcMessage()
        self.waker.bind(self)

    def loop_ended(self) -> None:
        """See :class:`aiordma.wake.base.LoopBound`."""
        if self.ended is None and self.channel.path == "tcp":  # the engine ends what runs on RDMA
            self._receives, self._most_queued_bytes = True, 0  # with room in the queue nothing is begun again
            self.channel.on_message = None
            if self._push_out():
                self._end_parting()
            else:
                _unclosed.add(self.waker, self)

    def _push_out(self) -> bool:
        """Send what the channel takes; whether nothing is left that could go. The loop may watch nothing any
        more."""
        if self.unsent:
            self._flush()
            self.channel.spin()
        return not self.unsent or self.channel.error is not None

    def _end_parting(self) -> None:
        if self.ended is None:
            if self._push_out():
                self.channel.close()
            else:
                self.channel.abort()
            self._end(LinkError("the event loop that it was made in was closed or has ended", self.peer))

    def begin(self) -> None:
        """Send HELLO, and take what has arrived."""
        channel = self.channel
        channel.on_writable = self._flush
        channel.on_closed = self._on_closed
        hello = self._base.hello()
        try:
            if not self.try_send(hello):
                self._enqueue(hello, b"", None, None)
        except (ClosedResourceError, BrokenResourceError) as exc:
            # It ended before the callbacks were set.
            self.abort(exc.__cause__ or exc)
        else:
            channel.on_message = self._on_message

    # ---- sending

    @property
    def unsent(self) -> int:
        """Messages that were accepted and wait for room."""
        return len(self._queue) + len(self._urgent)

    def try_send(self, head: bytes, body: Buffer = b"") -> bool:
        """Send it now, or not at all: False when there is no room for it, or others wait.

        :raises ValueError: longer than the channel allows.
        :raises MemoryError: there may never be memory for it.
        :raises ClosedResourceError, BrokenResourceError: the connection has ended.
        """
        if self._queue or self._urgent:
            return False
        if len(head) > MAX_HEAD_BYTES:
            head, body = _split(head, body)
        return self._channel_try_send(head, body)

    def send(self, head: bytes, body: Buffer = b"", instead: Instead | None = None) -> None:
        """Send it as soon as possible; without effect when the connection has ended.

        :param instead: makes the short message that is sent when there may never be memory for this one.
        :raises ValueError: longer than the channel allows.
        :raises MemoryError: there may never be memory for it, and nothing is to be sent instead.
        """
        try:
            if not self.try_send(head, body):
                # The caller may modify body after return, so copy it.
                parcel = self._enqueue(head, body if type(body) is bytes else bytes(body), None, None)
                parcel.instead = instead
        except MemoryError as exc:
            if instead is None:
                raise
            self.send(instead(exc))
        except (ClosedResourceError, BrokenResourceError):
            # What waits for this connection learns of its end by on_closed.
            _log.debug("%s: a message was dropped: the connection has ended", self.peer)

    def send_short(self, head: bytes, body: Buffer = b"") -> None:
        """As :meth:`send`, for a short message that may overtake others: it goes before the long ones that
        wait for room. Of the messages of its call it must be the only one of this end."""
        if len(head) + len(body) > SHORT_BYTES or len(head) > MAX_HEAD_BYTES:
            self.send(head, body)
            return
        try:
            if self._urgent or not self._channel_try_send(head, body):
                self._urgent.append((head, body if type(body) is bytes else bytes(body)))
        except (ClosedResourceError, BrokenResourceError):
            _log.debug("%s: a message was dropped: the connection has ended", self.peer)

    def send_merged(self, key: object, message: bytes, merge: Callable[[bytes, bytes], bytes]) -> None:
        """Send a short message; while it waits, later ones with the same ``key`` are merged into it. A peer
        that makes us send and does not read is not given our memory."""
        waiting = self._mergeable.get(key)
        if waiting is not None:
            waiting.head = merge(waiting.head, message)
            return
        try:
            if not self.try_send(message):
                self._mergeable[key] = self._enqueue(message, b"", None, key)
        except (ClosedResourceError, BrokenResourceError):
            _log.debug("%s: a message was dropped: the connection has ended", self.peer)

    def send_credit(self, call: Call, message: bytes) -> None:
        """Send a CREDIT of ``call``."""
        self.send_merged(call, message, merged_credit)

    def enqueue(self, head: bytes, body: Buffer) -> Parcel:
        """Queue a message that ``try_send()`` did not take; :meth:`sent` waits for it.

        :raises ValueError: longer than the channel allows.
        """
        return self._enqueue(head, body, self.waker.new_waiter(), None)

    def _enqueue(self, head: bytes, body: Buffer, waiter: Waiter | None, key: object) -> Parcel:
        size = len(head) + len(body)
        if size > self.channel.max_message_bytes:
            raise ValueError(
                f"a message of {size} bytes; {self.channel.max_message_bytes} are allowed "
                "(setting max_message_bytes)"
            )
        parcel = Parcel(head, body, waiter, key)
        self._queue[parcel] = None
        self._queued_bytes += size
        if self._receives and 0 < self._most_queued_bytes < self._queued_bytes:
            self._receives = False
            self.channel.on_message = None
        return parcel

    def _gone(self, parcel: Parcel) -> None:
        """It has left the queue."""
        self._queued_bytes -= parcel.nbytes
        if not self._receives and self._queued_bytes <= self._most_queued_bytes // 2 and self.ended is None:
            self._receives = True
            self.channel.on_message = self._on_message

    async def sent(self, parcel: Parcel) -> None:
        """Wait until ``parcel`` has left. When this raises, ``parcel.sent`` is whether it has; if not, it
        never will.

        :raises RpcError: ``UNAVAILABLE``, the connection has ended; ``RESOURCE_EXHAUSTED``, there may
            never be memory for it.
        """
        assert parcel.waiter is not None
        try:
            await parcel.waiter.wait()
        finally:
            if parcel in self._queue:
                del self._queue[parcel]
                self._gone(parcel)
        if parcel.error is not None:
            raise no_memory(parcel.error) from parcel.error
        if not parcel.sent:
            raise self.failure(not_started=True)

    def _flush(self) -> None:
        queue, urgent = self._queue, self._urgent
        while queue or urgent:
            if urgent:
                try:
                    if not self._channel_try_send(*urgent[0]):
                        return
                except (ClosedResourceError, BrokenResourceError) as exc:
                    self._meet_end(exc)
                    return
                urgent.popleft()
                continue
            parcel = next(iter(queue))
            head, body = parcel.head, parcel.body
            if len(head) > MAX_HEAD_BYTES:
                head, body = _split(head, body)
            try:
                if not self._channel_try_send(head, body):
                    return
                parcel.sent = True
            except (ClosedResourceError, BrokenResourceError) as exc:
                self._meet_end(exc)
                return
            except MemoryError as exc:
                parcel.error = exc
            queue.popitem(last=False)
            self._gone(parcel)
            if parcel.key is not None:
                del self._mergeable[parcel.key]
            if parcel.waiter is not None:
                parcel.waiter.set()
            elif parcel.error is not None:
                self._replace(parcel, parcel.error)

    def _meet_end(self, exc: Exception) -> None:
        """Nothing can be sent: on_closed comes, or was here. Not before everything has been received, which
        waits for room in the queue: then this is the end."""
        if not self._receives and self.ended is None:
            self._end(exc.__cause__ or exc)
            self.channel.close()

    def _replace(self, parcel: Parcel, error: MemoryError) -> None:
        """There may never be memory for a message that is not awaited."""
        if parcel.instead is None:
            self.abort(error)
        else:
            self._enqueue(parcel.instead(error), b"", None, None)

    # ---- memory for what arrives (pipes/placement.py)

    def place_messages(self) -> None:
        """Look, before a large message is received, whether memory was named for it."""
        if self.channel.placer is None and self.ended is None:
            self.channel.placer = self

    def place(self, head: bytes, body_bytes: int) -> Placement | None:
        """See ``Placer``. What is wrong with a message is found, and answered, when it has come."""
        message = self._front
        try:
            kind = message.parse(head)
            # The body must be the value, and nothing but the value.
            front = Bulk.front(message.payload) if message.encoding == _BULK else memoryview(message.payload)
            if front is None or (len(front) and message.encoding != _BULK):
                return None
            return self._place(kind, message, front, body_bytes)
        except (RemoteProtocolError, RpcError, msgspec.MsgspecError):
            return None
        except BaseException as exc:
            # An allocator failed. It is asked again when the call has come; that is where the error is
            # reported.
            contain(exc)
            _log.debug("%s: no memory was named for a message", self.peer, exc_info=True)
            return None
        finally:
            message.payload = b""

    def _place(self, kind: int, message: RpcMessage, front: memoryview, nbytes: int) -> Placement | None:
        """Memory for a value; None: the channel's own.

        :param front: description of a value that is sent with one (``bulk.py``).
        :param nbytes: of the value.
        """
        raise NotImplementedError

    def placed(self, head: bytes, placement: Placement) -> None:
        """See ``Placer``."""
        message, receive = self._base.message, self._base.receive

        def put_together(data: Message) -> int:
            event = receive(data)
            if event == ITEM and self._base.call is not None:
                self._base.call.receive_window -= placement.nbytes
            front = Bulk.front(message.payload) if message.encoding == _BULK else None
            whole: Any = placement.view if front is None else Bulk(front, placement.view)
            message.payload = whole
            return event

        self._receive = put_together
        try:
            self._on_message(head)
        finally:
            self._receive = receive
            message.payload = b""

    async def withdraw(self, placement: Placement) -> None:
        """Give memory back to the one who named it: when this returns, nothing writes there. Not cancellable;
        it lasts as long as the device needs for what it has begun.
        """
        waiter = self.waker.new_waiter()
        placement.on_released = waiter.set
        self.channel.withdraw(placement)
        if not placement.released:
            with anyio.CancelScope(shield=True):
                await waiter.wait()
        placement.forget()

    # ---- deadlines

    def watch(self, call: Call, deadline: float) -> None:
        """Have :meth:`_on_deadline` called at ``deadline`` (seconds of the waker's clock)."""
        if self._deadlines.add(call, deadline) and deadline < self._timer_at:
            self._arm(deadline)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.waker.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        for call in self._deadlines.expired(self.waker.now()):
            self._on_deadline(call)
        following = self._deadlines.next()
        if following < self._timer_at and self.ended is None:
            self._arm(following)

    # ---- the end

    async def _wait_drained(self) -> None:
        """Wait for :meth:`_wake_drained`."""
        waiter = self.waker.new_waiter()
        self._drained.append(waiter)
        try:
            await waiter.wait()
        finally:
            self._drained.remove(waiter)

    def _wake_drained(self) -> None:
        """The calls in flight are over, or the connection is."""
        for waiter in self._drained:
            waiter.set()

    def failure(self, *, not_started: bool = False) -> RpcError:
        """The error of calls that the end of the connection makes fail.

        :param not_started: the server has certainly not looked at the call.
        """
        error = RpcError(Code.UNAVAILABLE, f"connection to {self.peer}: {self.ended}")
        error.not_started = not_started
        error.__cause__ = self.ended
        return error

    def _on_closed(self, reason: BaseException | None) -> None:
        self._end(reason if reason is not None else LinkError("closed by the peer", self.peer))
        self.channel.close()

    def close(self) -> None:
        """End the connection in order: what was sent still arrives. Calls in flight fail. Idempotent."""
        if self.ended is None:
            self.channel.close()
            self._end(LinkError("closed by this end", self.peer))

    def abort(self, reason: BaseException) -> None:
        """End the connection at once, for ``reason``."""
        if self.ended is None:
            self.channel.abort()
            self._end(reason)

    def _end(self, reason: BaseException) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queue, self._queue = self._queue, OrderedDict()
        self._queued_bytes = 0
        self._mergeable.clear()
        self._urgent.clear()
        for parcel in queue:
            if parcel.waiter is not None:
                parcel.waiter.set()
        self._base.message.payload = b""  # of what was being received
        lost = self._base.lost()
        fold(self.waker, self.side, self._base.counts())
        self._on_lost(lost)
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    # ---- what the two ends do differently

    def _on_message(self, data: Message) -> None:
        raise NotImplementedError

    def _on_deadline(self, call: Call) -> None:
        raise NotImplementedError

    def _on_lost(self, calls: list[Call]) -> None:
        raise NotImplementedError


def _split(head: bytes, body: Buffer) -> tuple[bytes, bytes]:
    return head[:MAX_HEAD_BYTES], b"".join((head[MAX_HEAD_BYTES:], body))


def no_memory(error: MemoryError) -> RpcError:
    """The error of a call that a message of this end makes fail for want of memory."""
    return RpcError(Code.RESOURCE_EXHAUSTED, str(error) or "no memory to send it")


_unclosed = Draining[Multiplexer](Multiplexer._end_parting, Multiplexer._push_out, UNCLOSED_SECONDS)


def merged_credit(first: bytes, second: bytes) -> bytes:
    """One CREDIT for two."""
    more = int.from_bytes(first[8:12], "big") + int.from_bytes(second[8:12], "big")
    return first[:8] + more.to_bytes(4, "big")


def newest(_first: bytes, second: bytes) -> bytes:
    """Of two PONGs only the second: a peer has to answer for the PINGs it did not wait for."""
    return second
