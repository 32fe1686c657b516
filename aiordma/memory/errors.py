"""Why an operation on memory was refused."""

from __future__ import annotations

from ..errors import AioRdmaError
from ..proto.memory import Fault


class MemoryAccessError(AioRdmaError):
    """An access to memory was refused, and touched nothing.

    :param fault: the reason, for programs.
    :param text: the reason, for people.
    """

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault

    def __reduce__(self) -> tuple[type[MemoryAccessError], tuple[Fault, str]]:
        return type(self), (self.fault, str(self))
