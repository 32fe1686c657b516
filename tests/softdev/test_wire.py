"""The software device between two hosts: network namespaces with a cable (veth) between them.

Unmodified verbs programs and aiordma streams, IPv4 and IPv6, also over a network that loses packets.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.softdev.namespaces import Host, cabled_hosts
from tests.tools import listening, run_pair
from tests.world import FULL_PATIENCE, pyverbs_is_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.xdist_group("namespaces"), pytest.mark.slow]

LIMIT = 2 * FULL_PATIENCE  # seconds, to end a hang
V4, V6 = "0", "1"  # GID indices: addresses that other hosts can reach come first


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    with cabled_hosts() as made:
        yield made


@pytest.fixture
def lossy(hosts: tuple[Host, Host]) -> Iterator[None]:
    """One packet in a hundred is lost in each direction, after a millisecond on the way."""
    rule = ["qdisc", "add", "dev", "cable", "root", "netem", "delay", "1ms", "loss", "1%"]
    try:
        for host in hosts:
            done = subprocess.run(host.command("tc", *rule), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"this kernel has no netem: {done.stderr.strip()}")
        yield
    finally:
        for host in hosts:
            subprocess.run(
                host.command("tc", "qdisc", "del", "dev", "cable", "root"), capture_output=True, check=False
            )


def pair(
    library: Path, hosts: tuple[Host, Host], tool: str, *options: str, faults: str = ""
) -> tuple[str, str]:
    """Run a tool's server on one host and its client on the other; returns what they printed."""
    port = 18500  # nobody else lives in these namespaces
    command = ["env", f"LD_PRELOAD={library}", tool, "-p", str(port), "-d", "soft0", *options]
    return run_pair(
        hosts[0].command(*command),
        hosts[1].command(*command, hosts[0].address),
        environ={**os.environ, "SOFTDEV_FAULTS": faults},
        ready=lambda pid: listening(pid, port),
        limit=LIMIT,
    )


