"""The options of a connection or a listener: built once, by the function that the user calls.

The public functions take them as keywords. :class:`ConnectKeywords` and :class:`ListenKeywords` give a type
checker their names and types, :meth:`ConnectOptions.of` and :meth:`ListenOptions.of` define the defaults, and
:func:`documented_by` shows both to a reader of ``help()``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, get_args

from ..config import Config, Mode
from ..errors import Code
from ..proto.handshake import Timeouts
from .hints import refuse_keywords
from .tls import TlsOptions

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from ssl import SSLContext

    from .clc_io import Carrier

F = TypeVar("F", bound="Callable[..., Any]")

_MODES = get_args(Mode)


def check_mode(mode: object) -> None:
    """:raises ValueError: it is none; the message names those that exist."""
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r}: must be one of {', '.join(map(repr, _MODES))}")


def config_of(config: Config | None) -> Config:
    """The caller's settings; None: those of the environment.

    :raises TypeError: it is something else.
    :raises ValueError: the environment has a setting that is not allowed.
    """
    if config is None:
        return Config.from_env()
    if not isinstance(config, Config):
        raise TypeError(f"config={config!r}: must be an aiordma.Config, such as aiordma.Config(mode='rdma')")
    return config


def settings_of(config: Config | None, mode: Mode | None) -> tuple[Config, Mode]:
    """The caller's settings and mode, each with its default; errors as :func:`config_of`."""
    config = config_of(config)
    return config, config.mode if mode is None else mode


@dataclass(frozen=True, slots=True)
class PathOptions:
    """What decides the path of a connection, RDMA or TCP, at either end."""

    config: Config
    mode: Mode
    tls: TlsOptions | None = None

    def __post_init__(self) -> None:
        check_mode(self.mode)

    @property
    def rdma_ruled_out(self) -> Code | None:
        """Why these options allow no RDMA; None: they do."""
        if self.mode == "tcp":
            return Code.DISABLED
        if self.tls is not None and not self.tls.rdma_outside_tls:
            return Code.TLS_PAYLOAD_POLICY
        return None

    def timeouts(self) -> Timeouts:
        """The time limits of a handshake."""
        return Timeouts(
            negotiate=self.config.negotiate_timeout_ms / 1000,
            link=self.config.link_timeout_ms / 1000,
            first_bytes=self.config.server_first_wait_ms / 1000,
        )

    async def begin(self, sock: socket.socket) -> Carrier:
        """Start TLS on a new TCP connection, if it uses TLS. Closes it on failure.

        :raises OSError: the TLS handshake failed.
        """
        return sock if self.tls is None else await self.tls.begin(sock, self.config)


class ConnectKeywords(TypedDict, total=False):
    """Keyword parameters shared by all functions that connect; see :func:`aiordma.connect`."""

    config: Config | None
    mode: Mode | None
    local_host: str | None
    ssl: SSLContext | bool | None
    server_hostname: str | None
    rdma_outside_tls: bool


@dataclass(frozen=True, slots=True)
class ConnectOptions(PathOptions):
    """Options of an outgoing connection."""

    local_host: str | None = None

    @classmethod
    def of(
        cls,
        host: str,
        *,
        config: Config | None = None,
        mode: Mode | None = None,
        local_host: str | None = None,
        ssl: SSLContext | bool | None = None,
        server_hostname: str | None = None,
        rdma_outside_tls: bool = False,
        **unknown: Any,
    ) -> ConnectOptions:
        """The options of a connection to ``host``.

        :raises ValueError: an option has no valid value. :raises TypeError: there is no such option.
        """
        if unknown:
            refuse_keywords(unknown, ConnectKeywords.__annotations__)
        config = config_of(config)
        mode = config.mode if mode is None else mode  # a call less than settings_of(), for each connection
        if not ssl:
            # One connection is like the one before: checked options need not be made and checked again.
            global _last
            last = _last
            if (
                last is None
                or last.config is not config
                or last.mode != mode
                or last.local_host != local_host
            ):
                last = _last = cls(config, mode, None, local_host)
            return last
        return cls(
            config, mode, TlsOptions.of_client(ssl, server_hostname or host, rdma_outside_tls), local_host
        )


#: The newest options of a connection without TLS.
_last: ConnectOptions | None = None


class ListenKeywords(TypedDict, total=False):
    """Keyword parameters shared by all functions that listen; see :func:`aiordma.listen`."""

    config: Config | None
    mode: Mode | None
    backlog: int
    reuse_address: bool
    reuse_port: bool
    max_negotiations: int
    max_pending: int
    sockets: Sequence[socket.socket] | None
    ssl: SSLContext | None
    rdma_outside_tls: bool


@dataclass(frozen=True, slots=True)
class ListenOptions(PathOptions):
    """Options of a listener and of the connections that it accepts."""

    backlog: int = 1024
    reuse_address: bool = True
    reuse_port: bool = False
    max_negotiations: int = 1024
    max_pending: int = 4096
    sockets: Sequence[socket.socket] | None = None

    def __post_init__(self) -> None:
        PathOptions.__post_init__(self)
        if self.max_negotiations < 0:
            raise ValueError(f"max_negotiations={self.max_negotiations}: must be at least 0")
        if self.max_pending < 1:
            raise ValueError(f"max_pending={self.max_pending}: must be at least 1")
        if self.sockets is not None and not self.sockets:
            raise ValueError("sockets=[]: must be at least one bound TCP socket, or None")

    @classmethod
    def of(  # noqa: PLR0913  # the one place that lists every keyword of listen() with its default
        cls,
        *,
        config: Config | None = None,
        mode: Mode | None = None,
        backlog: int = 1024,
        reuse_address: bool = True,
        reuse_port: bool = False,
        max_negotiations: int = 1024,
        max_pending: int = 4096,
        sockets: Sequence[socket.socket] | None = None,
        ssl: SSLContext | None = None,
        rdma_outside_tls: bool = False,
        **unknown: Any,
    ) -> ListenOptions:
        """The options of a listener.

        :raises ValueError: an option has no valid value. :raises TypeError: there is no such option.
        """
        if unknown:
            refuse_keywords(unknown, ListenKeywords.__annotations__)
        return cls(
            *settings_of(config, mode),
            TlsOptions.of_server(ssl, rdma_outside_tls),
            backlog=backlog,
            reuse_address=reuse_address,
            reuse_port=reuse_port,
            max_negotiations=max_negotiations,
            max_pending=max_pending,
            sockets=sockets,
        )


def documented_by(source: Callable[..., object]) -> Callable[[F], F]:
    """Show the keyword parameters of ``source`` in place of a function's ``**keywords``.

    ``help()``, :func:`inspect.signature` and the documentation then list every parameter with its default.
    The function itself is not wrapped.
    """
    keywords = [
        parameter
        for parameter in inspect.signature(source).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]

    def show(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return show
