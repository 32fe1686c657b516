"""The end of one pair of rings: what each end has announced, and when the memory may go.

A ring is freed when the peer has announced that it writes no more (RC keeps that behind its last WRITE) and
has this end's last word; when the link has failed at this end; or when the stream has left it and the rest
is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiordma.proto.cdc import StateFlag
from aiordma.proto.life.outputs import Broken

from .outputs import Announce, FreeRing, Resume, StopSending
from .states import RingStage

if TYPE_CHECKING:
    from aiordma.proto.life.outputs import Output

__all__ = ["RingsLife"]

DONE, CLOSED, ABORTED = (
    int(flag) for flag in (StateFlag.SENDING_DONE, StateFlag.CLOSED, StateFlag.ABNORMAL_CLOSE)
)


class RingsLife:
    """:param number: of these rings in the stream.
    :param out: outputs go there.
    :param connected: the peer's half is known.
    """

    def __init__(self, number: int, out: list[Output], *, connected: bool = True) -> None:
        self.number = number
        self.stage = RingStage.ON_RDMA
        self.connected = connected
        #: What this end has announced, and the peer (``StateFlag``).
        self.own = self.peer = 0
        self.closed = self.freed = False
        #: Nothing more may be sent here, for whatever reason.
        self.shut = False
        #: The link has failed at this end: no WRITE lands here any more.
        self.link_failed = False
        #: Why the stream is broken.
        self.failure: str | None = None
        #: The peer never took part: it is not waited for at the end.
        self.alone = False
        self.delivered = False
        self._early = 0
        self._last_posted = False
        self._out = out

    # ---- what the stream asks

    @property
    def peer_gone(self) -> bool:
        """The peer has announced that it writes no more."""
        return bool(self.peer & (DONE | ABORTED))

    @property
    def may_leave(self) -> bool:
        """The stream is whole, so that another transport can carry it on."""
        return (
            self.failure is None
            and self.connected
            and not self.freed
            and self.stage is not RingStage.LEFT
            and not (self.own | self.peer) & ABORTED
        )

    # ---- the user's end

    def send_eof(self) -> None:
        """Half-close."""
        if not self.shut and self.failure is None and self.connected:
            self._shut_down(DONE)

    def close(self, *, abort: bool = False) -> bool:
        """Close both directions; whether a failover was under way and is cancelled by that."""
        leaving = self.stage in (RingStage.STOPPING, RingStage.QUIESCED)
        if self.closed and not (abort and leaving):
            return False
        self.closed = True
        if not self.connected and self.failure is None:
            self.failure = "closed before the connection was confirmed"
        if self.stage is RingStage.LEFT:
            self.shut = True
            self.free()
            return False
        if abort and leaving:
            self._return()
        if self.connected:
            lost = abort or self.failure is not None
            self._shut_down(DONE | CLOSED | (ABORTED if lost else 0))
        self.shut = True
        self.free_if_done()
        return abort and leaving

    def _shut_down(self, flags: int) -> None:
        self.shut = True
        fresh = flags & ~self.own
        self.own |= fresh
        if fresh:
            self._announce()

    def _announce(self) -> None:
        leaving = self.stage is not RingStage.ON_RDMA
        if self.link_failed or self.freed or (leaving and self._last_posted):
            return  # what this end says now goes with its message on TCP, or with a frame
        self.delivered = False
        self._out.append(Announce(self.number, self.own))

    # ---- the peer's end

    def peer_flags(self, flags: int) -> None:
        """A cursor message has come, with these flags in it."""
        if self.freed or self.stage is RingStage.LEFT:
            return
        if self.stage is RingStage.QUIESCED:
            self._early |= flags
            return
        if self.peer & ABORTED:
            return
        fresh = (flags | (DONE if flags & CLOSED else 0)) & ~self.peer
        self.peer |= fresh
        if fresh & ABORTED and self.failure is None:
            self._break("the peer aborted the stream")
        if fresh & (CLOSED | ABORTED) and not self.shut:
            self._shut_down(DONE)  # nothing more can be sent; the peer waits for this to free its ring
        self.free_if_done()

    def fault(self, reason: str) -> None:
        """The peer broke the protocol: it is not believed any more, and told that the stream is over."""
        if self.freed or self.stage is not RingStage.ON_RDMA:
            return
        if self.failure is None:
            self._break(reason, fault=True)
        self._shut_down(DONE | ABORTED)
        self.free_if_done()

    def stand_alone(self) -> None:
        """The peer has not taken part, and never will."""
        self.alone = True
        self.free_if_done()

    def end_for_peer(self) -> None:
        """The peer's process has ended and left nothing undone: as if it had closed."""
        self.peer |= DONE | CLOSED
        self.shut = True
        self.free_if_done()

    # ---- leaving

    def stop_sending(self) -> bool:
        """Drain the send queue; True: that is done already."""
        if self.stage is RingStage.QUIESCED:
            return True
        if self.stage is RingStage.ON_RDMA:
            self.stage = RingStage.STOPPING
            self._last_posted = True
            self._out.append(StopSending(self.number))
        return False

    def leave(self) -> None:
        """Another transport carries on; what is there is still read."""
        self.stage = RingStage.LEFT
        self._early = 0
        if self.closed:
            self.free()

    def stay_broken(self, reason: str, *, fault: bool = False) -> None:
        """The stream alone has failed: its TCP connection is lost, or the ends could not agree."""
        if self.freed or self.stage is RingStage.LEFT:
            return
        # Once this end has said where its rings stand, the peer may have left them, and freed its own.
        said = self.stage is RingStage.QUIESCED
        if self.stage is not RingStage.ON_RDMA:
            self._return()
            if self.closed and not self.link_failed:
                self._shut_down(DONE | CLOSED | ABORTED)
            early, self._early = self._early, 0
            self.peer_flags(early)
        unsure = said and not self.peer & CLOSED
        if self.failure is None and (unsure or self.link_failed or not self.peer_gone):
            self._break(reason, fault=fault)
        self.free_if_done()

    def _return(self) -> None:
        """The stream does not leave after all."""
        self.stage = RingStage.ON_RDMA
        self._last_posted = False
        self._out.append(Resume(self.number))
        if self.own:
            self._announce()  # what was said since the last message could not be told

    def break_with(self, reason: str) -> None:
        """The link has failed, and the stream does not outlive that."""
        if self.failure is None:
            self._break(reason)
        self.free_if_done()

    def _break(self, reason: str, *, fault: bool = False) -> None:
        self.failure = reason
        if not self.closed:
            self._out.append(Broken(reason, fault))

    # ---- the end

    def free_if_done(self) -> None:
        """Free the ring if both ends have said their last word, or the link has failed."""
        if self.freed or not self.closed or self.stage is not RingStage.ON_RDMA:
            return
        if not self.link_failed and self.connected:
            if not (self.peer_gone or self.alone) or not self.delivered:
                return
        self.free()

    def free(self) -> None:
        """Nothing uses these rings any more."""
        if not self.freed:
            self.freed = True
            self._out.append(FreeRing(self.number))
