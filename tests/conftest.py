"""What all tests share: the event loops, the options, and a check that this machine can run them."""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import inspect
import logging
import os
import signal
import sys
import zlib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.loops import LOOPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from blockbuster import BlockBuster

# A shell starts background jobs with SIGINT ignored, and their processes inherit that: the tests of Ctrl-C
# would wait for programs that never receive it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Tests that options leave out, with their number.
_LEFT_OUT = pytest.StashKey["Counter[str]"]()

#: Characters of a parameter in the name of its test.
_LONGEST_ID = 100

#: Modules that the tests import, with the package that provides each.
_NEEDED = {
    "aiordma._cq": "the compiled parts of aiordma",
    "anyio": "anyio",
    "blockbuster": "blockbuster",
    "hypothesis": "hypothesis",
    "jsonschema": "jsonschema",
    "msgspec": "msgspec",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "optuna": "optuna",
    "prometheus_client": "prometheus_client",
    "pytest_asyncio": "pytest-asyncio",
    "pytest_timeout": "pytest-timeout",
    "pyverbs": "pyverbs (the system's python3-pyverbs)",
    "redis": "redis",
    "trio": "trio",
    "trustme": "trustme",
    "uvloop": "uvloop",
    "xdist": "pytest-xdist",
}


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of a package around it
        return False


