from typing import Any

from typing_extensions import Buffer

from ._window import MemoryWindow

CPU: tuple[int, int]

def export(buffer: Buffer, max_version: tuple[int, int] | None = None) -> object: ...
def imported(array: Any) -> MemoryWindow: ...
