"""What is wrong with a network's file, or with what is asked of it."""

from __future__ import annotations

__all__ = ["NetworkError"]


class NetworkError(ValueError):
    """The network cannot be planned or simulated; the text has `file:line` where a line is to blame."""
