"""What a stream and a datagram connection have in common: both are the end of one pipe, to one peer."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol

import anyio.lowlevel
from anyio import BrokenResourceError

from ..attributes import RdmaAttribute, address_attributes, tls_attributes
from .duplex import CLOSED, EOF_SENT, LOOP_ENDED, Duplex
from .ending import release_unclosed
from .origin import here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from ssl import SSLObject

    from ..addresses import Address
    from ..errors import FallbackReason

__all__ = ["AnyPipe", "PipeEnd"]


class AnyPipe(Protocol):
    """What pipes of bytes and of messages have in common (``pipes/contracts.py`` has them in full)."""

    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None

    @property
    def path(self) -> str: ...
    @property
    def error(self) -> BaseException | None: ...
    def spin_readable(self) -> bool: ...
    def send_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class PipeEnd(Duplex):
    """A duplex object over a pipe, which it owns."""

    _pipe: AnyPipe

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
                self._pipe.close()

    async def send_eof(self) -> None:
        """Announce to the peer that nothing more will be sent; receiving continues. Idempotent."""
        if self._send_guard is not None and self._send_guard is not EOF_SENT:
            raise self._refusal(self._send_guard, "sending to")
        await self._waker.checkpoint()
        if self._send_guard is None:
            if self._pipe.error is not None:
                error = self._pipe.error
                raise BrokenResourceError(f"the connection is lost: {error}") from error
            self._pipe.send_eof()
            self._send_guard = EOF_SENT

    async def aclose(self) -> None:
        """Close both directions; what was sent still reaches the peer. Idempotent.

        Does not wait for the peer. In a cancelled scope (``anyio.aclose_forcefully``) the connection is
        aborted instead: the peer gets an error. Tasks that wait in this object get ``ClosedResourceError``.
        """
        if self._receive_guard is LOOP_ENDED:
            self._send_guard = self._receive_guard = CLOSED
            self._pipe.close()
            await anyio.lowlevel.checkpoint()
            return
        if self._receive_guard is not CLOSED:
            self._waker.check_loop()
            cancelled = self._waker.cancel_requested()
            self._send_guard = self._receive_guard = CLOSED
            if cancelled:
                self._pipe.abort()
            else:
                self._pipe.close()
            self._wake_all()
        await self._waker.checkpoint()

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
        self._pipe.on_readable = callback

    def _call_when_writable(self, callback: Callable[[], None]) -> None:
        self._pipe.on_writable = callback
