from collections import deque
from collections.abc import Callable

from typing_extensions import Buffer, disjoint_base

from .._cq import CompletionOwner, CompletionPoller
from ..verbs.ud import AddressHandle

def source_gid(header: Buffer) -> bytes | None: ...

@disjoint_base
class Route:
    qpn: int
    qkey: int
    limit: int
    gid: bytes
    handle: AddressHandle | None
    address: tuple[str, int]
    used: bool
    sent: int
    received: int
    lost: int
    late: int
    def __init__(
        self,
        handle: AddressHandle | None,
        gid: bytes,
        qpn: int,
        qkey: int,
        limit: int,
        address: tuple[str, int],
    ) -> None: ...

@disjoint_base
class UdPort(CompletionOwner):
    qp_num: int
    mtu: int
    senders: dict[bytes, Route]
    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None
    on_control: Callable[[int, bytes, int, bytes], None] | None
    on_failed: Callable[[BaseException], None] | None
    failed: bool
    received: int
    sent: int
    dropped_full: int
    dropped_unknown: int
    malformed: int
    def __init__(
        self,
        cq: CompletionPoller,
        qp: int,
        qp_num: int,
        *,
        recv_addr: int,
        recv_lkey: int,
        recv_count: int,
        send_addr: int,
        send_lkey: int,
        sq_depth: int,
        max_inline: int,
        mtu: int,
        queue: deque[tuple[bytes, tuple[str, int]]],
        most: int,
        keep: object,
    ) -> None: ...
    def start(self) -> None: ...
    def try_send(self, route: Route, data: Buffer) -> bool: ...
    def send_control(self, route: Route, what: int, data: bytes) -> bool: ...
    def bury(self, route: Route) -> None: ...
    def bury_all(self) -> None: ...
    def look(self) -> None: ...
    def spin(self) -> bool: ...
    def park(self) -> None: ...
    def break_off(self, reason: BaseException) -> None: ...
    def close(self) -> None: ...
