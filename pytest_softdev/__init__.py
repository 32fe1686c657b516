"""A pytest plug-in: RDMA programs of any language, tested without a card.

It loads with every run of pytest where aiordma is installed, so it imports nothing of aiordma, and costs
nothing until a test asks for one of its fixtures:

* ``rdma_device``: the device that programs are run on;
* ``rdma_run``: starts a program on it, or runs it to its end;
* ``rdma_pair``: runs a server and its client;
* ``rdma_faults``: the faults of the software device, for programs that are started afterwards, and by hand in
  those that run;
* ``rdma_personality``: the limits and manners of a card, which the software device has in programs that are
  started afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .device import Device, software_device
from .faults import FaultError, Faults
from .personality import Personality
from .programs import Ended, Failed, Pair, Program, Programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Device", "Ended", "Failed", "FaultError", "Faults", "Pair", "Personality", "Program", "Programs"]

_MARK = 'rdma_faults(spec): faults of the software device in the programs of the test: "wire_drop=0.01"'
_PERSONALITY = 'rdma_personality(name): manners of the software device in the programs of the test: "efa"'


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rdma", "programs that use RDMA (aiordma)")
    group.addoption(
        "--rdma-device",
        metavar="NAME",
        help="an RDMA device of this machine (ibv_devices lists them) in place of the software device",
    )
    group.addoption(
        "--rdma-address",
        metavar="IP",
        default="127.0.0.1",
        help="an address of that device's network interface [%(default)s]",
    )
    group.addoption(
        "--rdma-gid-index",
        metavar="N",
        type=int,
        default=0,
        help="the entry of that device's GID table (ibv_devinfo -v shows it) [%(default)s]",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    config.addinivalue_line("markers", _PERSONALITY)


@pytest.fixture(scope="session")
def rdma_device(pytestconfig: pytest.Config) -> Device:
    """The device of the run: the software device, or what ``--rdma-device`` names."""
    name: str | None = pytestconfig.getoption("--rdma-device")
    if name is None:
        return software_device()
    address = pytestconfig.getoption("--rdma-address")
    return Device(name, address, pytestconfig.getoption("--rdma-gid-index"), library=None)


@pytest.fixture
def rdma_faults(rdma_device: Device, request: pytest.FixtureRequest) -> Faults:
    """Faults for the programs that the test starts; those of the mark ``rdma_faults`` at first.

    The test is skipped on a real device, which injects none.
    """
    if rdma_device.library is None:
        pytest.skip(f"faults are the software device's, and --rdma-device names {rdma_device.name}")
    mark = request.node.get_closest_marker("rdma_faults")
    return Faults(mark.args[0] if mark is not None else "")


@pytest.fixture
def rdma_personality(rdma_device: Device, request: pytest.FixtureRequest) -> Personality:
    """The device's manners in programs that the test starts; those of the mark ``rdma_personality`` at first.

    ``@pytest.mark.parametrize("rdma_personality", ["mlx5", "efa"], indirect=True)`` runs a test with each. It
    is skipped on a real device, which has its own.
    """
    if rdma_device.library is None:
        pytest.skip(f"personalities are the software device's, and --rdma-device names {rdma_device.name}")
    mark = request.node.get_closest_marker("rdma_personality")
    return Personality(getattr(request, "param", mark.args[0] if mark is not None else "soft"))


def _if_wanted(request: pytest.FixtureRequest, name: str) -> Any:
    """The fixture of that name, if the test or a mark of it asks for it."""
    wanted = name in request.fixturenames or request.node.get_closest_marker(name)
    return request.getfixturevalue(name) if wanted else None


@pytest.fixture
def rdma_run(rdma_device: Device, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Programs]:
    """Starts programs on the device. Those that still run when the test ends are ended."""
    faults, personality = (_if_wanted(request, name) for name in ("rdma_faults", "rdma_personality"))
    programs = Programs(rdma_device, faults, personality, tmp_path)
    yield programs
    programs.end()


@pytest.fixture
def rdma_pair(rdma_run: Programs) -> Pair:
    """Runs a server and its client on the device, until both have ended well."""
    return Pair(rdma_run)
