"""The port follows the host's interfaces: which addresses are its GIDs, where, and its MTU."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import cable
from tests.cable import Host, ip
from tests.softdev.test_cm import Place, run_at, unused_port
from tests.world import pyverbs_is_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("namespaces"), pytest.mark.slow]

NAME = "aiordma-port"
PORT_ACTIVE, PORT_ERR, GID_CHANGE = 9, 10, 18  # events
DOWN, ACTIVE = 1, 4  # states


class Port:
    """The device in a program inside the namespace."""

    def __init__(self, library: Path) -> None:
        environ = {**os.environ, "LD_PRELOAD": str(library), "SOFTDEV_DEVICE": "soft"}
        command = ["ip", "netns", "exec", NAME, sys.executable, "-m", "tests.softdev.port"]
        self._program = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "open\n"

    def _line(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline()

    def look(self) -> tuple[int, dict[int, str]]:
        """MTU in bytes, and the GIDs by index, without those that the kernel makes from a MAC address."""
        assert self._program.stdin is not None
        print(file=self._program.stdin, flush=True)
        shown: dict[str, Any] = json.loads(self._line())
        gids = {int(index): gid for index, gid in shown["gids"].items() if not gid.startswith("fe80:")}
        return shown["mtu"], gids

    def state(self) -> int:
        """As ``ibv_query_port()`` has it."""
        assert self._program.stdin is not None
        print(file=self._program.stdin, flush=True)
        shown: dict[str, Any] = json.loads(self._line())
        return int(shown["state"])

    def wait_for(self, wanted: int) -> None:
        """For an event of the device, which asks for nothing meanwhile."""
        assert self._program.stdin is not None
        seen: list[int] = []
        while wanted not in seen:
            print("wait", file=self._program.stdin, flush=True)
            seen += json.loads(self._line() or "[]")

    def close(self) -> None:
        self._program.communicate()
        assert self._program.returncode == 0


@contextlib.contextmanager
def opened(library: Path) -> Iterator[Port]:
    port = Port(library)
    try:
        yield port
    finally:
        port.close()


@pytest.fixture
def host() -> Iterator[None]:
    """A host with loopback only."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces are for root to make")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(cable.namespaces(NAME))
        except cable.NoNamespacesError as error:
            pytest.skip(str(error))
        ip("-n", NAME, "link", "set", "lo", "up")
        yield


def add_interface(name: str, mtu: int, *addresses: str) -> None:
    """The other end of the cable is in the same namespace, and has no address."""
    size = ["mtu", str(mtu)]
    ip("-n", NAME, "link", "add", name, *size, "type", "veth", "peer", "name", f"{name}-end", *size)
    for address in addresses:
        ip("-n", NAME, "addr", "add", address, "dev", name, *(["nodad"] if ":" in address else []))
    ip("-n", NAME, "link", "set", name, "up")
    ip("-n", NAME, "link", "set", f"{name}-end", "up")


def wait_until_runs(name: str) -> None:
    """The kernel tells of a carrier later than it has one."""
    command = ["ip", "-n", NAME, "-o", "link", "show", "dev", name]
    while " state UP " not in subprocess.run(command, capture_output=True, text=True, check=True).stdout:
        pass


@pyverbs_is_here
def test_loopback_alone(library: Path, host: None) -> None:
    with opened(library) as port:
        assert port.look() == (4096, {0: "127.0.0.1", 1: "::1", 3: "127.0.0.1"})


@pyverbs_is_here
def test_addresses_of_others(library: Path, host: None) -> None:
    """Loopback is not among the GIDs; the first IPv4 address is at index 0, and where cards have it."""
    add_interface("one", 1500, "10.79.0.1/24", "fd79::1/64")
    with opened(library) as port:
        assert port.look() == (1024, {0: "10.79.0.1", 1: "fd79::1", 3: "10.79.0.1"})


@pytest.mark.parametrize("wire", ["off", "only"])
def test_loopback_by_rdma_cm(library: Path, host: None, wire: str) -> None:
    """Although it is not among the GIDs."""
    add_interface("one", 1500, "10.79.0.1/24")
    here = Host(NAME, "10.79.0.1", "")
    port = unused_port()
    common = ["rping", "-p", str(port), "-V", "-v", "-C", "3", "-a", "127.0.0.1"]
    place = Place((here, here), "127.0.0.1", wire)
    server, client = run_at(library, place, [*common, "-s"], [*common, "-c"], port=port)
    assert server.count("server ping data: rdma-ping-") == 3, server
    assert client.count("ping data: rdma-ping-") == 3, client


