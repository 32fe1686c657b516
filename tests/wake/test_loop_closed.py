"""Loops that end without asyncio.run(): closed, dropped, after a crash. What was open in them is released."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import trio
import uvloop

import aiordma
from aiordma import rpc, wake
from aiordma.links import engine as engines
from aiordma.wake.beside import wait_for_threads
from tests.health import collected, descriptors, endpoint_begun
from tests.processes import FULL_PATIENCE, PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCAL = "127.0.0.1"
FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
CONFIG = aiordma.Config(device=DEVICE)


@pytest.fixture(autouse=True)
def unclosed_on_purpose() -> Iterator[None]:
    """That what is dropped gives warnings has tests of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        # Of serving and calling, left open in loops that nothing runs any more. Python 3.13 began to say so.
        warnings.filterwarnings("ignore", "coroutine method 'aclose' of '(serve|connect)' was never awaited")
        yield
        gc.collect()


async def leave_open(mode: Any) -> tuple[Any, ...]:
    """One of everything, used once and left open."""
    listener = await aiordma.listen(LOCAL, 0, config=CONFIG)
    stream = await aiordma.connect(LOCAL, listener.port, mode=mode, config=CONFIG)
    other = await listener.accept()
    await stream.send(b"x")
    assert await other.receive() == b"x"
    assert stream.path == mode
    messages = await aiordma.listen_datagram(LOCAL, 0, config=CONFIG)
    connection = await aiordma.connect_datagram(LOCAL, messages.port, mode=mode, config=CONFIG)
    serving = rpc.serve(rpc.Service("s"), LOCAL, 0, config=CONFIG)
    server = await serving.__aenter__()
    calling = rpc.connect(LOCAL, server.port, mode=mode, config=CONFIG)
    client = await calling.__aenter__()
    assert client.path == mode
    endpoint = await aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode, config=CONFIG)
    await endpoint_begun()
    return stream, connection, client, other, listener, messages, serving, calling, endpoint


def close(factory: Callable[[], asyncio.AbstractEventLoop], mode: str) -> tuple[Any, ...]:
    loop = factory()
    left = loop.run_until_complete(leave_open(mode))
    loop.close()
    return left


def crash(factory: Callable[[], asyncio.AbstractEventLoop], mode: str) -> tuple[Any, ...]:
    left: list[tuple[Any, ...]] = []

    async def main() -> None:
        left.append(await leave_open(mode))
        raise ZeroDivisionError

    loop = factory()
    with pytest.raises(ZeroDivisionError):
        loop.run_until_complete(main())
    loop.close()
    return left[0]


def run(factory: Callable[[], asyncio.AbstractEventLoop], mode: str) -> tuple[Any, ...]:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(leave_open(mode))


def drop(factory: Callable[[], asyncio.AbstractEventLoop], mode: str) -> tuple[Any, ...]:
    loop = factory()
    loop.run_until_complete(leave_open(mode))
    gc.collect()  # the loop comes before its sockets then, see test_a_dropped_loop_that_cannot_close_itself()
    del loop
    gc.collect()
    return ()


def _wait_for_asyncios_threads() -> None:
    """A thread of the loop's executor (which looks names up) that hands over a result holds the loop until it
    has, also when nothing waits for that any more. The threads of a loop that leaks stay.
    """
    for _ in range(100):
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")]
        if not threads:
            break
        threads[0].join(PATIENCE / 100)
        gc.collect()


def count() -> tuple[int, int, int]:
    wait_for_threads()  # one that has opened a device may not be gone yet, and keeps its loop
    gc.collect()
    _wait_for_asyncios_threads()
    wait_for_threads()  # they remove files
    return len(descriptors()), threading.active_count(), len(engines.ENGINES)


def check(counts: list[tuple[int, int, int]]) -> None:
    """Less than one thing for two loops: a loop that leaks leaves more than one behind."""
    assert all(last - first < 4 for first, last in zip(counts[0], counts[-1], strict=True)), counts


ENDS = [
    (end, name)
    for end in (close, crash, run, drop)
    for name in FACTORIES
    # uvloop does not collect a loop that was not closed, with or without aiordma.
    if (end, name) != (drop, "uvloop")
]


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize(("end", "name"), ENDS)
def test_nothing_is_left_of_loops(end: Callable[..., Any], name: str, mode: str) -> None:
    counts = []
    for number in range(12):
        end(FACTORIES[name], mode)
        if number % 4 == 3:
            counts.append(count())
    check(counts)


