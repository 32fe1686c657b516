"""The items of a stream, in both directions, alike at both ends."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError

from ..proto.calls import MAX_WINDOW
from .multiplexer import no_memory

if TYPE_CHECKING:
    from ..proto.call import Call
    from ..proto.client_calls import ClientCalls
    from ..proto.server_calls import ServerCalls
    from ..wake.base import Waiter
    from .codec import Payload
    from .errors import RpcError
    from .multiplexer import Buffer, Multiplexer


def check_window(window: int) -> None:
    """Before anything is opened for it.

    :raises ValueError: an end cannot give its peer so many bytes.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise ValueError(f"window={window}: must be from 1 to {MAX_WINDOW} bytes")


class Inbox:
    """Items that have arrived and were not taken. Bounded by the credit that this end gave."""

    __slots__ = ("_busy", "_call", "_connection", "_items", "_machine", "_waiter", "error", "finished")

    def __init__(self, connection: Multiplexer, machine: ClientCalls | ServerCalls, call: Call) -> None:
        self._connection = connection
        self._machine = machine
        self._call = call
        self._items: deque[tuple[int, Payload]] = deque()
        self._waiter: Waiter | None = None
        self._busy = False
        #: nothing more will arrive; and why, unless all went well
        self.finished = False
        self.error: RpcError | None = None

    def put(self, encoding: int, payload: Payload) -> None:
        self._items.append((encoding, payload))
        if self._waiter is not None:
            self._waiter.set()

    def finish(self, error: RpcError | None = None) -> None:
        """Nothing more arrives; what is here can still be taken, then comes ``error`` (the first one)."""
        if not self.finished:
            self.finished = True
            self.error = error
            if self._waiter is not None:
                self._waiter.set()

    def clear(self) -> None:
        """Forget what was not taken: it may lie in registered memory."""
        self._items.clear()

    def drop(self, error: RpcError) -> None:
        """As :meth:`clear`, and taking fails with ``error`` from now on."""
        self._items.clear()
        self.finished = False
        self.finish(error)

    def _must_wait(self) -> bool:
        return not self._items and not self.finished

    async def take(self) -> tuple[int, Payload] | None:
        """The next item, as (encoding, payload); None at the end. Cancelled: nothing was taken.

        :raises RpcError: what :meth:`finish` was given.
        :raises BusyResourceError: another task is taking.
        """
        waker = self._connection.waker
        if not waker.may_begin():
            await waker.begin()
        if self._busy:  # looked at here, as others had a turn
            raise BusyResourceError("receiving from")
        items = self._items
        if self._must_wait():
            self._busy = True
            try:
                spin = self._connection.channel.spin
                while self._must_wait() and spin():
                    pass
                waiter = self._waiter
                if waiter is None:
                    waiter = self._waiter = waker.new_waiter()
                while self._must_wait():
                    waiter.clear()
                    await waiter.wait()
                    waker.renew_share()
            finally:
                self._busy = False
        if not items:
            if self.error is not None:
                raise self.error
            return None
        waker.count(0)
        item = items.popleft()
        credit = self._machine.taken(self._call, len(item[1]))
        if credit is not None:
            self._connection.send_credit(self._call, credit)
        return item


class Sending:
    """Sends this end's items to the other one."""

    __slots__ = ("_busy", "_call", "_connection", "_machine", "_waiter")

    def __init__(self, connection: Multiplexer, machine: ClientCalls | ServerCalls, call: Call) -> None:
        self._connection = connection
        self._machine = machine
        self._call = call
        self._waiter: Waiter | None = None
        self._busy = False

    def wake(self) -> None:
        """Credit came, or the call ended."""
        if self._waiter is not None:
            self._waiter.set()

    async def send(self, encoding: int, payload: Payload) -> None:
        """Send one item, as soon as the other end has room for it. Cancelled: it may have been sent.

        :raises BusyResourceError: another task is sending.
        :raises LocalProtocolError: the call is over, or its items have ended.
        :raises RpcError: ``UNAVAILABLE``: the connection has ended; ``RESOURCE_EXHAUSTED``: there may
            never be memory for the item.
        :raises ValueError: the item is longer than the channel allows.
        """
        connection, machine, call = self._connection, self._machine, self._call
        waker = connection.waker
        if not waker.may_begin():
            await waker.begin()
        if self._busy:  # looked at here, as others had a turn
            raise BusyResourceError("sending to")
        size = len(payload)
        if not machine.may_send(call):
            await self._wait_for_credit()
        head = machine.item(call, encoding, size)
        body: Buffer = payload  # type: ignore[assignment]
        if encoding == 3:  # BULK
            head, body = payload.behind(head)  # type: ignore[union-attr]
        try:
            if connection.try_send(head, body):
                waker.count(size >> 12)
                return
            parcel = connection.enqueue(head, body)
        except MemoryError as exc:
            machine.take_back(call, size)
            raise no_memory(exc) from exc
        except (ClosedResourceError, BrokenResourceError):
            raise connection.failure() from None
        except BaseException:
            machine.take_back(call, size)
            raise
        self._busy = True
        try:
            await connection.sent(parcel)
            waker.renew_share()
        finally:
            self._busy = False
            if not parcel.sent:
                machine.take_back(call, size)

    async def _wait_for_credit(self) -> None:
        connection, machine, call = self._connection, self._machine, self._call
        self._busy = True
        try:
            while not machine.may_send(call) and connection.channel.spin():
                pass
            waiter = self._waiter
            if waiter is None:
                waiter = self._waiter = connection.waker.new_waiter()
            while not machine.may_send(call):
                waiter.clear()
                await waiter.wait()
                connection.waker.renew_share()
        finally:
            self._busy = False
