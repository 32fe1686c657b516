"""What is known about peers, by whatever source, and what this process has logged about them.

A client that found a plain TCP peer sends it no Proposal for a while. While one connection finds out about an
unknown peer, the others wait for the answer: a thousand connections to a new peer cost it one Proposal.

Silence is weak evidence: a server that negotiates is silent, too, while it is busy or stopped. So a peer that
has negotiated, or that announces itself on this host, counts as a plain one only after it has been silent
several times in a row.

:class:`Peer` puts together what there is for one server: this memory, and its announcement, if it is of this
host. Neither costs a byte on the wire.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from .. import wake
from ..errors import Code, FallbackReason
from .announcement import is_address_of_this_host, is_announced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    from ..config import Config
    from ..wake.base import Waiter
    from .tcp_connect import Candidate

_log = logging.getLogger("aiordma.clc")

#: Peers remembered at most; the one not seen for longest is forgotten first.
_PEERS = 4096
#: Times in a row that a peer that was believed to negotiate may be silent.
_SILENCES = 3
#: Seconds for which waits that were cancelled count.
_WAITS_COUNT_S = 60.0
#: Seconds for which an address that is none of this host's counts as such. To find out takes longer than to
#: ask in a SYN, and what depends on it is how long a server of this host waits.
_ELSEWHERE_S = 1.0
#: Least head start of a peer that is believed to negotiate: it is more likely busy than gone.
_BELIEVED_S = 1.0
#: A Proposal's answer takes one round trip; the second contact on a link that the server has forgotten, two.
#: Twice that: the kernel has measured one round trip only, that of the SYN.
_ROUND_TRIPS = 4
#: Where `tcp_info` of Linux has the round trip time, in microseconds.
_RTT = struct.Struct("=68xI")

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class _Recent(OrderedDict[K, V], Generic[K, V]):
    """The newest entries of a table that must not grow with the number of peers."""

    def put(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > _PEERS:
            self.popitem(last=False)


class _Plain(NamedTuple):
    """Why a peer counts as plain, and until when (time.monotonic())."""

    reason: FallbackReason
    until: float
    #: It announced itself, and was silent all the same.
    announced: bool


# Address of a peer -> what it is; None: it negotiates.
_known: _Recent[object, _Plain | None] = _Recent()
#: How often in a row a peer was silent that was believed to negotiate.
_silences: _Recent[object, int] = _Recent()
#: Seconds that connection attempts which were cancelled have waited for an answer, and when that was.
_waits: _Recent[object, tuple[float, float]] = _Recent()
#: Addresses that were none of this host's, and until when that counts.
_elsewhere: _Recent[str, float] = _Recent()
_announced: _Recent[tuple[str, str], str] = _Recent()
_observer: Callable[[str, str, str, FallbackReason | None], object] | None = None
_asking: dict[tuple[object, object], list[Waiter]] = {}


def remember_plain(peer: object, reason: FallbackReason, seconds: float, *, announced: bool = False) -> None:
    """``peer`` does not negotiate: propose nothing to it for this time.

    :param announced: not even if it announces itself.
    """
    _known.put(peer, _Plain(reason, time.monotonic() + seconds, announced))
    _forget_silence(peer)


def remember_silence(peer: object, reason: FallbackReason, seconds: float, *, announced: bool) -> None:
    """``peer`` did not answer within its time.

    :param announced: it announces itself.
    """
    if announced or negotiates(peer):
        times = _silences.get(peer, 0) + 1
        if times < _SILENCES:
            _silences.put(peer, times)
            _waits.pop(peer, None)
            return
    remember_plain(peer, reason, seconds, announced=announced)


def remember_wait(peer: object, seconds: float) -> float:
    """An attempt was cancelled after it had waited so long in vain; how long all of them did."""
    total = waited(peer) + seconds
    _waits.put(peer, (total, time.monotonic()))
    return total


def waited(peer: object) -> float:
    """Seconds that attempts to connect to ``peer`` have waited in vain before they were cancelled, lately."""
    seconds, at = _waits.get(peer, (0.0, 0.0))
    return seconds if time.monotonic() - at < _WAITS_COUNT_S else 0.0


def remember_clc(peer: object) -> None:
    """``peer`` negotiates, whatever it answers."""
    _known.put(peer, None)
    _forget_silence(peer)


def _forget_silence(peer: object) -> None:
    _silences.pop(peer, None)
    _waits.pop(peer, None)


def negotiates(peer: object) -> bool:
    """Whether ``peer`` has negotiated when it was asked last."""
    return _known.get(peer, _known) is None


def is_known(peer: object) -> bool:
    """Whether ``peer`` was asked before, and the answer still counts."""
    return plain_reason(peer) is not None or peer in _known


def plain_reason(peer: object, *, announced: bool = False) -> FallbackReason | None:
    """Why ``peer`` counts as a plain TCP peer now, None when it does not.

    :param announced: it announces itself now, which weighs more than what was found out without that.
    """
    entry = _known.get(peer)
    if entry is None:
        return None
    if time.monotonic() >= entry.until:
        del _known[peer]
        return None
    return entry.reason if entry.announced or not announced else None


def forget() -> None:
    """Forget all peers."""
    for table in (_known, _silences, _waits, _announced, _elsewhere):
        table.clear()


@contextlib.asynccontextmanager
async def ask_alone(peer: object) -> AsyncIterator[bool]:
    """Around a connection attempt: while another one is finding out about an unknown peer, wait for it. Gives
    whether it has waited.

    Once only: if that one found out nothing, further attempts do not go one by one.
    """
    waker = wake.current()
    key = (waker, peer)
    others = None if is_known(peer) else _asking.get(key)
    if others is not None:
        waiter = waker.new_waiter()
        others.append(waiter)
        await waiter.wait()
    if is_known(peer) or others is not None:
        yield others is not None
        return
    waiting: list[Waiter] = []
    _asking[key] = waiting
    try:
        yield False
    finally:
        del _asking[key]
        for waiter in waiting:
            waiter.set()


def only_seems_near(candidates: list[Candidate]) -> bool:
    """Whether a server has an address of this host, and no listener of aiordma has announced itself there."""
    return _is_of_this_host(candidates) and not is_announced(candidates[0][1][1])


def are_elsewhere(candidates: list[Candidate]) -> bool:
    """Whether no address of a server is one of this host, as of this second."""
    now = time.monotonic()
    for _, (address, *_rest) in candidates:
        if _elsewhere.get(address, 0.0) <= now:
            if is_address_of_this_host(address):
                return False
            _elsewhere.put(address, now + _ELSEWHERE_S)
    return True


def announces_itself(candidates: list[Candidate]) -> bool:
    """Whether a listener on this host says that it negotiates, at a server's address."""
    return _is_of_this_host(candidates) and is_announced(candidates[0][1][1])


