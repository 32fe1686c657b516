"""Unmodified programs: on the kernel's rxe at one end, on the software device at the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cable import ADDRESSES

from .ends import RXE, SOFT, inside
from .tools import Place, between

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(params=[RXE, SOFT], ids=["rxe-asks", "soft-asks"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def both(cable: None, library: Path, client: str) -> Callable[..., str]:
    """Runs a tool between the devices; returns what both ends printed."""

    def run(family: str, tool: str, *options: str) -> str:
        rxe, soft = ADDRESSES[family]
        places = {
            RXE: Place(RXE, rxe),
            SOFT: Place(SOFT, soft, tuple(inside("env", f"LD_PRELOAD={library}"))),
        }
        server = SOFT if client == RXE else RXE
        to = ADDRESSES["ipv4"][server == SOFT]
        return "".join(between(places[client], places[server], to, tool, *options))

    return run


@pytest.mark.parametrize("tool", ["rc", "srq", "ud"])
def test_pingpong(both: Callable[..., str], family: str, tool: str) -> None:
    """-c: each received byte is compared."""
    options = ["-n", "20", "-c", "-e", "-s", "1000" if tool == "ud" else "20000"]
    if tool != "ud":
        options += ["-m", "4096"]
    said = both(family, f"ibv_{tool}_pingpong", *options)
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
def test_perftest(both: Callable[..., str], tool: str) -> None:
    """They do not look at what arrives, but count and give up on any error."""
    said = both("ipv4", f"ib_{tool}", "-F", "-n", "20", *PERFTEST[tool])
    assert "#bytes" in said, said  # of READs and atomics only the client has something to say


@pytest.mark.parametrize("tool", ["send_bw", "write_bw", "read_bw"])
def test_perftest_over_ipv6(both: Callable[..., str], tool: str) -> None:
    said = both("ipv6", f"ib_{tool}", "-F", "-n", "20", *PERFTEST[tool])
    assert "#bytes" in said, said


def test_perftest_datagrams(both: Callable[..., str]) -> None:
    said = both("ipv4", "ib_send_lat", "-c", "UD", "-F", "-n", "20", "-s", "1000")
    assert "#bytes" in said, said
