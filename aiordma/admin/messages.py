"""The messages between tools and the admin endpoint of a process, and how they lie on the socket.

A message is a header, ``aio`` and a version byte and the length of the rest in 4 bytes (big-endian), and one
MessagePack object with the fields of a class below. A tool sends one request on a connection; the process
answers with any number of parts, and then with :class:`Done` or :class:`Refused`, and closes.

The classes of rows are also those of ``--json`` (:mod:`.report`). Fields may be added; those that are here
keep their meaning.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from .requests import (
    FromTool,
)

VERSION = 1
HEADER = struct.Struct(">3sBI")
_MAGIC = b"aio"
MAX_REQUEST_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 1024 * 1024


class GarbageError(ValueError):
    """What came is no message; ``version`` is the sender's, if that is why."""

    def __init__(self, text: str, version: int | None = None) -> None:
        super().__init__(text)
        self.version = version


# ---- answers


class Part(Struct, omit_defaults=False):
    """One message of an answer."""


class Identity(Part, tag="process"):
    """Who answers. Times of the row classes are in seconds."""

    pid: int
    uid: int
    program: str
    #: ``asyncio``, ``uvloop`` or ``trio``
    loop: str
    #: of aiordma
    version: str
    python: str
    host: str


class Connection(Struct):
    """One connection."""

    #: unique in the process while it runs
    number: int
    #: ``stream``, ``datagrams``, ``calls`` or ``valkey``
    kind: str
    #: ``client`` or ``server``
    side: str
    #: ``active``, ``eof sent``, ``eof received``, ``closing``, ``leaving`` (RDMA) or ``broken``
    state: str
    local: str
    remote: str
    #: ``rdma`` or ``tcp``
    path: str
    #: as ``smcss`` shows it: ``RDMA`` (``SMC-R`` with another implementation of it), or
    #: ``TCP 0xlocal[/0xpeer]``
    mode: str
    #: why it is on TCP, in words; empty on RDMA
    reason: str
    age_s: float
    #: since bytes went or came, by the kernel's clock on TCP, and within a second on RDMA (to Valkey: within
    #: the time of a keepalive)
    idle_s: float
    #: on TCP what the kernel has counted, with the negotiation: sent bytes when they are acknowledged
    bytes_sent: int
    bytes_received: int
    #: sizes of the rings; 0 on TCP
    ring_bytes: int = 0
    peer_ring_bytes: int = 0
    #: what waits for the program: in our ring, or in the kernel
    waiting_bytes: int = 0
    #: how often the peer had no room
    times_blocked: int = 0
    #: cursors as ``wrap:count`` in hexadecimal; empty where there are no rings
    rx_produced: str = ""
    rx_consumed: str = ""
    tx_produced: str = ""
    tx_consumed: str = ""
    #: state flags of the last cursor messages, as SMC has them (80 sending done, 40 closed, 20 aborted)
    local_flags: int = 0
    peer_flags: int = 0
    token: int = 0
    peer_token: int = 0
    #: number of the link's queue pair; 0 on TCP
    qp_num: int = 0
    #: of the kernel's TCP connection, microseconds; 0 on RDMA
    rtt_us: int = 0
    retransmits: int = 0
    #: for so long a send has waited, and the peer has made no room; 0: none does
    blocked_s: float = 0.0
    #: since when, in seconds since the epoch: of two ends that wait, the one that began to is the victim
    blocked_at: float = 0.0


class Connections(Part, tag="connections"):
    """Some of the connections; more may follow."""

    rows: list[Connection]


class Listener(Struct):
    """One listener: where clients connect to."""

    #: of its connections: ``stream``, ``datagrams`` or ``calls``
    kind: str
    addresses: list[str]
    age_s: float
    #: connections taken from the kernel
    accepted: int
    #: being negotiated now, or silent so far
    negotiating: int
    #: that no task has accepted yet
    waiting: int
    #: of the accepted ones, by path, and those that became neither; null: it does not count them
    rdma: int | None = None
    tcp: int | None = None
    failed: int | None = None


class Listeners(Part, tag="listeners"):
    """All listeners of the loop."""

    rows: list[Listener]


class Link(Struct):
    """One link: a queue pair to one peer. The counters are those of ``aiordma.EngineStatistics``."""

    device: str
    gid: str
    peer: str
    state: str
    side: str
    qp_num: int
    peer_qp_num: int
    traffic_class: int
    connections: int
    moved_here: int
    tickets: int
    ticket_ring_bytes: int
    messages_sent: int
    messages_received: int
    nops_sent: int
    nops_received: int
    bytes_written: int
    credit_waits: int
    keepalives: int
    window: int
    mtu: int
    registered_bytes: int
    used_bytes: int
    #: the device waits so long for an acknowledgement (IBTA 9.9.2) ...
    ack_timeout_ms: float = 0.0
    #: ... and sends so often again, before the link fails; the same for a peer without a posted receive (RNR)
    retries: int = 0
    rnr_retries: int = 0
    #: since it was begun
    age_s: float = 0.0