def _is_of_this_host(candidates: list[Candidate]) -> bool:
    return any(is_address_of_this_host(address[0]) for _, address in candidates)


def head_start_s(sock: socket.socket, milliseconds: float) -> float:
    """Seconds for the answer of an unknown server. A far one gets more time than a near one.

    :param milliseconds: what a server has that is near; the round trips to this one are added.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT.size)
    except OSError:  # it is broken: then no answer comes
        info = b""
    microseconds: int = _RTT.unpack(info)[0] if len(info) == _RTT.size else 0
    return milliseconds / 1000 + _ROUND_TRIPS * microseconds / 1e6


class Peer:
    """A server that a client is about to connect to.

    :param candidates: its addresses.
    """

    def __init__(
        self, host: str, port: int, config: Config, candidates: list[Candidate], *, tls: bool
    ) -> None:
        self._key, self._config, self._candidates = (host, port, tls), config, candidates
        #: Its SYN-ACK says so, or it has granted rings: that counts more than what is known of earlier ones.
        self.is_aiordma = False

    @property
    def is_announced(self) -> bool:
        """Whether a listener on this host says that it negotiates."""
        return announces_itself(self._candidates)

    @property
    def negotiates(self) -> bool:
        """Whether it has, when it was asked last."""
        return negotiates(self._key)

    def known(self) -> contextlib.AbstractAsyncContextManager[bool]:
        """Around a connection attempt: see :func:`ask_alone`.

        Where the server has said what it is, the attempt waits for no other: its TCP connection may be open,
        and to a server a client that is silent for long is a plain one.
        """
        if self.is_aiordma or is_known(self._key):
            return contextlib.nullcontext(False)
        return ask_alone(self._key)

    def plain_reason(self) -> FallbackReason | None:
        """Why it counts as a plain one now, None when it is to be asked."""
        reason = None if self.is_aiordma else plain_reason(self._key)
        if reason is not None and self.is_announced:
            reason = plain_reason(self._key, announced=True)
        return reason

    def head_start_s(self) -> float:
        """How long it may take to answer, without the round trips. What earlier attempts, which were
        cancelled, have waited is part of it.
        """
        seconds = self._config.head_start_ms / 1000
        known = self.is_aiordma or self.negotiates or self.is_announced
        if seconds < _BELIEVED_S and known:
            seconds = _BELIEVED_S
        return max(0.0, seconds - waited(self._key))

    def has_negotiated(self) -> None:
        """Whatever it has answered."""
        remember_clc(self._key)

    def is_plain(self, text: str, *, spoke: bool = False) -> FallbackReason:
        """It has not negotiated, for this reason.

        :param spoke: it has said something else; it was silent otherwise, or closed the connection.
        """
        reason = FallbackReason.of_local(Code.PLAIN_TCP_PEER, text, spoke=spoke)
        seconds = self._config.plain_peer_memory_ms / 1000
        if spoke:
            remember_plain(self._key, reason, seconds)
        else:
            remember_silence(self._key, reason, seconds, announced=self.is_announced)
        return reason

    def waited_in_vain(self, seconds: float, head_start_s: float) -> None:
        """The attempt was cancelled. Else a program whose patience ends earlier would never find out."""
        if seconds < head_start_s:
            remember_wait(self._key, seconds)
        else:
            self.is_plain("it did not answer before the attempt was cancelled")


def observe(observer: Callable[[str, str, str, FallbackReason | None], object] | None) -> None:
    """Have every :func:`announce` call this as well, or nothing any more.

    Meanwhile paths are logged at level DEBUG: they are for the observer, and the program, which may not know
    of aiordma, need not have them among its own lines.
    """
    global _observer
    _observer = observer


def announce(role: str, host: str, path: str, reason: FallbackReason | None) -> None:
    """Log the path of connections with ``host``: once, and again when it changes."""
    level = logging.INFO
    if _observer is not None:
        level = logging.DEBUG
        _observer(role, host, path, reason)
    text = f"{path}: {reason.text}" if reason is not None else path
    if _announced.get((role, host)) != text:
        _announced.put((role, host), text)
        _log.log(level, "%s %s: %s", role, host, text)
