"""The end of a connection, as a table (after the states of Linux ``net/smc/smc.h`` and ``smc_close.c``).

Everything about half close, close and abort is decided here; nothing here knows of rings or QPs. Two things
must hold:

* A ring is given back (``RELEASE``) only when the peer can write it no more: it has said so behind its last
WRITE, or the link is gone. So an end that learns that its peer has closed says at once that it sends no more.
* An end that has closed comes to ``CLOSED`` without its peer's application doing anything.
"""

from __future__ import annotations

import enum

from .cdc import StateFlag
from .errors import LocalProtocolError

__all__ = ["TABLE", "Action", "CloseState", "Closing", "Input", "state_of"]


class CloseState(enum.Enum):
    """Where a connection is, seen from one end."""

    ACTIVE = "active"
    LOCAL_DONE = "we send no more"
    PEER_DONE = "the peer sends no more"
    BOTH_DONE = "nobody sends any more"
    PEER_CLOSED = "the peer has closed"
    LOCAL_CLOSED = "we have closed, the peer may still write"
    ABORTING = "we have given up, the peer may still write"
    ABORTED = "the peer has given up or the link is lost"
    CLOSED = "over"


class Input(enum.Enum):
    """What can happen."""

    SEND_EOF = "send_eof()"
    CLOSE = "close()"
    ABORT = "abort()"
    PEER_DONE = "the peer sends no more"
    PEER_CLOSED = "the peer closed"
    PEER_ABORTED = "the peer gave up"
    LINK_LOST = "the link is lost"


class Action(enum.IntFlag):
    """What has to be done."""

    NOTHING = 0
    TELL_DONE = 1
    """Send a CDC message with ``SENDING_DONE``."""
    TELL_CLOSED = 2
    """Send a CDC message with ``SENDING_DONE | CLOSED``."""
    TELL_ABORT = 4
    """Send a CDC message with ``SENDING_DONE | CLOSED | ABNORMAL_CLOSE``."""
    END_OF_DATA = 8
    """Readers get the rest, then EOF."""
    BREAK_WRITERS = 16
    """Writers get an error; readers are not concerned."""
    BREAK = 32
    """Readers (after what has arrived) and writers get an error."""
    RELEASE = 64
    """Our ring may be given back when the device has finished with our own work requests."""


_S, _I, _A = CloseState, Input, Action

Table = dict[tuple[CloseState, Input], tuple[CloseState, Action]]

