from typing import Self, final

from .._cq import CompletionQueue
from ._rendezvous import Pulls

@final
class Inbox:
    def __new__(
        cls, cq: CompletionQueue, pulls: Pulls, max_message_bytes: int, receive_bytes: int
    ) -> Self: ...
