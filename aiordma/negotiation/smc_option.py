"""SMC's TCP option on this process's connections, where the host is set up for it.

Without the set-up, which is a map of the program of :mod:`.sockops`, nothing here asks the kernel for
anything: not for a connection, and once for a process whether the map is there.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import socket
from typing import TYPE_CHECKING, Any

from ..proto.syn_option import find_in_packet
from . import sockops
from .smc_map import map_path

if TYPE_CHECKING:
    from ..config import Config
    from ..proto.syn_option import SynOption
    from .options import PathOptions
    from .sockops import SynOptions

_log = logging.getLogger("aiordma.clc")

TCP_SAVE_SYN = 27
"""Option of a listening socket: keep the SYNs of its connections."""
_TCP_SAVED_SYN = 28
#: IP header and TCP header, with options.
_SYN_BYTES = 256


def of_config(config: Config) -> SynOptions | None:
    """The map; None: the host is not set up, or the setting forbids it."""
    return of_setting(config.smcr)


@functools.cache
def of_setting(setting: str) -> SynOptions | None:
    """The map by ``Config.smcr``: looked for once in a process."""
    place = map_path(setting)
    if place is None or place.startswith("fd:"):
        return None if place is None else sockops.SynOptions(int(place[3:]))
    try:
        return sockops.SynOptions(sockops.open_pinned(place))
    except OSError as error:
        level = logging.DEBUG if setting == "auto" else logging.WARNING
        _log.log(level, "no SMC-R with kernels: %s: %s", place, error)
        return None


def may_be_used(options: PathOptions, kind: int) -> SynOptions | None:
    """For a connection of this kind; None: it is none that a kernel takes part in, or there is no map."""
    if kind or options.tls is not None or options.mode == "tcp":
        return None
    return of_config(options.config)


class Question:
    """Asks in the SYNs of one connect whether the server is a kernel's SMC-R. Its answer must be honoured:
    such a server takes the next bytes for CLC."""

    def __init__(self, options: SynOptions) -> None:
        self._options = options
        #: Sockets whose SYNs ask, and their entries.
        self._asking: dict[socket.socket, Any] = {}
        #: The SYN of the connection that was asked for asked, and the SYN-ACK has no option.
        self.unanswered = False
        #: Why it is not known whether the server is a kernel's SMC-R, for people; empty: nothing has failed.
        self.problem = ""

    def ask(self, sock: socket.socket, family: int) -> None:
        """Before its ``connect()``."""
        if family != socket.AF_INET:
            return  # Linux' version 2 speaks IPv4
        try:
            self._asking[sock] = self._options.want(sock)
        except OSError as error:
            self.problem = f"its SYN could not ask for SMC-R: {error}"

    def withdraw(self, sock: socket.socket) -> None:
        """The socket will not be used; before it is closed."""
        entry = self._asking.pop(sock, None)
        if entry is not None:
            with contextlib.suppress(OSError):
                self._options.forget(entry)

    def answer(self, sock: socket.socket) -> SynOption | None:
        """What the SYN-ACK of the connected socket says.

        :param sock: it is connected by what connect() has returned. Where poll() alone says so, the SYN-ACK
            may not have been read.
        :raises OSError: that is lost. Nothing may be sent on this connection.
        """
        entry = self._asking.pop(sock, None)
        if entry is None:
            return None
        try:
            was_sent, option = self._options.answer(entry)
        except OSError as error:
            self.problem = f"what its SYN-ACK says of SMC-R is lost: {error}"
            raise
        self.unanswered = was_sent and option is None
        return option


def let_ask(sock: socket.socket, options: PathOptions, kind: int = 0) -> Listening:
    """Around the ``listen()`` of a socket: from then on, clients' SYNs that ask get an answer."""
    return Listening(sock, may_be_used(options, kind))


class Listening:
    """A context around ``listen()``."""

    def __init__(self, sock: socket.socket, options: SynOptions | None) -> None:
        self._sock, self._options = sock, options if sock.family == socket.AF_INET else None
        self._entry: Any = None

    def __enter__(self) -> None:
        if self._options is not None:
            try:
                self._sock.setsockopt(socket.IPPROTO_TCP, TCP_SAVE_SYN, 1)
                self._entry = self._options.want(self._sock)
            except OSError as error:
                _log.warning("clients that are kernels will not use SMC-R: %s", error)
                self._options = None

    def __exit__(self, *_: object) -> None:
        if self._options is not None:
            with contextlib.suppress(OSError):
                self._options.forget(self._entry)


class Asker(enum.Enum):
    """The client of an accepted connection, by its SYN."""

    UNKNOWN = enum.auto()
    """Its SYN was not kept, or no kernel takes part in such connections."""
    KERNEL = enum.auto()
    """A kernel's SMC-R that has been answered: it begins with CLC."""
    AIORDMA = enum.auto()
    NONE = enum.auto()
    """It has not asked."""


def asker_of(sock: socket.socket, options: PathOptions, kind: int) -> Asker:
    """Who the client of an accepted connection is. To be asked once: the kernel forgets the SYN then."""
    if may_be_used(options, kind) is None:
        return Asker.UNKNOWN
    try:
        packet = _syn_of(sock)
    except OSError:
        packet = b""
    if not packet:
        return Asker.UNKNOWN
    found = find_in_packet(packet)
    if found is None:
        return Asker.NONE
    return Asker.AIORDMA if found.is_aiordma else Asker.KERNEL


def in_syn_of(sock: socket.socket) -> SynOption | None:
    """The option in the SYN of an accepted connection. :raises OSError: the SYN was not kept."""
    return find_in_packet(_syn_of(sock))


def _syn_of(sock: socket.socket) -> bytes:
    """Empty: it was not kept, as of a connection that a SYN cookie has made."""
    return sock.getsockopt(socket.IPPROTO_TCP, _TCP_SAVED_SYN, _SYN_BYTES)
