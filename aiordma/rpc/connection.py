# cython: annotation_typing=False
"""The client's end of a connection: calls go out, replies and items come in.

The fast path of a unary call: take a credit, build the head, hand it to the channel, look for the reply for
as long as the channel's polling policy allows. Only when that brings nothing does the calling task wait.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio import BrokenResourceError, ClosedResourceError

from ..credit import CreditWindow
from ..errors import LinkError
from ..observe.trace import recorder
from ..proto.call import Call
from ..proto.client_calls import ClientCalls
from ..proto.rpc import (
    CREDIT,
    GOAWAY,
    HEADERS,
    HELLO,
    ITEM,
    PING,
    PONG,
    REPLY,
    Hello,
    RpcMessage,
    ping_message,
)
from ..proto.trace import TIMED_MASK, ClockOffset, Tracer
from .errors import Code, RpcError
from .multiplexer import Multiplexer, newest, no_memory
from .reply import Reply

if TYPE_CHECKING:
    from ..pipes.contracts import Channel, Message
    from ..pipes.placement import Placement
    from ..proto.trace import ClientTrace
    from ..wake.base import Waiter
    from .codec import Payload
    from .multiplexer import Buffer


class Caller(Protocol):
    """What a call is made for; it gets what comes back."""

    #: UNARY, or BIDI: it sends and receives items
    @property
    def kind(self) -> int: ...

    #: bytes of items that the server may send before any are taken; 0: as the connection has it
    @property
    def window(self) -> int: ...

    @property
    def trace(self) -> ClientTrace | None: ...

    def begin(self, call: Call) -> None:
        """The call is about to be sent; not called for unary calls."""

    def on_reply(self, message: RpcMessage) -> None:
        """The REPLY of this call."""


class Connection(Multiplexer):
    """Calls over one channel. Made by :meth:`open`; closed by :meth:`aclose` or :meth:`close`.

    :param window: bytes of items that a server may send on a stream before any of them are taken.
    """

    side = "client"

    def __init__(
        self, channel: Channel, peer: str, *, window: int = 262144, metadata_bytes: int = 16384
    ) -> None:
        self.machine = ClientCalls(Hello(0, 0, window, metadata_bytes))
        super().__init__(channel, self.machine, peer)
        self._message = self.machine.message
        #: calls that may be in flight: granted by the server
        self.in_flight = CreditWindow(0)
        self._hello = self.waker.new_waiter()
        self._spin = channel.spin
        #: head and body of a CALL that has found no room
        self._late: tuple[bytes, Buffer] | None = None
        self._idle_waiters: list[Waiter] = []
        self._pings: dict[int, tuple[Waiter, list[int]]] = {}
        self._ping_number = 0
        self._goaway_text = ""
        #: how far the server's clock is ahead, as far as traced calls have shown
        self.clock = ClockOffset()

    @classmethod
    async def open(
        cls,
        channel: Channel,
        peer: str,
        *,
        timeout: float = 6.0,  # noqa: ASYNC109
        **options: Any,
    ) -> Connection:
        """Send HELLO, and wait for the server's answer.

        :param timeout: seconds.
        :raises RpcError: ``UNAVAILABLE``: it did not come, or was not one.
        """
        try:
            connection = cls(channel, peer, **options)
            connection.begin()
            with anyio.move_on_after(timeout):
                await connection._hello.wait()
        except BaseException:
            channel.abort()
            raise
        if connection.ended is not None:
            raise connection.failure(not_started=True)
        if connection.machine.peer is None:
            connection.abort(LinkError(f"no HELLO within {timeout:g} s", peer))
            raise connection.failure(not_started=True)
        return connection

    @property
    def usable(self) -> bool:
        """Whether calls can be made: it has not ended, and the server is not leaving."""
        return self.ended is None and not self.machine.leaving

    @property
    def leaving(self) -> bool:
        """The server takes no more calls, or this end makes none."""
        return self.machine.leaving

    @property
    def calls(self) -> int:
        """Calls in flight, those that were cancelled and not replied to yet included."""
        return len(self.machine.calls)

    # ---- calls

    # long: start() and the wait are here again, because each would be a coroutine more for every call
    async def call_raw(
        self,
        method: str,
        encoding: int,
        payload: Payload,
        timeout: float | None = None,  # noqa: ASYNC109  # it travels with the call
        metadata: bytes | None = None,
        into: Reply | None = None,
    ) -> Reply:
        """Make a unary call.

        Cancelled: the server's handler is cancelled, too; the reply is dropped.

        :param payload: see ``codec.encode_arguments``.
        :param timeout: seconds; the deadline holds on both ends.
        :param metadata: as ``proto.metadata.encode_metadata`` gives it.
        :param into: for what comes back; None: a new one.
        :raises RpcError: the call failed; ``not_started`` tells whether the server has looked at it.
        """
        waker = self.waker
        if not waker.may_begin():
            await waker.begin()
        deadline = math.inf
        if timeout is not None:
            deadline = waker.now() + timeout
        reply = into or Reply()
        if recorder.requests or not self.machine.serial & TIMED_MASK:
            reply.trace = Tracer.begin(recorder, method)
        try:
            self._check_usable()
            if not self.in_flight.try_acquire():
                await self._acquire(deadline)
            call = self._send_call(reply, method, encoding, payload, deadline, metadata)
            if self._late is not None:
                await self._send_late(call, deadline)
        except RpcError as exc:
            self._end_trace(reply, exc.code)
            raise
        # -- it is in flight
        if not self._poll_for(reply):
            idle = self._idle_waiters
            reply.waiter = waiter = idle.pop() if idle else waker.new_waiter()
            try:
                await waiter.wait()
            except BaseException:
                self.cancel(call, Code.CANCELLED)
                self._end_trace(reply, Code.CANCELLED)
                # It may have come in the same moment, and the machine remembers its last call.
                reply.payload = b""
                raise
            finally:
                reply.waiter = None
                waiter.clear()
                idle.append(waiter)
            waker.renew_share()
        error = reply.error
        if reply.trace is not None:
            Tracer.end(recorder, reply.trace, 0 if error is None else error.code, self.peer, self.clock)
        if error is not None:
            raise error
        return reply

    def _poll_for(self, reply: Reply) -> bool:
        """Look for the reply for as long as the channel's policy allows; whether it is here."""
        waker = self.waker
        spun = False
        # The polling engine's own next look may be all that is ready, so that does not speak against polling;
        # but with others in flight the calls that are about to be made should go out together.
        if not reply.done and (len(self.machine.calls) == 1 or not waker.ready):
            spin = self._spin
            while spin() and not reply.done:
                spun = True
        if not reply.done:
            return False
        share = waker.share - 1
        if share >= 0:
            # Polling takes time as well: every few calls the clock is asked.
            waker.share = 0 if spun and share & 7 == 0 and waker.share_overdue() else share
        return True

    def _end_trace(self, reply: Reply, code: int) -> None:
        if reply.trace is not None:
            Tracer.end(recorder, reply.trace, code, self.peer, self.clock)

    async def start(
        self,
        caller: Caller,
        method: str,
        encoding: int,
        payload: Payload,
        deadline: float,
        metadata: bytes | None = None,
    ) -> Call:
        """Send a CALL: when this returns, it is in flight.

        Cancelled: it was not made, or is cancelled.

        :param deadline: on the waker's clock; infinity: none.
        :raises RpcError: it cannot be made; ``DEADLINE_EXCEEDED``; ``RESOURCE_EXHAUSTED``, there may never be
            memory to send it.
        """
        self._check_usable()
        if not self.in_flight.try_acquire():
            await self._acquire(deadline)
        call = self._send_call(caller, method, encoding, payload, deadline, metadata)
        if self._late is not None:
            await self._send_late(call, deadline)
        return call

    def _check_usable(self) -> None:
        if self.ended is not None or self.machine.leaving:
            raise self._refusal()

    def _send_call(
        self,
        caller: Caller,
        method: str,
        encoding: int,
        payload: Payload,
        deadline: float,
        metadata: bytes | None,
    ) -> Call:
        """Send the CALL, for which a credit was taken. Without room for it, ``_late`` is what to send.

        :raises RpcError: it cannot be made, and the credit was given back.
        """
        machine = self.machine
        call: Call | None = None
        try:
            number = machine.method(method)
            call = machine.start(caller.kind, caller, caller.window)
            left_us = -1 if deadline == math.inf else self._left_us(deadline, method)
            if call.kind:
                caller.begin(call)
            trace = caller.trace
            block = None if trace is None else Tracer.block(recorder, trace)
            head = machine.head(call, number, encoding, left_us, metadata, block)
            body: Buffer = payload  # type: ignore[assignment]
            if encoding == 3:  # BULK
                head, body = payload.behind(head)  # type: ignore[union-attr]
            if self.try_send(head, body):
                self._is_sent(call, deadline)
            else:
                self._late = head, body
            return call
        except BaseException as exc:
            raise self._not_sent(call, exc)  # noqa: B904  # with its cause, where it has one

    def _is_sent(self, call: Call, deadline: float) -> None:
        """The CALL has left."""
        if call.method is not None:
            call.method.told = True
        if deadline != math.inf and not call.closed:
            self.watch(call, deadline)

    def _not_sent(self, call: Call | None, exc: BaseException) -> BaseException:
        """Take back what a call that cannot be sent has, its credit and its place in the machine; the error
        to raise."""
        if call is None:
            self.in_flight.release()
        elif not call.closed and not call.cancelled:
            self.machine.forget(call)
            self.in_flight.release()
        error: BaseException = exc
        if isinstance(exc, (ClosedResourceError, BrokenResourceError)):
            error = self._broken(exc)
        elif isinstance(exc, MemoryError):
            error = no_memory(exc)
        if error is not exc:
            error.__cause__ = exc
        return error

    def _left_us(self, deadline: float, method: str) -> int:
        """Microseconds until ``deadline``, which travel with the call.

        :raises RpcError: ``DEADLINE_EXCEEDED``.
        """
        left_us = int(min(deadline - self.waker.now(), 1e12) * 1e6)
        if left_us <= 0:
            raise RpcError.of(Code.DEADLINE_EXCEEDED, f"{method}: no time was left to begin")
        return left_us

    async def _send_late(self, call: Call, deadline: float) -> None:
        """There was no room: wait for it, as long as there is time. Errors as of :meth:`start`."""
        assert self._late is not None
        (head, payload), self._late = self._late, None
        try:
            parcel = self.enqueue(head, payload)
            with anyio.CancelScope(deadline=deadline) as scope:
                try:
                    await self.sent(parcel)
                except BaseException:
                    if parcel.sent:
                        self.cancel(call, Code.CANCELLED)
                    raise
                finally:
                    self.waker.renew_share()
            if scope.cancelled_caught:
                raise RpcError.of(Code.DEADLINE_EXCEEDED, "no room to send the call within its deadline")
        except BaseException as exc:
            raise self._not_sent(call, exc)  # noqa: B904  # with its cause, where it has one
        if call.owner.trace is not None:
            recorder.left(call.owner.trace)
        self._is_sent(call, deadline)

    async def _acquire(self, deadline: float) -> None:
        """Wait for a place among the calls in flight."""
        try:
            with anyio.CancelScope(deadline=deadline) as scope:
                await self.in_flight.acquire()
        except RpcError:
            raise self._refusal() from None
        if scope.cancelled_caught:
            raise RpcError.of(
                Code.DEADLINE_EXCEEDED,
                f"{self.in_flight.limit} calls were in flight to {self.peer} until the deadline",
            )
        if self.ended is not None or self.machine.leaving:
            self.in_flight.release()
            raise self._refusal()

    def cancel(self, call: Call, code: Code) -> None:
        """Give ``call`` up: whatever still comes is dropped."""
        message = self.machine.cancel(call, code)
        if message is not None:
            self.send(message)

    def _refusal(self) -> RpcError:
        if self.ended is None and self.machine.leaving:
            error = RpcError(Code.UNAVAILABLE, f"{self.peer} takes no more calls: {self._goaway_text}")
            error.not_started = True
            return error
        return self.failure(not_started=True)

    def _broken(self, exc: Exception) -> RpcError:
        if self.ended is None:
            # The channel knows already, and is about to report it.
            self._end(exc.__cause__ or exc)
            self.channel.close()
        return self.failure(not_started=True)

    # ---- what arrives

    def _place(self, kind: int, message: RpcMessage, front: memoryview, nbytes: int) -> Placement | None:
        if (kind != REPLY or message.extra) and kind != ITEM:
            return None
        call = self.machine.calls.get(message.call_id)
        if call is None or call.cancelled or call.owner.place is None:
            return None
        placement: Placement | None = call.owner.place(message.encoding, front, nbytes)
        return placement

    def _on_message(self, data: Message) -> None:
        event = self._receive(data)
        if event == 3:  # REPLY
            call = self.machine.call
            self.in_flight.release()
            if not call.cancelled:
                call.owner.on_reply(self._message)
            if self._drained and not self.machine.calls:
                self._wake_drained()
        elif event:
            self._on_other(event)
        if self._message.payload.__class__ is memoryview:
            self._message.payload = b""  # see Multiplexer

    def _on_other(self, event: int) -> None:
        machine, message = self.machine, self._message
        if event == ITEM:
            machine.call.owner.on_item(message.encoding, message.payload)
        elif event == HEADERS:
            machine.call.owner.on_headers(message.metadata)
        elif event == CREDIT:
            machine.call.owner.on_credit()
        elif event == HELLO:
            assert machine.peer is not None
            self.in_flight.set_limit(machine.peer.calls)
            self._hello.set()
        elif event == GOAWAY:
            self._on_goaway()
        elif event == PING:
            clock = int(self.waker.now() * 1e9)
            self.send_merged(self, machine.pong(clock), newest)
        elif event == PONG and (ping := self._pings.get(message.number)) is not None:
            ping[1].append(message.clock_ns)
            ping[0].set()

    def _on_goaway(self) -> None:
        self._goaway_text = self._message.text or "it is shutting down"
        refused, self.machine.refused = self.machine.refused, []
        for call in refused:
            if not call.cancelled:
                call.owner.fail(self._refusal())
        self.in_flight.close(RpcError(Code.UNAVAILABLE, "draining"))
        self.in_flight.release(len(refused))
        if self._drained and not self.machine.calls:
            self._wake_drained()
        if self.on_end is not None:
            self.on_end()

    def _on_deadline(self, call: Call) -> None:
        self.cancel(call, Code.DEADLINE_EXCEEDED)
        call.owner.fail(RpcError.of(Code.DEADLINE_EXCEEDED, "the deadline passed before the reply came"))

    def _on_lost(self, calls: list[Call]) -> None:
        self.in_flight.close(RpcError(Code.UNAVAILABLE, "lost"))
        self.in_flight.release(len(calls))
        for call in calls:
            if not call.cancelled:
                call.owner.fail(self.failure())
        self._hello.set()
        for waiter, _ in self._pings.values():
            waiter.set()
        self._wake_drained()

    # ---- beside calls

    async def ping(self, timeout: float | None = None) -> tuple[float, int]:  # noqa: ASYNC109
        """Ask for an answer: (seconds until it came, the server's clock in nanoseconds when it did).

        :raises RpcError: ``UNAVAILABLE``, ``DEADLINE_EXCEEDED``.
        """
        if self.ended is not None:
            raise self.failure(not_started=True)
        self._ping_number += 1
        number = self._ping_number
        waiter = self.waker.new_waiter()
        entry: tuple[Waiter, list[int]] = (waiter, [])
        self._pings[number] = entry
        began = self.waker.now()
        try:
            self.send(ping_message(number))
            with anyio.move_on_after(timeout):
                await waiter.wait()
        finally:
            del self._pings[number]
        if entry[1]:
            return self.waker.now() - began, entry[1][0]
        if self.ended is not None:
            raise self.failure()
        raise RpcError.of(Code.DEADLINE_EXCEEDED, f"{self.peer} did not answer a ping in time")

    async def aclose(self, timeout: float | None = 0.0) -> None:  # noqa: ASYNC109
        """Take no more calls, wait for those in flight for ``timeout`` seconds (None: for ever), and close.

        Calls that are still in flight then fail with ``UNAVAILABLE``; their handlers are cancelled.
        """
        try:
            if self.ended is None and self.machine.calls and timeout != 0:
                self.in_flight.close(RpcError(Code.UNAVAILABLE, "closing"))
                self.machine.leaving = True
                self._goaway_text = "it was closed by this end"
                with anyio.move_on_after(timeout):
                    await self._wait_drained()
        finally:
            self.close()
        await self.waker.checkpoint()
