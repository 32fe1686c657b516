"""The event loops every async test runs on, and what no test may do: block the loop, warn, hang."""

from __future__ import annotations

import os
import signal
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from tests.loops import LOOPS

if TYPE_CHECKING:
    from collections.abc import Iterator

# A shell gives what it starts in the background an ignored SIGINT, and every process started from there has
# it, too: the tests of Ctrl-C then waited for programs that could not hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("aiordma")
    device = os.environ.get("AIORDMA_TEST_DEVICE", "soft")
    slower = float(os.environ.get("AIORDMA_TEST_SLOWER", "1"))
    group.addoption("--device", default=device, help="the RDMA device of the tests [soft]")
    group.addoption(
        "--slower", type=float, default=slower, help="how many times longer the tests' deadlines are [1]"
    )
    group.addoption(
        "--one-loop", action="store_true", help="run each test on one of its loops only, in turns"
    )


def _wait_longer(slower: float) -> None:
    """Stretch the library's waits for its peer, where a test does not set them: the peer is slow, too."""
    from aiordma.config import Config

    for field in ("negotiate_timeout_ms", "link_timeout_ms", "head_start_ms"):
        milliseconds = round(getattr(Config(), field) * slower)
        os.environ.setdefault(f"AIORDMA_{field.upper()}", str(milliseconds))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before any test module, and with it :mod:`tests.world`, is imported."""
    slower = config.getoption("slower")
    os.environ["AIORDMA_TEST_DEVICE"] = config.getoption("device")
    os.environ["AIORDMA_TEST_SLOWER"] = str(slower)
    world = sys.modules.get("tests.world")
    if world is not None and (world.DEVICE, world.SLOWER) != (config.getoption("device"), slower):
        # The conftest.py of a directory named on the command line was imported before the options were read.
        raise pytest.UsageError("say --device and --slower by environment here: AIORDMA_TEST_DEVICE, _SLOWER")
    if slower != 1:
        _wait_longer(slower)
    if config.option.timeout is None:
        config.option.timeout = float(config.getini("timeout")) * slower


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --one-loop: which loop a test keeps follows from its name and place; all are kept as often."""
    if not config.getoption("one_loop"):
        return
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and "anyio_backend" in call.params:
            others = repr([value for name, value in sorted(call.params.items()) if name != "anyio_backend"])
            tests.setdefault(item.nodeid.partition("[")[0], {}).setdefault(others, []).append(item)
    dropped: list[pytest.Item] = []
    for name, variants in tests.items():
        for turn, loops in enumerate(variants.values(), zlib.crc32(name.encode())):
            del loops[turn % len(loops)]
            dropped += loops
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        gone = set(map(id, dropped))
        items[:] = [item for item in items if id(item) not in gone]


@pytest.fixture(params=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Every event loop the library runs on."""
    return LOOPS[request.param]


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """A call that blocks the event loop is an error."""
    with blockbuster_ctx("aiordma") as bb:
        yield bb
