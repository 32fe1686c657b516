"""Socket addresses as users see them: a host and a port, and how they read in messages."""

from __future__ import annotations

from typing import Any

__all__ = ["Address", "plain_address", "show"]

Address = tuple[str, int]
"""Host and port. An IPv6 scope is part of the host (``fe80::1%2``)."""


def plain_address(sockaddr: Any) -> Address:
    """Host and port of what ``getsockname()`` gave; an IPv6 scope joins the host (``fe80::1%2``)."""
    if len(sockaddr) == 4 and sockaddr[3] and "%" not in sockaddr[0]:
        return f"{sockaddr[0]}%{sockaddr[3]}", sockaddr[1]
    return sockaddr[0], sockaddr[1]


def show(sockaddr: Any) -> str:
    """A socket address for people."""
    if not isinstance(sockaddr, tuple):
        return str(sockaddr)
    return f"[{sockaddr[0]}]:{sockaddr[1]}" if ":" in sockaddr[0] else f"{sockaddr[0]}:{sockaddr[1]}"
