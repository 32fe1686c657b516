"""A stand-in for the kernel's program that sets SMC's TCP option, and for its map."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from aiordma.links.smcr import peers
from aiordma.negotiation import smc_option
from aiordma.negotiation.sockops import SynAnswer
from aiordma.proto.syn_option import SynOption

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

__all__ = ["Options", "options"]


class Options:
    """Stands for the kernel's program: every SYN-ACK, and every SYN, says that its sender is a kernel."""

    def __init__(self) -> None:
        self.said: SynOption | None = SynOption()
        self.lost = False
        #: The map takes no entry of a client.
        self.full = False
        #: The kernel's program has seen the SYNs.
        self.sent = True
        self.wanted: set[int] = set()
        #: Ports of sockets that have asked for an answer to clients.
        self.listening: list[int] = []

    def want(self, sock: socket.socket) -> int:
        if self.full:
            raise OSError(errno.E2BIG, "the map is full")
        if port := sock.getsockname()[1]:
            self.listening.append(port)
        self.wanted.add(sock.fileno())
        return sock.fileno()

    def answer(self, entry: int) -> SynAnswer:
        self.wanted.remove(entry)
        if self.lost:
            raise FileNotFoundError
        return SynAnswer(self.sent, self.said)

    def forget(self, entry: int) -> None:
        self.wanted.remove(entry)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[Options]:
    made = Options()
    monkeypatch.setattr(smc_option, "of_config", lambda _: made)
    # Both ends are on this host's device, whatever its address.
    monkeypatch.setattr(peers, "check_device", lambda _: None)
    monkeypatch.setattr(smc_option, "find_in_packet", lambda _: made.said)
    yield made
    assert made.wanted == set()
