"""Completion channel and completion queue of an engine (control path only; polling is in _cq.pyx)."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from ..errors import NegotiationError
from .device import Backend, translated
from .lifetime import protect

_RESIZE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class CompletionQueue:
    """A completion channel with one CQ on it, and the order in which they go away.

    :param depth: entries asked for; a device that has fewer gives its maximum (see :attr:`depth`).
    :param vector: completion vector (which of the device's interrupts), taken modulo their number.
    Raises VerbsError.
    """

    channel: Any
    cq: Any

    def __init__(self, backend: Backend, depth: int, vector: int = 0) -> None:
        if depth < 1:
            raise ValueError(f"a completion queue of {depth} entries: at least 1 is needed")
        backend.check_process()
        api = backend.binding
        self._backend = backend
        depth = min(depth, backend.limits.max_cqe)
        with translated(api, "ibv_create_comp_channel", backend.name):
            self.channel = protect(api.CompChannel(backend.context))
        try:
            #: Readable when there are events. Non-blocking: reading events ends with EAGAIN.
            self.fd: int = api.pointers.comp_channel_fd(self.channel)
            os.set_blocking(self.fd, False)
            with translated(api, "ibv_create_cq", f"{depth} entries on {backend.name}"):
                vectors = max(1, backend.context.num_comp_vectors)
                self.cq = protect(api.CQ(backend.context, depth, None, self.channel, vector % vectors))
        except BaseException:
            self.channel.close()
            raise
        #: Entries the device granted.
        self.depth: int = api.pointers.cq_depth(self.cq)
        #: Addresses of ``struct ibv_cq`` and ``struct ibv_comp_channel``.
        self.cq_pointer: int = api.pointers.cq_pointer(self.cq)
        self.channel_pointer: int = api.pointers.comp_channel_pointer(self.channel)
        self._closed = False

    def grow(self, depth: int) -> bool:
        """Ask the device for so many entries. False: it has no more, or cannot change them."""
        backend, before = self._backend, self.depth
        try:
            resize = _RESIZE(backend.symbol("ibv_resize_cq"))
        except NegotiationError:
            return False
        if not resize(self.cq_pointer, min(depth, backend.limits.max_cqe)):
            self.depth = backend.binding.pointers.cq_depth(self.cq)
        return self.depth > before

    def close(self) -> None:
        """Destroy the CQ, then the channel. Idempotent; nothing in a forked child.

        Before it, in this order and without anything in between: the fd is taken from the event loop, all QPs
        on the CQ are closed, and every event that was read is acknowledged (destroying a CQ waits for that).
        """
        if self._closed or self._backend.in_forked_child:
            return
        self._closed = True
        with translated(self._backend.binding, "ibv_destroy_cq", self._backend.name):
            self.cq.close()
        with translated(self._backend.binding, "ibv_destroy_comp_channel", self._backend.name):
            self.channel.close()