def check_machine() -> None:
    """Fail early: collection would fail with the first import error, in an unrelated test.

    :raises pytest.UsageError: a module that the tests import is missing.
    """
    own = os.environ.get("AIORDMA_VERBS") == "own"
    needed = {name: provider for name, provider in _NEEDED.items() if not (own and name == "pyverbs")}
    missing = [provider for module, provider in needed.items() if not _is_there(module)]
    if missing:
        raise pytest.UsageError(
            f"the tests cannot run: {', '.join(missing)} missing for {sys.executable}.\n"
            "Run `make install`, which builds aiordma and installs what the tests need in .venv,"
            " then `.venv/bin/python -m pytest`."
        )


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
    group.addoption("--without", metavar="FILE", help="leave out the tests that it names, one a line")
    group.addoption(
        "--orders", type=int, metavar="SEED", help="run what is ready in an order drawn from this seed"
    )
    group.addoption(
        "--cpu", type=int, metavar="N", help="show the processor time of tests, and the N that take most"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Runs before any test module, and with it :mod:`tests.world`, is imported."""
    check_machine()
    from tests import leavings

    config.pluginmanager.register(leavings)
    config.stash[_LEFT_OUT] = Counter()
    slower = config.getoption("slower")
    os.environ["AIORDMA_TEST_DEVICE"] = config.getoption("device")
    os.environ["AIORDMA_TEST_SLOWER"] = str(slower)
    world = sys.modules.get("tests.world")
    if world is not None and (world.DEVICE, world.SLOWER) != (config.getoption("device"), slower):
        # The conftest.py of a directory named on the command line was imported before the options were read.
        raise pytest.UsageError("set AIORDMA_TEST_DEVICE and AIORDMA_TEST_SLOWER instead of options here")
    from tests import patient

    patient.set_environment()
    patient.set_defaults()
    if config.getoption("orders") is not None:
        from tests import orders

        orders.install()
    if config.getoption("cpu") is not None:
        from tests import cost

        config.pluginmanager.register(cost.Cost(config.getoption("cpu")))
    if config.option.timeout is None:
        config.option.timeout = float(config.getini("timeout")) * slower


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("orders")
    return [] if seed is None else [f"orders drawn from seed {seed}"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    seed = item.config.getoption("orders")
    if seed is not None:
        from tests import orders

        orders.begin_test(seed, item.nodeid)


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long text stands in its test's name by its beginning and its length: the name goes to each worker and
    into the environment of each program that the test starts.
    """
    if isinstance(val, (bytes, str)) and len(val) > _LONGEST_ID:
        return f"{val[: _LONGEST_ID // 2]!a}... ({len(val)})"
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What the options leave out."""
    if config.getoption("orders") is not None:
        _deselect(config, [item for item in items if "uvloop" in item.name], items, "tests on uvloop")
    if config.getoption("one_loop"):
        _deselect(config, _other_variants(items), items, "variants on other loops and paths")
    if config.getoption("without") is not None:
        names = set(Path(config.getoption("without")).read_text(encoding="utf-8").splitlines())
        named = [item for item in items if names & {item.nodeid, item.nodeid.partition("[")[0]}]
        _deselect(config, named, items, f"tests of {config.getoption('without')}")


def _other_variants(items: list[pytest.Item]) -> list[pytest.Item]:
    """All but one of each test's variants that differ in their loop alone.

    A test's name and place determine its loop; the loops get equal shares. So do the paths (RDMA and TCP) of
    examples.
    """
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        # "loop": of a process that the test starts, or one that the test makes, as contracts do ("uvloop").
        by_itself = params.get("loop") in (*LOOPS, "uvloop")
        own = {"anyio_backend" if "anyio_backend" in params else "loop" if by_itself else ""}
        if item.nodeid.startswith("tests/examples/"):
            own |= {name for name, value in params.items() if value in ("rdma", "tcp")}
        if own & params.keys():
            others = repr([value for name, value in sorted(params.items()) if name not in own])
            tests.setdefault(item.nodeid.partition("[")[0], {}).setdefault(others, []).append(item)
    dropped: list[pytest.Item] = []
    for name, variants in tests.items():
        for turn, loops in enumerate(variants.values(), zlib.crc32(name.encode())):
            del loops[turn % len(loops)]
            dropped += loops
    return dropped


def _deselect(config: pytest.Config, dropped: list[pytest.Item], items: list[pytest.Item], kind: str) -> None:
    if dropped:
        config.stash[_LEFT_OUT][kind] += len(dropped)
        config.hook.pytest_deselected(items=dropped)
        gone = set(map(id, dropped))
        items[:] = [item for item in items if id(item) not in gone]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected stays: a full garbage collection, which many tests make, need not look
    through it. That took 0.1 s each time.
    """
    if session.config.pluginmanager.hasplugin("hypothesispytest"):
        # Its plugin imports it at the end, when it would take trio's frozen random generator for garbage.
        hypothesis = importlib.import_module("hypothesis")
        # It keeps a random generator from its first test on, and looks who refers to it. On Python 3.15, the
        # collector shows nobody once they are frozen.
        once = hypothesis.settings(database=None, max_examples=1)
        once(hypothesis.given(hypothesis.strategies.none())(lambda _: None))()
    gc.collect()
    gc.freeze()


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        for kind in ("slow", "long"):
            if f"not {kind}" in item.config.option.markexpr and item.get_closest_marker(kind):
                item.config.stash[_LEFT_OUT][f"{kind} tests"] += 1
                break


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist reports to the process that prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        left_out = session.config.stash[_LEFT_OUT]
        output["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Each worker has collected everything. A crashed worker has no output.
    config: pytest.Config = node.config
    reported = Counter[str](getattr(node, "workeroutput", {}).get("left_out", {}))
    config.stash[_LEFT_OUT] = config.stash[_LEFT_OUT] | reported


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = [f"{number} {kind}" for kind, number in config.stash[_LEFT_OUT].items()]
    if left_out and not config.getoption("collectonly"):
        terminalreporter.write_line(f"Left out: {', '.join(left_out)}. `make test-loops` runs all.")


@pytest.fixture(params=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Every event loop the library runs on. A test may ask for others (``tests/virtual.py``)."""
    if request.param in LOOPS:
        return LOOPS[request.param]
    from tests import virtual  # it needs the options of this run

    return virtual.loop(request.param)


def _folders(package: str) -> list[ModuleType]:
    """One module for each folder of the package: of those of an editable install blockbuster looks only at
    the first one, which has the compiled parts."""
    modules = []
    for path in importlib.import_module(package).__path__:
        modules.append(ModuleType(package))
        modules[-1].__path__ = [path]
    return modules


def _or_by_a_test(allowed: Callable[..., bool], library: list[ModuleType]) -> Callable[..., bool]:
    """Whether a call may block: as ``allowed`` says, or because a test makes it itself.

    A test that the library has woken may run in the turn that woke it, above functions of the library.
    """
    inside = tuple(f"{folder}/" for module in library for folder in module.__path__)

    def may_block(*args: Any, **kwargs: Any) -> bool:
        if allowed(*args, **kwargs):
            return True
        frame = inspect.currentframe()
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(inside):
                return False
            if name.startswith(_TESTS) and name != __file__:
                return True
            frame = frame.f_back
        return False

    return may_block


_TESTS = f"{Path(__file__).parent}/"


@functools.cache
def _blockbuster() -> BlockBuster:
    """Made once: that takes five times as long as to switch it on and off."""
    from blockbuster import BlockBuster

    folders = _folders("aiordma")
    bb = BlockBuster(folders)
    for function in bb.functions.values():
        function.can_block_predicate = _or_by_a_test(function.can_block_predicate, folders)
        # It looks at a device that the program has opened itself.
        function.can_block_in("aiordma/control.py", "use_device")
        # What a test waits for, it may ask a tool, whose code is not made for a loop.
        function.can_block_in("tests/health.py", "until")
        # `aiordma run` reads its small file of plain servers once (docs/plan.md).
        function.can_block_in("aiordma/negotiation/plain_peers.py", "is_plain")
        # A number of the kernel's, from no disk; read once, perhaps by a loop that imports aiordma.
        function.can_block_in("aiordma/compat/given_socket.py", "_kernels_ports")
        # A finalizer, which has no thread and may run while a loop does; loops that end have a thread.
        function.can_block_in("aiordma/admin/endpoint.py", "_remove")
        # A fork waits on purpose.
        function.can_block_in("aiordma/wake/beside.py", "wait_for_threads")
    return bb


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """A call that blocks the event loop is an error. What a test allows, it allows for itself."""
    bb = _blockbuster()
    allowed = [
        (function.can_block_functions, len(function.can_block_functions))
        for function in bb.functions.values()
    ]
    bb.activate()
    try:
        yield bb
    finally:
        bb.deactivate()
        for places, before in allowed:
            del places[before:]


class _Failures(logging.Handler):
    """What listeners report of handlers that failed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@pytest.fixture(autouse=True)
def handler_failures() -> Iterator[list[str]]:
    """A server survives a handler that fails; a test whose assertion is in a handler must not. One that has
    handlers fail on purpose takes this fixture, and clears the list."""
    logger = logging.getLogger("aiordma.serve")
    failures = _Failures()
    logger.addHandler(failures)
    yield failures.records
    logger.removeHandler(failures)
    assert not failures.records, "\n".join(failures.records)
