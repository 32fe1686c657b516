"""The negotiation on a TCP connection: the I/O around ``proto/handshake.py``, for both ends.

Every connection begins here and leaves as an :class:`Outcome`: a ring pipe, or the socket, from which no byte
of the stream is missing. So nothing is read from a socket that may belong to the stream: the server looks
with ``MSG_PEEK`` until the eye catcher is certain, and both ends read exactly up to the end of a message.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from .. import wake
from ..addresses import plain_address, show
from ..errors import (
    Code,
    CompletionError,
    FallbackReason,
    LinkError,
    NegotiationError,
    RemoteProtocolError,
    VerbsError,
)
from ..proto import clc
from ..proto.events import Accepted, Claimed, Confirmed, Failed, PlainPeer, Proposed, Send, UseRdma, UseTcp
from ..proto.handshake import ClientHandshake, ServerHandshake, State, Timeouts
from ..proto.proof import accept_proof
from . import peer_cache as peers
from .clc_io import Carrier, Wire
from .result import Outcome, Tls
from .tcp_connect import dial, resolve

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Container

    from ..addresses import Address
    from ..config import Config, Mode
    from ..links.pregranted import GrantingListener
    from ..proto.events import Event

__all__ = [
    "ClientContact",
    "Engine",
    "Outcome",
    "ServerContact",
    "Tls",
    "client",
    "find_engine",
    "server",
    "warm_up",
]


class ClientContact(Protocol):
    """One negotiation of the engine, client end."""

    proposal: clc.Proposal
    awaits_tcp: bool

    async def accepted(self, accept: clc.Accept, peer: str = "") -> clc.Confirm: ...
    async def established(self) -> Any: ...
    def abandon(self) -> None: ...


class ServerContact(Protocol):
    """One negotiation of the engine, server end."""

    accept: clc.Accept
    first_contact: bool
    awaits_tcp: bool

    async def confirmed(self, confirm: clc.Confirm) -> Any: ...
    def break_link(self, reason: str) -> None: ...
    def abandon(self) -> None: ...


class Engine(Protocol):
    """What the negotiation needs of ``engine.Engine``."""

    async def propose(
        self, kind: int = 0, *, peer: str = "", unknown_qpn: int = 0, traffic_class: int | None = None
    ) -> ClientContact: ...
    async def answer(
        self,
        proposal: clc.Proposal,
        peer: str = "",
        service: GrantingListener | None = None,
        local: Address | None = None,
    ) -> ServerContact: ...
    def open_early(self, sock: socket.socket, peer: str, traffic_class: int) -> Any: ...
    def grant_rings(self, has_room: Callable[[], bool]) -> GrantingListener | None: ...
    def claim(self, claim: clc.Claim, service: GrantingListener | None) -> Any: ...
    @property
    def early_servers(self) -> Container[tuple[str, int]]: ...


#: What opening a connection at once takes of an asyncio task's share of operations that do not wait.
_OPEN_SHARE = 16


async def find_engine(config: Config) -> Engine:
    """The running loop's engine.

    :raises NegotiationError: RDMA is not to be had in this process.
    """
    if config.device == "none":
        raise NegotiationError(Code.DISABLED)
    try:
        from ..links import engine
    except ImportError as exc:
        pyverbs = (exc.name or "").partition(".")[0] == "pyverbs"
        raise NegotiationError(Code.NO_PYVERBS if pyverbs else Code.OTHER_PYTHON, str(exc)) from exc
    return await engine.current(config)


async def warm_up(config: Config, mode: Mode | None) -> Engine | None:
    """Make the engine before the first client comes: opening the device takes so long on a busy machine that
    an unknown client would take the listener for a plain one. A refusal is told to each client in its
    turn."""
    if (mode or config.mode) != "tcp":
        with contextlib.suppress(NegotiationError):
            return await find_engine(config)
    return None


# ---- client


async def client(
    host: str,
    port: int,
    *,
    config: Config,
    mode: Mode | None = None,
    local_host: str | None = None,
    tls: Tls | None = None,
    kind: int = 0,
) -> Outcome:
    """Connect to ``host``:``port`` and agree on the path.

    :param kind: what the connection will carry (``clc.Proposal.kind``).
    :param tls: negotiate inside TLS. With TLS, nothing of this connection is ever sent in clear.
    :raises OSError: no TCP connection could be made.
    :raises NegotiationError: mode "rdma", and RDMA is not to be had; or, in any mode, the negotiation broke
        off at a point where the two ends might disagree about its result; or the peer listens for
        another kind of connection.
    """
    mode = mode or config.mode
    addresses = await resolve(host, port)

    async def connect() -> Carrier:
        sock = await dial(addresses, local_host)
        return sock if tls is None else await tls.begin(sock, config)

    if mode == "tcp":
        return _plain(await connect(), FallbackReason.of_local(Code.DISABLED))
    if tls is not None and not tls.rdma_outside_tls:
        if mode == "rdma":
            raise NegotiationError(Code.TLS_PAYLOAD_POLICY)
        return _plain(await connect(), FallbackReason.of_local(Code.TLS_PAYLOAD_POLICY))
    try:
        engine = await find_engine(config)
    except NegotiationError as error:
        if mode == "rdma":
            raise
        return _plain(await connect(), FallbackReason.of_error(error))
    dialled: list[socket.socket] = []
    wanted = config.traffic_class
    if (
        tls is None
        and not kind
        and any((show(sockaddr), wanted) in engine.early_servers for _, sockaddr in addresses)
    ):
        await _give_way()
        sock = await dial(addresses, local_host)
        outcome = _open_at_once(engine, sock, wanted)
        if outcome is not None:
            return outcome
        dialled.append(sock)

    async def connect_first() -> Carrier:
        return dialled.pop() if dialled else await connect()

    try:
        return await _in_full(engine, connect_first, config, mode, (host, port, tls is not None), kind)
    finally:
        for sock in dialled:
            sock.close()


async def _give_way() -> None:
    """The checkpoint of a connect that waits for nobody."""
    waker = wake.current()
    if waker.share > 0:
        waker.share -= _OPEN_SHARE
        await waker.cancel_check()
    else:
        await waker.checkpoint()


def _open_at_once(engine: Engine, sock: socket.socket, traffic_class: int) -> Outcome | None:
    """Begin a connection with a ticket of the server's; None, and the TCP connection as it was, without."""
    try:
        local, remote = plain_address(sock.getsockname()), plain_address(sock.getpeername())
        pipe = engine.open_early(sock, show(remote), traffic_class)
    except BaseException:
        sock.close()
        raise
    return None if pipe is None else Outcome(pipe, sock, None, local, remote)


