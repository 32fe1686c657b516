"""The server's end of a negotiation."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import anyio

from .. import wake
from ..errors import Code, FallbackReason, NegotiationError
from ..observe import connections
from ..proto.clc import Kind
from ..proto.events import Claimed, Confirmed, Failed, Proposed, Send, UseRdma, UseTcp
from ..proto.handshake import ServerHandshake, State
from . import smc_option
from .clc_io import ClcIO
from .dialogue import Dialogue, wrong_kind
from .engine import ServerContact, find_engine
from .first_bytes import FirstBytes
from .kernel_peer import accept_kernel, decline_kernel
from .last_step import LastStep
from .smc_option import Asker

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ..links.pregranted import GrantingListener
    from ..proto import clc
    from .clc_io import Carrier
    from .dialogue import NegotiationResult
    from .options import PathOptions


class OnlyAskedError(NegotiationError):
    """There is no connection to serve: the client wanted to know whether this server negotiates."""


def _always() -> bool:
    return True


async def negotiate_accepted(
    sock: socket.socket,
    options: PathOptions,
    *,
    kind: int = 0,
    service: GrantingListener | None = None,
    may_use_rdma: Callable[[], bool] = _always,
) -> NegotiationResult:
    """Find out what the client of an accepted connection speaks, and agree on the path. Owns ``sock``.

    With TLS everything goes through it; a client that does not begin with TLS is turned away.

    :param kind: the kind of connection that this listener accepts; a Proposal of another kind is turned away.
    :param service: the listener, if it pre-grants rings (``Engine.grant_rings``).
    :param may_use_rdma: asked when a Proposal is there; False declines it: too many are under way.
    :raises OSError: the connection broke.
    :raises OnlyAskedError: the client only asked.
    :raises NegotiationError: the negotiation failed; or mode "rdma", and RDMA cannot be used. The connection
        is closed.
    """
    asker = smc_option.asker_of(sock, options, kind)
    if asker is Asker.KERNEL and await _begins_with_clc(sock, options):
        result = await accept_kernel(sock, options, may_use_rdma)
        connections.enter(wake.current(), result, kind, "server")
        return result
    carrier = await options.begin(sock)
    negotiation = ServerNegotiation(carrier, options, kind, service, may_use_rdma)
    negotiation.is_plain = asker is Asker.NONE and bool(options.config.smcr_strict)
    try:
        result = await negotiation.run()
    except OSError:  # a NegotiationError is one, too
        if isinstance(negotiation.refusal, OnlyAskedError):  # who has gone meanwhile, perhaps
            raise negotiation.refusal from None
        raise
    connections.enter(negotiation.io.waker, result, kind, "server")
    return result


async def keep_plain(
    sock: socket.socket, options: PathOptions, error: NegotiationError
) -> NegotiationResult | None:
    """Nothing may be negotiated on this accepted connection: have the client know, if it expects an answer.

    :param options: those of the listener.
    :return: the connection on TCP; None: the client expects nothing, and nothing was touched. ``sock`` is the
        caller's then, and this function's else.
    :raises OSError: the connection broke.
    """
    if smc_option.asker_of(sock, options, 0) is not Asker.KERNEL or not await _begins_with_clc(sock, options):
        return None
    result = await decline_kernel(sock, options, error)
    connections.enter(wake.current(), result, 0, "server")
    return result


async def _begins_with_clc(sock: socket.socket, options: PathOptions) -> bool:
    """Of a client that has said so. (One that does not gets the ordinary treatment.) Owns ``sock`` if it
    raises."""
    try:
        with ClcIO(sock) as io:
            return bool(await FirstBytes(io, options, announced=True).are_clc())
    except BaseException:
        sock.close()
        raise


class ServerNegotiation(Dialogue[ServerHandshake, ServerContact]):
    """Answer the client on ``carrier``. Parameters as of :func:`negotiate_accepted`."""

    def __init__(
        self,
        carrier: Carrier,
        options: PathOptions,
        kind: int,
        service: GrantingListener | None,
        may_use_rdma: Callable[[], bool],
    ) -> None:
        super().__init__(carrier, options, kind)
        self._service = service
        self._may_use_rdma = may_use_rdma
        #: A client that would negotiate would have said so in its SYN.
        self.is_plain = False

    async def begin(self) -> None:
        verdict = await FirstBytes(self.io, self.options, is_plain=self.is_plain).are_clc()
        if verdict:
            self.handshake = ServerHandshake(self.options.timeouts(), self.io.now())
        else:
            self.use_tcp(FallbackReason.of_local(Code.PEER_NO_SMC), silent=verdict is None)

    async def before_release(self) -> None:
        """Wait for the client's decision before the ring is released.

        This end may have sent its Accept, on a link that others use as well: then the client may be writing
        into the ring, or may do so soon.
        """
        contact = self.contact
        if contact is None or self.pipe is not None or contact.first_contact:
            return
        with anyio.CancelScope(shield=True):
            if self.handshake.state is State.ACCEPTED and await self._client_has_decided(contact):
                return
        if not self.io.at_end():
            contact.break_link("the client of a new connection did not answer in time")

    async def _client_has_decided(self, contact: ServerContact) -> bool:
        for event in await self.io.receive(self.handshake):
            if isinstance(event, Confirmed):
                with contextlib.suppress(NegotiationError):
                    # From here on each end can announce to the other that it writes no more.
                    (await contact.confirmed(event.confirm)).abort()
                    return True
            elif isinstance(event, UseTcp):
                return True
        return False

    # ---- events

    async def on_proposed(self, event: Proposed) -> None:
        if self.contact is not None:
            # The client does not know the link that it was offered, and asks again.
            self.contact.abandon()
            self.contact = None
        try:
            self._check(event.proposal)
            engine = await find_engine(self.options.config, self.io.waker)
            io = self.io
            self.contact = contact = await engine.answer(event.proposal, io.peer, self._service, io.local)
        except NegotiationError as error:
            self.refuse(error)
        else:
            self.queue(self.handshake.ready(contact.accept, self.io.now()))

    def _check(self, proposal: clc.Proposal) -> None:
        """:raises NegotiationError: it is to be declined."""
        if proposal.is_aiordma and proposal.kind == Kind.QUESTION:
            raise OnlyAskedError(Code.WRONG_KIND)
        if (misfit := proposal.misfit(self.kind)) is not None:
            wrong = misfit == Code.WRONG_KIND
            raise wrong_kind(proposal.kind, self.kind) if wrong else NegotiationError(misfit)
        if (code := self.options.rdma_ruled_out) is not None:
            raise NegotiationError(code)
        if not self._may_use_rdma():
            raise NegotiationError(Code.LIMIT_REACHED, "too many negotiations at the same time")

    async def on_claimed(self, event: Claimed) -> None:
        try:
            engine = await find_engine(self.options.config, self.io.waker)
            self.pipe = engine.claim(event.claim, self._service)
        except NegotiationError as error:
            self.queue(self.handshake.refuse(error.code, self.io.now()))
        else:
            self.queue(self.handshake.established(self.io.now()))

    async def on_confirmed(self, event: Confirmed) -> None:
        assert self.contact is not None
        self.contact.awaits_tcp = True
        work = functools.partial(self.contact.confirmed, event.confirm)
        # In mode "rdma" there is no way to go on without the link.
        outlive = None if self.options.mode == "rdma" else self.contact.outlive
        step = LastStep(
            work,
            self.handshake,
            self.io,
            outlive,
            proved=self.contact.is_proved,
            may_decline=self.kind in (Kind.CALLS, Kind.MEMORY),
        )
        try:
            self.pipe, events = await step.run(watch=event.confirm.first_contact)
        except NegotiationError as error:
            self.refuse(error)
        else:
            self.queue(events)

    handlers = {  # noqa: RUF012
        Send: Dialogue.on_send,
        Proposed: on_proposed,
        Claimed: on_claimed,
        Confirmed: on_confirmed,
        UseTcp: Dialogue.on_use_tcp,
        UseRdma: Dialogue.on_use_rdma,
        Failed: Dialogue.on_failed,
    }
