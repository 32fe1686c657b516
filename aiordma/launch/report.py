"""What `aiordma run --report` prints at exit: which connections went which way, and why."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

from .sudden_ends import call_before, tell

if TYPE_CHECKING:
    from ..errors import FallbackReason

#: Kinds of connections that are told apart; a program that connects to more peers sees the rest summed up.
_MAX_ROWS = 1000


class Report:
    """Counts of connections by role of the peer, its address, path and reason."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str, str]] = Counter()

    def count(self, role: str, host: str, path: str, reason: FallbackReason | str | None) -> None:
        """One connection. `role`: what the peer is, "client" or "server"."""
        why = reason if isinstance(reason, str) else "" if reason is None else reason.text
        row = (path.lower(), role, host, why)
        if row not in self.counts and len(self.counts) >= _MAX_ROWS:
            row = (path.lower(), role, "others", "")
        self.counts[row] += 1

    def print_at_exit(self) -> None:
        """In this process, and in those that it forks, each for itself."""
        atexit.register(self.print)
        call_before(self._tell)
        os.register_at_fork(after_in_child=self.counts.clear)

    def print(self) -> None:
        """Print it on standard error, once; nothing if there were no connections."""
        if self.counts and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # a full disk; it is closed
                sys.stderr.write(self._taken())
                sys.stderr.flush()

    def _tell(self) -> None:
        if self.counts:
            tell(self._taken())

    def _taken(self) -> str:
        text = "\n".join(self.lines()) + "\n"
        self.counts.clear()
        return text

    def lines(self) -> list[str]:
        """The report."""
        rows = [(path, str(n), f"{role} {host}", why) for (path, role, host, why), n in self.counts.items()]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return [
            f"aiordma run: connections of process {os.getpid()}",
            *(
                f"  {path:<{widths[0]}}  {number:>{widths[1]}}  {peer:<{widths[2]}}  {why}".rstrip()
                for path, number, peer, why in sorted(rows)
            ),
        ]
