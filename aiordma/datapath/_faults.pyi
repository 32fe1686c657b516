from collections.abc import Callable
from typing import Protocol, TypeAlias

from typing_extensions import disjoint_base

from ..proto.filter import Decision, Direction, Op
from ..wake.base import Handle
from ._qp import QueuePair
from ._send_queue import Hook

class _Link(Protocol):
    peer: str
    side: str
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Handle: ...
    def cut(self) -> None: ...

_Decide: TypeAlias = Callable[[Direction, Op, int, str, str, int | None], Decision | None]

@disjoint_base
class Held: ...

_Tap: TypeAlias = Callable[[_Link, Direction, Op, bytes, int, int | None, int], None]

@disjoint_base
class LinkFilter(Hook):
    tap: _Tap | None
    tap_bytes: int
    def __init__(self, qp: QueuePair, link: _Link, decide: _Decide) -> None: ...
    @property
    def idle(self) -> bool: ...
    def attach(self) -> None: ...
    def detach(self) -> bool: ...
