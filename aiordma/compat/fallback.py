"""Connections that stay on TCP: the event loop's own transports, as fast as they are without aiordma.

All that is added is extra info ("aiordma.path" and its relatives), with TLS as without. asyncio's transports
keep theirs in a dictionary. uvloop's cannot be given any, so there protocols and users see a `TransportView`,
whose methods are the bound methods of uvloop's transport. Data and later callbacks pass by this module on
both loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any

from ..borrowed import ENABLED
from ..heap import keep_freed_memory
from ..plain import check_plain
from ..proto import clc

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ..errors import FallbackReason

_log = logging.getLogger("aiordma.compat")


#: Seconds for which the beginning of a Proposal that came late waits for its rest.
_HOLD_S = 0.5

#: Names of the extra info about the path of a connection.
PATH_INFO = ("aiordma.path", "aiordma.fallback_reason", "aiordma.stream")


@contextlib.contextmanager
def handing_over(sock: socket.socket) -> Iterator[None]:
    """While the loop's own transport takes this socket.

    uvloop takes it after connection_made(). If the protocol has closed the connection there, libuv has closed
    the descriptor by then, and the socket does not know: at its end it would close that number again, which
    is another connection's then.
    """
    number = sock.fileno()
    inode = _inode(number)
    try:
        yield
    finally:
        if sock.fileno() == number and _inode(number) != inode:
            sock.detach()


def _inode(number: int) -> int | None:
    """Of the socket that has this descriptor; None: nothing has it."""
    try:
        return os.fstat(number).st_ino
    except OSError:
        return None


def tcp_info(reason: FallbackReason | None) -> dict[str, Any]:
    """Extra info of a connection on TCP."""
    return {"aiordma.path": "tcp", "aiordma.fallback_reason": reason, "aiordma.stream": None}


class View:
    """Shows a transport of uvloop (`wrapped`) with extra info beside its own; a base class."""

    #: Methods of the transport, as far as it has them.
    own_methods: Iterable[str]

    def __init__(self, wrapped: Any, info: Mapping[str, Any]) -> None:
        self.wrapped = wrapped
        self._info = info
        # In the instance these hide the base class's methods, and a call goes straight to uvloop's.
        for name in self.own_methods:
            if hasattr(wrapped, name):
                setattr(self, name, getattr(wrapped, name))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio."""
        if name in self._info:
            return self._info[name]
        return self.wrapped.get_extra_info(name, default)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.wrapped!r}>"


class TransportView(View, asyncio.Transport):
    """A transport of uvloop with extra info beside its own."""

    own_methods = tuple(
        name
        for name in dir(asyncio.Transport)
        if not name.startswith("_")
        and name != "get_extra_info"
        and callable(getattr(asyncio.Transport, name))
    )


def with_info(transport: asyncio.Transport, info: Mapping[str, Any]) -> asyncio.Transport:
    """The transport to show to users, which answers `get_extra_info()` for the names of `info`."""
    keep_freed_memory()  # asyncio's transports allocate 256 KiB for each read
    # With TLS, asyncio's transports have theirs in the TLS protocol.
    extra = getattr(getattr(transport, "_ssl_protocol", transport), "_extra", None) if ENABLED else None
    if isinstance(extra, dict):
        extra.update(info)
        return transport
    return TransportView(transport, info)


class Introduction(asyncio.Protocol):
    """Stands in for a protocol until connection_made(), to hand it the transport with its extra info.

    With `late_proposal` it stays until the first bytes are there: they may be a Proposal of a client that was
    taken for a silent one, or that was not expected. Then they are no part of the stream; the client learns
    that, and why, this is TCP.
    """

    def __init__(
        self,
        protocol: asyncio.BaseProtocol,
        info: Mapping[str, Any],
        made: Callable[[asyncio.Transport], None] | None = None,
        late_proposal: int | None = None,
    ) -> None:
        """`made` receives the loop's own transport. `late_proposal`: what a Proposal is declined with."""
        self.protocol: Any = protocol
        self.transport: asyncio.Transport | None = None
        self._own: Any = None
        self._info = info
        self._made = made
        self._late_proposal = late_proposal
        self._head = b""
        #: It may be that bytes are held which are the stream's.
        self._waits = True

    def connection_made(self, transport: Any) -> None:
        """Step aside, or wait for the first bytes."""
        self._own = transport
        if self._late_proposal is None:
            transport.set_protocol(self.protocol)
        self.transport = with_info(transport, self._info)
        if self._made is not None:
            self._made(transport)
        self.protocol.connection_made(self.transport)

    def data_received(self, data: bytes) -> None:
        """The first bytes: for the protocol, unless they begin a negotiation."""
        self._head += data
        if clc.looks_like_clc(self._head) is False:
            self._step_aside(self._head)
        elif len(self._head) > 7 and len(self._head) >= (length := int.from_bytes(self._head[5:7])):
            _log.debug("a Proposal of %d bytes came late and is kept from the stream", length)
            assert self._late_proposal is not None
            version = clc.version_of(self._head)
            self._own.write(clc.Decline(diagnosis=self._late_proposal, version=version).encode())
            self._step_aside(self._head[length:])
        elif len(self._head) == len(data):  # the rest of a Proposal would be here soon
            asyncio.get_running_loop().call_later(_HOLD_S, self._release)

    def _release(self) -> None:
        """What looked like the beginning of a Proposal was none."""
        if self._waits and not self._own.is_closing():
            self._step_aside(self._head)

    def eof_received(self) -> bool | None:
        """EOF decides, too."""
        self._step_aside(self._head)
        keep_open: bool | None = self.protocol.eof_received()
        return keep_open

    def _step_aside(self, data: bytes) -> None:
        self._waits = False
        self._own.set_protocol(self.protocol)
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            while data and not self._own.is_closing():
                buffer = memoryview(self.protocol.get_buffer(-1))
                check_plain(buffer)
                if not len(buffer):
                    raise RuntimeError("get_buffer() returned an empty buffer")
                n = min(len(buffer), len(data))
                buffer[:n] = data[:n]
                self.protocol.buffer_updated(n)
                data = data[n:]
        elif data:
            self.protocol.data_received(data)

    def pause_writing(self) -> None:
        """See asyncio."""
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio."""
        self.protocol.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        self.protocol.connection_lost(exc)
