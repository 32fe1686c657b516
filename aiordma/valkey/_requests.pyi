from collections.abc import Callable
from typing import Any, NamedTuple

from typing_extensions import disjoint_base

from .._cq import CompletionOwner, CompletionPoller

class ValkeyStatistics(NamedTuple):
    sends: int
    receives: int
    bytes_sent: int
    bytes_received: int
    times_blocked: int
    writes: int
    registrations_sent: int
    registrations_received: int
    queries: int
    ring_bytes: int
    peer_ring_bytes: int

@disjoint_base
class ValkeyRequests(CompletionOwner):
    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None
    pushes: bool
    reads_ahead: int
    @property
    def qp_num(self) -> int: ...
    @property
    def last_received(self) -> int: ...
    def __init__(
        self,
        cq: CompletionPoller,
        qp: int,
        qp_num: int,
        *,
        buffers: int,
        rkey: int,
        buffer_bytes: int,
        buffer_count: int,
        recv_addr: int,
        recv_count: int,
        recv_lkey: int,
        command_addr: int,
        command_lkey: int,
        sq_depth: int,
        max_inline: int,
        owner: Any,
    ) -> None: ...
    def start(self) -> None: ...
    def begin(self) -> None: ...
    def make_mirror(self) -> None: ...
    def keepalive(self) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_registered(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def readable(self) -> int: ...
    @property
    def writable(self) -> int: ...
    @property
    def at_eof(self) -> bool: ...
    @property
    def counters(self) -> tuple[int, int]: ...
    def statistics(self) -> ValkeyStatistics: ...
    def count_on(self, requests: int) -> None: ...
    def server_ended(self) -> None: ...
    def break_off(self, reason: BaseException) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def detach(self) -> None: ...
