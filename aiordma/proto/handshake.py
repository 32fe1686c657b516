"""The negotiation of one connection, for both ends, as tables (RFC 7609, section 3.5; rules of Linux
``af_smc.c``).

The owner brings what happens: bytes and the end of the TCP connection, time, and the result of its own work
(bringing up a QP, waiting for Confirm Link). It gets a list of events (``events.py``) and does what they say.
Time is an argument, in seconds of any clock; there is no I/O here.

What must hold: both ends end with the same transport, or at least one of them closes the connection. So a
decline is possible until the decliner has agreed and no longer; silence before an Accept means a peer that
knows nothing of this (the client starts anew, in plain TCP), silence after it is an error.

Once a client has sent its Confirm, the server decides. It may decline until it has asked the client over the
link to confirm it (Confirm Link). From then on the client may have answered and use RDMA, so a server whose
link fails does not decline: it agrees, and takes the connection from RDMA to TCP like any other
(``failover.py``). A client that loses the link first cannot know which of the two the server does, and waits
for its word.

An Accept may name a link that has failed at the client's end only. The client then asks a second time, once
(:meth:`ClientHandshake.again`), and the server answers with a new link.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from .clc import Accept, Claim, Confirm, Decline, Message, Proposal
from .clcframe import looks_like_clc
from .clcstream import Splitter
from .codes import Code, describe
from .errors import LocalProtocolError, RemoteProtocolError
from .events import (
    Accepted,
    Claimed,
    Confirmed,
    Event,
    Failed,
    LinkLost,
    PlainPeer,
    Proposed,
    Send,
    UseRdma,
    UseTcp,
)
from .failover import MAGIC


class Timeouts(NamedTuple):
    """Seconds; see the settings of the same names."""

    #: for one message of the peer
    negotiate: float = 6.0
    #: for Confirm Link, once both ends have agreed
    link: float = 5.0
    #: for the first byte of a client, which may wait for the server to speak first
    first_bytes: float = 0.2

    @property
    def last_step(self) -> float:
        """For all that follows the Confirm: the peer may notice only after ``link`` that the link is lost."""
        return self.link + self.negotiate


class State(enum.Enum):
    """Where an end is."""

    # An enumeration's own is Python code, and each step of a connect asks for some.
    __hash__ = object.__hash__

    PEEKING = "waiting for the first bytes"
    READING = "reading the Proposal"
    ANSWERING = "preparing the Accept"
    ACCEPTED = "waiting for the Confirm"
    CONFIRMING = "bringing up the link"
    CLAIMED = "looking for the ticket"
    PROPOSED = "waiting for the Accept"
    ACCEPTING = "preparing the Confirm"
    ASKED_AGAIN = "waiting for the second Accept"
    CONFIRMED = "waiting for the link"
    # ends
    RDMA = "using RDMA"
    TCP = "using TCP"
    PLAIN = "the peer speaks plain TCP only"
    FAILED = "failed"


class Input(enum.Enum):
    """What can happen. The first group comes from the peer or the clock, the second from the owner."""

    __hash__ = object.__hash__

    PROPOSAL = "a Proposal came"
    ACCEPT = "an Accept came"
    CONFIRM = "a Confirm came"
    CLAIM = "a Claim came"
    DECLINE = "a Decline came"
    GARBAGE = "something else than a valid message came"
    EOF = "the peer closed the connection"
    TIMEOUT = "nothing came in time"
    LINK_LOST = "the peer leaves RDMA"

    READY = "ready()"
    AGAIN = "again()"
    REFUSE = "refuse()"
    ESTABLISHED = "established()"
    BROKEN = "broken()"


_INPUTS: dict[type[Message], Input] = {
    Proposal: Input.PROPOSAL,
    Accept: Input.ACCEPT,
    Confirm: Input.CONFIRM,
    Claim: Input.CLAIM,
    Decline: Input.DECLINE,
}
_ENDS = {State.RDMA, State.TCP, State.PLAIN, State.FAILED}
_LOCAL = {Input.READY, Input.AGAIN, Input.REFUSE, Input.ESTABLISHED, Input.BROKEN}

Table = dict[tuple[State, Input], State]

# Only what is legal. Any other input of the peer or the clock leads to FAILED, any other of the owner is the
# owner's mistake.
CLIENT_TABLE: Table = {
    (State.PROPOSED, Input.ACCEPT): State.ACCEPTING,
    (State.PROPOSED, Input.DECLINE): State.TCP,
    (State.PROPOSED, Input.PROPOSAL): State.PLAIN,  # an echo of ours
    (State.PROPOSED, Input.GARBAGE): State.PLAIN,
    (State.PROPOSED, Input.EOF): State.PLAIN,
    (State.PROPOSED, Input.TIMEOUT): State.PLAIN,
    (State.ACCEPTING, Input.READY): State.CONFIRMED,
    (State.ACCEPTING, Input.REFUSE): State.TCP,
    (State.ACCEPTING, Input.BROKEN): State.FAILED,
    (State.ACCEPTING, Input.AGAIN): State.ASKED_AGAIN,
    (State.ASKED_AGAIN, Input.ACCEPT): State.ACCEPTING,
    (State.ASKED_AGAIN, Input.DECLINE): State.TCP,
    (State.CONFIRMED, Input.ESTABLISHED): State.RDMA,
    (State.CONFIRMED, Input.DECLINE): State.TCP,  # the server could not bring up its end
    (State.CONFIRMED, Input.LINK_LOST): State.RDMA,  # it was up at the server
    (State.CONFIRMED, Input.BROKEN): State.FAILED,
}
SERVER_TABLE: Table = {
    (State.READING, Input.PROPOSAL): State.ANSWERING,
    (State.ANSWERING, Input.READY): State.ACCEPTED,
    (State.ANSWERING, Input.REFUSE): State.TCP,
    (State.ANSWERING, Input.BROKEN): State.FAILED,
    (State.ACCEPTED, Input.CONFIRM): State.CONFIRMING,
    (State.ACCEPTED, Input.DECLINE): State.TCP,
    (State.ACCEPTED, Input.PROPOSAL): State.ANSWERING,  # once, and only if it says that the link is unknown
    (State.CONFIRMING, Input.ESTABLISHED): State.RDMA,
    (State.CONFIRMING, Input.REFUSE): State.TCP,
    (State.CONFIRMING, Input.BROKEN): State.FAILED,
    (State.CONFIRMING, Input.DECLINE): State.TCP,  # other implementations of SMC, whose link did not come up
    (State.READING, Input.CLAIM): State.CLAIMED,
    (State.CLAIMED, Input.ESTABLISHED): State.RDMA,
    (State.CLAIMED, Input.REFUSE): State.FAILED,  # the client uses the ring already: there is no way back
}

#: What only a client of aiordma does: it asks a second time, and claims a ring that it was granted.
_OF_AIORDMA = {(State.ACCEPTED, Input.PROPOSAL), (State.READING, Input.CLAIM)}
#: A client of another implementation may find out after its SYN that it has no device.
OTHER_SERVER_TABLE: Table = {
    step: target
    for step, target in SERVER_TABLE.items()
    if step not in _OF_AIORDMA and step[0] is not State.CLAIMED
} | {(State.READING, Input.DECLINE): State.TCP}


class _Handshake:
    _table: Table
    _waits: dict[State, str]

    def __init__(self, state: State, timeouts: Timeouts, now: float) -> None:
        self.state = state
        self._timeouts = timeouts
        self._splitter = Splitter()
        self._deadline: float | None = None
        self._peer_version = 2  # of SMC, as its Proposal says
        self._may_fail_over = True
        self._set_deadline(now)

    @property
    def done(self) -> bool:
        """Whether the end is reached; then nothing may be fed any more."""
        return self.state in _ENDS

    @property
    def heard_all(self) -> bool:
        """Whether the peer has said its last word: all that follows is the stream's."""
        return self._splitter.done

    def next_deadline(self) -> float | None:
        """When :meth:`on_timer` must be called, None when only the owner's own work is awaited."""
        return self._deadline

    def with_other_smc(self) -> None:
        """The peer is another implementation of SMC: after its Confirm it may still decline, and it takes no
        connection from RDMA to TCP. To be called before anything is received."""
        self._may_fail_over = False
        self._splitter = Splitter(until=(Decline,))

    def _set_deadline(self, now: float) -> None:
        wait = self._waits.get(self.state)
        self._deadline = None if wait is None else now + getattr(self._timeouts, wait)

    def _step(self, what: Input, now: float) -> State:
        """Move by the table."""
        if self.done:
            raise LocalProtocolError(f"the negotiation is over ({self.state.value}): {what.value}")
        target = self._table.get((self.state, what))
        if target is None:
            if what in _LOCAL:
                raise LocalProtocolError(f"{what.value} while {self.state.value}")
            target = State.FAILED
        before, self.state = self.state, target
        self._set_deadline(now)
        return before

    # ---- what comes from outside

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Bytes of the TCP connection.

        :raises LocalProtocolError: the negotiation is over; the bytes belong to the stream.
        """
        if self.state in _ENDS:
            raise LocalProtocolError(
                f"the negotiation is over ({self.state.value}): these bytes are the stream's"
            )
        may_be_lost = self._may_fail_over and self.state is State.CONFIRMED
        if may_be_lost and not self._splitter.pending and _begins_failover(data):
            self._step(Input.LINK_LOST, now)
            return [LinkLost(data)]
        events: list[Event] = []
        try:
            messages = self._splitter.feed(data)
            for message in messages:
                events += self._on_message(message, now)
                if self.done:
                    break
            else:
                # Where no message is awaited, the peer is out of turn however little it sent.
                if self._deadline is None and self._splitter.pending:
                    raise RemoteProtocolError("CLC: bytes came out of turn", Code.PROTOCOL_VIOLATION)
        except RemoteProtocolError as exc:
            return self._on_trouble(Input.GARBAGE, str(exc), now)
        if self.state is State.FAILED:
            return events[-1:]  # what came before it in the same read is void
        return events

    def eof(self, now: float) -> list[Event]:
        """The peer closed or reset the TCP connection."""
        return self._on_trouble(Input.EOF, "", now)

    def on_timer(self, now: float) -> list[Event]:
        """The time of :meth:`next_deadline` has come."""
        if self._deadline is None or now < self._deadline:
            return []
        return self._on_trouble(Input.TIMEOUT, "", now)

    # ---- what the owner reports

    def refuse(self, code: int, now: float, kind: int | None = None) -> list[Event]:
        """This end cannot use RDMA: decline, and go on with TCP. After a Claim: decline, and end.

        :param kind: the kind of connection that this end expects, if that is the reason.
        """
        self._step(Input.REFUSE, now)
        if self.state is State.FAILED:
            text = f"the client's claim was refused: {describe(code)}"
            return [Send(Decline(diagnosis=code).encode()), Failed(code, text)]
        decline = Decline(diagnosis=code, kind=kind, version=self._peer_version)
        return [Send(decline.encode()), UseTcp(code, None, self._splitter.rest())]

    def established(self, now: float) -> list[Event]:
        """The link works."""
        self._step(Input.ESTABLISHED, now)
        return [UseRdma()]

    def broken(self, code: int, text: str, now: float) -> list[Event]:
        """This end's work failed in a way that leaves no decline: the connection must go."""
        self._step(Input.BROKEN, now)
        return [Failed(code, text)]

    # ---- inside

    def _on_message(self, message: Message, now: float) -> list[Event]:
        what = _INPUTS[type(message)]
        before = self._step(what, now)
        if before is State.ACCEPTED and isinstance(message, Proposal) and not self._may_ask_again(message):
            self.state, self._deadline = State.FAILED, None
        if self.state is State.FAILED:
            return [Failed(Code.PROTOCOL_VIOLATION, f"{what.value} while {before.value}")]
        if isinstance(message, Decline):
            return [UseTcp(message.diagnosis, message.diagnosis, self._splitter.rest(), message.kind)]
        if isinstance(message, Proposal) and self.state is State.ANSWERING:
            self._peer_version = message.version
            return [Proposed(message)]
        if isinstance(message, Accept):
            return [Accepted(message)]
        if isinstance(message, Confirm):
            return [Confirmed(message)]
        if isinstance(message, Claim):
            return [Claimed(message)]
        return [PlainPeer("it echoes what it receives", spoke=True)]

    def _may_ask_again(self, proposal: Proposal) -> bool:
        return False

    def _on_trouble(self, what: Input, detail: str, now: float) -> list[Event]:
        before = self._step(what, now)
        text = detail or f"{what.value} while {before.value}"
        if self.state is State.PLAIN:
            return [PlainPeer(text, spoke=what is Input.GARBAGE)]
        code = Code.PROTOCOL_VIOLATION if what is Input.GARBAGE else Code.OUT_OF_SYNC
        if what is Input.TIMEOUT and before in (State.CONFIRMED, State.CONFIRMING):
            code = Code.TIMEOUT_CONFIRM_LINK
        return [Failed(code, text)]