class Links(Part, tag="links"):
    """All links of the loop."""

    rows: list[Link]


class Device(Struct):
    """One device that the loop may use."""

    device: str
    #: ``open``, ``not opened``, ``down``, ``draining`` or ``drained``
    state: str
    why: str
    retry_in_s: float
    links: int
    #: ``software``, ``kernel``, or empty while it is not open
    kind: str = ""
    port: int = 0
    gid: str = ""
    mtu: int = 0


class Devices(Part, tag="devices"):
    """Devices of the loop."""

    rows: list[Device]


class Memory(Struct):
    """Registered memory of one engine, in bytes."""

    device: str
    registered_bytes: int
    registered_high_water: int
    used_bytes: int
    used_high_water: int
    limit_bytes: int
    slabs: int
    slabs_registered: int
    slabs_released: int
    allocations: int
    reuses: int
    downgrades: int
    failures: int
    #: queue pairs kept for reuse
    parked_qps: int


class Holder(Struct):
    """Who holds memory: one arena of a link, or one region of ``aiordma.memory``."""

    #: empty for a region, which each device may reach
    device: str
    #: ``rings`` and ``receives`` of a link, ``messages out`` and ``messages in`` of calls, ``region``, or
    #: ``other``
    kind: str
    #: of the link; empty where there is none, or several
    peer: str
    registered_bytes: int
    used_bytes: int
    #: of a region: those in force, and how often peers have opened them now
    descriptors: int = 0
    openings: int = 0


class MemoryUse(Part, tag="memory"):
    """Memory of the loop's engines, and some of those that hold it; more may follow."""

    rows: list[Memory]
    holders: list[Holder]


class Method(Struct):
    """Calls of one method, or of one connection."""

    #: ``server`` or ``client``
    side: str
    #: the peer's address of a connection; empty for a method
    peer: str
    #: name of the method; empty for a connection
    method: str
    in_flight: int
    #: calls that began; of a method, of all its connections since the loop began
    calls: int = 0
    #: those that ended without a result: errors, deadlines, cancelled, lost with their connection
    errors: int = 0
    #: calls on which the times are based: one in 64, or those that are traced (``AIORDMA_TRACE_SAMPLE``)
    traced: int = 0
    p50_us: float = 0.0
    p99_us: float = 0.0
    max_us: float = 0.0


class Rpc(Part, tag="rpc"):
    """Connections of calls, and methods that were traced."""

    rows: list[Method]


class Fallback(Struct):
    """Connections of the process that are or were on TCP, for one reason."""

    #: ``began`` on TCP, or ``left`` RDMA later
    when: str
    #: ``TCP 0xlocal[/0xpeer]``
    mode: str
    local: int
    peer: int | None
    text: str
    connections: int
    #: the first one and the last one, in seconds since the epoch; 0: not known
    first_at: float = 0.0
    last_at: float = 0.0


class Fallbacks(Part, tag="fallbacks"):
    """Counts since the process began."""

    rows: list[Fallback]


class Event(Struct):
    """Something that happened to links, devices or paths, perhaps several times within seconds."""

    #: ``link up``, ``link lost``, ``link ended``, ``device up``, ``device down``, ``device drained``,
    #: ``began on TCP``, ``left RDMA`` or ``back on RDMA``
    kind: str
    text: str
    #: the first time and the last one, in seconds since the epoch
    first_at: float
    last_at: float
    count: int


class Events(Part, tag="events"):
    """The last ones of the process."""

    rows: list[Event]


class VerbsProgram(Struct):
    """A program that has an RDMA device open."""

    pid: int
    uid: int
    program: str
    #: by name; ``software device``
    devices: list[str]
    #: it has a loop of aiordma
    uses_aiordma: bool


class Leak(Struct):
    """Something that the program has forgotten (``aiordma.observe.leaks``)."""

    #: ``dropped``, ``loan``, ``idle``, ``view`` or ``dead peer``
    kind: str
    what: str
    #: it is there now
    open: bool
    #: seconds since the epoch
    found_at: float
    #: seconds that it had lasted then
    lasted_s: float
    #: of registered memory; 0: none, or not known
    held_bytes: int
    #: the library has closed it, or given it back
    reclaimed: bool
    #: ``file:line function``, innermost first; empty unless recorded (``AIORDMA_LEAK_FRAMES``)
    where: list[str]


class Leaks(Part, tag="leaks"):
    """Those of the process that are there, and the last ones that are over."""

    rows: list[Leak]


class Engine(Struct):
    """Counters of the completion queue of one engine."""

    device: str
    completions: int
    polls: int
    empty_polls: int
    slow_polls: int
    slowest_poll_ns: int
    events: int
    arms: int
    busy_polls: int
    busy_poll_hits: int
    budget_exhausted: int
    #: registered memory in use, in bytes, and its limit (``AIORDMA_MEMORY_LIMIT_BYTES``)
    used_bytes: int = 0
    limit_bytes: int = 0
    #: blocks of it that were smaller than wanted, and that there was no room for
    downgrades: int = 0
    failures: int = 0


