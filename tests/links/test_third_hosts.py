"""A peer that names the address of a third host: that one gets a few packets, and no more."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
import pytest

import aiordma
from aiordma.addresses import leads_to
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.proto import clc
from aiordma.proto.proof import accept_proof
from aiordma.proto.resolve import Hello, QueuePairAddress, Welcome
from tests.processes import process
from tests.roles import LOCAL, statistics
from tests.system.adversity.test_hostile_handshake import Raw, impostor, own_engine
from tests.tuned import tuned

if TYPE_CHECKING:
    from tests.processes import Process
    from tests.program import Control

ECHO = "tests.roles:echo_server"
#: The victim sends packets, and nothing of its own accord.
ENV = {"SOFTDEV_WIRE": "only"}
WIRE = Config(device="soft", soft_wire="only", keepalive_ms=0)
#: A host that has no queue pair.
THIRD = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 9])
#: What docs/explanation/threat-model.md says.
MOST = 4


def packets(numbers: dict[str, Any]) -> int:
    """Sent, or tried to send, to the third host: there is no other."""
    wire = numbers["wire"]
    sent: int = wire["sent"] + wire["send_failed"]
    return sent


async def asked(server: Process) -> dict[str, Any]:
    server.say("statistics?")
    numbers: dict[str, Any] = await server.heard()
    return numbers


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_client_that_names_a_third_host() -> None:
    await engines.current()
    with process(ECHO, env=ENV, device="soft", soft_wire="only", keepalive_ms=0) as server:
        port = await server.heard()
        async with own_engine() as engine:
            offer = await engine.propose()
            async with await anyio.connect_tcp(LOCAL, port) as sock:
                await Raw(sock, engine, engine, offer).confirms(gid=THIRD)
        while (numbers := await asked(server))["links"]:
            await anyio.lowlevel.checkpoint()
        assert 0 < packets(numbers) <= MOST


async def connecting_client(control: Control, port: int) -> None:
    """Says what it has sent when its connection has come to nothing."""
    try:
        await aiordma.connect(LOCAL, port, config=tuned(WIRE, link_timeout_ms=300, negotiate_timeout_ms=2000))
    except aiordma.NegotiationError:
        control.say(await statistics())


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_names_a_third_host() -> None:
    """The server speaks first on a link: so the client says nothing there, not even that it gives up."""
    host_id = (await engines.current()).host_id

    def answer(proposal: clc.Proposal) -> clc.Accept:
        name = bytes(range(16))
        return clc.Accept(
            first_contact=True, gid=THIRD, qpn=77, psn=1, mtu=3, rkey=1, rmb_addr=4096, ring_bytes=16384,
            token=77, engine_id=name, host_id=host_id, window=WIRE.window,
            proof=accept_proof(proposal.nonce, name),
        )  # fmt: skip

    with socket.create_server((LOCAL, 0)) as listening:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        with process(f"{__name__}:connecting_client", env=ENV, port=port) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(impostor, listening, answer)
                assert packets(await client.heard()) == 0
                tasks.cancel_scope.cancel()


async def sender_of_datagrams(control: Control, port: int) -> None:
    """Says the path to the endpoint at ``port``, and what was sent to find out."""
    config = tuned(WIRE, link_timeout_ms=2000)  # nothing comes
    async with await aiordma.open_datagram_endpoint((LOCAL, 0), config=config) as endpoint:
        path = await endpoint.resolve((LOCAL, port))
        control.say([path, await statistics()])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_endpoint_that_names_a_third_host() -> None:
    host_id = (await engines.current()).host_id
    with socket.create_server((LOCAL, 0)) as listening:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        with process(f"{__name__}:sender_of_datagrams", env=ENV, port=port) as sender:
            await anyio.wait_readable(listening)
            sock, _ = listening.accept()
            with sock:
                sock.setblocking(False)
                await anyio.wait_readable(sock)
                hello = Hello.decode(sock.recv(Hello.SIZE))
                where = QueuePairAddress(gid=THIRD, lid=0, qpn=77, qkey=1, mtu=1024, host_id=host_id)
                sock.send(Welcome(hello.nonce, b"n" * 16, where).encode())
                path, numbers = await sender.heard()
            assert path == "udp"
            assert 0 < packets(numbers) <= MOST


def test_which_addresses_a_tcp_connection_proves() -> None:
    assert leads_to(THIRD, "127.0.0.9")
    assert not leads_to(THIRD, "127.0.0.1")
    link_local = socket.inet_pton(socket.AF_INET6, "fe80::9")
    for host in ("fe80::9", "fe80::9%eth0", "[fe80::9]", "[fe80::9%2]"):
        assert leads_to(link_local, host)
    for host in ("", "a name", "fe80::8"):
        assert not leads_to(link_local, host)
