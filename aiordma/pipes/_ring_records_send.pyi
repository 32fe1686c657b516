from collections.abc import Callable, Sequence

from typing_extensions import Buffer, disjoint_base

from .._cq import CompletionOwner
from ._switchable import SwitchablePipe

@disjoint_base
class RecordSender(CompletionOwner):
    max_message_bytes: int
    messages_sent: int
    times_blocked: int
    posts: int
    def __init__(self, pipe: SwitchablePipe) -> None: ...
    def try_send(self, data: Buffer) -> bool: ...
    def send_many(self, messages: Sequence[Buffer], start: int = 0) -> int: ...
    @property
    def unsent(self) -> int: ...
    @property
    def on_writable(self) -> Callable[[], None] | None: ...
    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None: ...
    @property
    def writable(self) -> int: ...
