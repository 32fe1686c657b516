from typing import Final

from typing_extensions import disjoint_base

from ._qp import QueuePair
from ._stand_in import StandIn

ANSWERS: Final[int]

@disjoint_base
class SmcrQueuePair(QueuePair):
    def stand_in_by(self, stand_in: StandIn) -> None: ...
    def stand_alone(self) -> None: ...