TABLE: Table = {
    (_S.ACTIVE, _I.SEND_EOF): (_S.LOCAL_DONE, _A.TELL_DONE),
    (_S.ACTIVE, _I.CLOSE): (_S.LOCAL_CLOSED, _A.TELL_CLOSED),
    (_S.ACTIVE, _I.ABORT): (_S.ABORTING, _A.TELL_ABORT),
    (_S.ACTIVE, _I.PEER_DONE): (_S.PEER_DONE, _A.END_OF_DATA),
    (_S.ACTIVE, _I.PEER_CLOSED): (_S.PEER_CLOSED, _A.END_OF_DATA | _A.BREAK_WRITERS | _A.TELL_DONE),
    (_S.ACTIVE, _I.PEER_ABORTED): (_S.ABORTED, _A.BREAK | _A.TELL_DONE),
    (_S.ACTIVE, _I.LINK_LOST): (_S.ABORTED, _A.BREAK),
    (_S.LOCAL_DONE, _I.SEND_EOF): (_S.LOCAL_DONE, _A.NOTHING),
    (_S.LOCAL_DONE, _I.CLOSE): (_S.LOCAL_CLOSED, _A.TELL_CLOSED),
    (_S.LOCAL_DONE, _I.ABORT): (_S.ABORTING, _A.TELL_ABORT),
    (_S.LOCAL_DONE, _I.PEER_DONE): (_S.BOTH_DONE, _A.END_OF_DATA),
    (_S.LOCAL_DONE, _I.PEER_CLOSED): (_S.PEER_CLOSED, _A.END_OF_DATA),
    (_S.LOCAL_DONE, _I.PEER_ABORTED): (_S.ABORTED, _A.BREAK),
    (_S.LOCAL_DONE, _I.LINK_LOST): (_S.ABORTED, _A.BREAK),
    (_S.PEER_DONE, _I.SEND_EOF): (_S.BOTH_DONE, _A.TELL_DONE),
    (_S.PEER_DONE, _I.CLOSE): (_S.CLOSED, _A.TELL_CLOSED | _A.RELEASE),
    (_S.PEER_DONE, _I.ABORT): (_S.CLOSED, _A.TELL_ABORT | _A.RELEASE),
    (_S.PEER_DONE, _I.PEER_CLOSED): (_S.PEER_CLOSED, _A.BREAK_WRITERS | _A.TELL_DONE),
    (_S.PEER_DONE, _I.PEER_ABORTED): (_S.ABORTED, _A.BREAK | _A.TELL_DONE),
    (_S.PEER_DONE, _I.LINK_LOST): (_S.ABORTED, _A.BREAK_WRITERS),  # all data has arrived and stays readable
    (_S.BOTH_DONE, _I.SEND_EOF): (_S.BOTH_DONE, _A.NOTHING),
    (_S.BOTH_DONE, _I.CLOSE): (_S.CLOSED, _A.TELL_CLOSED | _A.RELEASE),
    (_S.BOTH_DONE, _I.ABORT): (_S.CLOSED, _A.TELL_ABORT | _A.RELEASE),
    (_S.BOTH_DONE, _I.PEER_CLOSED): (_S.PEER_CLOSED, _A.NOTHING),
    (_S.BOTH_DONE, _I.PEER_ABORTED): (_S.ABORTED, _A.BREAK),
    (_S.BOTH_DONE, _I.LINK_LOST): (_S.ABORTED, _A.NOTHING),
    (_S.PEER_CLOSED, _I.SEND_EOF): (_S.PEER_CLOSED, _A.NOTHING),
    (_S.PEER_CLOSED, _I.CLOSE): (_S.CLOSED, _A.TELL_CLOSED | _A.RELEASE),
    (_S.PEER_CLOSED, _I.ABORT): (_S.CLOSED, _A.TELL_ABORT | _A.RELEASE),
    (_S.PEER_CLOSED, _I.PEER_ABORTED): (_S.ABORTED, _A.BREAK),
    (_S.PEER_CLOSED, _I.LINK_LOST): (_S.PEER_CLOSED, _A.NOTHING),
    (_S.LOCAL_CLOSED, _I.CLOSE): (_S.LOCAL_CLOSED, _A.NOTHING),
    (_S.LOCAL_CLOSED, _I.ABORT): (_S.ABORTING, _A.TELL_ABORT),
    (_S.LOCAL_CLOSED, _I.PEER_DONE): (_S.CLOSED, _A.RELEASE),
    (_S.LOCAL_CLOSED, _I.PEER_CLOSED): (_S.CLOSED, _A.RELEASE),
    (_S.LOCAL_CLOSED, _I.PEER_ABORTED): (_S.CLOSED, _A.RELEASE),
    (_S.LOCAL_CLOSED, _I.LINK_LOST): (_S.CLOSED, _A.RELEASE),
    (_S.ABORTING, _I.CLOSE): (_S.ABORTING, _A.NOTHING),
    (_S.ABORTING, _I.ABORT): (_S.ABORTING, _A.NOTHING),
    (_S.ABORTING, _I.PEER_DONE): (_S.CLOSED, _A.RELEASE),
    (_S.ABORTING, _I.PEER_CLOSED): (_S.CLOSED, _A.RELEASE),
    (_S.ABORTING, _I.PEER_ABORTED): (_S.CLOSED, _A.RELEASE),
    (_S.ABORTING, _I.LINK_LOST): (_S.CLOSED, _A.RELEASE),
    (_S.ABORTED, _I.SEND_EOF): (_S.ABORTED, _A.NOTHING),
    (_S.ABORTED, _I.CLOSE): (_S.CLOSED, _A.RELEASE),
    (_S.ABORTED, _I.ABORT): (_S.CLOSED, _A.RELEASE),
    (_S.ABORTED, _I.LINK_LOST): (_S.ABORTED, _A.NOTHING),
    (_S.CLOSED, _I.CLOSE): (_S.CLOSED, _A.NOTHING),
    (_S.CLOSED, _I.ABORT): (_S.CLOSED, _A.NOTHING),
    (_S.CLOSED, _I.PEER_CLOSED): (_S.CLOSED, _A.NOTHING),
    (_S.CLOSED, _I.PEER_ABORTED): (_S.CLOSED, _A.NOTHING),
    (_S.CLOSED, _I.LINK_LOST): (_S.CLOSED, _A.NOTHING),
}


class Closing:
    """The machine of one end."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = CloseState.ACTIVE

    def step(self, what: Input) -> Action:
        """Take an input, give the actions.

        :raises LocalProtocolError: the input cannot come here (``send_eof()`` after ``close()``, or a report
            of the peer's that ``CdcConnection`` gives once only).
        """
        found = TABLE.get((self.state, what))
        if found is None:
            raise LocalProtocolError(f"{what.value} while {self.state.value}")
        self.state, action = found
        return action

    @property
    def may_send(self) -> bool:
        """Whether data may be sent."""
        return self.state in (CloseState.ACTIVE, CloseState.PEER_DONE)


def state_of(local: int, peer: int, *, lost: bool = False) -> CloseState:
    """The state that belongs to the flags that both ends have told (``StateFlag``), for the tools.

    Flags do not say whose application did what: an end that only answers its peer's close counts as open.
    """
    local_closed = bool(local & StateFlag.CLOSED)
    peer_quiet = lost or bool(peer & (StateFlag.SENDING_DONE | StateFlag.ABNORMAL_CLOSE))
    if local_closed:
        if peer_quiet:
            return CloseState.CLOSED
        return CloseState.ABORTING if local & StateFlag.ABNORMAL_CLOSE else CloseState.LOCAL_CLOSED
    if peer & StateFlag.ABNORMAL_CLOSE:
        return CloseState.ABORTED
    if peer & StateFlag.CLOSED:
        return CloseState.PEER_CLOSED
    if lost:
        return CloseState.ABORTED
    done = {(False, False): CloseState.ACTIVE, (True, False): CloseState.LOCAL_DONE}
    done |= {(False, True): CloseState.PEER_DONE, (True, True): CloseState.BOTH_DONE}
    return done[bool(local & StateFlag.SENDING_DONE), bool(peer & StateFlag.SENDING_DONE)]
