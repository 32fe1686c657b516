from typing import Self, final

from typing_extensions import disjoint_base

from .._cq import CompletionQueue
from ._rendezvous import Pulls

@final
@disjoint_base
class Inbox:
    def __new__(cls, cq: CompletionQueue, pulls: Pulls, max_message_bytes: int, receive_bytes: int) -> Self: ...
