import asyncio
from collections.abc import Callable
from typing import Any, final

@final
class CancelCheck:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: int,
        tasks: dict[Any, Any] | None,
        current_task: Callable[[Any], Any],
        states: dict[Any, Any],
    ) -> None: ...
    def requested(self) -> bool: ...
