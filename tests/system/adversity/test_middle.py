"""Somebody on the path of the RDMA packets of a connection that was negotiated inside TLS."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import anyio
import pytest
import trustme

import aiordma
from tests.processes import process
from tests.roles import LOCAL, echo
from tests.softdev.test_capture import tshark

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program import Control

pytestmark = pytest.mark.slow

SECRET = b"to be or not to be, that is what the man in the middle asks himself "


async def tls_stream(control: Control, outside: bool) -> None:
    """Both ends are here. Says the path, and whether the bytes that came are those that were sent."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(LOCAL).configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    listening = await aiordma.listen(LOCAL, ssl=server, rdma_outside_tls=outside)
    async with listening as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        async with await aiordma.connect(
            LOCAL, listener.port, ssl=client, rdma_outside_tls=outside
        ) as stream:
            await stream.send(SECRET * 100)
            got = b""
            while len(got) < 100 * len(SECRET):
                got += await stream.receive()
            control.say([stream.path, got == SECRET * 100])
        tasks.cancel_scope.cancel()


def env(capture: Path, faults: str = "") -> dict[str, str]:
    return {
        "AIORDMA_DEVICE": "soft",
        "SOFTDEV_WIRE": "only",
        "SOFTDEV_CAPTURE": str(capture),
        "SOFTDEV_FAULTS": faults,
    }


def test_nothing_of_the_payload_is_there_by_default(tmp_path: Path) -> None:
    """The payload is inside TLS, on TCP: there is nothing to read or to change."""
    capture = tmp_path / "packets.pcapng"
    with process(f"{__name__}:tls_stream", env=env(capture), outside=False) as both:
        assert both.hear() == ["tcp", True]
    assert not capture.exists() or not tshark(capture, "-T", "fields", "-e", "infiniband.bth.opcode")


def test_payload_outside_tls_is_in_clear_text(tmp_path: Path) -> None:
    """Who asks for it gets what docs/howto/choose-path.md says: it can be read, and so changed."""
    capture = tmp_path / "packets.pcapng"
    with process(f"{__name__}:tls_stream", env=env(capture), outside=True) as both:
        assert both.hear() == ["rdma", True]
    assert SECRET in capture.read_bytes()


def test_packets_that_somebody_damages_are_repeated(tmp_path: Path) -> None:
    """Without a checksum that fits: dropped, as if they had been lost."""
    faults = "seed=5,wire_corrupt=0.1,wire_duplicate=0.1,wire_reorder=0.1"
    with process(
        f"{__name__}:tls_stream", env=env(tmp_path / "packets.pcapng", faults), outside=True
    ) as both:
        path, same = both.hear()
        assert same
        assert path == "rdma"
