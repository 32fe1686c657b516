from typing_extensions import disjoint_base

@disjoint_base
class RingCursors:
    def __init__(self, rx_size: int) -> None: ...
