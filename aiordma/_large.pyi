from typing import Self

from typing_extensions import disjoint_base

from ._qp import Connection, QueuePair
from ._starved import Starving
from .messagememory import MessageMemory

@disjoint_base
class Announced:
    def __new__(cls, memory: MessageMemory) -> Self: ...

@disjoint_base
class ReceivedBlock: ...

@disjoint_base
class Pull: ...

@disjoint_base
class Puller(Starving):
    def __new__(cls, qp: QueuePair) -> Self: ...

@disjoint_base
class PullingConnection(Connection): ...
