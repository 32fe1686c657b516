from typing_extensions import disjoint_base

from ._qp import QueuePair

@disjoint_base
class SmcrQueuePair(QueuePair): ...
