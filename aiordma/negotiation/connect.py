"""A connection to a server, whatever it speaks: negotiated where possible, plain TCP otherwise.

Nothing is proposed to a peer that is known to be a plain one, and a peer that turns out to be one gets a new
connection, which has carried nothing but the stream. A listener on this host that announces itself is asked
whatever was found out before: it may have been busy then, or another program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .. import wake
from ..addresses import plain_address, show
from ..errors import Code, FallbackReason, NegotiationError
from ..observe import companion, connections
from ..verbs.remedies import warn_once
from ..wake.interrupts import uninterrupted
from . import smc_option
from .announcement import arrive, leave
from .clc_io import ClcIO
from .client import ClientNegotiation, PlainPeerFound, withdraw
from .dialogue import NegotiationResult
from .engine import find_engine, ready_engine
from .kernel_peer import connect_kernel
from .peer_cache import Peer, announces_itself, are_elsewhere, only_seems_near
from .tcp_connect import connect_tcp, resolve

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from ..proto.syn_option import SynOption
    from ..wake.base import Waker
    from .clc_io import Carrier
    from .engine import Engine
    from .options import ConnectOptions
    from .tcp_connect import Candidate

    #: Makes another connection of one that is late: returns it, or None where there is no need.
    Renew = Callable[[], Awaitable["socket.socket | None"]]

#: What opening a connection without a round trip takes of an asyncio task's share of operations that do not
#: wait.
_OPEN_SHARE = 16
#: A TCP connection that took longer is not begun on a ring, where the setting for silent clients is 0.
_STALLED_S = 0.25
#: Nor is one that took longer than this to a server that seems to be of this host and is none that has
#: announced itself, as behind a forwarder: it may take the client for a silent one of its own host.
_NEAR_STALLED_S = 0.025
_NO_OPTION = "its SYN-ACK does not have SMC's TCP option"
_IS_PLAIN = FallbackReason.of_local(Code.PLAIN_TCP_PEER, _NO_OPTION)


@uninterrupted
async def connect_and_negotiate(
    host: str,
    port: int,
    options: ConnectOptions,
    kind: int = 0,
    *,
    sock: socket.socket | None = None,
    renew: Renew | None = None,
    candidates: list[Candidate] | None = None,
) -> NegotiationResult:
    """Connect to ``host``:``port`` and agree on the path. With TLS, nothing is ever sent in clear.

    :param kind: what the connection will carry (``clc.Proposal.kind``).
    :param sock: a non-blocking TCP connection to ``host``:``port`` that has carried nothing yet: the
        negotiation takes place on it, and it is this function's from here on.
    :param renew: called when ``sock`` has been silent while another attempt was waited for.
    :param candidates: the addresses of ``host``, if its caller has looked them up.
    :raises OSError: no TCP connection could be made.
    :raises NegotiationError: mode "rdma", and RDMA cannot be used; or, in any mode, the negotiation broke off
        at a point where the two ends might disagree about its result; or the peer listens for another kind of
        connection.
    """
    try:
        if candidates is None:
            candidates = await resolve(host, port)
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    attempt = _Attempt(wake.current(), candidates, options, kind, sock, renew)
    try:
        result = await attempt.run(host, port)
        if result.fallback is not None:
            result = attempt.explained(result, result.fallback)
        connections.enter(attempt.waker, result, kind, "client")
        return result
    finally:
        attempt.close()


class _Attempt:
    """One call of :func:`connect_and_negotiate`."""

    def __init__(
        self,
        waker: Waker,
        candidates: list[Candidate],
        options: ConnectOptions,
        kind: int,
        spare: socket.socket | None,
        renew: Renew | None,
    ) -> None:
        self.waker, self._candidates, self._options, self._kind = waker, candidates, options, kind
        #: A TCP connection that is open and unused.
        self._spare = spare
        self._renew = renew
        #: When it was opened, where this attempt has done so.
        self._open_since = 0.0
        #: Seconds after which a server that negotiates may have given up a silent client.
        self._patience = options.config.server_first_wait_ms / 2000 or _STALLED_S
        #: The SYN of that connection has asked, and what the SYN-ACK says; None: nothing.
        self._asked: smc_option.Question | None = None
        self._said: SynOption | None = None
        #: Why that is not known, for people.
        self._unheard = ""
        #: The server of that connection has granted rings to this end: it negotiates.
        self._has_granted = False
        #: Where servers of this host expect this client.
        self._ports: list[int] = []

    def close(self) -> None:
        """Close what was not used."""
        if self._spare is not None:
            self._spare.close()

    def explained(self, result: NegotiationResult, reason: FallbackReason) -> NegotiationResult:
        """With what has failed before: the server may be a kernel's SMC-R for all that."""
        if not self._unheard:
            return result
        return result._replace(fallback=replace(reason, text=f"{reason.text} ({self._unheard})"))

    async def run(self, host: str, port: int) -> NegotiationResult:
        """Choose the path to this server."""
        mode = self._options.mode
        if (code := self._options.rdma_ruled_out) is not None:
            if mode == "rdma":
                raise NegotiationError(code)
            return _plain(await self._connect(), FallbackReason.of_local(code))
        try:
            plain = await self._before_an_engine()
            if plain is not None:
                return plain
            try:
                engine = await find_engine(self._options.config, self.waker)
                engine.check_not_drained()
            except NegotiationError as error:
                if mode == "rdma":
                    raise
                warn_once(error)
                self._drop_what_asked()
                return _plain(await self._connect(), FallbackReason.of_error(error))
            self._arrive()
            opened = await self._open_early(engine) or await self._by_option(engine)
            if opened is not None:
                return opened
            if mode == "rdma":
                carrier = await self._connect()
                return await ClientNegotiation(carrier, self._options, self._kind, engine).run()
            options = self._options
            peer = Peer(host, port, options.config, self._candidates, tls=options.tls is not None)
            # An echo of this end's own option says nothing.
            peer.is_aiordma = self._has_granted or (self._said is not None and self._said.in_answer)
            async with peer.known() as has_waited:
                if has_waited and peer.plain_reason() is None:
                    await self._renew_spare(peer)
                return await self._negotiate_or_fall_back(engine, peer)
        finally:
            self._leave()

    def _arrive(self) -> None:
        """A server of this host may wait for what this client will say."""
        if not self._ports and not are_elsewhere(self._candidates):
            self._ports = arrive(self._candidates)

    def _leave(self) -> None:
        if self._ports:
            leave(self._ports)
            self._ports = []

    async def _connect(self) -> Carrier:
        return await self._options.begin(await self._connect_tcp())

    async def _connect_tcp(self) -> socket.socket:
        spare, self._spare = self._spare, None
        if spare is not None:
            return spare
        return await connect_tcp(self._candidates, self._options.local_host)

    async def _renew_spare(self, peer: Peer) -> None:
        """A server takes a client that is silent for long for a plain one: what is open may be late."""
        if self._spare is None:
            return
        if self._renew is not None:
            new = await self._renew()
            if new is not None:
                self._spare.close()
                self._spare = new
        elif peer.negotiates and self.waker.now() - self._open_since > self._patience:
            spare, self._spare = self._spare, None
            with spare:
                await withdraw(spare)

    # ---- without a round trip

    async def _open_early(self, engine: Engine) -> NegotiationResult | None:
        """Begin with a ticket; None if there is none for this server."""
        wanted = self._options.config.traffic_class
        if self._options.tls is not None or self._kind or self._has_asked:
            return None
        servers = engine.early_servers
        for _, sockaddr in self._candidates:
            shown = show(sockaddr)
            if (shown, wanted) in servers:
                break
        else:
            return None
        self._has_granted = True
        await self._give_way()
        now = self.waker.now
        began = now()
        await self._ask()
        if self._asked is not None and (self._is_kernel or self._is_plain):
            self._has_granted = False
            return None  # it has become another one
        sock = await self._connect_tcp()
        took = now() - began
        if took > self._patience or (took > _NEAR_STALLED_S and only_seems_near(self._candidates)):
            # This process did not run: the server may have taken the silent client for a plain one.
            # The bytes in a ring would be lost then. A negotiation may fail without harm.
            self._spare = sock
            return None
        try:
            local, remote = plain_address(sock.getsockname()), plain_address(sock.getpeername())
            pipe = engine.open_early(sock, shown if remote == sockaddr else show(remote), wanted)
        except BaseException:
            sock.close()
            raise
        if pipe is not None:
            return NegotiationResult(pipe, sock, None, local, remote)
        self._spare = sock  # as it was: the negotiation takes place on it
        return None

    def _is_linked(self, engine: Engine) -> bool:
        """Whether a link to this server is up, over which it has granted rings."""
        wanted, servers = self._options.config.traffic_class, engine.early_servers
        return any((show(sockaddr), wanted) in servers for _, sockaddr in self._candidates)

    async def _give_way(self) -> None:
        """The checkpoint of a connect that waits for no answer."""
        waker = self.waker
        if waker.share > 0:
            waker.share -= _OPEN_SHARE
            await waker.cancel_check()
        else:
            await waker.checkpoint()

    # ---- by the TCP option

    async def _ask(self) -> None:
        """Connect with a SYN that asks, where this host is set up for it. The connection is the spare one."""
        options = smc_option.may_be_used(self._options, self._kind)
        if options is None or self._spare is not None:
            return
        question = smc_option.Question(options)
        sock = await connect_tcp(self._candidates, self._options.local_host, question)
        try:
            self._said = question.answer(sock)
        except OSError:  # whether the server waits for CLC is not known any more
            sock.close()
        else:
            self._spare, self._asked = sock, question
            self._open_since = self.waker.now()
        self._unheard = question.problem

    async def _before_an_engine(self) -> NegotiationResult | None:
        """The first connection of a loop: where the SYN-ACK alone may say that the server is a plain one, no
        device is opened to hear it. That takes a hundred times as long as the connection."""
        config = self._options.config
        if not config.smcr_strict or config.device == "none" or ready_engine(self.waker) is not None:
            return None
        self._arrive()
        await self._ask()
        if not self._is_plain:
            return None
        companion.begin(self.waker, config)
        return self._without_option()

    def _drop_what_asked(self) -> None:
        """No engine, and the server may wait for CLC: on the connection that asked, or for the name."""
        self._leave()
        if self._has_asked and self._spare is not None:
            self._spare.close()
            self._spare = None

    async def _by_option(self, engine: Engine) -> NegotiationResult | None:
        """What the SYN-ACK alone decides; None: the rest decides as ever."""
        await self._ask()
        if self._is_kernel:
            return await self._with_kernel(engine)
        return self._without_option() if self._is_plain else None

    def _without_option(self) -> NegotiationResult:
        """On the connection that asked, which has no TLS."""
        if self._options.mode == "rdma":
            raise NegotiationError(Code.PLAIN_TCP_PEER, _NO_OPTION)
        sock, self._spare = self._spare, None
        assert sock is not None
        return _plain(sock, _IS_PLAIN)

    @property
    def _has_asked(self) -> bool:
        return self._asked is not None

    @property
    def _is_kernel(self) -> bool:
        return self._said is not None and not self._said.is_aiordma

    @property
    def _is_plain(self) -> bool:
        """No option came back where all that negotiate send it, and nothing else says that it does."""
        asked, strict = self._asked, self._options.config.smcr_strict
        if asked is None or not asked.unanswered or not strict:
            return False
        return not (self._ports and announces_itself(self._candidates))

    async def _with_kernel(self, engine: Engine) -> NegotiationResult:
        try:
            return await connect_kernel(await self._connect_tcp(), self._options, engine)
        except PlainPeerFound as found:
            if self._options.mode == "rdma":
                raise NegotiationError(Code.PLAIN_TCP_PEER, found.text) from None
            return _plain(await self._connect(), FallbackReason.of_local(Code.PLAIN_TCP_PEER, found.text))

    # ---- with the peer's answer

    async def _negotiate_or_fall_back(self, engine: Engine, peer: Peer) -> NegotiationResult:
        reason = peer.plain_reason()
        if reason is not None:
            return _plain(await self._connect(), reason)
        head_start_s = peer.head_start_s()
        negotiation = ClientNegotiation(
            await self._connect(), self._options, self._kind, engine, self._connect, head_start_s
        )
        negotiation.is_linked = lambda: self._is_linked(engine)
        try:
            result = await negotiation.run()
        except PlainPeerFound as found:
            reason = peer.is_plain(found.text, spoke=found.spoke)
            return _plain(found.carrier or await self._connect(), reason)
        except Exception:
            raise
        except BaseException:
            if negotiation.waits_since is not None:
                peer.waited_in_vain(self.waker.now() - negotiation.waits_since, head_start_s)
            raise
        peer.has_negotiated()
        return result


def _plain(carrier: Carrier, reason: FallbackReason) -> NegotiationResult:
    """A connection on which nothing was negotiated."""
    try:
        io = ClcIO(carrier)
        return NegotiationResult(None, io.sock, reason, io.local, io.remote, io.tls)
    except BaseException:
        carrier.close()
        raise
