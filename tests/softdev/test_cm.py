"""Unmodified rdma_cm programs on the software device: rdmacm-utils and perftest -R, two processes each.

On this host in shared memory, on this host with everything on the wire, and between two network namespaces.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.softdev.namespaces import Host, cabled_hosts
from tests.tools import perftest, run_pair
from tests.world import FULL_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.xdist_group("namespaces"), pytest.mark.slow]

LIMIT = 2 * FULL_PATIENCE  # seconds, to end a hang
TCP, UDP = 0x0106, 0x0111  # port spaces


class Place(NamedTuple):
    """Where server and client run."""

    hosts: tuple[Host, Host] | None
    address: str
    wire: str

    def command(self, end: int, *arguments: str) -> list[str]:
        return list(arguments) if self.hosts is None else self.hosts[end].command(*arguments)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    with cabled_hosts() as made:
        yield made


PLACES = ["memory", "one-host-wire", "two-hosts-ipv4", "two-hosts-ipv6"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "memory":
        return Place(None, "127.0.0.1", "off")
    if request.param == "one-host-wire":
        return Place(None, "127.0.0.1", "only")
    hosts: tuple[Host, Host] = request.getfixturevalue("hosts")
    return Place(hosts, hosts[0].address if request.param == "two-hosts-ipv4" else hosts[0].address6, "auto")


def unused_port() -> int:
    """A number that no other run of these tests on this host uses at the same time."""
    return 20000 + os.getpid() % 40000


def listens(pid: int, space: int, port: int) -> bool:
    """Whether somebody in that process's network listens on that port of rdma_cm."""
    wanted = f"@aiordma-cm.{os.getuid()}.{space:x}.{port}."
    table = Path(f"/proc/{pid}/net/unix").read_text()
    return any(wanted in line and line.endswith(".listen") for line in table.splitlines())


def run_at(
    library: Path,
    place: Place,
    server: list[str],
    client: list[str],
    *,
    port: int,
    space: int = TCP,
    faults: str = "",
) -> tuple[str, str]:
    """Run server and client; both must end well. Returns what they printed."""
    environ = {
        **os.environ,
        "LD_PRELOAD": "",
        "SOFTDEV_DEVICE": "soft",
        "SOFTDEV_WIRE": place.wire,
        "SOFTDEV_FAULTS": faults,
    }
    preload = ["env", f"LD_PRELOAD={library}"]
    return run_pair(
        place.command(0, *preload, *server),
        place.command(1, *preload, *client),
        environ=environ,
        ready=lambda pid: listens(pid, space, port),
        limit=LIMIT,
    )


@pytest.mark.parametrize("options", [(), ("-q",)], ids=["cm-qp", "own-qp"])
def test_rping(library: Path, place: Place, options: tuple[str, ...]) -> None:
    """-V: each side checks every byte that it was sent. -q: its queue pair is not rdma_create_qp()'s."""
    port = unused_port()
    common = ["rping", "-p", str(port), "-V", "-v", "-C", "20", "-S", "1500", *options]
    server, client = run_at(
        library,
        place,
        [*common, "-s", "-a", "::" if ":" in place.address else "0.0.0.0"],
        [*common, "-c", "-a", place.address],
        port=port,
    )
    assert server.count("server ping data: rdma-ping-") == 20, server
    assert client.count("ping data: rdma-ping-") == 20, client


@pytest.mark.parametrize("options", [(), ("-m",)], ids=["one-channel", "migrated"])
def test_ucmatose_many_connections(library: Path, place: Place, options: tuple[str, ...]) -> None:
    """Thirty connections at once, with data; -m moves all ids to another event channel before they end."""
    port = unused_port()
    common = ["ucmatose", "-c", "30", "-C", "5", "-p", str(port), *options]
    bound = ["-b", "::"] if ":" in place.address else []
    for out in run_at(library, place, [*common, *bound], [*common, "-s", place.address], port=port):
        assert "return status 0" in out, out
        assert "error" not in out, out


def test_udaddy(library: Path, hosts: tuple[Host, Host]) -> None:
    """Datagrams to an address that rdma_cm told. Its port is fixed, so it gets a network of its own."""
    for address in (hosts[0].address, hosts[0].address6):
        place = Place(hosts, address, "auto")
        common = ["udaddy", "-c", "4", "-C", "8"]
        server = [*common, "-b", address]
        for out in run_at(library, place, server, [*common, "-s", address], port=7174, space=UDP):
            assert "return status 0" in out, out
            assert "data transfers complete" in out, out