@pytest.mark.parametrize("gid", [V4, V6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("events", [(), ("-e",)], ids=["polling", "events"])
@pytest.mark.parametrize("tool", ["rc", "uc", "srq"])
def test_pingpong(
    library: Path, hosts: tuple[Host, Host], tool: str, events: tuple[str, ...], gid: str
) -> None:
    """-c: the server checks every received byte."""
    for out in pair(library, hosts, f"ibv_{tool}_pingpong", "-g", gid, "-n", "200", "-c", *events):
        assert "200 iters in" in out, out
        assert "nvalid data" not in out, out


@pytest.mark.parametrize("gid", [V4, V6], ids=["ipv4", "ipv6"])
def test_datagrams(library: Path, hosts: tuple[Host, Host], gid: str) -> None:
    for out in pair(library, hosts, "ibv_ud_pingpong", "-g", gid, "-n", "200", "-s", "1024", "-c"):
        assert "200 iters in" in out, out
        assert "nvalid data" not in out, out


@pytest.mark.parametrize("kind", ["rc", "ud"])
def test_two_processes_of_a_host(library: Path, hosts: tuple[Host, Host], kind: str) -> None:
    """Only one of them has port 4791: it hands on what is for the other."""
    servers = []
    try:
        for port in (18510, 18511):
            command = [
                "env", f"LD_PRELOAD={library}", f"ibv_{kind}_pingpong", "-p", str(port), "-d", "soft0",
                "-g", V4, "-n", "100", "-c", "-e",
            ]  # fmt: skip
            server = subprocess.Popen(
                hosts[0].command(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            servers.append(server)
            deadline = time.monotonic() + LIMIT
            while not listening(server.pid, port):
                assert time.monotonic() < deadline, "the tool does not listen"
                time.sleep(0.01)
        # First the one that does not have the port; the other stays until then.
        for server in reversed(servers[:]):
            client = subprocess.run(
                hosts[1].command(*server.args[4:], hosts[0].address),  # type: ignore[index]
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            assert client.returncode == 0, client.stdout + client.stderr
            for out in (client.stdout, server.communicate(timeout=LIMIT)[0]):
                assert "100 iters in" in out, out
                assert "nvalid data" not in out, out
            assert server.returncode == 0
    finally:
        for process in servers:
            process.kill()
            process.wait()


def udp_ports(pid: int, table: str) -> set[int]:
    """Ports of the UDP sockets that this process has open."""
    sockets = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(path.readlink().name)
    lines = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
    return {int(f[1].rpartition(":")[2], 16) for f in lines if f"socket:[{f[9]}]" in sockets}


def has_port(processes: list[subprocess.Popen[bytes]], table: str) -> bool:
    """Whether port 4791 is one of those that they have."""
    return any(4791 in udp_ports(process.pid, table) for process in processes)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def test_the_port_is_taken_over(library: Path, hosts: tuple[Host, Host]) -> None:
    """The process that has port 4791 is killed: another one, which does nothing new, has it at once."""
    servers, clients = [], []
    try:
        for port in (18520, 18521, 18522):
            command = [
                "env", f"LD_PRELOAD={library}", "ibv_rc_pingpong", "-p", str(port), "-d", "soft0",
                "-g", V4, "-n", "100000000", "-s", "8", "-e",
            ]  # fmt: skip
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            server = subprocess.Popen(hosts[0].command(*command), **quiet)  # type: ignore[call-overload]
            servers.append(server)
            wait_until(functools.partial(listening, server.pid, port), "the tool does not listen")
            client = subprocess.Popen(
                hosts[1].command(*command, hosts[0].address),
                **quiet,  # type: ignore[call-overload]
            )
            clients.append(client)
            wait_until(functools.partial(udp_ports, server.pid, "udp6"), "the tool opens no ports")
        # Two of them may share it: one has it for IPv4, the other for IPv6.
        for table in ("udp", "udp6"):
            wait_until(functools.partial(has_port, servers, table), "nobody has the port")
            first = next(server for server in servers if has_port([server], table))
            servers.remove(first)
            first.kill()
            first.wait()
            wait_until(functools.partial(has_port, servers, table), "nobody took the port over")
            assert all(server.poll() is None for server in servers)
    finally:
        for process in servers + clients:
            process.kill()
            process.wait()


@pytest.mark.parametrize("mtu", ["256", "512", "1024", "2048", "4096"])
def test_path_mtu(library: Path, hosts: tuple[Host, Host], mtu: str) -> None:
    options = ("-g", V4, "-n", "20", "-c", "-s", "100001", "-m", mtu)
    server, _ = pair(library, hosts, "ibv_rc_pingpong", *options)
    assert "20 iters in" in server
    assert "nvalid data" not in server


@pytest.mark.parametrize(
    "tool", ["send_lat", "send_bw", "write_lat", "write_bw", "read_lat", "read_bw", "atomic_lat"]
)
def test_perftest(library: Path, hosts: tuple[Host, Host], tool: str) -> None:
    _, client = pair(library, hosts, f"ib_{tool}", "-x", V4, "-F", "-n", "200")
    assert "#bytes" in client


@pytest.mark.parametrize("gid", [V4, V6], ids=["ipv4", "ipv6"])
def test_an_end_that_only_receives_datagrams(library: Path, hosts: tuple[Host, Host], gid: str) -> None:
    """It makes no address handle. None of the datagrams is lost, for nothing else is on the cable."""
    server, _ = pair(library, hosts, "ib_send_bw", "-c", "UD", "-x", gid, "-F", "-n", "1000")
    assert re.search(r"(?m)^ 4096 +1000 ", server), server


FAULTS = {
    "loss": "seed=5,wire_drop=0.01",
    "duplication": "seed=5,wire_duplicate=0.05",
    "order": "seed=5,wire_reorder=0.02",
    "damage": "seed=5,wire_corrupt=0.01",
    "delay": "seed=5,wire_delay=0.05",
    "all": "seed=5,wire_drop=0.005,wire_duplicate=0.01,wire_reorder=0.01,wire_corrupt=0.005,wire_delay=0.01",
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_faults(library: Path, hosts: tuple[Host, Host], faults: str) -> None:
    """Messages of many packets, each of which may come to harm: all arrive, whole."""
    options = ("-g", V4, "-n", "10", "-s", "200000", "-m", "1024", "-c")
    for out in pair(library, hosts, "ibv_rc_pingpong", *options, faults=faults):
        assert "10 iters in" in out, out
        assert "nvalid data" not in out, out
    _, client = pair(library, hosts, "ib_read_bw", "-x", V4, "-F", "-n", "10", "-s", "100000", faults=faults)
    assert "#bytes" in client


def test_netem(library: Path, hosts: tuple[Host, Host], lossy: None) -> None:
    """The same, done by the kernel to packets on the cable."""
    options = ("-g", V4, "-n", "8", "-s", "200000", "-m", "1024", "-c")
    for out in pair(library, hosts, "ibv_rc_pingpong", *options):
        assert "8 iters in" in out, out
        assert "nvalid data" not in out, out


ADDRESSES = """
    import subprocess
    from pyverbs.device import Context
    def ip(*arguments):
        subprocess.run(["ip", "addr", *arguments, "dev", "cable"], check=True)
    def table():
        return [str(context.query_gid(1, index)) for index in range(8)]
    context = Context(name="soft0")
    before = table()
    ip("add", "10.79.0.1/32")
    added = table()
    ip("add", "10.79.0.2/32")
    table()  # changes are taken in when the table is read
    ip("del", "10.79.0.1/32")
    gone = table()
    ip("add", "10.79.0.3/32")
    again = table()
    place = before.index("0000:0000:0000:0000:0000:0000:0000:0000")
    name = "0000:0000:0000:0000:0000:ffff:0a4f:00{:02x}".format
    assert added == [*before[:place], name(1), *before[place + 1:]], added
    assert gone == [*before[:place + 1], name(2), *before[place + 2:]], gone
    assert again == [*before[:place], name(3), name(2), *before[place + 2:]], again
"""


@pyverbs_is_here
def test_addresses_come_and_go(library: Path, hosts: tuple[Host, Host]) -> None:
    """The table follows the host, and an address keeps its index."""
    done = subprocess.run(
        hosts[0].command("env", f"LD_PRELOAD={library}", sys.executable, "-c", textwrap.dedent(ADDRESSES)),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


SERVER = """
    import hashlib, sys, anyio, aiordma
    async def serve(stream):
        digest, size = hashlib.sha256(), 0
        async with stream:
            async for chunk in stream:
                digest.update(chunk)
                size += len(chunk)
            await stream.send(f"{stream.path} {size} {digest.hexdigest()}".encode())
    async def main():
        async with await aiordma.listen(sys.argv[1], 18600) as listener:
            print("listening", flush=True)
            await listener.serve(serve)
    anyio.run(main)
"""
CLIENT = """
    import hashlib, os, sys, anyio, aiordma
    async def main():
        data = os.urandom(3_000_000)
        async with await aiordma.connect(sys.argv[1], 18600) as stream:
            await stream.send(data)
            await stream.send_eof()
            answer = b""
            async for chunk in stream:
                answer += chunk
            path, size, digest = answer.decode().split()
            assert (int(size), digest) == (len(data), hashlib.sha256(data).hexdigest())
            print(path, stream.path, getattr(stream, "fallback_reason", None))
    anyio.run(main)
"""


def stream(hosts: tuple[Host, Host], wire: str, faults: str = "", *, ipv6: bool = False) -> str:
    """Three megabytes from one host to the other; returns what path they took.

    :param ipv6: of the TCP connection; the queue pairs are at the addresses of IPv4.
    """
    environ = {
        **os.environ,
        "AIORDMA_DEVICE": "soft",
        "SOFTDEV_WIRE": wire,
        "SOFTDEV_FAULTS": faults,
    }
    with subprocess.Popen(
        hosts[0].command(sys.executable, "-c", textwrap.dedent(SERVER), "::" if ipv6 else "0.0.0.0"),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "listening\n"
            client = subprocess.run(
                hosts[1].command(
                    sys.executable,
                    "-c",
                    textwrap.dedent(CLIENT),
                    hosts[0].address6 if ipv6 else hosts[0].address,
                ),
                env=environ,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            assert client.returncode == 0, client.stderr
        finally:
            server.kill()
    return client.stdout


def test_stream(hosts: tuple[Host, Host]) -> None:
    assert stream(hosts, "auto").startswith("rdma rdma")


@pytest.mark.parametrize("faults", [FAULTS["loss"], FAULTS["all"]], ids=["loss", "all"])
def test_stream_with_faults(hosts: tuple[Host, Host], faults: str) -> None:
    assert stream(hosts, "auto", faults).startswith("rdma rdma")


def test_stream_whose_tcp_connection_is_with_another_address(hosts: tuple[Host, Host]) -> None:
    """As with an adapter of its own: nothing proves the address of the queue pair before it has answered."""
    assert stream(hosts, "auto", ipv6=True).startswith("rdma rdma")


def test_stream_stays_on_tcp(hosts: tuple[Host, Host]) -> None:
    """The wire is for those who ask for it."""
    said = stream(hosts, "off")
    assert said.startswith("tcp tcp")
    assert "different network namespaces" in said
    assert "SOFTDEV_WIRE=auto" in said


ECHO = """
    import anyio, aiordma
    async def serve(stream):
        async with stream:
            async for chunk in stream:
                await stream.send(chunk)
    async def main():
        async with await aiordma.listen("0.0.0.0", 18601) as listener:
            print("listening", flush=True)
            await listener.serve(serve)
    anyio.run(main)
"""
STOPS_IT = """
    import os, signal, sys, anyio, aiordma
    host, server, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    async def ask(stream):
        await stream.send(b"question")
        assert await stream.receive() == b"question"
    async def main():
        async with await aiordma.connect(host, 18601, mode="rdma") as stream:
            await ask(stream)
            os.kill(server, signal.SIGSTOP)
            try:
                await stream.send(b"question")
                await anyio.sleep(seconds)
            finally:
                os.kill(server, signal.SIGCONT)
            assert await stream.receive() == b"question"
            await ask(stream)
            print(stream.path)
    anyio.run(main)
"""


def test_a_peer_that_gets_no_cpu(hosts: tuple[Host, Host]) -> None:
    """For longer than its queue pair's timeouts: it was given up after 2.2 s, and is for ten now."""
    environ = os.environ | {"AIORDMA_DEVICE": "soft", "SOFTDEV_WIRE": "auto"}
    with subprocess.Popen(
        hosts[0].command(sys.executable, "-c", textwrap.dedent(ECHO)),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "listening\n"
            words = (textwrap.dedent(STOPS_IT), hosts[0].address, str(server.pid), "6")
            client = subprocess.run(
                hosts[1].command(sys.executable, "-c", *words),
                env=environ,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            assert client.returncode == 0, client.stderr
        finally:
            server.kill()
    assert client.stdout == "rdma\n"