async def _in_full(
    engine: Engine,
    connect: Callable[[], Awaitable[Carrier]],
    config: Config,
    mode: Mode,
    peer: tuple[str, int, bool],
    kind: int,
) -> Outcome:
    """Ask the peer, and wait for its answer."""
    if mode == "rdma":
        return await _propose(engine, await connect(), config, mode, None, kind)
    async with contextlib.nullcontext() if peers.is_known(peer) else peers.ask_alone(peer):
        reason = peers.plain_reason(peer)
        if reason is not None:
            return _plain(await connect(), reason)
        again = None if peers.is_known(peer) else connect
        try:
            outcome = await _propose(engine, await connect(), config, mode, again, kind)
        except _PlainPeer as found:
            reason = FallbackReason.of_local(Code.PLAIN_TCP_PEER, found.text)
            peers.remember_plain(peer, reason, config.plain_peer_memory_ms / 1000)
            return _plain(found.carrier or await connect(), reason)
        peers.remember_clc(peer)
        return outcome


class _PlainPeer(Exception):
    """The peer does not negotiate; ``carrier`` is a new connection to it, if there is one already."""

    def __init__(self, text: str, carrier: Carrier | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.carrier = carrier


async def _propose(
    engine: Engine,
    carrier: Carrier,
    config: Config,
    mode: Mode,
    connect_again: Callable[[], Awaitable[Carrier]] | None,
    kind: int,
) -> Outcome:
    """The client's negotiation.

    :param connect_again: the peer is unknown: after a head start, make a plain connection beside this one.
    :raises _PlainPeer: it does not negotiate (``carrier`` is closed).
    """
    offer: ClientContact | None = None
    pipe: Any = None
    try:
        with Wire(carrier) as wire:
            propose = functools.partial(
                engine.propose, kind, peer=wire.peer, traffic_class=config.traffic_class
            )
            offer = await propose()
            handshake = ClientHandshake(offer.proposal, _timeouts(config), wire.now())
            events = handshake.start()
            refusal: NegotiationError | None = None
            first_contact = True
            while True:
                event = events.pop(0) if events else None
                if isinstance(event, Send):
                    await wire.send(event.data)
                elif isinstance(event, Accepted):
                    if not _proves(event.accept, offer.proposal):
                        raise _PlainPeer("its Accept does not prove that it read the Proposal")
                    first_contact = event.accept.first_contact
                    offer.awaits_tcp = True
                    try:
                        confirm = await offer.accepted(event.accept, wire.peer)
                    except NegotiationError as error:
                        if error.code == Code.LINK_NOT_FOUND and handshake.may_ask_again:
                            offer.abandon()
                            offer = await propose(unknown_qpn=event.accept.qpn)
                            events = handshake.again(offer.proposal, wire.now())
                        else:
                            refusal = error
                            events = handshake.refuse(error.code, wire.now())
                    else:
                        events = handshake.ready(confirm, wire.now())
                elif isinstance(event, UseTcp):
                    offer.abandon()
                    return _on_tcp(wire, _tcp_reason(event, refusal), mode)
                elif isinstance(event, UseRdma):
                    wire.release()
                    pipe.attach_tcp(wire.tls or wire.sock)
                    return Outcome(pipe, wire.sock, None, wire.local, wire.remote, wire.tls)
                elif isinstance(event, PlainPeer):
                    raise _PlainPeer(event.text)
                elif isinstance(event, Failed):
                    raise NegotiationError(event.code, event.text)
                elif handshake.state is State.CONFIRMED:
                    pipe, events = await _finish(offer.established, handshake, wire, watch=first_contact)
                elif connect_again is not None:
                    connect, connect_again = connect_again, None
                    events = await _listen_with_head_start(wire, handshake, config, connect)
                else:
                    events = await wire.receive(handshake)
    except BaseException as exc:
        _give_up(offer, pipe, carrier)
        if isinstance(exc, _PlainPeer) and mode == "rdma":
            raise NegotiationError(Code.PLAIN_TCP_PEER, exc.text) from None
        raise


def _proves(accept: clc.Accept, proposal: clc.Proposal) -> bool:
    # Another SMC implementation knows no proof; the engine declines it for what it is. It also knows what
    # proves an Accept for a link that exists.
    if not accept.is_aiordma or not accept.first_contact:
        return True
    return accept.proof == accept_proof(proposal.nonce, accept.engine_id)


async def _listen_with_head_start(
    wire: Wire,
    handshake: ClientHandshake,
    config: Config,
    connect: Callable[[], Awaitable[Carrier]],
) -> list[Event]:
    """Wait for the answer of a peer that may not know what it was asked.

    :raises _PlainPeer: the head start is over, and a plain connection was there before the answer.
    """
    with anyio.move_on_after(config.head_start_ms / 1000):
        return await wire.receive(handshake)
    events: list[Event] = []
    with contextlib.ExitStack() as stack:
        plain: Carrier | None = None

        async def listen(scope: anyio.CancelScope) -> None:
            events.extend(await wire.receive(handshake))
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen, tasks.cancel_scope)
            # No second connection to be had: the first one's answer, or its timeout, decides.
            with contextlib.suppress(OSError):
                plain = await connect()
                stack.callback(plain.close)
                tasks.cancel_scope.cancel()
        if plain is not None and not events:
            # A busy loop may be late for both: what has arrived counts, not what was noticed first.
            if not wire.has_data():
                stack.pop_all()
                raise _PlainPeer(f"it did not answer within {config.head_start_ms} ms", plain)
            events = await wire.receive(handshake)
    return events