def test_synchronous_ids(library: Path, place: Place) -> None:
    """rdma_create_ep(), rdma_get_request() and calls that wait for their events."""
    port = unused_port()
    server, client = run_at(
        library,
        place,
        ["rdma_server", "-p", str(port), *(["-s", "::"] if ":" in place.address else [])],
        ["rdma_client", "-s", place.address, "-p", str(port)],
        port=port,
    )
    assert "rdma_server: end 0" in server
    assert "rdma_client: end 0" in client


# perftest 4.5 binds its rdma_cm server to IPv4 only.
@pytest.mark.parametrize("place", PLACES[:-1], indirect=True)
@pytest.mark.parametrize("old", [(), ("--use_old_post_send",)], ids=["wr", "post_send"])
@pytest.mark.parametrize("tool", ["ib_send_lat", "ib_write_bw", "ib_read_bw"])
def test_perftest(library: Path, place: Place, tool: str, old: tuple[str, ...]) -> None:
    port = unused_port()
    command = [tool, "-R", "-p", str(port), "-n", "200", "-F", *old]
    _, client = perftest(lambda: run_at(library, place, command, [*command, place.address], port=port))
    rows = re.findall(r"^ *(\d+) +200 +(\d+\.\d+)", client, re.MULTILINE)
    assert rows, client
    assert all(float(value) > 0 for _, value in rows)


def test_messages_are_repeated(library: Path, hosts: tuple[Host, Host]) -> None:
    """Connections are made and ended over a wire that loses, repeats and overtakes packets."""
    port = unused_port()
    place = Place(hosts, hosts[0].address, "auto")
    common = ["ucmatose", "-c", "10", "-C", "5", "-p", str(port)]
    faults = "seed=7,wire_drop=0.1,wire_duplicate=0.1,wire_reorder=0.1"
    for out in run_at(library, place, common, [*common, "-s", hosts[0].address], port=port, faults=faults):
        assert "return status 0" in out, out


def refused(library: Path, place: Place) -> str:
    environ = {**os.environ, "SOFTDEV_WIRE": place.wire, "SOFTDEV_DEVICE": "soft"}
    done = subprocess.run(
        place.command(
            1,
            *("env", f"LD_PRELOAD={library}", "rping", "-c", "-a", place.address),
            *("-p", str(unused_port()), "-C", "1"),
        ),
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.stdout + done.stderr


def test_nobody_listens(library: Path) -> None:
    """Told at once: a rejection with reason 8 (invalid service)."""
    assert "RDMA_CM_EVENT_REJECTED, error 8" in refused(library, Place(None, "127.0.0.1", "off"))
    assert "RDMA_CM_EVENT_REJECTED, error 8" in refused(library, Place(None, "127.0.0.1", "only"))


def test_nothing_listens_on_that_host(library: Path, hosts: tuple[Host, Host]) -> None:
    """Its kernel says so. Without that, fifteen tries end as RDMA_CM_EVENT_UNREACHABLE."""
    for address in (hosts[0].address, hosts[0].address6):
        assert "RDMA_CM_EVENT_REJECTED, error 8" in refused(library, Place(hosts, address, "auto"))


def test_rsocket_is_refused(library: Path) -> None:
    """It looks behind the public fields of ids, so it gets an error instead of one of ours."""
    done = subprocess.run(
        ["rstream", "-p", str(unused_port())],
        env={**os.environ, "LD_PRELOAD": str(library), "SOFTDEV_DEVICE": "soft"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert "Operation not supported" in done.stdout + done.stderr


def test_without_the_device_the_real_library_answers(library: Path) -> None:
    """Here that finds no kernel support, unless there is some."""
    if Path("/dev/infiniband/rdma_cm").exists():
        pytest.skip("this machine has rdma_cm in its kernel: rping would wait for a client")

    def said(**extra: str) -> tuple[int, str]:
        done = subprocess.run(
            ["rping", "-s", "-C", "1"],
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    assert said(LD_PRELOAD=str(library), SOFTDEV_DEVICE="none") == said()
