"""The client's end of a negotiation.

A plain server may never answer a Proposal, nor may one that has taken the place of a server that did. So the
client waits a moment for the answer, and then opens a plain connection beside the first one: the user of a
plain server hardly notices the attempt.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from ..errors import Code, NegotiationError
from ..proto.events import Accepted, Failed, LinkLost, PlainPeer, Send, UseRdma, UseTcp
from ..proto.handshake import ClientHandshake, State
from ..proto.proof import accept_proof
from .clc_io import ClcIO
from .dialogue import Dialogue
from .engine import ClientContact
from .last_step import LastStep
from .peer_cache import head_start_s
from .question import question

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..proto import clc
    from ..proto.events import Event
    from .clc_io import Carrier
    from .engine import Engine
    from .options import PathOptions

#: Seconds that the plain connection has to come about once the answer is there.
_CONNECTING_S = 0.05


def _never() -> bool:
    return False


class PlainPeerFound(Exception):
    """The peer does not negotiate; ``carrier`` is a new connection to it, if there is one already.

    ``spoke``: it has said something else; otherwise it was silent, or closed the connection.
    """

    def __init__(self, text: str, carrier: Carrier | None = None, *, spoke: bool = False) -> None:
        super().__init__(text)
        self.text, self.carrier, self.spoke = text, carrier, spoke


class ClientNegotiation(Dialogue[ClientHandshake, ClientContact]):
    """Propose RDMA to the server on ``carrier``.

    :param connect_again: opens a plain connection beside this one, if the answer does not come within a head
        start. None: the answer is waited for.
    :param head_start_s: that time, in seconds, to which the round trips to the peer are added.
    :raises PlainPeerFound: (from :meth:`run`) the peer does not negotiate; ``carrier`` is closed.
    """

    def __init__(
        self,
        carrier: Carrier,
        options: PathOptions,
        kind: int,
        engine: Engine,
        connect_again: Callable[[], Awaitable[Carrier]] | None = None,
        head_start_s: float = 0.0,
    ) -> None:
        super().__init__(carrier, options, kind)
        self._engine = engine
        self._connect_again, self._head_start_s = connect_again, head_start_s
        #: When it began to wait for the peer's first answer, by the loop's clock; None: it does not wait.
        self.waits_since: float | None = None
        #: Whether a link to this server is up now.
        self.is_linked: Callable[[], bool] = _never
        self._first_contact = True

    async def begin(self) -> None:
        contact = await self._propose()
        self.handshake = ClientHandshake(contact.proposal, self.options.timeouts(), self.io.now())
        self.queue(self.handshake.start())

    async def _propose(self, unknown_qpn: int = 0) -> ClientContact:
        self.contact = await self._engine.propose(
            self.kind,
            peer=self.io.peer,
            unknown_qpn=unknown_qpn,
            traffic_class=self.options.config.traffic_class,
        )
        return self.contact

    async def wait(self) -> None:
        if self.handshake.state is State.CONFIRMED:
            await self._bring_up()
        elif self._connect_again is not None:
            connect, self._connect_again = self._connect_again, None
            await self._wait_with_head_start(connect)
        else:
            await super().wait()

    async def _bring_up(self) -> None:
        assert self.contact is not None
        contact = self.contact
        step = LastStep(
            contact.established, self.handshake, self.io, contact.outlive, proved=contact.is_proved
        )
        self.pipe, events = await step.run(watch=self._first_contact)
        self.queue(events)

    async def _wait_with_head_start(self, connect: Callable[[], Awaitable[Carrier]]) -> None:
        seconds = head_start_s(self.io.sock, self._head_start_s * 1000)
        self.waits_since = self.io.now()
        events = await self.io.receive(self.handshake, self.waits_since + seconds)
        plain: Carrier | None = None
        if not events and self.is_linked():
            # It is busy: a plain connection would come to the same program, and wait there as long.
            events = await self.io.receive(self.handshake)
        elif not events:
            events, plain = await receive_or_connect(self.io, self.handshake, 0.0, connect)
        self.waits_since = None
        if plain is not None:
            raise PlainPeerFound(f"it did not answer within {seconds * 1000:.0f} ms", plain)
        self.queue(events)

    def _plain_peer(self, text: str, *, spoke: bool) -> Exception:
        if self.options.mode == "rdma":
            return NegotiationError(Code.PLAIN_TCP_PEER, text)
        return PlainPeerFound(text, spoke=spoke)

    # ---- events

    async def on_accepted(self, event: Accepted) -> None:
        accept, contact = event.accept, self.contact
        assert contact is not None
        if not _proves(accept, contact.proposal):
            raise self._plain_peer("its Accept does not prove that it read the Proposal", spoke=True)
        self._first_contact = accept.first_contact
        contact.awaits_tcp = True
        try:
            confirm = await contact.accepted(accept, self.io.peer)
        except NegotiationError as error:
            if error.code == Code.LINK_NOT_FOUND and self.handshake.may_ask_again:
                contact.abandon()
                contact = await self._propose(unknown_qpn=accept.qpn)
                self.queue(self.handshake.again(contact.proposal, self.io.now()))
            else:
                self.refuse(error)
        else:
            self.queue(self.handshake.ready(confirm, self.io.now()))

    async def on_link_lost(self, event: LinkLost) -> None:
        """The link was up at the server, so the connection was on RDMA there, and leaves it."""
        if self.options.mode == "rdma":
            raise NegotiationError(Code.LINK_LOST, "the link failed while it was made")
        self.use_pipe(event.rest)

    async def on_plain_peer(self, event: PlainPeer) -> None:
        raise self._plain_peer(event.text, spoke=event.spoke)

    handlers = {  # noqa: RUF012
        Send: Dialogue.on_send,
        Accepted: on_accepted,
        PlainPeer: on_plain_peer,
        UseTcp: Dialogue.on_use_tcp,
        UseRdma: Dialogue.on_use_rdma,
        LinkLost: on_link_lost,
        Failed: Dialogue.on_failed,
    }


def _proves(accept: clc.Accept, proposal: clc.Proposal) -> bool:
    """Whether the Accept answers this Proposal, as far as that shows without the engine.

    Another implementation of SMC sends no proof; the engine then declines. The engine also checks the proof
    of an Accept for a link that exists.
    """
    if not accept.is_aiordma or not accept.first_contact:
        return True
    return accept.proof == accept_proof(proposal.nonce, accept.engine_id)


async def receive_or_connect(
    io: ClcIO, handshake: ClientHandshake, head_start_s: float, connect: Callable[[], Awaitable[Carrier]]
) -> tuple[list[Event], Carrier | None]:
    """Wait for the answer; after the head start, open a plain connection at the same time.

    :returns: the answer's events; or none, and the plain connection, which was there before the answer.
    """
    events = await io.receive(handshake, io.now() + head_start_s)
    if events:
        return events, None
    with contextlib.ExitStack() as stack:
        plain: Carrier | None = None

        async def receive(scope: anyio.CancelScope) -> None:
            events.extend(await io.receive(handshake))
            # A connection that is being made may exist for the server already.
            scope.deadline = anyio.current_time() + _CONNECTING_S

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive, tasks.cancel_scope)
            # If there is no second connection, the first one's answer or its time limit decides.
            with contextlib.suppress(OSError):
                plain = await connect()
                stack.callback(plain.close)
                tasks.cancel_scope.cancel()
        # On a busy loop both may be noticed late: what has arrived counts, not what was noticed first.
        if plain is not None and not events and io.has_data():
            events = await io.receive(handshake)
        if plain is not None and not events:
            stack.pop_all()
            return [], plain
        if plain is not None:
            await withdraw(plain)
        return events, None


async def withdraw(carrier: Carrier) -> None:
    """Have the server close a connection that is not needed, and not show it to its program: the server
    negotiates, as its answer on the other connection has shown."""
    with ClcIO(carrier) as io:
        await io.send(question())
