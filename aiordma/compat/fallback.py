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
    that, and why, this is TCP. Until then the transport answers as if the protocol had it already.
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
        #: What has come and is not the protocol's yet.
        self._held = bytearray()
        #: What begins with it is known: it is the stream.
        self._judged = False
        #: The protocol has the transport.
        self._aside = late_proposal is None
        #: Why the connection ends, if it is by what the protocol has raised.
        self._failure: BaseException | None = None

    def connection_made(self, transport: Any) -> None:
        """Step aside, or wait for the first bytes."""
        self._own = transport
        if self._aside:
            transport.set_protocol(self.protocol)
        self.transport = with_info(transport, self._info)
        if not self._aside:
            self._answer()
        if self._made is not None:
            self._made(transport)
        self.protocol.connection_made(self.transport)

    # ---- while it waits

    def _answer(self) -> None:
        """In the instance these hide the transport's own methods."""
        resume_reading = self._own.resume_reading

        def get_protocol() -> Any:
            return self.protocol

        def set_protocol(protocol: asyncio.BaseProtocol) -> None:
            self.protocol = protocol

        def resume() -> None:
            resume_reading()
            if self._judged and self._held:
                asyncio.get_running_loop().call_soon(self._go_on)

        shown: Any = self.transport
        shown.get_protocol, shown.set_protocol, shown.resume_reading = get_protocol, set_protocol, resume

    def _answer_no_more(self) -> None:
        shown = self.transport
        for name in ("get_protocol", "set_protocol", "resume_reading"):
            if shown is self._own:
                vars(shown).pop(name, None)
            else:
                setattr(shown, name, getattr(self._own, name))

    def data_received(self, data: bytes) -> None:
        """The first bytes: for the protocol, unless they begin a negotiation."""
        is_first = not self._held
        self._held += data
        if self._judged or self._judge():
            self._hand_over()
        elif is_first:  # the rest of a Proposal would be here soon
            asyncio.get_running_loop().call_later(_HOLD_S, self._release)

    def _judge(self) -> bool:
        """Whether it is known now how the stream begins. A Proposal is answered and removed."""
        held = self._held
        if clc.looks_like_clc(held) is False:
            self._judged = True
        elif len(held) > 7 and len(held) >= (length := int.from_bytes(held[5:7])):
            _log.debug("a Proposal of %d bytes came late and is kept from the stream", length)
            assert self._late_proposal is not None
            version = clc.version_of(bytes(held[:8]))
            self._own.write(clc.Decline(diagnosis=self._late_proposal, version=version).encode())
            del held[:length]
            self._judged = True
        return self._judged

    def _release(self) -> None:
        """What looked like the beginning of a Proposal was none."""
        self._judged = True
        self._go_on()

    def _go_on(self, *, at_end: bool = False) -> None:
        """Hand over, beside the transport's calls: an error ends the connection as if it had come there."""
        if self._aside or self._failure is not None:
            return
        try:
            self._hand_over(at_end=at_end)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._failure = exc
            message = "Fatal error: protocol.data_received() call failed."
            asyncio.get_running_loop().call_exception_handler(
                {"message": message, "exception": exc, "transport": self.transport, "protocol": self.protocol}
            )
            self._own.abort()

    def _hand_over(self, *, at_end: bool = False) -> None:
        """Give the protocol what is held, as long as it reads, and then the transport."""
        while self._held and not self._aside:
            if self._own.is_closing():
                return
            if not self._own.is_reading() and not at_end:
                return  # until resume_reading()
            try:
                self._give()
            except (SystemExit, KeyboardInterrupt):
                asyncio.get_running_loop().call_soon(self._go_on)  # it may be run again
                raise
        self._step_aside()

    def _give(self) -> None:
        """Call the protocol, which may do anything there, once."""
        held = self._held
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self._held = bytearray()
            self.protocol.data_received(bytes(held))
            return
        protocol = self.protocol
        buffer = memoryview(protocol.get_buffer(-1))
        check_plain(buffer)
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        n = min(len(buffer), len(held))
        buffer[:n] = held[:n]
        del held[:n]
        protocol.buffer_updated(n)

    def _step_aside(self) -> None:
        if not self._aside:
            self._aside = True
            self._answer_no_more()
            # The program may have given the loop's own transport, which it has on no other way, to another.
            if self._own.get_protocol() is self:
                self._own.set_protocol(self.protocol)

    def give_up_waiting(self) -> None:
        """What comes from now on is the program's in any case: so is what is held."""
        self._judged = True
        self._go_on(at_end=True)

    # ---- the callbacks that pass

    def eof_received(self) -> bool | None:
        """EOF decides, too."""
        self._judged = True
        self._hand_over(at_end=True)
        keep_open: bool | None = self.protocol.eof_received()
        return keep_open

    def pause_writing(self) -> None:
        """See asyncio."""
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio."""
        self.protocol.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        try:
            self.protocol.connection_lost(exc or self._failure)
        finally:
            self._aside = True
            self._answer_no_more()
