"""A negotiation with a peer that is the Linux kernel's SMC-R, at either end.

Such a peer has said so by a TCP option, so its next bytes are CLC, and it takes this end's next bytes for
CLC: one that cannot use RDMA declines, and the connection goes on over TCP.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Code, FallbackReason, NegotiationError, describe
from ..proto.clc import Decline
from ..proto.events import Failed, PlainPeer, Proposed, Send, UseRdma, UseTcp
from ..proto.handshake import ServerHandshake
from .clc_io import ClcIO
from .client import PlainPeerFound
from .dialogue import NegotiationResult
from .engine import find_engine

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ..proto.events import Event
    from .engine import Engine
    from .options import PathOptions


class Contact(Protocol):
    """One negotiation of the engine (``links.smcr.contact.KernelContact``)."""

    pipe: Any
    refusal: NegotiationError | None

    @property
    def description(self) -> str: ...
    @property
    def done(self) -> bool: ...
    @property
    def heard_all(self) -> bool: ...
    def next_deadline(self) -> float | None: ...
    def start(self) -> list[Event]: ...
    def receive(self, data: bytes, now: float) -> list[Event]: ...
    def eof(self, now: float) -> list[Event]: ...
    def on_timer(self, now: float) -> list[Event]: ...
    def abandon(self) -> None: ...


async def connect_kernel(sock: socket.socket, options: PathOptions, engine: Engine) -> NegotiationResult:
    """Client: propose SMC-R on a new connection whose SYN-ACK had the option. Owns ``sock``.

    :raises PlainPeerFound: the server did not answer as such a peer does.
    :raises NegotiationError: the negotiation broke off half-way; or mode "rdma", and RDMA cannot be used.
    """
    return await _Dialogue(sock, options).run(engine, client=True)


async def accept_kernel(
    sock: socket.socket, options: PathOptions, may_use_rdma: Callable[[], bool]
) -> NegotiationResult:
    """Server: answer the Proposal, which is there, of a client whose SYN had the option. Owns ``sock``.

    :param may_use_rdma: False: too many negotiations are under way.
    :raises NegotiationError: as :func:`connect_kernel`.
    """
    try:
        if not may_use_rdma():
            raise NegotiationError(Code.LIMIT_REACHED, "too many negotiations at the same time")
        engine = await find_engine(options.config)
    except NegotiationError as error:
        return await decline_kernel(sock, options, error)
    except BaseException:
        sock.close()
        raise
    return await _Dialogue(sock, options).run(engine, client=False)


async def decline_kernel(
    sock: socket.socket, options: PathOptions, error: NegotiationError
) -> NegotiationResult:
    """Server: read the client's Proposal, and say that this end does not use RDMA, and why. Owns ``sock``.

    :raises NegotiationError: as :func:`connect_kernel`.
    """
    dialogue = _Dialogue(sock, options)
    try:
        with ClcIO(sock) as dialogue.io:
            return await dialogue.decline(error)
    except BaseException:
        sock.close()
        raise


def _no_way_on(event: Event) -> NegotiationError:
    """Why the negotiation ends with an event: it failed, or this end has no answer to that, and the peer
    would wait for one for ever."""
    if isinstance(event, Failed):
        return NegotiationError(event.code, event.text)
    return NegotiationError(Code.INTERNAL, f"there is no answer to {type(event).__name__}")


class _Dialogue:
    """One end's negotiation on one TCP connection, which it owns."""

    io: ClcIO

    def __init__(self, sock: socket.socket, options: PathOptions) -> None:
        self._sock, self._options = sock, options
        self._events: deque[Event] = deque()
        self._contact: Contact | None = None

    async def run(self, engine: Engine, *, client: bool) -> NegotiationResult:
        try:
            with ClcIO(self._sock) as self.io:
                try:
                    peers = engine.kernel_peers(self.io.peer)
                except NegotiationError as error:
                    return await (self._withdraw(error) if client else self.decline(error))
                begin = peers.propose if client else peers.answer
                self._contact = contact = begin(self.io.peer, self._options.timeouts(), self._tell)
                if client:
                    self._events.extend(contact.start())
                return await self._converse(contact)
        except BaseException:
            if self._contact is not None:
                self._contact.abandon()
                if self._contact.pipe is not None:
                    self._contact.pipe.abort()
            self._sock.close()
            raise

    async def _withdraw(self, error: NegotiationError) -> NegotiationResult:
        """Client: say that this end cannot, instead of a Proposal."""
        await self.io.send(Decline(diagnosis=error.code, version=2).encode())
        return self._on_tcp(FallbackReason.of_error(error))

    async def decline(self, error: NegotiationError) -> NegotiationResult:
        """Server: the same as an answer to the client's first message."""
        io = self.io
        handshake = ServerHandshake(self._options.timeouts(), io.now())
        handshake.with_other_smc()
        while True:
            for event in await io.receive(handshake):
                if isinstance(event, Proposed):
                    for answer in handshake.refuse(error.code, io.now()):
                        if isinstance(answer, Send):
                            await io.send(answer.data)
                    return self._on_tcp(FallbackReason.of_error(error))
                if isinstance(event, UseTcp):
                    return self._on_tcp(FallbackReason.of_peer(event.code))
                raise _no_way_on(event)

    def _tell(self, events: list[Event]) -> None:
        """The link has something to say."""
        self._events.extend(events)
        self.io.wake()

    async def _converse(self, contact: Contact) -> NegotiationResult:
        while True:
            while not self._events:
                self._events.extend(await self.io.receive(contact))
            event = self._events.popleft()
            if isinstance(event, Send):
                await self.io.send(event.data)
            elif isinstance(event, UseRdma):
                return self._on_rdma(contact)
            elif isinstance(event, UseTcp):
                contact.abandon()
                return self._on_tcp(self._reason(event, contact))
            elif isinstance(event, PlainPeer):
                raise PlainPeerFound(event.text, spoke=event.spoke)
            else:
                raise _no_way_on(event)

    @staticmethod
    def _reason(event: UseTcp, contact: Contact) -> FallbackReason:
        if event.peer is not None:
            return FallbackReason.of_peer(event.code)
        if contact.refusal is not None:
            return FallbackReason.of_error(contact.refusal)
        return FallbackReason.of_local(event.code)

    def _on_rdma(self, contact: Contact) -> NegotiationResult:
        io, pipe = self.io, contact.pipe
        io.hand_over()
        pipe.attach_tcp(io.sock)
        return NegotiationResult(pipe, io.sock, None, io.local, io.remote, smc_peer=contact.description)

    def _on_tcp(self, reason: FallbackReason) -> NegotiationResult:
        """:raises NegotiationError: that is no way to go on here."""
        if self._options.mode == "rdma":
            said = "the peer declined" if reason.peer is not None else reason.text
            raise NegotiationError(reason.code, said.removeprefix(describe(reason.code)).removeprefix(": "))
        io = self.io
        return NegotiationResult(None, io.sock, reason, io.local, io.remote)
