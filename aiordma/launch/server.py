"""A server that the policy would negotiate with."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Server"]


class Server(NamedTuple):
    """One that a connection may be negotiated with."""

    host: str
    port: int
    #: It is known to negotiate: a rule says so, or a listener of aiordma on this host has announced itself.
    known: bool
    #: Family and address, if the program has connected already.
    address: tuple[int, Any] | None = None
    #: It is on this host, where an announcement says what it is now: nothing is remembered of it.
    local: bool = False
