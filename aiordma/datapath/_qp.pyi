from typing import Protocol

from typing_extensions import disjoint_base

from .._cq import CompletionPoller
from ..proto.seqack import SeqAckWindow
from ._fairness import SendQueueWaiter
from ._send_queue import SendQueue

class _Owner(Protocol):
    def on_llc(self, data: bytes) -> None: ...
    def on_ack_owed(self) -> None: ...
    def peer_left_whole(self) -> bool: ...
    @property
    def shows_end(self) -> bool: ...
    def peer_left_note(self) -> int: ...
    def explain(self, reason: BaseException) -> BaseException: ...
    def on_failed(self, reason: BaseException) -> None: ...

@disjoint_base
class Flow(SendQueueWaiter):
    token: int
    @property
    def qp_num(self) -> int: ...

@disjoint_base
class LlcFlow(Flow): ...

@disjoint_base
class QueuePair(SendQueue):
    last_received: int
    max_reads: int
    def __init__(
        self,
        cq: CompletionPoller,
        qp: int,
        qp_num: int,
        window: SeqAckWindow,
        *,
        owner: _Owner,
        keep: object,
        recv_addr: int,
        recv_bytes: int,
        recv_count: int,
        recv_lkey: int,
        message_addr: int,
        message_lkey: int,
        sq_depth: int,
        max_inline: int,
        with_imm: bool,
        astray: int = 0,
        says_held: int = 0,
        wills: int = 0,
        notes: int = 0,
        expects: int = 0,
    ) -> None: ...
    def flow_of(self, token: int) -> Flow | None: ...
    @property
    def flow_count(self) -> int: ...
    def start(self) -> None: ...
    def queue_llc(self, message: bytes) -> int: ...
    def llc_waits(self, number: int) -> bool: ...
    @property
    def llc_waiting(self) -> int: ...
    def break_link(self, reason: BaseException) -> None: ...
    def detach_from_cq(self) -> None: ...
