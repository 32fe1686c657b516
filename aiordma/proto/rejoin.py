"""The negotiation of a stream that returns to RDMA: either end may ask, over the connection in use.

:class:`RejoinHandshake` drives the state machines of a first negotiation (``handshake.py``). Three things are
different. Both ends may ask at the same time; then the end whose Proposal has the higher nonce is the client.
A failure is no reason to close the connection, as the stream simply stays on TCP; so an end that gives up
sends a Decline in every state, and takes one in every state. And each message arrives in a frame of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .clc import Decline, Proposal, decode
from .codes import Code
from .errors import LocalProtocolError
from .events import Event as HandshakeEvent
from .events import Failed, PlainPeer, Send, UseTcp
from .frozen import Frozen
from .handshake import ClientHandshake, ServerHandshake, State, Timeouts

if TYPE_CHECKING:
    from .clc import Accept, Confirm


class Yielded(Frozen):
    """The peer has asked as well, and is the client: drop this end's offer. ``Proposed`` follows."""


class Unanswered(Frozen):
    """The time for an answer is over. The Proposal stands: it is behind bytes that the peer has not read."""


Event: TypeAlias = HandshakeEvent | Yielded | Unanswered


class RejoinHandshake:
    """One end of one attempt. Times are seconds of any clock.

    The events are those of ``events.py``, without ``PlainPeer`` and ``Claimed``: ``Failed`` and ``UseTcp``
    both mean that the stream stays on TCP.

    :param proposal: of an end that asks; None: the peer has asked.
    """

    def __init__(self, timeouts: Timeouts, now: float, proposal: Proposal | None = None) -> None:
        self._timeouts = timeouts
        self._proposal = proposal
        self._over = False
        self._late = False
        self._machine: ClientHandshake | ServerHandshake
        if proposal is None:
            self._machine = ServerHandshake(timeouts, now)
        else:
            self._machine = ClientHandshake(proposal, timeouts, now)

    @property
    def is_client(self) -> bool:
        """Whether this end is the client."""
        return isinstance(self._machine, ClientHandshake)

    @property
    def state(self) -> State:
        """Where this end is."""
        return State.TCP if self._over else self._machine.state

    @property
    def proposed(self) -> bool:
        """Whether this end has asked, and the peer has not answered yet."""
        return self.state is State.PROPOSED

    @property
    def unanswered(self) -> bool:
        """Whether the time for an answer is over: the peer has not read the Proposal."""
        return self._late and self.proposed

    @property
    def may_ask_again(self) -> bool:
        """Whether :meth:`again` is possible when an Accept names an unknown link."""
        return isinstance(self._machine, ClientHandshake) and self._machine.may_ask_again

    def next_deadline(self) -> float | None:
        """When :meth:`on_timer` must be called, None when only the owner's own work is awaited."""
        return None if self._over or self.unanswered else self._machine.next_deadline()

    # ---- what comes from outside

    def start(self) -> list[Event]:
        """Send the Proposal."""
        return [*self._client().start()]

    def receive(self, data: bytes, now: float) -> list[Event]:
        """One message of the peer.

        :raises RemoteProtocolError: it is none.
        """
        message = decode(data)
        if self._over:
            return []
        if isinstance(message, Decline):
            self._over = True
            return [UseTcp(message.diagnosis, message.diagnosis, b"")]
        if isinstance(message, Proposal) and self._proposal is not None and self.state is State.PROPOSED:
            if message.nonce <= self._proposal.nonce:
                return []  # the peer yields
            self._machine = ServerHandshake(self._timeouts, now)
            return [Yielded(), *self._machine.receive(data, now)]
        if self._machine.done:
            return []
        return self._checked(self._machine.receive(data, now))

    def on_timer(self, now: float) -> list[Event]:
        """The time of :meth:`next_deadline` has come."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        if self.proposed:
            self._late = True
            return [Unanswered()]
        return self._checked(self._machine.on_timer(now))

    # ---- what the owner reports

    def ready(self, answer: Accept | Confirm, now: float) -> list[Event]:
        """This end is up: send the Accept or Confirm."""
        return [*self._machine.ready(answer, now)]  # type: ignore[arg-type]

    def again(self, proposal: Proposal, now: float) -> list[Event]:
        """The Accept names a link that is not known here: ask for another one."""
        return [*self._client().again(proposal, now)]

    def established(self, now: float) -> list[Event]:
        """The rings can be used."""
        return [*self._machine.established(now)]

    def refuse(self, code: int, now: float) -> list[Event]:
        """This end cannot use RDMA, whatever the state: send a Decline, and stay on TCP."""
        if self._over:
            return []
        self._over = True
        return [Send(Decline(diagnosis=code).encode()), UseTcp(code, None, b"")]

    # ---- inside

    def _client(self) -> ClientHandshake:
        if not isinstance(self._machine, ClientHandshake):
            raise LocalProtocolError("this end is the server")
        return self._machine

    def _checked(self, events: list[HandshakeEvent]) -> list[Event]:
        """An end that gives up announces it."""
        checked: list[Event] = []
        for event in events:
            if isinstance(event, PlainPeer | Failed):
                self._over = True
                code = event.code if isinstance(event, Failed) else Code.OUT_OF_SYNC
                text = event.text if isinstance(event, Failed) else "the peer did not answer in time"
                checked += Send(Decline(diagnosis=code).encode()), Failed(code, text)
            else:
                checked.append(event)
        return checked