# ---- server


async def server(
    sock: socket.socket,
    *,
    config: Config,
    mode: Mode | None = None,
    may_use_rdma: Callable[[], bool] = lambda: True,
    tls: Tls | None = None,
    kind: int = 0,
    service: GrantingListener | None = None,
) -> Outcome:
    """Find out what the client of an accepted connection speaks, and agree on the path. Takes ``sock`` over.

    :param may_use_rdma: asked when a Proposal is there; False declines it: too much is going on already.
    :param service: the listener, if it hands out tickets (``Engine.grant_rings``).
    :param tls: everything goes through TLS; a client that does not begin with TLS is turned away.
    :param kind: what the connections of this listener carry; a Proposal of another kind is turned away.
    :raises OSError: the connection broke.
    :raises NegotiationError: the negotiation failed; or mode "rdma", and RDMA is not to be had. The
        connection is closed.
    """
    mode = mode or config.mode
    offer: ServerContact | None = None
    pipe: Any = None
    carrier: Carrier = sock
    try:
        if tls is not None:
            carrier = await tls.begin(sock, config)
        with Wire(carrier) as wire:
            verdict = await wire.peek(config, patient=mode == "rdma")
            if not verdict:
                reason = FallbackReason.of_local(Code.PEER_NO_SMC)
                return _on_tcp(wire, reason, mode, silent=verdict is None)
            handshake = ServerHandshake(_timeouts(config), wire.now())
            events: list[Event] = []
            refusal: NegotiationError | None = None
            while True:
                event = events.pop(0) if events else None
                if isinstance(event, Send):
                    await wire.send(event.data)
                elif isinstance(event, Proposed):
                    if offer is not None:
                        offer.abandon()  # the client does not know its link, and asks again
                        offer = None
                    try:
                        if event.proposal.is_aiordma and event.proposal.kind != kind:
                            raise NegotiationError(
                                Code.WRONG_KIND, f"kind {event.proposal.kind} there, {kind} here"
                            )
                        if mode == "tcp":
                            raise NegotiationError(Code.DISABLED)
                        if tls is not None and not tls.rdma_outside_tls:
                            raise NegotiationError(Code.TLS_PAYLOAD_POLICY)
                        if not may_use_rdma():
                            raise NegotiationError(
                                Code.LIMIT_REACHED, "too many negotiations at the same time"
                            )
                        engine = await find_engine(config)
                        offer = await engine.answer(event.proposal, wire.peer, service, wire.local)
                    except NegotiationError as error:
                        refusal = error
                        events = handshake.refuse(error.code, wire.now())
                    else:
                        events = handshake.ready(offer.accept, wire.now())
                elif isinstance(event, Claimed):
                    try:
                        pipe = (await find_engine(config)).claim(event.claim, service)
                    except NegotiationError as error:
                        events = handshake.refuse(error.code, wire.now())
                    else:
                        events = handshake.established(wire.now())
                elif isinstance(event, Confirmed):
                    assert offer is not None
                    offer.awaits_tcp = True
                    work = functools.partial(offer.confirmed, event.confirm)
                    try:
                        pipe, events = await _finish(work, handshake, wire, watch=event.confirm.first_contact)
                    except NegotiationError as error:
                        refusal = error
                        events = handshake.refuse(error.code, wire.now())
                elif isinstance(event, UseTcp):
                    if offer is not None:
                        offer.abandon()
                    return _on_tcp(wire, _tcp_reason(event, refusal), mode)
                elif isinstance(event, UseRdma):
                    wire.release()
                    pipe.attach_tcp(wire.tls or wire.sock)
                    return Outcome(pipe, wire.sock, None, wire.local, wire.remote, wire.tls)
                elif isinstance(event, Failed):
                    raise NegotiationError(event.code, event.text)
                else:
                    events = await wire.receive(handshake)
    except BaseException:
        if offer is not None and pipe is None and not offer.first_contact:
            await _part(offer, handshake, wire)
        _give_up(offer, pipe, carrier)
        raise


