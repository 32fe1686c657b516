"""What :func:`aiordma.statistics` returns. Keys may be added; those that are here keep their meaning."""

from __future__ import annotations

from typing import Any, TypedDict


class DeviceStatistics(TypedDict):
    """One RDMA device of the list that an event loop may use."""

    #: name, as ``ibv_devices`` prints it
    device: str
    #: ``"open"``, ``"not opened"`` (never needed), ``"down"``; on request ``"draining"`` (with links), then
    #: ``"drained"``
    state: str
    #: why it is down, or drained
    why: str
    #: seconds until it is tried again; 0 unless it is down
    retry_in_s: float
    #: links on it
    links: int


class LinkStatistics(TypedDict):
    """One link: an RC queue pair to one peer, and what it carries."""

    #: host and port of the peer's TCP connection
    peer: str
    #: ``"setting up"``, ``"active"`` or ``"failed"``
    state: str
    #: ``"client"`` or ``"server"``
    side: str
    qp_num: int
    peer_qp_num: int
    #: 8 bits, as in the GRH
    traffic_class: int
    #: streams, datagram connections and channels on it
    connections: int
    #: streams that came here when another link had failed
    moved_here: int
    #: Tickets that are not used yet, and the size of their rings.
    tickets: int
    ticket_ring_bytes: int
    #: messages of the sequence-acknowledgement window; NOPs only carry acknowledgements
    messages_sent: int
    messages_received: int
    nops_sent: int
    nops_received: int
    bytes_written: int
    #: times that a message waited for the window
    credit_waits: int
    keepalives: int


class EngineStatistics(TypedDict, total=False):
    """The engine of one event loop. Counters begin with the engine."""

    #: the device in use
    device: str
    devices: list[DeviceStatistics]
    #: streams that changed over to another link, and those on TCP that wait for one
    streams_moved: int
    streams_waiting: int
    links: list[LinkStatistics]
    #: registered memory: see ``aiordma.verbs.memory.budget.PoolStatistics``
    memory: dict[str, int]
    #: queue pairs kept for reuse
    parked_qps: int
    #: looks at the completion queue, those that found nothing, and those that took too long
    completions: int
    polls: int
    empty_polls: int
    slow_polls: int
    slowest_poll_ns: int
    #: completion events read, and times the queue was armed
    events: int
    arms: int
    #: busy polls, those that paid off, and the time that one may take now
    busy_polls: int
    busy_poll_hits: int
    busy_poll_budget_ns: int
    #: batches that ended because others on the loop wait
    budget_exhausted: int
    #: packets of the software device to and from other hosts, where it may reach them
    wire: dict[str, Any]