@pyverbs_is_here
def test_without_ipv4(library: Path, host: None) -> None:
    add_interface("one", 9000, "fd79::1/64")
    with opened(library) as port:
        assert port.look() == (4096, {0: "fd79::1"})


@pyverbs_is_here
def test_changes(library: Path, host: None) -> None:
    """Of a port that is in use: what has an index keeps it."""
    add_interface("one", 9000, "10.79.0.1/24")
    with opened(library) as port:
        assert port.look() == (4096, {0: "10.79.0.1", 3: "10.79.0.1"})
        ip("-n", NAME, "link", "set", "one", "mtu", "2300")
        assert port.look() == (2048, {0: "10.79.0.1", 3: "10.79.0.1"})
        add_interface("two", 1400, "10.80.0.1/24")
        mtu, gids = port.look()
        assert mtu == 1024  # of both
        assert sorted(gids.values()) == ["10.79.0.1", "10.79.0.1", "10.80.0.1"]
        ip("-n", NAME, "addr", "del", "10.79.0.1/24", "dev", "one")
        ip("-n", NAME, "link", "del", "one")
        mtu, gids = port.look()
        assert mtu == 1024
        assert set(gids.values()) == {"10.80.0.1"}
        assert gids[3] == "10.80.0.1"
        ip("-n", NAME, "link", "del", "two")
        mtu, gids = port.look()
        assert mtu == 4096
        assert set(gids.values()) == {"127.0.0.1", "::1"}


@pyverbs_is_here
def test_loopback_for_a_while(library: Path, host: None) -> None:
    """Whenever there are others, loopback is at no index, as where there always were others."""
    alone = (4096, {0: "127.0.0.1", 1: "::1", 3: "127.0.0.1"})
    others = {0: "10.79.0.1", 1: "fd79::1", 3: "10.79.0.1"}
    with opened(library) as early:
        assert early.look() == alone
        add_interface("one", 1500, "10.79.0.1/24", "fd79::1/64")
        assert early.look() == (1024, others)
        with opened(library) as late:
            for port in (early, late):
                assert port.look() == (1024, others)
            for _ in range(2):
                for name in ("one", "one-end"):  # both have an address of the kernel's
                    ip("-n", NAME, "link", "set", name, "down")
                for port in (early, late):
                    assert set(port.look()[1].values()) == {"127.0.0.1", "::1"}
                for name in ("one", "one-end"):
                    ip("-n", NAME, "link", "set", name, "up")
                ip("-n", NAME, "addr", "replace", "fd79::1/64", "dev", "one", "nodad")
                for port in (early, late):
                    _, gids = port.look()
                    assert set(gids.values()) == set(others.values())
                    assert gids[0] == gids[3] == "10.79.0.1"


@pyverbs_is_here
def test_events(library: Path, host: None) -> None:
    """A program hears of changes without asking, and the port goes down with the last interface that ran."""
    with opened(library) as port:
        assert port.state() == ACTIVE
        add_interface("one", 1500, "10.79.0.1/24")
        port.wait_for(GID_CHANGE)
        wait_until_runs("one")
        assert port.state() == ACTIVE  # and now the device has seen it run
        ip("-n", NAME, "link", "set", "one-end", "down")  # the cable
        port.wait_for(PORT_ERR)
        assert port.state() == DOWN
        ip("-n", NAME, "link", "set", "one-end", "up")
        port.wait_for(PORT_ACTIVE)
        assert port.state() == ACTIVE
        ip("-n", NAME, "link", "set", "one", "down")
        port.wait_for(PORT_ERR)
        assert port.state() == DOWN
        add_interface("two", 1500, "10.80.0.1/24")
        port.wait_for(PORT_ACTIVE)
        ip("-n", NAME, "link", "set", "two", "down")
        port.wait_for(PORT_ERR)
        ip("-n", NAME, "link", "del", "one")
        ip("-n", NAME, "link", "del", "two")
        port.wait_for(PORT_ACTIVE)  # there is no network: loopback is what the port has
        assert port.state() == ACTIVE


@pyverbs_is_here
def test_a_network_that_never_ran(library: Path, host: None) -> None:
    """A bridge without members, say, has an address and no carrier. Processes of this host need none."""
    add_interface("one", 1500, "10.79.0.1/24")
    ip("-n", NAME, "link", "set", "one-end", "down")
    with opened(library) as port:
        assert port.state() == ACTIVE