def test_a_dropped_loop_that_cannot_close_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is finalized in the order of the collector's lists. If the youngest objects are collected while
    asyncio makes a loop, the loop's own socket is finalized before it. Its ``__del__`` then fails, with or
    without aiordma.
    """
    failed: list[str] = []
    gc.collect()  # what earlier tests have left may say something as well
    monkeypatch.setattr(sys, "unraisablehook", lambda what: failed.append(str(what.exc_value)))
    make_pair = socket.socketpair

    def collect_and_make_pair() -> tuple[socket.socket, socket.socket]:
        gc.collect(0)
        return make_pair()

    def make_loop() -> asyncio.AbstractEventLoop:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socketpair", collect_and_make_pair)
            return asyncio.new_event_loop()

    counts = []
    gc.disable()
    try:
        for number in range(12):
            make_loop().run_until_complete(leave_open(("rdma", "tcp")[number % 2]))
            gc.collect()
            if number % 4 == 3:
                counts.append(count())
    finally:
        gc.enable()
    # Since Python 3.13, it also says of the asynchronous generators of such a loop that nothing closes them.
    assert {text for text in failed if not text.startswith("coroutine method 'aclose' of ")} == {
        "Invalid file descriptor: -1"
    }
    check(counts)


@pytest.mark.parametrize("beside", [False, True], ids=["", "while another loop runs"])
def test_a_finalizer_starts_no_thread_by_threading(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting one takes a lock that the interrupted code may hold: a program stood still for ever."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_open("rdma"))
    wait_for_threads()
    gc.collect()  # the loop comes before its sockets then
    left = weakref.ref(loop)
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)

    async def collect() -> None:
        gc.collect()

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        del loop
        assert collected(left, (lambda: asyncio.run(collect())) if beside else gc.collect)
    assert started == []


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize(("end", "name"), [pair for pair in ENDS if pair[0] is not drop])
def test_what_belonged_to_the_loop_says_so(end: Callable[..., Any], name: str, mode: str) -> None:
    stream, connection, client, *_ = end(FACTORIES[name], mode)
    for each in (stream, connection):
        assert "of a loop that has ended" in repr(each)
        for send_or_receive in (lambda: each.send(b"x"), each.receive):  # noqa: B023
            with pytest.raises(anyio.ClosedResourceError, match=r"event loop .* was closed or has ended"):
                asyncio.run(send_or_receive())
        with pytest.raises(anyio.ClosedResourceError, match=r"event loop .* was closed"):
            each.send_nowait(b"x")
        asyncio.run(each.aclose())
    assert not client.usable


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_work_for_a_closed_loop_is_refused_and_leaves_nothing(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A listener's finalizer may run after that of its loop: no coroutine may be left that nothing awaits."""

    async def get() -> Any:
        return wake.current()

    loop = factory()
    waker = loop.run_until_complete(get())
    loop.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match="closed"):
            waker.spawn(anyio.lowlevel.checkpoint)
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_a_trio_run_that_ends() -> None:
    counts = []
    for number in range(12):
        for mode in ("rdma", "tcp"):
            stream, *_ = trio.run(leave_open, mode)
            with pytest.raises(anyio.ClosedResourceError, match=r"event loop .* was closed or has ended"):
                trio.run(stream.send, b"x")
            trio.run(stream.aclose)
            del stream, _
        if number % 4 == 3:
            counts.append(count())
    check(counts)


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_what_was_sent_and_closed_before_the_loop_was_still_arrives(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """As with asyncio.run(): the end waits for a server that has not accepted yet."""
    port: list[int] = []
    ready = threading.Event()
    got: list[bytes] = []

    async def serve() -> None:
        async with await aiordma.listen(LOCAL, 0, config=CONFIG) as listener:
            port.append(listener.port)
            ready.set()
            async with await listener.accept() as stream:
                got.extend([part async for part in stream])

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()

    async def send() -> None:
        async with await aiordma.connect(LOCAL, port[0], mode="rdma", config=CONFIG) as stream:
            await stream.send(b"x" * 10_000)

    assert ready.wait(FULL_PATIENCE)
    loop = factory()
    loop.run_until_complete(send())
    loop.close()
    thread.join(FULL_PATIENCE)
    assert b"".join(got) == b"x" * 10_000


def test_a_loop_can_be_closed_by_hand_after_its_generators() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_open("rdma"))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())  # or count() waits for its thread
    before = count()
    loop.close()
    loop.close()
    assert count()[0] <= before[0]
