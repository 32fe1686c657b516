"""The engine as a negotiation sees it: what it must provide, and how to get the event loop's own one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from .. import wake
from ..errors import Code, NegotiationError
from ..observe import companion
from ..running import is_loaded
from ..verbs.remedies import warn_once, with_remedy
from ..wake.beside import Beside, LoopEndedError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection

    from ..addresses import Address
    from ..config import Config
    from ..links.pregranted import GrantingListener
    from ..proto import clc
    from ..proto.events import Event
    from ..proto.handshake import Timeouts
    from ..verbs.softlib import Shortage
    from ..wake.base import Waker
    from .options import PathOptions


class Contact(Protocol):
    """One negotiation of the engine, at either end."""

    first_contact: bool
    awaits_tcp: bool

    def abandon(self) -> None: ...
    def is_proved(self) -> bool:
        """Whether the peer has proved the link, by all that has come over it."""

    def outlive(self, reason: Exception) -> Any:
        """The link has failed when both ends had agreed.

        :return: the connection, which goes on over its TCP connection once that is attached; None: it cannot.
        """

    def shortage(self) -> Shortage | None: ...


class ClientContact(Contact, Protocol):
    """One negotiation of the engine, client end."""

    proposal: clc.Proposal

    async def accepted(self, accept: clc.Accept, peer: str = "") -> clc.Confirm: ...
    async def established(self) -> Any: ...


class ServerContact(Contact, Protocol):
    """One negotiation of the engine, server end."""

    accept: clc.Accept

    async def confirmed(self, confirm: clc.Confirm) -> Any: ...
    def break_link(self, reason: str) -> None: ...


class KernelPeers(Protocol):
    """What negotiates with kernels' SMC-R (``links.smcr.peers.KernelPeers``).

    Both methods take the peer's address, time limits, and what gets events of the link.
    """

    def propose(self, peer: str, timeouts: Timeouts, tell: Callable[[list[Event]], None]) -> Any: ...
    def answer(self, peer: str, timeouts: Timeouts, tell: Callable[[list[Event]], None]) -> Any: ...


class Engine(Protocol):
    """What the negotiation needs of ``links.engine.Engine``."""

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
    def kernel_peers(self, peer: str) -> KernelPeers:
        """:raises NegotiationError: no kernel's SMC-R can be reached."""

    def check_not_drained(self) -> None:
        """:raises NegotiationError: nothing new begins on any device, as somebody has asked for."""

    def open_early(self, sock: socket.socket, peer: str, traffic_class: int) -> Any: ...
    def grant_rings(self, has_room: Callable[[], bool]) -> GrantingListener | None: ...
    def claim(self, claim: clc.Claim, service: GrantingListener | None) -> Any: ...
    @property
    def early_servers(self) -> Collection[tuple[str, int]]: ...


async def find_engine(config: Config, waker: Waker | None = None) -> Engine:
    """The running loop's engine.

    :param waker: of the running loop, if the caller has it.
    :raises NegotiationError: this process cannot use RDMA.
    """
    if config.device == "none":
        raise NegotiationError(Code.DISABLED)
    waker = waker or wake.current()
    try:
        engines = _engines or await _load_engines(waker)
        engine: Engine = engines.ready(waker) or await engines.current(config)
    except NegotiationError as error:
        companion.begin(waker, config)
        explained = with_remedy(error)
        raise explained from explained.__cause__
    return engine


def ready_engine(waker: Waker) -> Engine | None:
    """The engine of a loop, if it has one that is ready."""
    try:
        return None if _engines is None else _engines.ready(waker)
    except NegotiationError:  # no device can be used now
        return None


#: The module of the engines, once it is imported.
_engines: Any = None


async def _load_engines(waker: Waker) -> Any:
    """Import that module, if :mod:`aiordma.loading` has not, in a thread: it takes dozens of milliseconds.

    :raises NegotiationError: it cannot be imported.
    """
    global _engines
    if is_loaded(_ENGINES):
        _engines = _import_engines()
        return _engines
    loading: Beside[Any, Any] | None = waker.locals.get(_LOADING)
    if loading is None:
        loading = waker.locals[_LOADING] = Beside(waker, _import_engines, lambda module: module)
    try:
        _engines = await loading.wait()
    except ImportError as exc:
        pyverbs = (exc.name or "").partition(".")[0] == "pyverbs"
        raise NegotiationError(Code.NO_PYVERBS if pyverbs else Code.OTHER_PYTHON, str(exc)) from exc
    except LoopEndedError:
        raise NegotiationError(Code.SHUTTING_DOWN) from None
    return _engines


_ENGINES = "aiordma.links.engine"
_LOADING = "loading the engines"


def _import_engines() -> Any:
    return importlib.import_module(_ENGINES)


async def warm_up(options: PathOptions) -> Engine | None:
    """Make the engine before the first client connects.

    On a busy machine, opening the device takes so long that a client that does not know this server would
    take it for a plain one. Why RDMA cannot be used is reported to each client when it asks.
    """
    if options.mode != "tcp":
        try:
            return await find_engine(options.config)
        except NegotiationError as error:
            if options.mode != "rdma":
                warn_once(error)
    return None
