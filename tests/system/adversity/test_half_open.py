"""A peer's host that is gone without a word, as after a power cut: no FIN and no RST come any more."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import socket
import struct
import termios
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import faults
from aiordma.config import Config
from aiordma.errors import Code
from aiordma.links import engine as engines
from aiordma.links.failover import tcp_carrier
from aiordma.links.failover.leave import switch_back
from tests.health import until
from tests.processes import PATIENCE
from tests.streams.pairs import negotiated_pair
from tests.tuned import tuned
from tests.world import DEVICE, SLOWER

if TYPE_CHECKING:
    from aiordma.pipes.tls import Carrier

pytestmark = pytest.mark.anyio

_SO_ATTACH_FILTER = 26
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # classic BPF: keep 0 bytes of every packet


def deafen(sock: Carrier) -> None:
    """Nothing reaches this end any more, so nothing is answered: to the other end its host is gone."""
    program = ctypes.create_string_buffer(_RETURN_NOTHING)
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def is_acknowledged(sock: Carrier) -> bool:
    """Whether the peer's host has all that was sent."""
    return fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)) == bytes(4)


async def carriers(side: str) -> list[Carrier]:
    """The TCP connections of this side's streams, which are on RDMA."""
    groups = [group for group in (await engines.current()).all_groups if group.key[1] == side]
    members: list[Any] = [member for group in groups for member in group.members]
    await until(lambda: all(member.carrier is not None for member in members))
    return [member.carrier for member in members]


async def lost(stream: aiordma.RdmaStream) -> str:
    """Why it broke."""
    with anyio.fail_after(PATIENCE), pytest.raises(anyio.BrokenResourceError) as caught:
        await stream.receive()
    return str(caught.value)


async def test_a_stream_on_rdma() -> None:
    """The link's keepalive ends it, since nothing answers on TCP either."""
    config = tuned(device=DEVICE, keepalive_ms=600_000, keepalive_timeout_ms=round(200 * SLOWER))
    one, other = await negotiated_pair(config=config, mode="rdma")
    async with one, other:
        await one.send(b"before")
        assert await other.receive() == b"before"
        for carrier in await carriers("client") + await carriers("server"):
            deafen(carrier)
        with faults.injected("drop op=keepalive ms=never"):
            aiordma.change_settings(keepalive_ms=100, failover_timeout_ms=round(300 * SLOWER))
            assert "keepalive" in await lost(one)
            assert "keepalive" in await lost(other)


@pytest.mark.parametrize("probing", [True, False])
async def test_a_stream_that_has_left_rdma(probing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's keepalive ends it, unless the link's was switched off."""
    monkeypatch.setattr(tcp_carrier, "_PROBES", dict.fromkeys(tcp_carrier._PROBES, 1))
    config = Config(device=DEVICE, ring_bytes=16384, keepalive_ms=10_000 if probing else 0)
    one, other = await negotiated_pair(config=config, mode="rdma")
    async with one, other:
        ours, theirs = await carriers("client"), await carriers("server")
        assert one._pipe.leave(Code.SWITCHED)  # type: ignore[attr-defined]
        await until(lambda: (one.path, other.path) == ("tcp", "tcp"))
        await one.send(b"before")
        assert await other.receive() == b"before"
        (sock,) = ours
        assert isinstance(sock, socket.socket)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == probing
        if probing:
            for each in (sock, theirs[0]):
                await until(functools.partial(is_acknowledged, each))  # else the kernel repeats it instead
                deafen(each)
            assert "ETIMEDOUT" in await lost(one)
            one.abort()
            other.abort()


@pytest.mark.parametrize("own", [False, True], ids=["no probes", "the program's own"])
async def test_the_kernel_does_not_probe_what_is_back_on_rdma(own: bool) -> None:
    """The socket's options are as the program has set them."""
    config = Config(device=DEVICE, ring_bytes=16384)
    one, other = await negotiated_pair(config=config, mode="rdma")
    async with one, other:
        (sock,) = await carriers("client")
        assert isinstance(sock, socket.socket)
        if own:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1234)
        before = [sock.getsockopt(*option) for option in tcp_carrier._PROBES]
        assert one._pipe.leave(Code.SWITCHED)  # type: ignore[attr-defined]
        await until(lambda: (one.path, other.path) == ("tcp", "tcp"))
        probing = [sock.getsockopt(*option) for option in tcp_carrier._PROBES]
        assert probing == list(tcp_carrier._PROBES.values())
        with anyio.fail_after(PATIENCE):
            await switch_back(one._pipe)  # type: ignore[arg-type]
        await until(lambda: (one.path, other.path) == ("rdma", "rdma"))
        assert [sock.getsockopt(*option) for option in tcp_carrier._PROBES] == before
