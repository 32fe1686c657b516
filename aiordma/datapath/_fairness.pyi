from typing import Self

from typing_extensions import disjoint_base

@disjoint_base
class Starving: ...

@disjoint_base
class StarvedQueue:
    def __new__(cls) -> Self: ...