class Totals(Part, tag="totals"):
    """Counts since the process began; ``open`` is now."""

    open: int
    links: int
    #: connections by ``kind/side/path``, such as ``stream/client/rdma``
    connections: dict[str, int]
    #: that began on TCP, and that left RDMA later
    fell_back: int
    left_rdma: int
    engines: list[Engine]
    #: found since the process began, by kind, also those that are over
    leaks: dict[str, int] = {}
    #: calls and handlers that took longer than ``AIORDMA_SLOW_REQUEST_US`` and ``AIORDMA_SLOW_HANDLER_US``
    slow_requests: int = 0
    slow_handlers: int = 0
    #: the loop's own timer, which comes once a second: how often the loop kept it for 20 ms or more in the
    #: last minute, and for how long at most
    late_timers: int = 0
    latest_timer_ms: float = 0.0
    #: the same, for want of a processor
    queued_ms: float = 0.0


class Setting(Struct):
    """One setting in force."""

    name: str
    value: int | str | None
    default: int | str | None
    #: whether it can be changed now
    online: bool
    allowed: str
    help: str


class Settings(Part, tag="settings"):
    """All settings of the loop's engine."""

    rows: list[Setting]


class Task(Struct):
    """A task of the event loop."""

    name: str
    #: ``file:line function``, outermost first
    frames: list[str]


class Tasks(Part, tag="tasks"):
    """Some of the tasks; more may follow."""

    rows: list[Task]


class Call(Struct):
    """A traced call (``aiordma.observe.trace.Record``)."""

    side: str
    method: str
    peer: str
    code: int
    #: seconds since the epoch
    began: float
    total_us: float
    #: by name of the stage, where they are known
    stages_us: dict[str, float]


class Calls(Part, tag="calls"):
    """Some of the last traced calls; more may follow."""

    rows: list[Call]


class Warning(Struct):
    """A warning, or worse, that a logger of the library has given. Without the text of exceptions."""

    #: seconds since the epoch
    at: float
    level: str
    logger: str
    text: str


class Warnings(Part, tag="warnings"):
    """The last ones of the process."""

    rows: list[Warning]


class Packet(Struct):
    """A message that was captured, as an IP packet around it."""

    #: nanoseconds since the epoch
    at_ns: Annotated[int, Meta(ge=0)]
    outbound: bool
    #: with the payload that was left out of ``data``
    length: Annotated[int, Meta(ge=0, lt=1 << 32)]
    data: bytes


class Packets(Part, tag="packets"):
    """Some of the messages that a capture has kept; more may follow."""

    rows: list[Packet]


class FaultRule(Struct):
    """A fault rule of the process."""

    number: int
    rule: str
    matched: int
    fired: int


class FaultRules(Part, tag="rules"):
    """Those that hold now."""

    rows: list[FaultRule]


class Done(Part, tag="done"):
    """The end. :param count: of connections or bytes that the request concerned."""

    count: int = 0
    #: what happened, for people
    text: str = ""


class Refused(Part, tag="refused"):
    """The end: nothing was done, or not all of it."""

    text: str


Answer = (
    Identity
    | Connections
    | Listeners
    | Links
    | Devices
    | MemoryUse
    | Rpc
    | Fallbacks
    | Events
    | Leaks
    | Totals
    | Settings
    | Tasks
    | Calls
    | Warnings
    | Packets
    | FaultRules
    | Done
    | Refused
)

# ---- on the socket

_encode = msgspec.msgpack.Encoder().encode
_decode_request: Any = msgspec.msgpack.Decoder(FromTool).decode
_decode_answer: Any = msgspec.msgpack.Decoder(Answer).decode


def packed(message: Struct) -> bytes:
    """Header and message."""
    body = _encode(message)
    return HEADER.pack(_MAGIC, VERSION, len(body)) + body


def length_of(header: bytes, most: int) -> int:
    """Of what follows. :raises GarbageError:"""
    magic, version, length = HEADER.unpack(header)
    if magic != _MAGIC:
        raise GarbageError("this is not the protocol of the admin socket")
    if version != VERSION:
        raise GarbageError(f"the other end speaks version {version}, this one {VERSION}", version)
    if not 0 < length <= most:
        raise GarbageError(f"a message of {length} bytes")
    return int(length)


def parse_request(body: bytes) -> FromTool:
    """:raises GarbageError:"""
    try:
        found: FromTool = _decode_request(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GarbageError(str(error)) from None
    return found


def parse_answer(body: bytes) -> Answer:
    """:raises GarbageError:"""
    try:
        found: Answer = _decode_answer(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GarbageError(str(error)) from None
    return found
