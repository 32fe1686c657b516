from collections.abc import Callable

from typing_extensions import disjoint_base

@disjoint_base
class Clock:
    @property
    def real(self) -> bool: ...
    def now_ns(self) -> int: ...
    def hold(self) -> Callable[[], object]: ...

@disjoint_base
class GivenClock(Clock):
    def __init__(
        self, read: Callable[[], float], hold: Callable[[], Callable[[], object]] | None = None
    ) -> None: ...
