from typing import Self, final

from ..datapath._qp import QueuePair
from ._link_channel_receive import Inbox
from ._rendezvous import Sources

@final
class Outbox:
    def __new__(cls, qp: QueuePair, inbox: Inbox, sources: Sources, max_message_bytes: int) -> Self: ...