def _begins_failover(data: bytes) -> bool:
    """No CLC message begins in this way."""
    return bool(data) and data[: len(MAGIC)] == MAGIC[: len(data)]


class ClientHandshake(_Handshake):
    """The connecting end. Its first events come from :meth:`start`."""

    _table = CLIENT_TABLE
    _waits = {  # noqa: RUF012
        State.PROPOSED: "negotiate",
        State.ASKED_AGAIN: "negotiate",
        State.CONFIRMED: "last_step",
    }

    def __init__(self, proposal: Proposal, timeouts: Timeouts, now: float) -> None:
        super().__init__(State.PROPOSED, timeouts, now)
        self._proposal = proposal
        #: Whether :meth:`again` is possible when an Accept names an unknown link.
        self.may_ask_again = True

    def start(self) -> list[Event]:
        """Send the Proposal."""
        return [Send(self._proposal.encode())]

    def again(self, proposal: Proposal, now: float) -> list[Event]:
        """The Accept names a link that is not known here: ask for another one (``Proposal.unknown_qpn``).

        :raises LocalProtocolError: that has been done already, or no Accept is there.
        """
        if not self.may_ask_again:
            raise LocalProtocolError("a connection asks a second time, not a third")
        data = proposal.encode()
        self._step(Input.AGAIN, now)
        self.may_ask_again = False
        return [Send(data)]

    def ready(self, confirm: Confirm, now: float) -> list[Event]:
        """This end is up and agrees; the link is awaited next (:meth:`established`)."""
        data = confirm.encode()
        self._step(Input.READY, now)
        return [Send(data)]


