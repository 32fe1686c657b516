"""Other users of the peer's host, or of this one: what their packets can do to a connection between hosts.

Each sends from sockets that need no privilege, to the right address, with the right queue pair number and a
right checksum. Where it says so, even the right packet number and key.
"""

from __future__ import annotations

import itertools
import select
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.softdev.namespaces import Host, cabled_hosts
from tests.softdev.strangers import (
    ACK,
    CNP,
    OWN_PORTS,
    PORT,
    SEND_ONLY,
    WRITE_ONLY,
    Write,
    forwarded,
    got,
    on_the_path,
    own_port,
    request,
    stranger,
    transport,
    with_checksum,
    with_headers,
)
from tests.softdev.test_runs import connected, opened
from tests.vm.wire.ends import SOFT, End
from tests.world import FULL_PATIENCE, pyverbs_is_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.xdist_group("namespaces"), pytest.mark.slow]

PSN = 0xFFFFF0  # of each end's first packet (test_runs.connected)
LIMIT = 2 * FULL_PATIENCE  # seconds, to end a hang


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with cabled_hosts() as made:
        yield made


def one_write(sender: End, qpn: int, receiver: End) -> None:
    sender.fill(0, 64, 7)
    sender.post(qpn, "write", pieces=[(0, 64)], raddr=receiver.addr, rkey=receiver.rkey)
    assert [wc["status"] for wc in sender.poll(1)] == [0]


def until(holds: Callable[[], bool], describe: Callable[[], object]) -> None:
    """Wait for something that another thread or process does by itself."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.01)


def wait_for(end: End, counter: str, value: int) -> None:
    """The progress thread reads what arrives."""
    until(
        lambda: end.counters()[counter] >= value,
        lambda: f"{counter} is {end.counters()[counter]}, not {value}",
    )


@pyverbs_is_here
@pytest.mark.parametrize("when", ["before the peer", "after the peer"])
@pytest.mark.parametrize("port", [OWN_PORTS + 1023, 0], ids=["a device's port", "any port"])
def test_packets_are_not_redirected(library: Path, hosts: tuple[Host, Host], port: int, when: str) -> None:
    """The user of the peer's host knows the number of the queue pair, and no more."""
    left, right = hosts
    with opened(library, hosts) as pair, stranger(right, port) as sock:
        if when == "after the peer":
            pair.write()
        to = (left.address, PORT)
        for opcode in (CNP, ACK, SEND_ONLY):
            for psn in (PSN - 1, PSN ^ 0x800000):
                body = transport(opcode, pair.qpn, psn)
                sock.sendto(with_checksum(sock.getsockname(), to, body), to)
        wait_for(pair.left, "received", 6)
        assert pair.left.counters()["bad_icrc"] == 0
        pair.write()
        assert got(sock) == 0
        assert pair.left.counters()["cnps_received"] == 0


@pyverbs_is_here
def test_forged_notifications_do_not_slow(library: Path, hosts: tuple[Host, Host]) -> None:
    left, right = hosts
    with opened(library, hosts) as pair, stranger(right) as sock:
        pair.write()
        to, before = (left.address, PORT), pair.left.counters()
        packet = with_checksum(sock.getsockname(), to, transport(CNP, pair.qpn, 0))
        for number in range(1, 21):
            for _ in range(50):
                sock.sendto(packet, to)
            wait_for(pair.left, "wrong_peer", before["wrong_peer"] + 50 * number)
        pair.write()
        after = pair.left.counters()
        assert after["cnps_received"] == before["cnps_received"]
        assert after["paced"] == before["paced"]


@pyverbs_is_here
def test_the_owner_of_the_port_cannot_write(library: Path, hosts: tuple[Host, Host]) -> None:
    """He passes for a process that hands packets on, with the right queue pair, packet number and key.

    Once the ends send to each other without him, nobody believes him.
    """
    left, right = hosts
    with (
        stranger(right, PORT, "0.0.0.0") as sock,
        End(SOFT, {}, library, left.namespace) as first,
        End(SOFT, {}, library, right.namespace) as second,
        connected(first, second, hosts) as pair,
    ):
        one_write(second, pair.right_qpn, first)  # shows the port of its process
        one_write(first, pair.qpn, second)
        assert got(sock) == 0
        digest, before = second.digest(0, 64), second.counters()["wrong_peer"]
        write = Write(second.addr, second.rkey, bytes(64))
        source = (left.address, PORT)
        body = transport(WRITE_ONLY, pair.right_qpn, PSN + 1, write)
        packet = with_checksum(source, (right.address, PORT), body)
        sock.sendto(forwarded(source, (right.address, PORT), packet), ("127.0.0.1", own_port(pair.right_qpn)))
        wait_for(second, "wrong_peer", before + 1)
        assert second.digest(0, 64) == digest
        one_write(first, pair.qpn, second)


