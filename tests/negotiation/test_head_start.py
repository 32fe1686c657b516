"""How long an unknown server has for its answer."""

from __future__ import annotations

import socket
import struct

import pytest

from aiordma.negotiation.peer_cache import head_start_s
from tests.roles import LOCAL


class Far(socket.socket):
    """A socket whose peer is 150 ms away, as Linux says it: `tcpi_rtt` is behind 8 bytes and 15 numbers."""

    def getsockopt(self, *_: object) -> bytes:  # type: ignore[override]
        return struct.pack("=8x15I2I", *range(15), 150_000, 7)[:72]


def test_near_servers_get_what_is_set() -> None:
    with socket.create_server((LOCAL, 0)) as server, socket.create_connection(server.getsockname()) as sock:
        # The kernel has measured the handshake: some microseconds.
        assert 0.1 < head_start_s(sock, 100) < 1.1


def test_far_ones_get_their_round_trips_on_top() -> None:
    with Far() as sock:
        assert head_start_s(sock, 100) == pytest.approx(0.7)
        assert head_start_s(sock, 0) == pytest.approx(0.6)


def test_a_socket_that_is_gone() -> None:
    sock = socket.socket()
    sock.close()
    assert head_start_s(sock, 100) == 0.1
