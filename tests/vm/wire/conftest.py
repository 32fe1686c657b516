"""A cable between the kernel's rxe and the software device, in a machine with rxe: ``make test-wire-rxe``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aiordma.verbs import softlib

from . import ends as ends_
from .ends import RXE, SOFT, End, connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .ends import Side

# They take the network of the machine they run in, and load of its kernel what only few machines have.
if os.environ.get("AIORDMA_VM") != "wire":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def library() -> Path:
    path = softlib.locate()
    assert path is not None, "the software device is not installed: run 'make install'"
    return path


@pytest.fixture(scope="session")
def cable() -> Iterator[None]:
    """rxe is where rxe works, in the initial namespace."""
    with ends_.cable(), ends_.rxe():
        yield


@pytest.fixture(scope="session")
def ends(cable: None, library: Path) -> Iterator[dict[str, End]]:
    with End(RXE, {}, library) as rxe, End(SOFT, {}, library) as soft:
        yield {"rxe": rxe, "soft": soft}


@pytest.fixture(params=["ipv4", "ipv6"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["rxe", "soft"])
def asker(request: pytest.FixtureRequest) -> str:
    """Who posts the operations; the other one answers them."""
    return str(request.param)


@pytest.fixture
def mtu() -> int:
    """The path MTU; tests that try others say so."""
    return 1024


@pytest.fixture
def pair(ends: dict[str, End], asker: str, family: str, mtu: int) -> Iterator[tuple[Side, Side]]:
    """A connection, the asker's side first. Sequence numbers begin a few packets before they wrap."""
    other = "soft" if asker == "rxe" else "rxe"
    sides = connect(ends[asker], ends[other], family, mtu)
    yield sides
    for side in sides:
        side.close()
