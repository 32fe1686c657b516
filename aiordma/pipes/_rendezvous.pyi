from typing import Self, final

from typing_extensions import disjoint_base

from ..datapath._fairness import SendQueueWaiter
from ..datapath._qp import Flow, QueuePair
from .contracts import RendezvousMemory

@final
class Sources:
    def __new__(cls, memory: RendezvousMemory) -> Self: ...

@disjoint_base
class LentSink: ...

@final
class Pull: ...

@final
class Puller(SendQueueWaiter):
    def __new__(cls, qp: QueuePair) -> Self: ...

@final
class Pulls:
    def __new__(cls, flow: Flow, qp: QueuePair, memory: RendezvousMemory, fragment: int) -> Self: ...
