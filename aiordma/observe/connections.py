"""The connections of an event loop, for those who look from outside, and counts of the paths they took.

A connection is entered when its path is agreed on. It is known by its TCP connection, which lives as long as
it does, on each path; the table refers to that weakly, so that nothing has to be taken out. Nothing here is
on the data path.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from . import events

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from ..addresses import Address
    from ..errors import FallbackReason
    from ..wake.base import Waker

Side = Literal["client", "server"]

#: Different reasons that are counted by themselves.
_REASONS = 256
_numbers = itertools.count(1)


def next_number() -> int:
    """For a connection: unique in the process."""
    return next(_numbers)


class Entry(weakref.ref["socket.socket"]):
    """One connection. It is a reference to its socket, too: a short connection pays for each object."""

    __slots__ = ("_pipe", "fallback", "kind", "local", "number", "remote", "side", "since", "smc_peer")

    number: int
    #: ``clc.Kind``
    kind: int
    side: Side
    #: seconds of ``time.monotonic()``
    since: float
    local: Address
    remote: Address
    #: why it began on TCP
    fallback: FallbackReason | None
    #: another implementation of SMC-R, as it names itself
    smc_peer: str | None
    _pipe: weakref.ref[Any] | None

    @property
    def sock(self) -> socket.socket | None:
        """Its TCP connection; None when that is closed."""
        sock = self()
        return None if sock is None or sock.fileno() < 0 else sock

    @property
    def pipe(self) -> Any:
        """The pipe over rings, or the channel on a link, that it began on; None on TCP."""
        return None if self._pipe is None else self._pipe()


class Connections:
    """Those of one loop, in the order in which they began."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        """As many as there are to iterate over."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Entry]:
        """Those that are not over; begin anew after a turn of the loop."""
        return (entry for entry in list(self._entries.values()) if entry.sock is not None)

    def get(self, number: int) -> Entry | None:
        """The connection of that number, if it is not over."""
        entry = self._entries.get(number)
        return entry if entry is not None and entry.sock is not None else None

    def add(self, result: Negotiated, kind: int, side: Side) -> None:
        """Enter a connection."""
        entry = Entry(result.sock, self._forget)
        entry.number = number = next_number()
        entry.kind, entry.side, entry.since = kind, side, monotonic()
        entry.local, entry.remote = result.local_address, result.remote_address
        entry.fallback, entry.smc_peer = result.fallback, result.smc_peer
        pipe = result.pipe
        entry._pipe = None if pipe is None else weakref.ref(pipe)
        self._entries[number] = entry

    def _forget(self, entry: Entry) -> None:
        self._entries.pop(entry.number, None)


class Counts(NamedTuple):
    """What the process has counted since it began."""

    #: connections by (kind, side, path)
    connections: Counter[tuple[int, str, str]]
    #: connections on TCP by (local code, peer's code or None, text)
    fallbacks: Counter[tuple[int, int | None, str]]
    #: connections that left RDMA later, in the same way
    left: Counter[tuple[int, int | None, str]]
    #: the first and the last time of each of these reasons, in seconds since the epoch, as ``fallbacks`` and
    #: ``left`` have it
    fallback_times: dict[tuple[int, int | None, str], tuple[float, float]]
    left_times: dict[tuple[int, int | None, str], tuple[float, float]]
    #: connections on RDMA with another implementation of SMC-R, by side
    smcr: Counter[str]


#: Of all loops of the process.
counts = Counts(Counter(), Counter(), Counter(), {}, {}, Counter())

_KEY = "connections"
_tables: weakref.WeakSet[Connections] = weakref.WeakSet()


def of_loop(waker: Waker) -> Connections:
    """The connections of a loop."""
    found: Connections | None = waker.locals.get(_KEY)
    if found is None:
        found = waker.locals[_KEY] = Connections()
        _tables.add(found)
    return found


def of_all_loops() -> Iterator[Entry]:
    """Those of all loops of the process; in any thread."""
    for table in list(_tables):
        yield from table


class Negotiated(Protocol):
    """A connection whose path is agreed on (``negotiation.dialogue.NegotiationResult``)."""

    @property
    def pipe(self) -> Any: ...
    @property
    def sock(self) -> socket.socket: ...
    @property
    def fallback(self) -> FallbackReason | None: ...
    @property
    def smc_peer(self) -> str | None: ...
    @property
    def local_address(self) -> Address: ...
    @property
    def remote_address(self) -> Address: ...


def enter(waker: Waker, result: Negotiated, kind: int, side: Side) -> None:
    """Enter a connection of the loop of ``waker``, which runs."""
    of_loop(waker).add(result, kind, side)
    counts.connections[kind, side, "tcp" if result.pipe is None else "rdma"] += 1
    if result.smc_peer is not None:
        counts.smcr[side] += 1
    if result.fallback is not None:
        _count(counts.fallbacks, counts.fallback_times, result.fallback)
        events.note("began on TCP", result.fallback.text)


def left_rdma(reason: FallbackReason) -> None:
    """A connection goes on over TCP."""
    _count(counts.left, counts.left_times, reason)
    events.note("left RDMA", reason.text)


def _count(
    counter: Counter[tuple[int, int | None, str]],
    times: dict[tuple[int, int | None, str], tuple[float, float]],
    reason: FallbackReason,
) -> None:
    """Details differ, and must not fill the memory: what is beyond the limit is counted without them."""
    key = int(reason.local), None if reason.peer is None else int(reason.peer), reason.text
    if key not in counter and len(counter) >= _REASONS:
        key = (*key[:2], "(other details)")
    counter[key] += 1
    now = time()
    times[key] = times.get(key, (now, now))[0], now
