"""What the tests count, and what they leave out of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from .health import descriptors


@pytest.mark.parametrize(("name", "more"), [(b"\0aiordma-wire.test", 0), (b"\0aiordma-other.test", 2)])
def test_sockets_of_the_wire_are_not_counted(name: bytes, more: int) -> None:
    """A process takes the port over whenever the one that had it ends, in the middle of any test."""
    name += str(os.getpid()).encode()
    before = descriptors()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as watching:
        listening.bind(name)
        listening.listen()
        watching.connect(name)
        assert len(descriptors()) == len(before) + more
    assert descriptors() == before


def test_other_things_are_counted(tmp_path: Path) -> None:
    before = descriptors()
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, (tmp_path / "file").open():
        sock.bind(("127.0.0.1", 0))
        assert len(descriptors()) == len(before) + 2
    assert descriptors() == before
