"""Rejoin: a stream on TCP renegotiates RDMA over that connection, in frames between its own data.

The dialogue is that of ``proto/rejoin.py``; this does its I/O and brings up the engine's rings. Then each
direction moves: an end sends its last frame and goes on by the ring, and the reader takes what is on TCP
first. When both have read the other's last frame, the TCP connection is released to the rings.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from ...errors import Code, CompletionError, LinkError, NegotiationError, RemoteProtocolError, VerbsError
from ...proto.events import Accepted, Confirmed, Failed, Proposed, Send, UseTcp
from ...proto.handshake import Timeouts
from ...proto.rejoin import RejoinHandshake, Unanswered, Yielded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...pipes._ring import RingPipe
    from ...pipes._switchable import SwitchablePipe
    from ...proto.clc import Accept, Confirm, Proposal
    from ...proto.rejoin import Event
    from ...wake.base import Handle, Job, Waiter
    from ..contracts import EngineView, GroupView
    from .framed_pipe import FramedPipe

__all__ = ["Rejoin"]

logger = logging.getLogger("aiordma.link")
#: Messages that a peer sends at most while this end makes its Proposal.
_MOST_EARLY = 8


class Rejoin:
    """One attempt of one end.

    :param framed: carries the stream now.
    :param switch: what the user holds.
    :param peer: the other end, for people.
    :param traffic_class: of the link that it looks for.
    """

    def __init__(
        self, framed: FramedPipe, switch: SwitchablePipe, engine: EngineView, peer: str, traffic_class: int
    ) -> None:
        self._framed, self._switch, self._engine, self._peer = framed, switch, engine, peer
        self._traffic_class = traffic_class
        self._waker = engine.waker
        self._waiters: list[Waiter] = []
        self._contact: Any = None
        self._handshake: RejoinHandshake | None = None
        self._early: list[bytes] = []  # messages that came before our own Proposal was ready
        self._refusal: NegotiationError | None = None
        self._job: Job | None = None
        self._timer: Handle | None = None
        self._ring: RingPipe | None = None
        self.over = False
        self.error: Exception | None = None
        #: Called when it is over.
        self.on_over: Callable[[], None] | None = None

    # ---- from outside

    def ask(self) -> None:
        """Begin."""
        self._start(self._propose)

    def answer(self, proposal: bytes) -> None:
        """The peer has begun."""
        self._handshake = RejoinHandshake(self._timeouts, self._waker.now())
        self.receive(proposal)

    def receive(self, message: bytes) -> None:
        """The peer's next message. :raises RemoteProtocolError: it is none."""
        if self._handshake is None:
            if len(self._early) >= _MOST_EARLY:
                raise RemoteProtocolError("frames: more messages of a negotiation than one has")
            self._early.append(message)
        else:
            self._run(self._handshake.receive(message, self._waker.now()))

    async def wait(self) -> None:
        """Until this end is on its rings, and the other on its last step.

        :raises NegotiationError: or another error: not this time. With ``PEER_DOES_NOT_READ`` the attempt
            goes on.
        """
        while not (self.over or self._unanswered):
            waiter = self._waker.new_waiter()
            self._waiters.append(waiter)
            try:
                await waiter.wait()
            finally:
                self._waiters.remove(waiter)
        if self.error is not None:
            raise self.error
        if not self.over:
            raise NegotiationError(Code.PEER_DOES_NOT_READ, self._framed.say_unread())

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    @property
    def may_be_revoked(self) -> bool:
        """The peer has not answered: it has no ring yet, and need not hear that there will be none."""
        return self._handshake is None or self._handshake.proposed

    @property
    def _unanswered(self) -> bool:
        return self._handshake is not None and self._handshake.unanswered

    @property
    def group(self) -> GroupView | None:
        """Where it leads, or led."""
        group: GroupView | None = None if self._contact is None else self._contact.group
        return group

    def cancel(self) -> None:
        """The stream has ended meanwhile."""
        if not self.over:
            self._fail(NegotiationError(Code.SHUTTING_DOWN, "the stream was closed"))

    def peer_ended(self) -> None:
        """The peer has ended on TCP, so it has not used the new rings, and never will."""
        self._peer_stays()
        self.cancel()

    def _peer_stays(self) -> None:
        """The peer says nothing on the new rings: this end does not wait for that to free its own."""
        if self._ring is not None:
            self._ring.stand_alone()

    # ---- the negotiation

    @property
    def _timeouts(self) -> Timeouts:
        config = self._engine.config
        return Timeouts(negotiate=config.negotiate_timeout_ms / 1000, link=config.link_timeout_ms / 1000)

    def _start(self, step: Callable[[], Awaitable[list[Event]]]) -> None:
        """Run one step of this end's work in the background."""

        async def work() -> None:
            try:
                events = await step()
            except NegotiationError as error:
                events = self._refuse(error)
            except (LinkError, VerbsError, CompletionError, RemoteProtocolError) as error:
                events = self._refuse(NegotiationError(Code.DEVICE_FAILURE, str(error)))
            if self.over:  # cancelled in the moment in which it was ready
                self._drop_ring()
                self._abandon_contact()
                return
            self._job = None
            self._run(events)
            while self._early and not self.over:
                self.receive(self._early.pop(0))

        self._job = self._waker.spawn(work)

    def _refuse(self, error: NegotiationError) -> list[Event]:
        self._refusal = error
        if self._handshake is not None:
            return self._handshake.refuse(error.code, self._waker.now())
        return [UseTcp(error.code, None, b"")]  # it did not even ask

    def _run(self, events: list[Event]) -> None:
        for event in events:
            if self.over:
                return
            if isinstance(event, Send):
                self._framed.put_message(event.data)
            elif isinstance(event, Yielded):
                self._abandon_contact()
            elif isinstance(event, Proposed):
                self._start(functools.partial(self._prepare_accept, event.proposal))
            elif isinstance(event, Accepted):
                self._start(functools.partial(self._prepare_confirm, event.accept))
            elif isinstance(event, Confirmed):
                self._start(functools.partial(self._bring_up_server, event.confirm))
            elif isinstance(event, Unanswered):
                self._wait_on()
            elif isinstance(event, UseTcp):
                if event.peer is not None:
                    self._peer_stays()
                self._fail(self._refusal or NegotiationError(event.code))
            elif isinstance(event, Failed):
                self._fail(NegotiationError(event.code, event.text))
            else:
                self._begin_moving()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = None if self.over or self._handshake is None else self._handshake.next_deadline()
        if deadline is not None:
            self._timer = self._waker.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._handshake is not None:
            self._run(self._handshake.on_timer(self._waker.now()))

    def _wait_on(self) -> None:
        """The Proposal is behind what the peer has not read, and is answered when it has. A second one behind
        it would do nothing more, and could get the answer to the first."""
        logger.debug("a stream with %s waits on TCP: %s", self._peer, self._framed.say_unread())
        self._contact.stands = True
        self._wake()

    async def _new_contact(self, unknown_qpn: int = 0) -> Any:
        self._contact = contact = await self._engine.propose(
            unknown_qpn=unknown_qpn, peer=self._peer, traffic_class=self._traffic_class
        )
        contact.awaits_tcp = True
        return contact

    async def _propose(self) -> list[Event]:
        contact = await self._new_contact()
        self._handshake = RejoinHandshake(self._timeouts, self._waker.now(), contact.proposal)
        return self._handshake.start()

    async def _prepare_confirm(self, accept: Accept) -> list[Event]:
        handshake, contact = self._handshake, self._contact
        assert handshake is not None
        contact.stands = False
        try:
            confirm = await contact.accepted(accept, self._peer)
        except NegotiationError as error:
            if error.code != Code.LINK_NOT_FOUND or not handshake.may_ask_again:
                raise
            # It has failed at this end only: once more, with a new one.
            contact.abandon()
            contact = await self._new_contact(unknown_qpn=accept.qpn)
            return handshake.again(contact.proposal, self._waker.now())
        self._run(handshake.ready(confirm, self._waker.now()))
        return self._established(await contact.established())

    async def _prepare_accept(self, proposal: Proposal) -> list[Event]:
        self._abandon_contact()
        self._contact = contact = await self._engine.answer(proposal, self._peer)
        assert self._handshake is not None
        return self._handshake.ready(contact.accept, self._waker.now())

    async def _bring_up_server(self, confirm: Confirm) -> list[Event]:
        self._contact.awaits_tcp = True
        return self._established(await self._contact.confirmed(confirm))

    def _established(self, pipe: SwitchablePipe) -> list[Event]:
        self._ring = pipe.ring
        if pipe.error is not None:
            self._drop_ring()
            raise LinkError(str(pipe.error), self._peer)
        assert self._handshake is not None
        return [] if self.over else self._handshake.established(self._waker.now())

    def _abandon_contact(self) -> None:
        contact, self._contact = self._contact, None
        if contact is not None:
            contact.abandon()

    def _drop_ring(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            if ring.owner is not None:
                ring.owner.awaits_tcp = False  # the connection will never come
            ring.abort()

    # ---- moving

    def _begin_moving(self) -> None:
        """The rings are there. Of the two ends, the server of the negotiation moves first."""
        assert self._handshake is not None
        assert self._ring is not None
        self._switch.adopt(self._ring)
        self._contact.member.needs_tcp(self._framed.read_to_the_end)
        if not self._handshake.is_client:
            self._move()
        if self._framed.life.on_ring:
            self.peer_moved()

    def _move(self) -> None:
        assert self._ring is not None
        self._framed.end_sending()
        self._switch.send_by(self._ring)

    def peer_moved(self) -> None:
        """The peer's last frame has arrived."""
        if self._ring is None or self._ring is not self._switch.ring:
            return  # _begin_moving() looks again
        if not self._framed.life.moved:
            self._move()
        self._switch.receive_by(self._ring)
        self.try_hand_over()

    def try_hand_over(self) -> None:
        """Once nothing more of the stream is on TCP, the connection is the rings' again."""
        released = None if self.over else self._framed.release()
        if released is not None:
            self._finish(None)
            self._switch.rejoined_rdma()
            self._switch.attach_tcp(*released)

    # ---- the end

    def _fail(self, error: Exception) -> None:
        """The stream stays on TCP."""
        logger.debug("a stream with %s does not return to RDMA: %s", self._peer, error)
        self.over = True
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
        if self._contact is not None:
            self._contact.abandon()
        ring = self._ring
        if not self._framed.stay() and ring is not None:
            self._switch.stay_on(self._framed, ring)
        self._drop_ring()
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        self.over, self.error = True, error
        self._set_timer()
        self._wake()
        if self.on_over is not None:
            self.on_over()
