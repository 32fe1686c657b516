from typing import NamedTuple

from typing_extensions import disjoint_base

class RingPosition(NamedTuple):
    rx_produced: tuple[int, int]
    rx_consumed: tuple[int, int]
    tx_produced: tuple[int, int]
    tx_consumed: tuple[int, int]
    local_flags: int
    peer_flags: int
    active_at: int

@disjoint_base
class RingCursors:
    def __init__(self, rx_size: int) -> None: ...
