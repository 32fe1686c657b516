# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Where the time of a call goes (X-RDMA's req-res mode): the trace block, the stages, two clocks, and counts.

A traced CALL carries a block of 40 bytes, and its REPLY another one, by which the client knows all stages::

    client        created  sent                                                arrived  done
                     |------|                                                     |------|
    stages           queued   \\ out                                         back /   wake
    server                       received   started      finished   replied
                                    |----------|------------|-----------|
                                       waited     handler      answered

All times are nanoseconds of the monotonic clock of the end that took them. The clocks of two hosts have
nothing to do with each other: :class:`ClockOffset` estimates how far the peer's is ahead, from the four times
around each trip, as NTP does (RFC 5905, section 8). On one host the clocks are one, and the estimate is close
to zero.

Compiled as well (``trace.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from .rpc import part, room

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_BYTES = 40
STAGES = ("queued", "out", "waited", "handler", "answered", "back", "wake")


class Stages(NamedTuple):
    """Nanoseconds of each stage of one call, in order."""

    queued: int
    """At the client: from the call to the channel, waiting for a place among the calls in flight included."""
    out: int
    """On the wire to the server, waiting for the link's window included; by estimated clock offset."""
    waited: int
    """At the server: from the arrival to the handler's first step."""
    handler: int
    """The handler, from its first step to its result."""
    answered: int
    """From the result to the channel."""
    back: int
    """On the wire to the client, until its event loop looked; by estimated clock offset."""
    wake: int
    """At the client: from the reply's arrival until the calling task runs again."""


def _time(block: bytes, at: int) -> int:
    """One time of a block; -1 when it is none."""
    time = _u64(block, at)
    # Differences of what passes fit into 64 bits, whatever a peer sends; it is 146 years.
    return -1 if time >> 62 else time


def _u64(data: bytes, at: int) -> int:
    value = 0
    for place in range(at, at + 8):
        value = value << 8 | data[place]
    return value


def _put(out: bytearray, at: int, value: int) -> None:
    for place in range(8):
        out[at + place] = value >> 56 - 8 * place & 255


def _block(number: int, first: int, second: int, third: int, fourth: int) -> bytes:
    out = room(BLOCK_BYTES)
    _put(out, 0, number)
    _put(out, 8, first)
    _put(out, 16, second)
    _put(out, 24, third)
    _put(out, 32, fourth)
    return part(out, 0, 40)


class ClientTrace:
    """One call, at the client.

    :param number: identifies the call in both ends' records.
    :param created: now.
    """

    def __init__(self, number: int, method: str, created: int) -> None:
        self._begin(number, method, created)

    def _begin(self, number: int, method: str, created: int) -> None:
        self.number = number
        self.method = method
        self.created = created
        #: a block goes with the CALL
        self.on_wire = True
        #: of the server, and how far its clock was ahead
        self.peer = ""
        self.offset = 0
        #: 0 while the CALL is not sent with a block
        self.sent = 0
        #: 0 without a REPLY
        self.arrived = 0
        self.done = 0
        self.received = 0
        self.started = 0
        self.finished = 0
        self.replied = 0
        self.code = 0

    def block(self, now: int) -> bytes:
        """For the CALL, which is sent now."""
        self.sent = now
        return _block(self.number, self.created, now, 0, 0)

    def left(self, now: int) -> None:
        """The CALL had to wait after its block was made."""
        if self.sent:
            self.sent = now

    def arrive(self, block: bytes | None, now: int) -> int:
        """The REPLY is here. Returns 1 when the server's times are known, 0 when it had no block, or none
        that makes sense."""
        self.arrived = now
        if block is None or len(block) != 40 or self.sent == 0 or _u64(block, 0) != self.number:
            return 0
        received = _time(block, 8)
        started = _time(block, 16)
        finished = _time(block, 24)
        replied = _time(block, 32)
        if received < 0 or started < received or finished < started or replied < finished:
            return 0
        self.received = received
        self.started = started
        self.finished = finished
        self.replied = replied
        return 1

    def end(self, now: int, code: int) -> int:
        """The caller goes on. Returns the nanoseconds from the call to its result."""
        self.done = now
        self.code = code
        return now - self.created

    def stages(self, offset: int) -> Stages | None:
        """None when the server's times are not known.

        :param offset: nanoseconds that the server's clock is ahead.
        """
        if self.replied == 0:
            return None
        out = self.received - offset - self.sent
        back = self.arrived - (self.replied - offset)
        if out < 0:  # the estimate is off by so much
            back = max(0, back + out)
            out = 0
        elif back < 0:
            out = max(0, out + back)
            back = 0
        return Stages(
            self.sent - self.created,
            out,
            self.started - self.received,
            self.finished - self.started,
            self.replied - self.finished,
            back,
            self.done - self.arrived,
        )


class ServerTrace:
    """One call, at the server.

    :param number: of the client's trace; 0: the client does not trace.
    :param received: now.
    """

    def __init__(self, number: int, method: str, received: int) -> None:
        self._begin(number, method, received)

    def _begin(self, number: int, method: str, received: int) -> None:
        self.number = number
        self.method = method
        self.received = received
        self.started = received
        self.finished = 0
        self.replied = 0
        self.code = 0
        self.peer = ""

    def block(self, now: int) -> bytes:
        """For the REPLY, which is sent now."""
        self.replied = now
        if self.finished == 0:
            self.finished = now
        return _block(self.number, self.received, self.started, self.finished, now)


class ClockOffset:
    """How far a peer's clock is ahead of ours.

    One trip gives ``((received - sent) + (replied - arrived)) / 2``, wrong by at most half of the time on the
    wire. The trip that spent the least time there is the one to be believed: the best of the last one to two
    hundred, so that drift between the clocks is followed.
    """

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.samples = 0
        #: nanoseconds that the peer's clock is ahead
        self.offset = 0
        #: time on the wire of the trip that told so, both ways: the offset is right within half of it
        self.round_trip = -1
        self._best_offset = 0
        self._best_trip = -1

    def add(self, sent: int, received: int, replied: int, arrived: int) -> None:
        """One trip: ``sent`` and ``arrived`` by our clock, ``received`` and ``replied`` by the peer's."""
        trip = (arrived - sent) - (replied - received)
        if trip < 0 or arrived < sent or replied < received:
            return
        offset = ((received - sent) + (replied - arrived)) // 2
        self.samples += 1
        if self.round_trip < 0 or trip <= self.round_trip:
            self.round_trip = trip
            self.offset = offset
        if self._best_trip < 0 or trip <= self._best_trip:
            self._best_trip = trip
            self._best_offset = offset
        if self.samples % self.window == 0:
            # What is older than a window gives way to the best of the last one.
            self.round_trip = self._best_trip
            self.offset = self._best_offset
            self._best_trip = -1


class Histogram:
    """Counts of times by size: 16 buckets for each power of two, so a percentile is within 7 percent.

    Holds 0 to 2^41 nanoseconds (36 minutes); what is longer counts as that.
    """

    def __init__(self) -> None:
        self._array = array("Q", bytes(8 * 640))
        self.counts = self._array
        self.count = 0
        self.total = 0
        self.highest = 0

    def add(self, value: int) -> None:
        """Count one time of ``value`` nanoseconds."""
        if value < 0:
            value = 0
        self.count += 1
        self.total += value
        if value > self.highest:
            self.highest = value
        at = bucket_of(value)
        self.counts[at] += 1

    def percentile(self, share: float) -> int:
        """Nanoseconds that ``share`` (0 to 1) of the times do not exceed; 0 when there are none."""
        if self.count == 0:
            return 0
        wanted = max(1, int(share * self.count + 0.999999))
        seen = 0
        for at in range(640):
            seen += self.counts[at]
            if seen >= wanted:
                return min(self.highest, limit_of(at))
        return self.highest

    def buckets(self) -> list[tuple[int, int]]:
        """(upper limit in nanoseconds, count) of the buckets that are not empty."""
        return [(limit_of(at), self.counts[at]) for at in range(640) if self.counts[at]]


def bucket_of(value: int) -> int:
    if value < 16:
        return value
    if value >= 1 << 41:
        return 639
    shift = 0
    while value >> shift >= 512:
        shift += 4
    while value >> shift >= 32:
        shift += 1
    return (shift << 4) + (value >> shift)


def limit_of(at: int) -> int:
    """The largest value of a bucket."""
    if at < 32:
        return at
    top = (at & 15) + 17
    return (top << (at >> 4) - 1) - 1


#: Where calls are not traced, the time of one in 64 is taken, by its end alone: 64 such calls cost as much as
#: asking a clock twice.
TIMED_MASK = 63


class Tracer:
    """What calls report to, in the fast path of both ends: each moment of a call is one method here, and one
    look at the clock.

    :param clock: monotonic, in nanoseconds; the same for all tracers of a host.
    :param base: of the numbers of traces; different in each process.
    """

    def __init__(self, clock: Callable[[], int], base: int, keep: int) -> None:
        self.clock = clock
        self.base = base
        self.counter = 0
        #: clients ask begin() for every call, and otherwise for one in 64
        self.requests = False
        #: servers ask received() for calls without a block, too
        self.handlers = False
        self.on_wire = False
        self.sample = 64
        #: nanoseconds, 0: nothing is slow
        self.slow_request = 0
        self.slow_handler = 0
        #: the last calls made, and handled
        self.calls: deque[ClientTrace] = deque(maxlen=keep)
        self.handled: deque[ServerTrace] = deque(maxlen=keep)
        #: by method: how long calls took, and handlers
        self.call_times: dict[str, Histogram] = {}
        self.handler_times: dict[str, Histogram] = {}

    def _now(self) -> int:
        return self.clock()

    def begin(self, method: str) -> ClientTrace | None:
        """A call begins; None: this one is not looked at. Without ``requests`` only its time is taken."""
        self.counter += 1
        on_wire = self.on_wire
        if self.sample > 1 and self.counter % self.sample:
            on_wire = False
        if self.requests and not on_wire and self.slow_request == 0:
            return None
        trace = ClientTrace.__new__(ClientTrace)
        trace._begin(self.base + self.counter, method, self._now())
        trace.on_wire = on_wire
        return trace

    def block(self, trace: ClientTrace) -> bytes | None:
        """What goes with the CALL, at the moment it is sent."""
        return trace.block(self._now()) if trace.on_wire else None

    def left(self, trace: ClientTrace) -> None:
        """The CALL had to wait after its block was made."""
        trace.left(self._now())

    def arrived(self, trace: ClientTrace, block: bytes | None) -> None:
        """The REPLY is here."""
        trace.arrive(block, self._now())

    def end(self, trace: ClientTrace, code: int, peer: str, offset: ClockOffset) -> None:
        """The call is over."""
        took = trace.end(self._now(), code)
        trace.peer = peer
        if trace.sent:
            if trace.replied:
                offset.add(trace.sent, trace.received, trace.replied, trace.arrived)
            trace.offset = offset.offset
            self.calls.append(trace)
        times(self.call_times, trace.method).add(took)
        if self.slow_request and took >= self.slow_request:
            self.slow_call(trace, took)

    def received(self, block: bytes | None, method: str) -> ServerTrace:
        """A CALL has arrived."""
        trace = ServerTrace.__new__(ServerTrace)
        trace._begin(0 if block is None else _u64(block, 0), method, self._now())
        return trace

    def started(self, trace: ServerTrace) -> None:
        """The handler takes its first step."""
        trace.started = self._now()

    def finished(self, trace: ServerTrace) -> None:
        """The handler has its result."""
        trace.finished = self._now()

    def reply(self, trace: ServerTrace, code: int, peer: str) -> bytes | None:
        """The REPLY is sent now; what goes with it."""
        block = trace.block(self._now())
        trace.code = code
        trace.peer = peer
        if trace.number or self.handlers:
            self.handled.append(trace)
        took = trace.finished - trace.started
        times(self.handler_times, trace.method).add(took)
        if self.slow_handler and took >= self.slow_handler:
            self.slow_handling(trace, took)
        return block if trace.number else None

    def slow_call(self, trace: ClientTrace, took: int) -> None:
        """A call took longer than ``slow_request``."""

    def slow_handling(self, trace: ServerTrace, took: int) -> None:
        """A handler took longer than ``slow_handler``."""


def times(histograms: dict[str, Histogram], method: str) -> Histogram:
    """The histogram of ``method``. Of many methods, the later ones are counted together."""
    found = histograms.get(method)
    if found is None:
        if len(histograms) >= 256:
            method = "(others)"
        found = histograms.get(method)
        if found is None:
            found = histograms[method] = Histogram()
    return found


class RateLimit:
    """At most ``burst`` at once, and one more for every ``interval`` seconds; counts what it refused.

    For warnings about something that may be wrong with every call.
    """

    def __init__(self, burst: int = 5, interval: float = 1.0) -> None:
        self.burst = burst
        self.interval = interval
        self.refused = 0
        self._free = float(burst)
        self._at = 0.0

    def allow(self, now: float) -> bool:
        """Whether one more may pass at ``now`` (seconds of any clock)."""
        if now > self._at:
            self._free = min(float(self.burst), self._free + (now - self._at) / self.interval)
        self._at = now
        if self._free >= 1.0:
            self._free -= 1.0
            return True
        self.refused += 1
        return False

    def take_refused(self) -> int:
        """How many were refused since the last time."""
        refused, self.refused = self.refused, 0
        return refused
