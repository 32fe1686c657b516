from typing_extensions import disjoint_base

from .._cq import CompletionOwner

@disjoint_base
class Hook: ...

@disjoint_base
class SendQueue(CompletionOwner):
    max_inline: int
    qp_num: int
    failed: bool
    messages_sent: int
    messages_received: int
    nops_sent: int
    nops_received: int
    writes_posted: int
    bytes_written: int
    credit_waits: int
    wr_waits: int
    keepalives_sent: int
    keepalives_done: int
    @property
    def ack_owed(self) -> bool: ...
    @property
    def counts_astray(self) -> bool: ...
    def prepare_long(self, message_bytes: int, addr: int = 0, lkey: int = 0, slots: int = 0) -> None: ...
    @staticmethod
    def long_slot_bytes(message_bytes: int) -> int: ...
    def count_on(self, requests: int) -> None: ...
    def send_llc(self, message: bytes) -> bool: ...
    def watch_ack(self) -> None: ...
    def probe(self, remote_addr: int, rkey: int) -> bool: ...
