"""Unmodified programs: on the kernel's rxe at one end, on the software device at the other."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from .ends import ADDRESSES, RXE, SOFT, inside

LIMIT = 100  # seconds, to end a hang
PORT = 18500
V4, V6 = ADDRESSES["ipv4"], ADDRESSES["ipv6"]


def prefix(device: str, library: Path) -> list[str]:
    """What runs a program on that device."""
    return inside("env", f"LD_PRELOAD={library}") if device == SOFT else []


@pytest.fixture(scope="session")
def gids(cable: None, library: Path) -> dict[tuple[str, str], str]:
    """The index of each end's GID by device and family, what ``-g`` and ``-x`` want."""
    found = {}
    for number, device in enumerate((RXE, SOFT)):
        command = [*prefix(device, library), "ibv_devinfo", "-v", "-d", device]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            name, _, value = line.strip().partition(":")
            if name.startswith("GID["):
                address = value.split(",")[0].strip().removeprefix("::ffff:")
                found[address] = name[4:].rstrip("]").strip()
        for family, addresses in ADDRESSES.items():
            found[device, family] = found[addresses[number]]  # type: ignore[index]
    return found  # type: ignore[return-value]


def listening(pid: int) -> bool:
    """Whether a socket of that process's network namespace listens at the tools' port."""
    return any(
        line.split()[1].endswith(f":{PORT:04X}") and line.split()[3] == "0A"
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    )


def between(
    library: Path, gids: dict[tuple[str, str], str], client: str, family: str, tool: str, *options: str
) -> str:
    """Run both ends of a tool; returns what they printed."""
    server = SOFT if client == RXE else RXE
    chooser = "-g" if tool.startswith("ibv_") else "-x"

    def command(device: str) -> list[str]:
        own = ["-d", device, chooser, gids[device, family]]
        return [*prefix(device, library), tool, "-p", str(PORT), *own, *options]

    process = subprocess.Popen(command(server), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with process:
        try:
            end = time.monotonic() + LIMIT
            while not listening(process.pid):
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < end, f"{tool} does not listen"
                time.sleep(0.05)
            done = subprocess.run(
                [*command(client), V4[0] if server == RXE else V4[1]],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            said = process.communicate(timeout=LIMIT)[0]
        finally:
            process.kill()
    assert done.returncode == 0, f"client on {client}:\n{done.stdout}\nserver:\n{said}"
    assert process.returncode == 0, f"client on {client}:\n{done.stdout}\nserver:\n{said}"
    return said + done.stdout


@pytest.fixture(params=[RXE, SOFT], ids=["rxe-asks", "soft-asks"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("tool", ["rc", "srq", "ud"])
def test_pingpong(
    library: Path, gids: dict[tuple[str, str], str], client: str, family: str, tool: str
) -> None:
    """-c: each received byte is compared."""
    options = ["-n", "20", "-c", "-e", "-s", "1000" if tool == "ud" else "20000"]
    if tool != "ud":
        options += ["-m", "4096"]
    said = between(library, gids, client, family, f"ibv_{tool}_pingpong", *options)
    assert said.count("20 iters in") == 2, said
    assert "nvalid data" not in said, said


PERFTEST = {
    "send_lat": [],
    "send_bw": ["-s", "20000"],
    "write_lat": [],
    "write_bw": ["-s", "65536"],
    "read_lat": [],
    "read_bw": ["-s", "65536"],
    "atomic_lat": [],
}


@pytest.mark.parametrize("tool", PERFTEST)
def test_perftest(library: Path, gids: dict[tuple[str, str], str], client: str, tool: str) -> None:
    """They do not look at what arrives, but count and give up on any error."""
    said = between(library, gids, client, "ipv4", f"ib_{tool}", "-F", "-n", "20", *PERFTEST[tool])
    assert "#bytes" in said, said  # of READs and atomics only the client has something to say


@pytest.mark.parametrize("tool", ["send_bw", "write_bw", "read_bw"])
def test_perftest_over_ipv6(library: Path, gids: dict[tuple[str, str], str], client: str, tool: str) -> None:
    said = between(library, gids, client, "ipv6", f"ib_{tool}", "-F", "-n", "20", *PERFTEST[tool])
    assert "#bytes" in said, said


def test_perftest_datagrams(library: Path, gids: dict[tuple[str, str], str], client: str) -> None:
    said = between(library, gids, client, "ipv4", "ib_send_lat", "-c", "UD", "-F", "-n", "20", "-s", "1000")
    assert "#bytes" in said, said
