"""What a stream and a datagram connection have in common: both are the end of one pipe, to one peer."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio.lowlevel
from anyio import BrokenResourceError

from ..attributes import RdmaAttribute, address_attributes, tls_attributes
from .close_watch import CloseCallbacks
from .duplex import CLOSED, EOF_SENT, LOOP_ENDED, PENDING, Duplex
from .ending import release_unclosed
from .interrupts import uninterrupted
from .origin import here
from .threads import check_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from ssl import SSLObject

    from ..addresses import Address
    from ..errors import FallbackReason


class AnyPipe(Protocol):
    """What pipes of bytes and of messages have in common (``pipes/contracts.py`` has them in full)."""

    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None

    @property
    def path(self) -> str: ...
    @property
    def error(self) -> BaseException | None: ...
    def spin_readable(self) -> bool: ...
    def look(self) -> None: ...
    def send_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


@uninterrupted
class PipeEnd(Duplex):
    """A duplex object over a pipe, which it owns."""

    _pipe: AnyPipe
    _close_callbacks: CloseCallbacks | None = None
    _closing = False  # in order, which may take a while

    def __init__(
        self,
        local_address: Address,
        remote_address: Address,
        fallback_reason: FallbackReason | None,
        tls: SSLObject | None,
    ) -> None:
        super().__init__()
        self._local_address = local_address
        self._remote_address = remote_address
        self._fallback_reason = fallback_reason
        self._tls = tls
        #: where it was created
        self.origin = here()
        self._waker.bind(self)
        check_threads(self, self._waker, "send_nowait", "send_soon", "receive_nowait", "abort")

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        guard = getattr(self, "_receive_guard", CLOSED)
        if guard is not CLOSED and hasattr(self, "_pipe"):
            release = None if guard is LOOP_ENDED else self._pipe.close
            release_unclosed(self, self._waker, release, _warn)

    def loop_ended(self) -> None:
        """See :class:`aiordma.wake.base.LoopBound`."""
        if self._receive_guard is not CLOSED:
            self._send_guard = self._receive_guard = LOOP_ENDED
            if self._pipe.path == "tcp":  # the engine ends what runs on RDMA
                self._part()

    def _part(self) -> None:
        """The loop has ended, and this was not closed."""
        # Inside TLS, nothing may say that this end was meant.
        getattr(self._pipe, "part", self._pipe.close)()

    async def send_eof(self) -> None:
        """Announce to the peer that nothing more will be sent; receiving continues. Idempotent.

        :raises anyio.BusyResourceError: another task is sending
        :raises anyio.ClosedResourceError: this end is closed
        :raises anyio.BrokenResourceError: the connection is lost (the cause says why)
        """
        self._check_may_end()
        await self._waker.checkpoint()
        self._check_may_end()  # another task may have begun to send, or closed this end
        if self._send_guard is not EOF_SENT:
            if self._pipe.error is not None:
                error = self._pipe.error
                raise BrokenResourceError(f"the connection is lost: {error}") from error
            self._end_sending()
            self._send_guard = EOF_SENT

    def _check_may_end(self) -> None:
        guard = self._send_guard
        if guard is not None and guard is not EOF_SENT and guard is not PENDING:
            raise self._refusal(guard, "sending to")

    def _end_sending(self) -> None:
        """Nothing is sent any more, behind what was accepted."""
        self._pipe.send_eof()

    async def aclose(self) -> None:
        """Close both directions; what was sent still reaches the peer. Idempotent.

        Does not wait for the peer, unless something that ``send_soon()`` accepted waits for room. In a
        cancelled scope (``anyio.aclose_forcefully``) the connection is aborted instead: the peer gets an
        error. Tasks that wait in this object get ``ClosedResourceError``.
        """
        if self._receive_guard is LOOP_ENDED:
            self._send_guard = self._receive_guard = CLOSED
            self._pipe.close()
            await anyio.lowlevel.checkpoint()
            return
        if self._receive_guard is not CLOSED:
            self._waker.check_loop()
            if self._waker.cancel_requested():
                self.abort()
            else:
                await self._close_in_order()
        await self._waker.checkpoint()

    async def _close_in_order(self) -> None:
        self._send_guard = self._receive_guard = CLOSED
        self._closing = True
        try:
            await self._deliver()
        except BaseException:
            self.abort()
            raise
        finally:
            self._closing = False
        self._end_with(self._pipe.close)

    async def _deliver(self) -> None:
        """Send what was accepted and waits for room."""

    def _drop_outgoing(self) -> None:
        """It will not be sent."""

    def abort(self) -> None:
        """Drop the connection now. The peer gets an error, and may miss what was sent last.

        Waits for nothing, so any callback of the event loop may call it. Tasks that wait in this object get
        ``ClosedResourceError``. Idempotent; it also ends an :meth:`aclose` that waits.
        """
        if self._receive_guard is LOOP_ENDED:
            self._send_guard = self._receive_guard = CLOSED
            self._pipe.close()
            return
        if self._receive_guard is not CLOSED or self._closing:
            self._end_with(self._pipe.abort)
            self._drop_outgoing()

    def _end_with(self, end: Callable[[], None]) -> None:
        self._send_guard = self._receive_guard = CLOSED
        end()
        self._wake_all()
        if self._close_callbacks is not None:
            self._close_callbacks.report(self)

    @property
    def closed(self) -> bool:
        """Whether the connection is over at this end: it was closed or aborted here, or it is lost.

        Reads nothing. A peer that has finished in order shows in ``at_eof``. On TCP, a loss shows when what
        the peer sent before it was received.
        """
        if self._receive_guard is CLOSED or self._receive_guard is LOOP_ENDED:
            return True
        self._look_in_loop()
        return self._pipe.error is not None

    def _look_in_loop(self) -> None:
        """Look now, or soon if another thread asks: what has come is dispatched in the loop's thread only."""
        if self._waker.elsewhere:
            self._waker.call_from_anywhere(self._look)
        else:
            self._look()

    def _look(self) -> None:
        """Have the pipe notice what has come until now, and watch for more if it is to call when readable."""
        raise NotImplementedError

    def add_close_callback(self, callback: Callable[[Self], object]) -> None:
        """Have the event loop call ``callback(connection)`` once when the connection is :attr:`closed`, soon
        if it is already. No task needs to receive for that. Not called when the event loop ends first.
        """
        if self._close_callbacks is None:
            self._close_callbacks = CloseCallbacks(self._waker)
            if not self.closed:
                self._call_when_readable(
                    _nothing if self._receive_waiter is None else self._receive_waiter.set
                )
        self._close_callbacks.add(callback)
        if self.closed:
            self._close_callbacks.report(self)

    def remove_close_callback(self, callback: Callable[[Self], object]) -> int:
        """Do not call it; how often it was there (0: never, or it was called)."""
        return 0 if self._close_callbacks is None else self._close_callbacks.remove(callback)

    @property
    def path(self) -> str:
        """ "rdma" or "tcp"."""
        return self._pipe.path

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why the bytes travel over TCP, from the beginning or since they left RDMA; None on RDMA."""
        return self._fallback_reason or getattr(self._pipe, "fallback_reason", None)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        attributes = dict(address_attributes(self._local_address, self._remote_address))
        attributes[RdmaAttribute.path] = lambda: self._pipe.path
        reason = self.fallback_reason
        if reason is not None:
            attributes[RdmaAttribute.fallback_reason] = lambda: reason
        tls = self._tls
        if tls is not None:
            attributes.update(tls_attributes(tls))
        return attributes

    def __repr__(self) -> str:
        ended = {CLOSED: " closed", LOOP_ENDED: " of a loop that has ended"}
        state = ended.get(self._receive_guard or 0, "")
        (host, port), (peer, peer_port) = self._local_address, self._remote_address
        return f"<{type(self).__name__} {self.path} {host}:{port} - {peer}:{peer_port}{state}>"

    # -- what it waits for

    def _call_when_readable(self, callback: Callable[[], None]) -> None:
        if self._close_callbacks is None:
            self._pipe.on_readable = callback
            return
        # The pipe must not keep a connection that the program has dropped.
        me = weakref.ref(self)

        def look() -> None:
            callback()
            end = me()
            if end is not None and end._pipe.error is not None and end._close_callbacks is not None:
                end._close_callbacks.report(end)

        self._pipe.on_readable = look

    def _call_when_writable(self, callback: Callable[[], None]) -> None:
        self._pipe.on_writable = callback


def _nothing() -> None:
    """No task has ever waited for something to receive."""
