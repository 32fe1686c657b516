from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

from ..datapath._qp import Flow, QueuePair
from ..verbs._spans import Spans

READ: int
WRITE: int
FETCH_ADD: int
COMPARE_SWAP: int

@final
class Transfer:
    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...
    def forget_buffer(self) -> None: ...
    def when_done(self, on_done: Callable[[Transfer], None]) -> None: ...

@final
class OneSided(Flow):
    @property
    def error(self) -> BaseException | None: ...
    def __init__(self, qp: QueuePair, fragment: int) -> None: ...
    @property
    def takes_any_buffer(self) -> bool: ...
    @property
    def under_way(self) -> int: ...
    @property
    def over(self) -> bool: ...
    def whole(
        self, op: int, buffer: Buffer, length: int, lkey: int, remote: int, rkey: int, stage: int
    ) -> Transfer | None: ...
    def at(
        self,
        op: int,
        address: int,
        length: int,
        lkey: int,
        remote: int,
        rkey: int,
        keep: object,
        opaque: bool,
    ) -> Transfer: ...
    def pieces(
        self, op: int, local: Spans, places: Spans, *, lkey: int, base: int, rkey: int, opaque: bool = False
    ) -> Transfer: ...
    def atomic(
        self,
        op: int,
        address: int,
        *,
        lkey: int,
        remote: int,
        rkey: int,
        value: int,
        compare: int,
        keep: object,
    ) -> Transfer: ...
    def give_up(self, transfer: Transfer) -> None: ...
    def soon(self) -> None: ...
    def spin(self, transfer: Transfer) -> bool: ...
    def close(self) -> None: ...
    def release(self) -> None: ...
