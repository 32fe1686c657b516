"""One attempt of a stream on TCP to return to RDMA: its negotiation, and how far this end has moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ..clc import Proposal, decode
from ..errors import RemoteProtocolError
from ..events import Accepted, Confirmed, Failed, Proposed, Send, UseTcp
from ..frames import negotiation_frame
from ..rejoin import RejoinHandshake, Unanswered, Yielded
from .outputs import Negotiate, Put

if TYPE_CHECKING:
    from typing import Protocol

    from ..clc import Accept, Confirm
    from ..handshake import Timeouts
    from ..rejoin import Event
    from .outputs import Output

    class NewRing(Protocol):
        """The rings that an attempt leads to."""

        def stand_alone(self) -> None:
            """The peer has not used them, and never will."""


#: Messages that a peer sends at most while this end makes its Proposal.
_MOST_EARLY = 8


R = TypeVar("R", bound="NewRing")


class Attempt(Generic[R]):
    """:param out: outputs go there.
    :param number: of the rings that it leads to.
    """

    def __init__(self, timeouts: Timeouts, out: list[Output], number: int = 0) -> None:
        self.number = number
        self.handshake: RejoinHandshake | None = None
        #: The new rings, once they can be used at this end.
        self.ring: R | None = None
        #: The negotiation has ended: both ends use the rings. This end has begun to.
        self.agreed = self.begun = False
        #: It has failed, for this reason (a ``Code``, and words).
        self.failed: tuple[int, str] | None = None
        self._refusal: tuple[int, str] | None = None
        self._timeouts, self._out = timeouts, out
        self._early: list[bytes] = []

    @property
    def may_be_revoked(self) -> bool:
        """The peer has not answered: it has no ring yet, and need not hear that there will be none."""
        return self.handshake is None or self.handshake.proposed

    @property
    def unanswered(self) -> bool:
        """The peer has not read the Proposal in time."""
        return self.handshake is not None and self.handshake.unanswered

    def deadline(self) -> float | None:
        """When :meth:`on_timer` is to be called."""
        return None if self.handshake is None else self.handshake.next_deadline()

    # ---- inputs

    def ask(self) -> None:
        """Begin."""
        self._out.append(Negotiate(None))

    def answer(self, proposal: bytes, now: float) -> None:
        """The peer has begun."""
        self.handshake = RejoinHandshake(self._timeouts, now)
        self.receive(proposal, now)

    def receive(self, message: bytes, now: float) -> None:
        """The peer's next message. :raises RemoteProtocolError: it is none."""
        if self.handshake is None:
            if len(self._early) >= _MOST_EARLY:
                raise RemoteProtocolError("frames: more messages of a negotiation than one has")
            decode(message)  # what is none is so at once, and not when no caller is there to hear of it
            self._early.append(message)
        else:
            self._run(self.handshake.receive(message, now))

    def proposed(self, proposal: Proposal, now: float) -> None:
        """This end's Proposal is made."""
        self.handshake = RejoinHandshake(self._timeouts, now, proposal)
        self._run(self.handshake.start())
        self._take_early(now)

    def prepared(self, answer: Accept | Confirm | Proposal, now: float) -> None:
        """What is to be sent next is made. A Proposal: the Accept names a link that is not known here."""
        assert self.handshake is not None
        if isinstance(answer, Proposal):
            self._run(self.handshake.again(answer, now))
        else:
            self._run(self.handshake.ready(answer, now))
        self._take_early(now)

    def established(self, ring: R, now: float) -> None:
        """The rings can be used at this end."""
        assert self.handshake is not None
        self.ring = ring
        self._run(self.handshake.established(now))

    def refused(self, code: int, text: str, now: float) -> None:
        """This end cannot use RDMA."""
        self._refusal = code, text
        if self.handshake is None:
            self.failed = self._refusal
        else:
            self._run(self.handshake.refuse(code, now))

    def peer_stays(self) -> None:
        """The peer declines, or has ended on TCP."""
        if self.ring is not None:
            self.ring.stand_alone()

    def on_timer(self, now: float) -> None:
        """The clock has reached :meth:`deadline`."""
        if self.handshake is not None:
            self._run(self.handshake.on_timer(now))

    # ---- inside

    def _take_early(self, now: float) -> None:
        while self._early and self.failed is None:
            self.receive(self._early.pop(0), now)

    def _run(self, events: list[Event]) -> None:
        for event in events:
            if self.failed is not None:
                return
            match event:
                case Send():
                    self._out.append(Put(negotiation_frame(event.data)))
                case Yielded() | Proposed() | Accepted() | Confirmed() | Unanswered():
                    self._out.append(Negotiate(event))
                case UseTcp():
                    self.failed = self._refusal or (event.code, "")
                    if event.peer is not None:
                        self.peer_stays()
                case Failed():
                    self.failed = event.code, event.text
                case _:
                    self.agreed = True