class ServerHandshake(_Handshake):
    """The listening end, from the client's first byte, which may be the first byte of a plain client's
    stream.

    :param speaks_first: the service's clients wait for it to speak: a client that is silent for
        ``timeouts.first_bytes`` is served as a plain one. Without it the server waits for the first byte for
        ever.
    """

    _table = SERVER_TABLE
    _waits = {  # noqa: RUF012
        State.PEEKING: "first_bytes",
        State.READING: "negotiate",
        State.ACCEPTED: "negotiate",
        State.CONFIRMING: "last_step",
    }

    def __init__(self, timeouts: Timeouts, now: float, *, speaks_first: bool = True) -> None:
        super().__init__(State.PEEKING, timeouts, now)
        self._head = bytearray()
        self._offered_qpn = 0  # of the first Accept
        self._asked_again = False
        if not speaks_first:
            self._deadline = None

    def receive(self, data: bytes, now: float) -> list[Event]:
        if self.state is State.PEEKING:
            first = not self._head
            self._head += data
            verdict = looks_like_clc(self._head)
            if verdict is False:
                return self._plain()
            if verdict is None:
                # It may still be one: give it the time of a message, once.
                if first and data:
                    self._deadline = now + self._timeouts.negotiate
                return []
            data = bytes(self._head)
            self.state = State.READING
            self._set_deadline(now)
        return super().receive(data, now)

    def _on_trouble(self, what: Input, detail: str, now: float) -> list[Event]:
        if self.state is State.PEEKING:
            return self._plain()
        return super()._on_trouble(what, detail, now)

    def _plain(self) -> list[Event]:
        self.state, self._deadline = State.TCP, None
        return [UseTcp(Code.PLAIN_TCP_PEER, None, bytes(self._head))]

    def with_other_smc(self) -> None:
        super().with_other_smc()
        self._table = OTHER_SERVER_TABLE

    def ready(self, accept: Accept, now: float) -> list[Event]:
        """This end can use RDMA, and how; the client's Confirm is awaited next."""
        data = accept.encode()
        self._step(Input.READY, now)
        self._offered_qpn = 0 if accept.first_contact else accept.qpn
        return [Send(data)]

    def _may_ask_again(self, proposal: Proposal) -> bool:
        first, self._asked_again = not self._asked_again, True
        return first and self._offered_qpn != 0 and proposal.unknown_qpn == self._offered_qpn