@pyverbs_is_here
def test_right_guesses_are_of_no_use(library: Path, hosts: tuple[Host, Host]) -> None:
    """Queue pair, packet number and key are right; only the port is not the peer's."""
    left, right = hosts
    with opened(library, hosts) as pair, stranger(left) as sock:
        one_write(pair.left, pair.qpn, pair.right)
        digest, before = pair.right.digest(0, 64), pair.right.counters()["wrong_peer"]
        write = Write(pair.right.addr, pair.right.rkey, bytes(64))
        to = (right.address, PORT)
        body = transport(WRITE_ONLY, pair.right_qpn, PSN + 1, write)
        sock.sendto(with_checksum(sock.getsockname(), to, body), to)
        wait_for(pair.right, "wrong_peer", before + 1)
        assert pair.right.digest(0, 64) == digest
        one_write(pair.left, pair.qpn, pair.right)


@pyverbs_is_here
def test_replays(library: Path, hosts: tuple[Host, Host]) -> None:
    """On the path, even the port is right. What was carried out is not carried out again.

    What has a later number is not carried out at all. Only the next number is as good as the peer's.
    """
    left, right = hosts
    with opened(library, hosts) as pair, on_the_path(left) as sock:
        one_write(pair.left, pair.qpn, pair.right)
        one_write(pair.left, pair.qpn, pair.right)
        source, to = (left.address, PORT), (right.address, PORT)
        written = pair.right.digest(0, 64)

        def forge(psn: int) -> str:
            write = Write(pair.right.addr, pair.right.rkey, bytes(64))
            body = transport(WRITE_ONLY, pair.right_qpn, psn, write)
            before = pair.right.counters()["received"]
            sock.sendto(with_headers(source, to, with_checksum(source, to, body)), to)
            wait_for(pair.right, "received", before + 1)
            return str(pair.right.digest(0, 64))

        for psn in (PSN, PSN + 1, PSN - 1, PSN + 3, PSN ^ 0x800000):
            assert forge(psn) == written
        one_write(pair.left, pair.qpn, pair.right)
        assert pair.right.counters()["bad_icrc"] == pair.right.counters()["wrong_peer"] == 0
        assert forge(PSN + 3) != written


SERVICE, BACKLOG = 18700, 16
SERVER = f"""
    import ctypes as c, socket, sys
    cm = c.CDLL(None)
    class Event(c.Structure):
        _fields_ = [("id", c.c_void_p), ("listener", c.c_void_p), ("event", c.c_int), ("status", c.c_int)]
    cm.rdma_create_event_channel.restype = c.c_void_p
    channel, listener = c.c_void_p(cm.rdma_create_event_channel()), c.c_void_p()
    assert not cm.rdma_create_id(channel, c.byref(listener), None, 0x0106)
    address = socket.AF_INET.to_bytes(2, sys.byteorder) + ({SERVICE}).to_bytes(2) + bytes(12)
    assert not cm.rdma_bind_addr(listener, address)
    assert not cm.rdma_listen(listener, {BACKLOG})
    print("listening", flush=True)
    for line in sys.stdin:  # how many requests to refuse
        for _ in range(int(line)):
            event = c.POINTER(Event)()
            assert not cm.rdma_get_cm_event(channel, c.byref(event))
            assert event.contents.event == 4, event.contents.event  # RDMA_CM_EVENT_CONNECT_REQUEST
            child = c.c_void_p(event.contents.id)
            assert not cm.rdma_reject(child, None, 0)
            assert not cm.rdma_ack_cm_event(event)
            assert not cm.rdma_destroy_id(child)
        print("refused", flush=True)
"""


def memory_and_files(pid: int) -> tuple[int, int]:
    """In KiB, and how many are open."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    return kib, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_floods_of_requests(library: Path, hosts: tuple[Host, Host]) -> None:
    """Requests for connections, each a different one: those beyond the backlog cost nothing that lasts."""
    left, right = hosts
    command = left.command("env", f"LD_PRELOAD={library}", sys.executable, "-c", textwrap.dedent(SERVER))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(command, **pipes) as server,  # type: ignore[call-overload]
        stranger(right) as sock,
    ):
        try:
            assert server.stdout.readline() == "listening\n"
            to, source = (left.address, PORT), sock.getsockname()

            numbers = itertools.count(1)

            def flood(count: int) -> None:
                for number in itertools.islice(numbers, count):
                    body = request(number, SERVICE, source, to)
                    sock.sendto(with_checksum(source, to, body), to)

            def refuse(count: int) -> None:
                """While others keep coming."""
                print(count, file=server.stdin, flush=True)
                while not select.select([server.stdout], [], [], 0)[0]:
                    flood(50)
                assert server.stdout.readline() == "refused\n"

            refuse(2 * BACKLOG)
            memory, files = memory_and_files(server.pid)
            flood(5000)  # with nobody awake
            refuse(4 * BACKLOG)
            flood(5000)
            refuse(4 * BACKLOG)
            # The device opens one more for a moment when the kernel reports a change of interfaces.
            until(
                lambda: memory_and_files(server.pid)[1] <= files,
                lambda: f"{memory_and_files(server.pid)[1]} files are open, not {files}",
            )
            assert memory_and_files(server.pid)[0] < memory + 4096
        finally:
            server.kill()
