import socket
from collections.abc import Callable
from typing import ClassVar, Self

from typing_extensions import Buffer, disjoint_base

from ._cq import Starving
from ._qp import Connection, QueuePair
from .channel import Message
from .messagememory import MessageMemory
from .proto.message import ChannelStatistics

@disjoint_base
class ReceivedBlock: ...

@disjoint_base
class Pull: ...

@disjoint_base
class Puller(Starving):
    def __new__(cls, qp: QueuePair) -> Self: ...

@disjoint_base
class MessageChannel(Connection):
    path: ClassVar[str]
    max_message_bytes: int
    error: BaseException | None
    on_finished: Callable[[MessageChannel], None] | None
    on_message: Callable[[Message], None] | None
    on_writable: Callable[[], None] | None
    on_closed: Callable[[BaseException | None], None] | None
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    large_sent: int
    large_received: int
    times_blocked: int
    credits_sent: int
    def __init__(
        self,
        qp: QueuePair,
        *,
        memory: MessageMemory,
        max_message_bytes: int,
        receive_bytes: int,
        fragment: int = 65536,
        own: object = None,
    ) -> None: ...
    def connect(self, *, peer_token: int, budget: int, message_bytes: int) -> None: ...
    def attach_tcp(self, sock: socket.socket) -> None: ...
    def forget(self) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_finished(self) -> bool: ...
    @property
    def peer_gone(self) -> bool: ...
    @property
    def last_message_delivered(self) -> bool: ...
    def statistics(self) -> ChannelStatistics: ...
    def try_send(self, head: bytes, body: Buffer = b"") -> bool: ...
    def spin(self) -> bool: ...
    def on_memory(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    @property
    def is_aborting(self) -> bool: ...
    def give_up(self) -> None: ...
    def break_with(self, reason: BaseException) -> None: ...
