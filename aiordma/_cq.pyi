from collections.abc import Callable, Sized

from typing_extensions import disjoint_base

from .datapath._between_turns import BetweenTurns
from .datapath._bytes_pool import SpareBytes
from .wake._clock import Clock

@disjoint_base
class CompletionOwner: ...

@disjoint_base
class CompletionPoller:
    wakes: int
    second: int
    spare: SpareBytes
    between: BetweenTurns
    completions: int
    events: int
    arms: int
    busy_polls: int
    busy_poll_hits: int
    budget_exhausted: int
    dispatch_errors: int
    stale_completions: int
    polls: int
    empty_polls: int
    slow_polls: int
    slowest_poll_ns: int
    def __init__(
        self,
        cq: int,
        *,
        channel: int,
        get_event: int,
        ack_events: int,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        ready: Sized | None,
        busy_poll_us: int | None,
        max_fragments: int,
        keep: object,
    ) -> None: ...
    @property
    def fd(self) -> int: ...
    @property
    def is_armed(self) -> bool: ...
    @property
    def busy_poll_budget_ns(self) -> int: ...
    def set_max_fragments(self, max_fragments: int) -> None: ...
    def set_busy_poll(self, busy_poll_us: int | None) -> None: ...
    def watch_polls(self, threshold_ns: int, on_slow_poll: Callable[[int, str], object]) -> None: ...
    def came_by(self, due: int) -> None: ...
    def begin(self) -> None: ...
    def send_deferred(self) -> None: ...
    def drain(self) -> int: ...
    def on_readable(self) -> None: ...
    def close(self) -> None: ...
