"""Rejoin: a stream on TCP renegotiates RDMA over that connection, in frames between its own data.

The dialogue is that of ``proto/life/attempt.py``; this does its work on the engine's devices. Then each
direction moves: an end sends its last frame and goes on by the ring, and the reader takes what is on TCP
first. When both have read the other's last frame, the TCP connection is released to the rings.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from ...errors import Code, CompletionError, LinkError, NegotiationError, RemoteProtocolError, VerbsError
from ...proto.clc import Kind
from ...proto.events import Accepted, Confirmed, Proposed
from ...proto.handshake import Timeouts
from ...proto.life.attempt import Attempt
from ...proto.life.outputs import Negotiate, Put
from ...proto.rejoin import Unanswered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...pipes._ring import RingPipe
    from ...pipes._switchable import SwitchablePipe
    from ...proto.clc import Accept, Confirm, Proposal
    from ...proto.life.outputs import Output
    from ...proto.rejoin import Event
    from ...wake.base import Handle, Job, Waiter
    from ..contracts import EngineView, GroupView
    from .framed_pipe import FramedPipe

logger = logging.getLogger("aiordma.link")


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
        self._out: list[Output] = []
        self._attempt: Attempt[RingPipe] = Attempt(self._timeouts, self._out)
        self._job: Job | None = None
        self._timer: Handle | None = None
        self.over = False
        self.error: Exception | None = None
        #: Called when it is over.
        self.on_over: Callable[[], None] | None = None

    # ---- from outside

    def ask(self) -> None:
        """Begin."""
        self._attempt.ask()
        self._go_on()

    def answer(self, proposal: bytes) -> None:
        """The peer has begun."""
        self._attempt.answer(proposal, self._waker.now())
        self._go_on()

    def receive(self, message: bytes) -> None:
        """The peer's next message. :raises RemoteProtocolError: it is none."""
        self._attempt.receive(message, self._waker.now())
        self._go_on()

    async def wait(self) -> None:
        """Until this end is on its rings, and the other on its last step.

        :raises NegotiationError: or another error: not this time. With ``PEER_DOES_NOT_READ`` the attempt
            goes on.
        """
        while not (self.over or self._attempt.unanswered):
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
        return self._attempt.may_be_revoked

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
        self._attempt.peer_stays()
        self.cancel()

    # ---- the negotiation

    @property
    def _timeouts(self) -> Timeouts:
        config = self._engine.config
        return Timeouts(negotiate=config.negotiate_timeout_ms / 1000, link=config.link_timeout_ms / 1000)

    def _start(self, step: Callable[[], Awaitable[Callable[[float], None]]]) -> None:
        """Run one step of this end's work in the background, and what it returns."""

        async def work() -> None:
            try:
                report = await step()
            except NegotiationError as error:
                report = functools.partial(self._attempt.refused, error.code, error.detail)
            except (LinkError, VerbsError, CompletionError, RemoteProtocolError) as error:
                report = functools.partial(self._attempt.refused, Code.DEVICE_FAILURE, str(error))
            except Exception as error:
                # No task awaits this one, and both ends would wait for the attempt's end for ever.
                logger.exception("a stream with %s cannot return to RDMA", self._peer)
                report = functools.partial(self._attempt.refused, Code.INTERNAL, repr(error))
            if self.over:  # cancelled in the moment in which it was ready
                self._drop_ring()
                self._abandon_contact()
                return
            self._job = None
            report(self._waker.now())
            self._go_on()

        self._job = self._waker.spawn(work)

    def _go_on(self) -> None:
        """Do what the attempt asks for."""
        attempt = self._attempt
        while self._out and not self.over:
            output = self._out.pop(0)
            if isinstance(output, Put):
                self._framed.put_frame(output.data)
            elif isinstance(output, Negotiate):
                self._work_on(output.event)
        if self.over:
            return
        if attempt.failed is not None:
            self._fail(NegotiationError(*attempt.failed))
        elif attempt.agreed and not attempt.begun:
            attempt.begun = True
            self._begin_moving()
        self._set_timer()

    def _work_on(self, event: Event | None) -> None:
        if event is None:
            self._start(self._propose)
        elif isinstance(event, Proposed):
            self._start(functools.partial(self._prepare_accept, event.proposal))
        elif isinstance(event, Accepted):
            self._start(functools.partial(self._prepare_confirm, event.accept))
        elif isinstance(event, Confirmed):
            self._start(functools.partial(self._bring_up_server, event.confirm))
        elif isinstance(event, Unanswered):
            self._wait_on()
        else:
            self._abandon_contact()  # it yields to the peer

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = None if self.over else self._attempt.deadline()
        if deadline is not None:
            self._timer = self._waker.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._attempt.on_timer(self._waker.now())
        self._go_on()

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

    async def _propose(self) -> Callable[[float], None]:
        contact = await self._new_contact()
        return functools.partial(self._attempt.proposed, contact.proposal)

    async def _prepare_confirm(self, accept: Accept) -> Callable[[float], None]:
        attempt, contact = self._attempt, self._contact
        contact.stands = False
        try:
            confirm = await contact.accepted(accept, self._peer)
        except NegotiationError as error:
            may_ask_again = attempt.handshake is not None and attempt.handshake.may_ask_again
            if error.code != Code.LINK_NOT_FOUND or not may_ask_again:
                raise
            # It has failed at this end only: once more, with a new one.
            contact.abandon()
            contact = await self._new_contact(unknown_qpn=accept.qpn)
            return functools.partial(attempt.prepared, contact.proposal)
        attempt.prepared(confirm, self._waker.now())
        self._go_on()
        return self._established(await contact.established())

    async def _prepare_accept(self, proposal: Proposal) -> Callable[[float], None]:
        self._abandon_contact()
        if (misfit := proposal.misfit(Kind.STREAM)) is not None:  # datagrams, too, return on a stream's rings
            raise NegotiationError(misfit)
        self._contact = contact = await self._engine.answer(proposal, self._peer)
        return functools.partial(self._attempt.prepared, contact.accept)

    async def _bring_up_server(self, confirm: Confirm) -> Callable[[float], None]:
        self._contact.awaits_tcp = True
        return self._established(await self._contact.confirmed(confirm))

    def _established(self, pipe: SwitchablePipe) -> Callable[[float], None]:
        self._attempt.ring = pipe.ring
        if pipe.error is not None:
            self._drop_ring()
            raise LinkError(str(pipe.error), self._peer)
        return functools.partial(self._attempt.established, pipe.ring)

    def _abandon_contact(self) -> None:
        contact, self._contact = self._contact, None
        if contact is not None:
            contact.abandon()

    def _drop_ring(self) -> None:
        ring, self._attempt.ring = self._attempt.ring, None
        if ring is not None:
            if ring.owner is not None:
                ring.owner.awaits_tcp = False  # the connection will never come
            ring.abort()

    # ---- moving

    @property
    def _ring(self) -> RingPipe:
        ring = self._attempt.ring
        assert ring is not None
        return ring

    def _begin_moving(self) -> None:
        """The rings are there. Of the two ends, the server of the negotiation moves first."""
        assert self._attempt.handshake is not None
        self._switch.adopt(self._ring)
        self._contact.member.needs_tcp(self._framed.read_to_the_end)
        if not self._attempt.handshake.is_client:
            self._move()
        if self._framed.life.on_ring:
            self.peer_moved()

    def _move(self) -> None:
        self._framed.end_sending()
        self._switch.send_by(self._ring)

    def peer_moved(self) -> None:
        """The peer's last frame has arrived."""
        if not self._attempt.begun:
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
        ring = self._attempt.ring
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
