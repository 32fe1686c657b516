from collections.abc import Callable

from typing_extensions import disjoint_base

from ._rendezvous import PullingConnection
from .contracts import Message

@disjoint_base
class ReceivingConnection(PullingConnection):
    max_message_bytes: int
    on_message: Callable[[Message], None] | None
    messages_received: int
    bytes_received: int
    large_received: int
