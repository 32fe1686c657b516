from collections.abc import Callable
from typing import ClassVar, final

from typing_extensions import Buffer

from ..datapath._qp import QueuePair
from ..proto.message import ChannelStatistics
from ._link_channel_life import ChannelLife
from .contracts import Message, Placer, RendezvousMemory
from .placement import Placement

@final
class MessageChannel(ChannelLife):
    path: ClassVar[str]
    on_message: Callable[[Message], None] | None
    placer: Placer | None
    times_blocked: int
    credits_sent: int
    active_at: int
    def __init__(
        self,
        qp: QueuePair,
        *,
        memory: RendezvousMemory,
        max_message_bytes: int,
        receive_bytes: int,
        fragment: int = 65536,
        own: object = None,
    ) -> None: ...
    def connect(self, *, peer_token: int, budget: int, message_bytes: int) -> None: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def blocked_ns(self) -> int: ...
    @property
    def messages_sent(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def large_sent(self) -> int: ...
    @property
    def messages_received(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def large_received(self) -> int: ...
    def statistics(self) -> ChannelStatistics: ...
    def try_send(self, head: bytes, body: Buffer = b"") -> bool: ...
    def spin(self) -> bool: ...
    def withdraw(self, placement: Placement) -> None: ...
    def on_memory(self) -> None: ...
