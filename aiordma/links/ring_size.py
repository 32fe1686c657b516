"""The size of a stream's receive ring: small where memory is short, and as the traffic needs it.

Rings share the memory of their engine (``Config.memory_limit_bytes``). While little of it is in use, a stream
begins with a ring of ``Config.ring_bytes``; the more streams there are, the smaller their first rings. Then
each ring follows its traffic, as a TCP receive buffer does (Linux ``tcp_rcv_space_adjust``): it grows while
the writer waits for room and the reader keeps up, and shrinks when most of it was not needed for a while.

Beyond 2 MiB it grows only while the writer sleeps for room, since each sleep costs both ends a wake-up. A
writer that polls finds room as soon as it is there. But it takes up to 2 MiB, too: what lies in a smaller
ring is still modified in the cache of the writer's CPU when the reader copies it, and comes from there at
half the speed.

A large ring is put into huge pages before it is offered, in a thread: the writer would else stop for each of
its small pages, which takes longer than to write there.

A ring is replaced by another in three messages (:class:`aiordma.proto.llcown.RingResize`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..errors import Code, RemoteProtocolError
from ..pipes import _ring_resize
from ..proto.clcframe import MIN_RING_BYTES
from ..proto.llcown import ResizeStage, RingResize
from ..verbs.huge_pages import HUGE_BYTES, use_huge_pages
from ..verbs.memory.budget import MemoryLimitError
from ..wake.beside import Beside
from .contracts import GroupView

if TYPE_CHECKING:
    from ..config import Config
    from ..pipes._ring import RingPipe
    from ..verbs.memory.arena import Arena, Block
    from ..verbs.memory.pool import MemoryPool
    from .link import Link

#: Size of the first ring while more than an eighth of the memory is in use (beyond a quarter: the smallest).
_MEDIUM_BYTES = 65536
#: A ring grows by this factor.
_GROWTH = 4
#: A ring grows if its content is read twice within this time, while the writer waits.
_TURN_SECONDS = 0.1
#: A ring is judged this long after it was judged before; the second time: while memory is short.
_JUDGE_SECONDS, _JUDGE_SECONDS_SHORT = 10.0, 1.0
#: A ring shrinks if no more than one part in this many of it was needed. It becomes a quarter of its size or
#: less, and keeps room for twice what was needed.
_MIN_UNUSED = 8
#: A writer that has refused a larger ring is asked again after this time, twice as long after each refusal in
#: a row, and so on up to the second one: to prepare a ring for nothing costs milliseconds of CPU time.
_ASK_AGAIN_SECONDS, _ASK_AGAIN_MOST_SECONDS = 10.0, 640.0
#: A writer takes larger rings only if it sleeps for room. No less than two CPUs' L2 caches together: copying
#: out of a ring of 512 KiB took twice the CPU time of one of 2 MiB.
_POLLED_BYTES = 2 << 20
#: An offer that was not answered for this long is forgotten: the writer does not run, or has finished.
_ANSWER_SECONDS = 30.0


def first_ring_bytes(config: Config, pool: MemoryPool) -> int:
    """Size of the ring that a new stream begins with."""
    used, limit = pool.used_bytes, pool.limit_bytes
    if 8 * (used + config.ring_bytes) <= limit:
        return config.ring_bytes
    if 4 * used <= limit:
        return min(config.ring_bytes, _MEDIUM_BYTES)
    return MIN_RING_BYTES


class RingGroup(GroupView, Protocol):
    """The link group that the ring belongs to."""

    @property
    def rings(self) -> Arena: ...
    @property
    def link(self) -> Link: ...


class RingHost(Protocol):
    """The member that the ring belongs to."""

    pipe: RingPipe
    ring: Block

    @property
    def group(self) -> RingGroup: ...
    @property
    def takes_part(self) -> bool:
        """Whether the peer has the connection."""


def hear_of_waiting(host: RingHost) -> None:
    """Have the pipe report a writer that waits (:meth:`RingSize.turned`), if the ring may grow."""
    host.pipe.grows = host.ring.length < host.group.engine.config.largest_ring_bytes


class RingSize:
    """Judges and replaces the receive ring of one stream."""

    __slots__ = (
        "_ask_again_at",
        "_ask_again_seconds",
        "_host",
        "_judged_at",
        "_offered_at",
        "_offers",
        "_pausing",
        "_prepared",
        "_retired",
        "_said",
        "_turned_at",
        "_wanted",
    )

    def __init__(self, host: RingHost, now: float) -> None:
        self._host = host
        self._judged_at = now
        self._turned_at = 0.0
        #: Not before this time is a larger ring offered again, and how long it was since it was refused.
        self._ask_again_at = 0.0
        self._ask_again_seconds = 0.0
        #: Size that was offered to the writer, 0 while there is no offer.
        self._wanted = 0
        self._offered_at = 0.0
        #: Offers that the writer may answer, each once.
        self._offers = 0
        #: Number of the last message (``Link.llc_waits``), and of the last one that said Paused.
        self._said = self._pausing = 0
        #: A ring that is in use as soon as the writer agrees.
        self._prepared: Block | None = None
        #: A ring that was replaced while the user had a view of it.
        self._retired: Block | None = None

    # ---- judging

    def turned(self) -> None:
        """A whole ring was read while the writer waited."""
        host = self._host
        engine = host.group.engine
        now = engine.waker.now()
        before, self._turned_at = self._turned_at, now
        size = min(host.ring.length * _GROWTH, engine.config.largest_ring_bytes)
        if now - before > _TURN_SECONDS or not engine.pool.budget.has_spare(size):
            return
        if size >= HUGE_BYTES and engine.backend.soft is not None:
            self._prepare(size)
        else:
            self._offer(size, now)

    def _prepare(self, size: int) -> None:
        """Offer a ring when it lies in huge pages."""
        host = self._host
        if self._prepared is not None or self._wanted or not self._may_ask:
            return
        try:
            ring = self._prepared = host.group.rings.allocate(size)
        except MemoryLimitError:
            return
        Beside(
            host.group.engine.waker,
            partial(use_huge_pages, ring.address, ring.length),
            lambda _: self._offer_prepared(ring),
        )

    def _offer_prepared(self, ring: Block) -> None:
        if self._prepared is ring:  # else the stream has ended, or a smaller ring has taken its place
            self._offer(ring.length, self._host.group.engine.waker.now())
            if not self._wanted:
                self._drop_prepared()

    def _drop_prepared(self) -> None:
        ring, self._prepared = self._prepared, None
        if ring is not None:
            ring.free(0)

    def look(self, now: float) -> None:
        """Called by the engine's timer, now and then."""
        host = self._host
        self._release_retired()
        if self._wanted and now - self._offered_at > _ANSWER_SECONDS:
            self._wanted = 0
            self._drop_prepared()
        pool = host.group.engine.pool
        short = not pool.budget.has_spare(0)
        if now - self._judged_at < (_JUDGE_SECONDS_SHORT if short else _JUDGE_SECONDS):
            return
        self._judged_at = now
        self._hear_of_waiting(now)  # a writer that did not want a larger ring may do so now
        needed = _ring_resize.recent_high_water(host.pipe)
        size = host.ring.length
        if size > MIN_RING_BYTES and needed * _MIN_UNUSED <= size:
            room = MIN_RING_BYTES
            while room < 2 * needed:
                room *= 2
            self._offer(min(room, size // _GROWTH), now)

    def _offer(self, size: int, now: float) -> None:
        host = self._host
        size = max(size, MIN_RING_BYTES)
        if self._wanted or size == host.ring.length or not self._may_ask:
            return
        self._wanted, self._offered_at = size, now
        self._offers += 1
        self._say(RingResize(token=host.pipe.peer_token, stage=ResizeStage.OFFER, ring_bytes=size))

    @property
    def _may_ask(self) -> bool:
        host = self._host
        if not host.takes_part or host.pipe.error is not None:
            return False
        # A peer that is stopped is not asked again and again.
        return not host.group.link.llc_waits(self._said)

    def _say(self, message: RingResize) -> None:
        self._said = self._host.group.queue_llc(message.encode())

    # ---- replacing

    def on_message(self, message: RingResize) -> None:
        """The peer's next step.

        :raises RemoteProtocolError: it cannot be.
        """
        self._check_asked(message)
        match message.stage:
            case ResizeStage.OFFER:
                self._pause(message)
            case ResizeStage.PAUSED:
                self._replace(message)
            case ResizeStage.RING:
                place = message.ring_addr, message.rkey, message.ring_bytes
                if not _ring_resize.resume(self._host.pipe, *place):
                    raise _violation(
                        "named a ring that was not asked for, or is too small for what is unread"
                    )

    def _check_asked(self, message: RingResize) -> None:
        """:raises RemoteProtocolError: it answers what this end has not said."""
        if message.stage is ResizeStage.OFFER:
            return
        if message.stage is not ResizeStage.PAUSED:
            if self._host.group.link.llc_waits(self._pausing):
                raise _violation("named a ring before it could know that it was asked for")
            return
        if not self._offers:
            raise _violation("answered an offer of a ring that was not made")
        # A writer that has paused answers no further offer before it is told where to go on.
        self._offers = self._offers - 1 if message.refused else 0

    def _pause(self, offer: RingResize) -> None:
        pipe, size = self._host.pipe, offer.ring_bytes
        if _ring_resize.is_paused(pipe):
            return  # a process that did not run finds two offers; one answer serves both
        position = None
        if size <= self._taken_by_any or _ring_resize.wants(pipe, size):
            position = _ring_resize.pause(pipe)
        self._say(
            RingResize(
                token=pipe.peer_token,
                stage=ResizeStage.PAUSED,
                refused=position is None,
                position=position or 0,
            )
        )
        self._pausing = self._said

    @property
    def _taken_by_any(self) -> int:
        return max(_POLLED_BYTES, self._host.group.engine.config.ring_bytes)

    def _replace(self, message: RingResize) -> None:
        """The writer waits: take a ring of the size offered, or keep the present one."""
        host = self._host
        size, self._wanted = self._wanted, 0
        if message.refused:
            host.pipe.grows = False
            if size > host.ring.length:
                self._ask_later()
            self._drop_prepared()
            return
        if size > host.ring.length:
            self._ask_again_seconds = 0.0
        if size and not self._release_retired():
            size = 0
        if size:
            try:
                self._move(self._take(size), message.position)
            except MemoryLimitError:
                pass  # the present ring serves as well
        self._drop_prepared()
        self._name_ring()

    def _ask_later(self) -> None:
        self._ask_again_seconds = min(
            _ASK_AGAIN_MOST_SECONDS, max(_ASK_AGAIN_SECONDS, 2 * self._ask_again_seconds)
        )
        self._ask_again_at = self._host.group.engine.waker.now() + self._ask_again_seconds

    def _take(self, size: int) -> Block:
        """A ring of this size. :raises MemoryLimitError:"""
        ring = self._prepared
        if ring is None or ring.length != size:
            return self._host.group.rings.allocate(size)
        self._prepared = None
        return ring

    def _hear_of_waiting(self, now: float) -> None:
        if now >= self._ask_again_at:
            hear_of_waiting(self._host)

    def _name_ring(self) -> None:
        self._hear_of_waiting(self._host.group.engine.waker.now())
        ring = self._host.ring
        self._say(
            RingResize(
                token=self._host.pipe.peer_token,
                stage=ResizeStage.RING,
                rkey=ring.rkey,
                ring_addr=ring.address,
                ring_bytes=ring.length,
            )
        )

    def _move(self, ring: Block, position: int) -> None:
        host = self._host
        result = _ring_resize.move(host.pipe, position, ring.address, ring.length)
        if result:
            ring.free(0)
            if result < 0:
                raise _violation(f"paused at byte {position}, which cannot be")
            return
        old, host.ring = host.ring, ring
        self._retired = old
        self._release_retired()

    def _release_retired(self) -> bool:
        """Free the ring that was replaced, if the user has no view of it any more; whether that is done."""
        if self._retired is not None:
            if _ring_resize.view_is_out(self._host.pipe):
                return False
            self._retired.free()
            self._retired = None
        return True

    def end(self) -> None:
        """The stream does not use its rings any more."""
        self._drop_prepared()
        if self._retired is not None:
            self._retired.free()
            self._retired = None


def _violation(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the peer {text}", Code.PROTOCOL_VIOLATION)
