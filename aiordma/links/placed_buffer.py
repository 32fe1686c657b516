"""A buffer of a stream's user that the peer writes into: one copy, where the ring takes two.

A task that waits for many bytes (``receive_exactly_into()``) offers its buffer to the peer, in the messages
that replace a ring (:class:`aiordma.proto.llc.RingResize`, directed by :mod:`.ring_size`): the peer pauses,
this end reads what is in the ring into the beginning of the buffer and names the rest, and the peer writes
there. Until it has paused, everything goes by the ring.

The buffer is registered for this one use, so that the peer reaches nothing else, and no longer. It is the
user's again when the peer has written all of it, has ended, or has paused again: a task that is cancelled
asks for that and waits (:meth:`PlacedBuffer.recall`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..errors import LinkError, VerbsError
from ..pipes._ring_buffer import RingBuffer
from ..verbs._window import address_of
from ..verbs.abi import Access
from ..verbs.device import translated
from ..verbs.huge_pages import in_huge_pages
from ..verbs.lifetime import protect
from .taking_back import take_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..pipes._ring import RingPipe
    from ..verbs.device import Backend
    from ..wake.base import Handle, Waker
    from .link import Link

__all__ = ["LEAST_BYTES", "PlacedBuffer", "worth_placing"]

logger = logging.getLogger("aiordma.link")

LEAST_BYTES = 256 * 1024
"""If fewer bytes are missing when the peer has paused, they come by the ring."""
#: Where the user has set no limit: in shorter pieces, the messages cost as much as the second copy. In small
#: pages or fresh memory, the kernel's copy takes longer than two in the ring.
_WORTH_BYTES = 64 << 20


def worth_placing(buffer: memoryview, least: int | None) -> bool:
    """Whether the peer shall write into this buffer.

    :param least: ``Config.place_bytes``.
    """
    if least is None:
        return len(buffer) >= _WORTH_BYTES and in_huge_pages(address_of(buffer), len(buffer))
    return 0 < least <= len(buffer)


class PlacedBuffer:
    """One buffer. Made by :meth:`.ring_size.RingSize.place`.

    :param ask: asks the peer to pause, for a buffer of so many bytes.
    :param on_end: called when it is over.
    """

    #: Called when it is over.
    on_over: Callable[[], None] | None = None

    def __init__(
        self,
        link: Link,
        backend: Backend,
        waker: Waker,
        pipe: RingPipe,
        buffer: memoryview,
        ask: Callable[[int], None],
        on_end: Callable[[], None],
    ) -> None:
        self._link, self._backend, self._waker = link, backend, waker
        self._pipe, self._ask, self._on_end = pipe, ask, on_end
        self._buffer = RingBuffer(pipe, buffer)
        self._address = address_of(buffer)
        self._mr: Any = None
        self._timer: Handle | None = None
        #: Nothing is written into the buffer any more.
        self.over = self._ending = False
        ask(self._buffer.nbytes)

    @property
    def filled(self) -> int:
        """How many bytes of the buffer are there, also those that came by the ring."""
        return self._buffer.filled

    @property
    def placing(self) -> bool:
        """Whether the peer was told of the buffer."""
        return self._buffer.placing

    def look(self) -> bool:
        """Whether it is over."""
        if not self.over and self._buffer.placing and self._buffer.settled:
            self.end()
        return self.over

    # ---- the peer's answers

    def begin(self, position: int) -> tuple[int, int, int] | None:
        """The peer has paused: where it may write, with which key, and how many bytes; None: to its ring.

        :raises ValueError: it cannot have written up to ``position``.
        """
        place = self._buffer.take_unread(position, LEAST_BYTES)
        if place is None:
            return None
        try:
            rkey = self._register()
        except VerbsError as error:
            logger.debug("a stream receives by its ring: %s", error)
            return None
        return (place[0], rkey, place[1]) if self._buffer.begin(place[1]) else None

    def paused(self, position: int) -> bool:
        """The peer has paused before it had filled the buffer, or behind that. False: it cannot have."""
        return self._buffer.paused(position)

    def _register(self) -> int:
        backend = self._backend
        backend.check_process()
        length = self._buffer.nbytes
        access = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        with translated(backend.binding, "ibv_reg_mr", f"{length} bytes on {backend.name}"):
            self._mr = protect(backend.binding.MR(self._link.parts.pd, length, access, self._address))
        rkey: int = self._mr.rkey
        return rkey

    # ---- the end

    def recall(self, grace: float) -> None:
        """The user does not wait for the buffer any more. It is over when the peer has paused, which may be
        at once; if it does not within ``grace`` seconds, its link is broken."""
        if self.look():
            return
        if not self._buffer.placing:
            self.end()  # the peer will find the ring
        elif self._timer is None:
            self._timer = self._waker.call_at(self._waker.now() + grace, self._give_up)
            self._ask(self._buffer.nbytes)

    def _give_up(self) -> None:
        self._timer = None
        if not self.look():
            self._link.queue_pair.break_link(
                LinkError("the peer did not let go of a buffer that it was writing into", self._link.peer)
            )

    def end(self) -> None:
        """It is over, or will be as soon as the peer is not inside of it any more. Idempotent."""
        if self._ending:
            return
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        mr, self._mr = self._mr, None
        if mr is None:
            self._ended()
            return
        try:
            take_back(self._backend, self._waker, mr, self._buffer, self._ended)
        except VerbsError:
            logger.exception("a buffer that a peer wrote into was not released completely")
            self._ended()

    def _ended(self) -> None:
        self.over = True
        self._buffer.end()
        self._on_end()
        if self.on_over is not None:
            self.on_over()
