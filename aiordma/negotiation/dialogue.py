"""What both ends of a negotiation have in common: the loop that handles the events of the handshake.

The state machine itself is :mod:`aiordma.proto.handshake`. An end has one method for each event, found by the
event's class; the method does what the event asks for and queues what the handshake answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from ..errors import Code, FallbackReason, NegotiationError, describe
from ..pipes.tcp import TcpPipe
from ..pipes.tls import TlsPipe
from ..proto.clc import Kind
from ..proto.events import Failed, Send, UseRdma, UseTcp
from ..verbs.remedies import warn_once
from .clc_io import ClcIO
from .engine import Contact

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping
    from ssl import SSLObject

    from ..addresses import Address
    from ..pipes.tls import TlsLayer
    from ..proto.events import Event
    from ..proto.handshake import ClientHandshake, ServerHandshake
    from .clc_io import Carrier
    from .options import PathOptions

H = TypeVar("H", "ClientHandshake", "ServerHandshake")
C = TypeVar("C", bound=Contact)


class NegotiationResult(NamedTuple):
    """How a negotiation ended: which path the connection takes, and the objects for going on."""

    pipe: Any
    """The ring pipe, which owns the TCP connection now; None: use ``sock``."""
    sock: socket.socket
    """The TCP connection, non-blocking. Without a pipe the caller owns it."""
    fallback: FallbackReason | None
    """Why there is no pipe."""
    local_address: Address
    remote_address: Address
    tls: TlsLayer | None = None
    """The TLS session on ``sock``; without a pipe, the stream goes through it (:class:`TlsPipe`)."""
    silent: bool = False
    """The client had sent nothing when the server stopped waiting for its first bytes. If they are a Proposal
    after all, they do not belong to the stream: :class:`TcpPipe` removes them."""

    smc_peer: str | None = None
    """With a pipe to another implementation of SMC-R: what that says of itself."""

    @property
    def path(self) -> str:
        """``"RDMA"`` or ``"TCP"``, for people."""
        return "TCP" if self.pipe is None else "RDMA"

    @property
    def session(self) -> SSLObject | None:
        """The TLS session of the connection, if it has one."""
        return None if self.tls is None else self.tls.session

    def tcp_pipe(self) -> TcpPipe | TlsPipe:
        """Make a pipe on the TCP connection, which the pipe owns from now on. Only without a ring pipe."""
        if self.tls is None:
            return TcpPipe(self.sock, late_proposal=self.silent)
        return TlsPipe(self.tls, late_proposal=self.silent)


def wrong_kind(client: int, server: int | None) -> NegotiationError:
    """The two ends speak of different things, which no path can repair."""
    text = f"the client wants {Kind.name_of(client)}, the server serves {Kind.name_of(server)}"
    return NegotiationError(Code.WRONG_KIND, text)


class Dialogue(Generic[H, C]):
    """One end's negotiation on one TCP connection, which it owns.

    :param carrier: the TCP connection, or TLS on it.
    :param kind: the kind of connection (``clc.Proposal.kind``).
    """

    handlers: ClassVar[Mapping[type[Any], Callable[[Any, Any], Awaitable[None]]]]
    """The method for each class of event."""
    handshake: H
    io: ClcIO

    def __init__(self, carrier: Carrier, options: PathOptions, kind: int) -> None:
        self.carrier, self.options, self.kind = carrier, options, kind
        self.contact: C | None = None
        self.pipe: Any = None
        #: Why this end declined.
        self.refusal: NegotiationError | None = None
        self.result: NegotiationResult | None = None
        self._events: deque[Event] = deque()

    async def run(self) -> NegotiationResult:
        """Negotiate until the path is agreed on. On failure everything is released, and the TCP connection
        closed.

        :raises NegotiationError: the negotiation failed; or mode "rdma", and RDMA cannot be used.
        :raises OSError: the connection broke.
        """
        try:
            with ClcIO(self.carrier) as self.io:
                try:
                    return await self._converse()
                except BaseException:
                    await self.before_release()
                    raise
        except BaseException as error:
            missing = self._missing()
            if self.contact is not None:
                self.contact.abandon()
            if self.pipe is not None:
                self.pipe.abort()
            self.carrier.close()
            if missing is not None and isinstance(error, NegotiationError):
                raise missing from error
            raise

    def _missing(self) -> NegotiationError | None:
        """What the device lacked for the connection, if that is why it failed."""
        found = self.contact.shortage() if self.contact is not None else None
        return None if found is None else found.error()

    async def _converse(self) -> NegotiationResult:
        await self.begin()
        while self.result is None:
            if not self._events:
                await self.wait()
                continue
            event = self._events.popleft()
            await self.handlers[type(event)](self, event)
        return self.result

    # ---- what an end defines

    async def begin(self) -> None:
        """Make the handshake, and queue its first events; or set the result."""
        raise NotImplementedError

    async def wait(self) -> None:
        """No event is left: wait for what comes next."""
        self.queue(await self.io.receive(self.handshake))

    async def before_release(self) -> None:
        """The negotiation failed, and the connection is still open."""

    # ---- tools and common events

    def queue(self, events: list[Event]) -> None:
        """Events to handle next."""
        self._events.extend(events)

    def refuse(self, error: NegotiationError) -> None:
        """This end cannot use RDMA: decline, with the reason."""
        error = self._missing() or error
        if error.code in (Code.DEVICE_FAILURE, Code.OUT_OF_MEMORY) and self.options.mode != "rdma":
            warn_once(error)
        self.refusal = error
        kind = self.kind if error.code == Code.WRONG_KIND else None
        self.queue(self.handshake.refuse(error.code, self.io.now(), kind))

    def use_tcp(self, reason: FallbackReason, *, silent: bool = False) -> None:
        """The end: the stream goes over this TCP connection.

        :raises NegotiationError: that is no way to go on here.
        """
        if self.refusal is not None and reason.code == Code.WRONG_KIND:
            raise self.refusal
        if self.options.mode == "rdma":
            said = "the peer declined" if reason.peer is not None else reason.text
            raise NegotiationError(reason.code, said.removeprefix(describe(reason.code)).removeprefix(": "))
        io = self.io
        self.result = NegotiationResult(None, io.sock, reason, io.local, io.remote, io.tls, silent)

    async def on_send(self, event: Send) -> None:
        await self.io.send(event.data)

    async def on_use_tcp(self, event: UseTcp) -> None:
        # The peer may have seen only that the connection did not come about, for want of something here.
        failed = event.peer in (Code.DEVICE_FAILURE, Code.OUT_OF_MEMORY)
        missing = self._missing() if failed else None
        if self.contact is not None:
            self.contact.abandon()
            if event.peer is not None:
                self.contact = None  # the peer uses nothing of what it was offered
        if event.peer == Code.WRONG_KIND:
            raise wrong_kind(self.kind, event.kind)
        if missing is not None:
            if self.options.mode == "rdma":
                raise missing
            warn_once(missing)
            reason = FallbackReason.of_peer(event.code)
            self.use_tcp(replace(reason, text=f"{reason.text}: {missing.detail}"))
        elif event.peer is not None or self.refusal is None:
            self.use_tcp(FallbackReason.of_peer(event.code))
        else:
            self.use_tcp(FallbackReason.of_error(self.refusal))

    async def on_use_rdma(self, event: UseRdma) -> None:
        self.use_pipe()

    def use_pipe(self, received: bytes = b"") -> None:
        """The end: the stream is on the pipe.

        :param received: what has come on the TCP connection beside it.
        """
        io = self.io
        io.hand_over()
        if received:
            self.pipe.attach_tcp(io.tls or io.sock, received)
        else:
            self.pipe.attach_tcp(io.tls or io.sock)
        self.result = NegotiationResult(self.pipe, io.sock, None, io.local, io.remote, io.tls)

    async def on_failed(self, event: Failed) -> None:
        raise NegotiationError(event.code, event.text)
