from typing import Self

from typing_extensions import disjoint_base

from ..datapath._fairness import SendQueueWaiter
from ..datapath._qp import Flow, QueuePair
from ..links.message_memory import MessageMemory

@disjoint_base
class Announced:
    def __new__(cls, memory: MessageMemory) -> Self: ...

@disjoint_base
class ReceivedBlock: ...

@disjoint_base
class Pull: ...

@disjoint_base
class Puller(SendQueueWaiter):
    def __new__(cls, qp: QueuePair) -> Self: ...

@disjoint_base
class PullingConnection(Flow): ...
