"""rdma_cm of the software device against the kernel's, over rxe: unmodified programs, in both directions."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.cable import ADDRESSES

from .ends import RXE, SOFT, inside, run

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 100  # seconds, to end a hang
TCP, UDP = 0x0106, 0x0111  # port spaces
PORT, UDADDY_PORT = 18600, 7174  # the latter cannot be chosen


class Programs(NamedTuple):
    """What runs a program at one end or the other, and where the ends are."""

    library: Path
    client: str
    family: str

    @property
    def server(self) -> str:
        return SOFT if self.client == RXE else RXE

    @property
    def address(self) -> str:
        """The server's."""
        return ADDRESSES[self.family][self.server == SOFT]

    @property
    def any(self) -> str:
        return "::" if self.family == "ipv6" else "0.0.0.0"

    def start(self, end: str, *command: str) -> subprocess.Popen[str]:
        if end == SOFT:
            command = tuple(inside("env", "SOFTDEV_DEVICE=soft", f"LD_PRELOAD={self.library}", *command))
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @contextlib.contextmanager
    def serving(self, *command: str, port: int = PORT, space: int = TCP) -> Iterator[subprocess.Popen[str]]:
        """A server that listens; killed at the end, if it still runs."""
        with self.start(self.server, *command) as process:
            try:
                end = time.monotonic() + LIMIT
                while not (soft_listens(process.pid, space, port) or kernel_listens(process.pid, port)):
                    assert process.poll() is None, process.communicate()[0]
                    assert time.monotonic() < end, f"{command[0]} does not listen"
                    time.sleep(0.05)
                yield process
            finally:
                process.kill()

    def both(
        self, server: list[str], client: list[str], *, port: int = PORT, space: int = TCP
    ) -> tuple[str, str]:
        """Run both ends, which must end well; returns what they printed."""
        with (
            self.serving(*server, port=port, space=space) as serving,
            self.start(self.client, *client) as asking,
        ):
            try:
                from_client = asking.communicate(timeout=LIMIT)[0]
                from_server = serving.communicate(timeout=LIMIT)[0]
            finally:
                asking.kill()
            said = f"client on {self.client}:\n{from_client}\nserver:\n{from_server}"
            assert (asking.returncode, serving.returncode) == (0, 0), said
        return from_server, from_client


def soft_listens(pid: int, space: int, port: int) -> bool:
    wanted = f"@aiordma-cm.{os.getuid()}.{space:x}.{port}."
    table = Path(f"/proc/{pid}/net/unix").read_text()
    return any(wanted in line and line.endswith(".listen") for line in table.splitlines())


def kernel_listens(pid: int, port: int) -> bool:
    return any(
        "state LISTEN" in line and f":{port} " in line and f"pid {pid} " in line
        for line in run("rdma", "resource", "show", "cm_id").splitlines()
    )


@pytest.fixture(params=[RXE, SOFT], ids=["rxe-asks", "soft-asks"])
def programs(cable: None, library: Path, family: str, request: pytest.FixtureRequest) -> Programs:
    return Programs(library, str(request.param), family)


only_ipv4 = pytest.mark.parametrize("family", ["ipv4"], indirect=True)


@pytest.mark.parametrize("options", [(), ("-q",)], ids=["cm-qp", "own-qp"])
def test_rping(programs: Programs, options: tuple[str, ...]) -> None:
    """-V: each end compares every byte. The client ends the connection. -q: its queue pair is not
    rdma_create_qp()'s."""
    common = ["rping", "-p", str(PORT), "-V", "-v", "-C", "10", "-S", "1500", *options]
    server, client = programs.both(
        [*common, "-s", "-a", programs.any], [*common, "-c", "-a", programs.address]
    )
    assert server.count("server ping data: rdma-ping-") == 10, server
    assert client.count("ping data: rdma-ping-") == 10, client


def test_ucmatose(programs: Programs) -> None:
    """Many connections at once, which the server ends."""
    common = ["ucmatose", "-c", "10", "-C", "5", "-p", str(PORT)]
    for said in programs.both([*common, "-b", programs.any], [*common, "-s", programs.address]):
        assert "return status 0" in said, said
        assert "error" not in said, said


def test_udaddy(programs: Programs) -> None:
    """Datagrams to a service whose queue pair rdma_cm told (SIDR)."""
    common = ["udaddy", "-c", "4", "-C", "5"]
    server = [*common, "-b", ADDRESSES[programs.family][programs.server == SOFT]]
    for said in programs.both(server, [*common, "-s", programs.address], port=UDADDY_PORT, space=UDP):
        assert "data transfers complete" in said, said
        assert "return status 0" in said, said


def test_synchronous_ids(programs: Programs) -> None:
    server, client = programs.both(
        ["rdma_server", "-p", str(PORT), "-s", programs.any],
        ["rdma_client", "-p", str(PORT), "-s", programs.address],
    )
    assert "rdma_server: end 0" in server
    assert "rdma_client: end 0" in client


# perftest binds its server to IPv4. It ends its listening after a first connection and listens anew for the
# next, which a client of the kernel's may have asked for already: it is refused, also between two kernels.
# Our client asks again.
@only_ipv4
@pytest.mark.parametrize("programs", [SOFT], ids=["soft-asks"], indirect=True)
@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_send_lat", "ib_read_lat"])
def test_perftest(programs: Programs, tool: str) -> None:
    command = [tool, "-R", "-p", str(PORT), "-n", "20", "-F"]
    _, client = programs.both(command, [*command, programs.address])
    assert re.search(r"^ *\d+ +20 +\d+\.\d+", client, re.MULTILINE), client


def test_nobody_listens(programs: Programs) -> None:
    """Reason 8, invalid service: a client that is refused is told."""
    other = ["rping", "-s", "-a", programs.any, "-p", str(PORT + 1)]
    with (
        programs.serving(*other, port=PORT + 1),  # so that there is somebody who can refuse
        programs.start(
            programs.client, "rping", "-c", "-C", "1", "-a", programs.address, "-p", str(PORT)
        ) as asking,
    ):
        said = asking.communicate(timeout=LIMIT)[0]
        assert "RDMA_CM_EVENT_REJECTED, error 8" in said, said


@pytest.mark.parametrize("victim", ["client", "server"])
def test_killed(programs: Programs, victim: str) -> None:
    """kill -9 while they talk. The kernel says goodbye for its process, for ours nobody does. What is left of
    either at the other end disturbs no new connections.
    """
    common = ["rping", "-p", str(PORT), "-v", "-V"]
    dies = programs.client if victim == "client" else programs.server
    with (
        programs.serving(*common, "-s", "-a", programs.any) as serving,
        programs.start(programs.client, *common, "-c", "-a", programs.address) as asking,
    ):
        try:
            for process in (asking, serving):
                assert process.stdout is not None
                assert "ping data: rdma-ping-0" in process.stdout.readline()
            dying, other = (asking, serving) if victim == "client" else (serving, asking)
            dying.kill()
            if dies == SOFT:
                other.kill()  # as long as it waits for an answer, it waits
            else:
                said = other.communicate(timeout=LIMIT)[0]
                assert "DISCONNECT EVENT" in said, said
        finally:
            asking.kill()
    programs.both(
        ["rping", "-p", str(PORT), "-V", "-C", "3", "-s", "-a", programs.any],
        ["rping", "-p", str(PORT), "-V", "-C", "3", "-c", "-a", programs.address],
    )
