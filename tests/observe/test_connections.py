"""The table of a loop's connections."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

from aiordma.observe.connections import Connections
from aiordma.proto.clc import Kind


def test_a_connection_whose_socket_is_closed_does_not_count() -> None:
    """`aiordma adm list` shows the number, `aiordma stat` the rows: a closed socket may still be held."""
    table = Connections()
    pairs = [socket.socketpair() for _ in range(2)]
    for one, _ in pairs:
        made: Any = SimpleNamespace(
            smc_peer=None, sock=one, local_address=("a", 1), remote_address=("b", 2), fallback=None, pipe=None
        )
        table.add(made, Kind.STREAM, "client")
    assert len(table) == len(list(table)) == 2
    pairs[0][0].close()
    assert len(table) == len(list(table)) == 1
    for each in (each for pair in pairs for each in pair):
        each.close()