async def _part(offer: ServerContact, handshake: ServerHandshake, wire: Wire) -> None:
    """This end gives up after it may have sent its Accept, on a link that others use as well: the client may
    be writing into the ring by now, or be about to. Hear what it has decided before the ring is given back.
    """
    with anyio.CancelScope(shield=True):
        if handshake.state is State.ACCEPTED:
            for event in await wire.receive(handshake):
                if isinstance(event, Confirmed):
                    with contextlib.suppress(NegotiationError):
                        # From here on each end can tell the other that it writes no more.
                        (await offer.confirmed(event.confirm)).abort()
                        return
                elif isinstance(event, UseTcp):
                    return
    if not wire.at_end():
        offer.break_link("the client of a new connection did not answer in time")


# ---- both


async def _finish(
    work: Callable[[], Awaitable[Any]],
    handshake: ClientHandshake | ServerHandshake,
    wire: Wire,
    *,
    watch: bool,
) -> tuple[Any, list[Event]]:
    """The last step of this end; meanwhile the TCP connection is watched: the peer may decline, or die.

    Its outcome and the peer's word may come in the same turn of the loop: what ends the handshake first
    decides.

    :param watch: on a link that exists already there is nothing to wait for, and so nothing to watch.
    :returns: the pipe if the link is to be used, else None; and the events that end the negotiation.
    :raises NegotiationError: the peer's answer does not fit; it can still be declined.
    """
    pipe: Any = None
    events: list[Event] = []
    refused: NegotiationError | None = None

    async def finish() -> None:
        nonlocal pipe, refused
        try:
            pipe = await work()
        except NegotiationError as error:
            refused = error
        except (LinkError, VerbsError, CompletionError, RemoteProtocolError) as error:
            code = Code.TIMEOUT_CONFIRM_LINK if isinstance(error, LinkError) else Code.DEVICE_FAILURE
            if isinstance(error, RemoteProtocolError):
                code = Code.PROTOCOL_VIOLATION
            if not handshake.done:
                events.extend(handshake.broken(code, str(error), wire.now()))
        else:
            # At once: what the peer sends from now on is the stream's.
            if not handshake.done:
                events.extend(handshake.established(wire.now()))

    async def listen(scope: anyio.CancelScope) -> None:
        heard = await wire.receive(handshake)
        if heard:
            events.extend(heard)
            scope.cancel()

    try:
        if watch:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen, tasks.cancel_scope)
                await finish()
                tasks.cancel_scope.cancel()
        else:
            await finish()
        if refused is not None and not events:
            if isinstance(handshake, ServerHandshake):
                raise refused
            events = handshake.broken(refused.code, refused.detail, wire.now())
    except BaseException:
        # Cancelled between the pipe's end of the work and ours: the offer has let go of it already.
        if pipe is not None:
            pipe.abort()
        raise
    if pipe is not None and handshake.state is not State.RDMA:
        pipe.abort()
        pipe = None
    return pipe, events


def _tcp_reason(event: UseTcp, refusal: NegotiationError | None) -> FallbackReason:
    if event.peer is not None or refusal is None:
        return FallbackReason.of_peer(event.code)
    return FallbackReason.of_error(refusal)


def _on_tcp(wire: Wire, reason: FallbackReason, mode: Mode, *, silent: bool = False) -> Outcome:
    if mode == "rdma" or reason.code == Code.WRONG_KIND:
        raise NegotiationError(reason.code, reason.text)
    return Outcome(None, wire.sock, reason, wire.local, wire.remote, wire.tls, silent)


def _give_up(offer: ClientContact | ServerContact | None, pipe: Any, carrier: Carrier) -> None:
    if offer is not None:
        offer.abandon()
    if pipe is not None:
        pipe.abort()
    carrier.close()


def _plain(carrier: Carrier, reason: FallbackReason) -> Outcome:
    try:
        return _on_tcp(Wire(carrier), reason, "auto")
    except BaseException:
        carrier.close()
        raise


def _timeouts(config: Config) -> Timeouts:
    return Timeouts(
        negotiate=config.negotiate_timeout_ms / 1000,
        link=config.link_timeout_ms / 1000,
        first_bytes=config.server_first_wait_ms / 1000,
    )
