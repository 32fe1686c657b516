"""Standard output as terminals of every locale take it."""

from __future__ import annotations

import io
import sys


def tolerate() -> None:
    """Show "?" for what the terminal has no character for, such as another program's name or a network's: a
    command does not fail for that. Not called where a program runs in this process: its output is its own."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors == "strict":
        out.reconfigure(errors="replace")
