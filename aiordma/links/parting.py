"""The end of a loop with open connections: what they have accepted still arrives, and each ends as the kernel
would end a TCP connection of a process that has ended.

That is an end in order, or a reset if the program has not read all that came. What waits for room in the
peer's ring is given some time, and is lost with a reset after that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Longest time in which peers may make room for what was accepted.
_UNSENT_SECONDS = 5.0
#: Longest time that the end of a loop waits for peers to take leave.
_LINGER_SECONDS = 1.0


class Member(Protocol):
    """What a link group has of one connection."""

    @property
    def parting(self) -> bool: ...
    def part(self) -> bool: ...


def unsent(pipe: Any) -> int:
    """How much the owner of a pipe has accepted that the pipe had no room for, in units of its own.

    It is the one that the pipe calls when there is room again. A task that waits there with its data is none:
    it does not outlive its loop, and neither would it with TCP.
    """
    return getattr(getattr(pipe.on_writable, "__self__", None), "unsent", 0)


class Parting:
    """What is still to be done for the connections of a loop that ends.

    :param members: those on links that work.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = list(members)
        self._unsent = self._members
        self._began = self._sent_at = time.monotonic()

    def look(self) -> bool:
        """End what may end now; whether to look again soon."""
        now = time.monotonic()
        if self._unsent:
            self._unsent = [member for member in self._unsent if not member.part()]
            self._sent_at = now
            if self._unsent:
                return now < self._began + _UNSENT_SECONDS
        return now < self._sent_at + _LINGER_SECONDS and any(member.parting for member in self._members)
