from typing import Self, final

from .._cq import CompletionPoller
from ._rendezvous import Pulls

@final
class Inbox:
    def __new__(
        cls, cq: CompletionPoller, pulls: Pulls, max_message_bytes: int, receive_bytes: int
    ) -> Self: ...
