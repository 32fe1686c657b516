"""A listener's ``serve()``: it owns its connections, and outlives its clients and what its handlers raise."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.channels import channel
from tests.health import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiordma.negotiation.accept import ConnectionListener

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("kind", ["streams", "datagrams", "channels"]),
    pytest.mark.parametrize("mode", ["rdma", "tcp"]),
]

LOCAL = "127.0.0.1"
LISTEN: dict[str, Any] = {
    "streams": aiordma.listen,
    "datagrams": aiordma.listen_datagram,
    "channels": channel.listen,
}
CONNECT: dict[str, Any] = {
    "streams": aiordma.connect,
    "datagrams": aiordma.connect_datagram,
    "channels": channel.connect,
}


def has_ended(channel: Any) -> bool:
    try:
        channel.spin()
        channel.try_send(b"")
    except anyio.BrokenResourceError:
        return True
    return False


class Clients:
    """Clients of one listener."""

    def __init__(self, listener: ConnectionListener[Any], kind: str, mode: str) -> None:
        self.listener = listener
        self._kind = kind
        self._mode = mode

    async def connect(self) -> Any:
        return await CONNECT[self._kind](LOCAL, self.listener.port, mode=self._mode)

    async def see_the_end(self) -> None:
        """One more client, and the end of its connection."""
        async with await self.connect() as client:
            if self._kind == "channels":
                client.channel.on_message = lambda _: None
                await until(lambda: has_ended(client.channel))
            else:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await client.receive()


@asynccontextmanager
async def serving(
    kind: str, mode: str, handler: Callable[[Any], Awaitable[object]], **options: Any
) -> AsyncIterator[Clients]:
    async with await LISTEN[kind](LOCAL) as listener, anyio.create_task_group() as tasks:

        async def serve() -> None:
            await listener.serve(handler, **options)

        tasks.start_soon(serve)
        with anyio.fail_after(30):
            yield Clients(listener, kind, mode)
        tasks.cancel_scope.cancel()


async def test_a_connection_is_closed_when_its_handler_returns(kind: str, mode: str) -> None:
    async def leave_open(connection: Any) -> None: ...

    async with serving(kind, mode, leave_open) as clients:
        for _ in range(3):
            await clients.see_the_end()
        await until(lambda: not clients.listener.statistics().serving)


async def test_a_handler_may_close_its_connection(kind: str, mode: str) -> None:
    async def close(connection: Any) -> None:
        async with connection:
            pass
        await connection.aclose()

    async with serving(kind, mode, close) as clients:
        await clients.see_the_end()
        assert clients.listener.statistics().handlers_failed == 0


async def test_a_handler_that_fails_ends_its_connection_only(
    kind: str, mode: str, caplog: pytest.LogCaptureFixture, handler_failures: list[str]
) -> None:
    goes_on = anyio.Event()
    first = True

    async def handle(connection: Any) -> None:
        nonlocal first
        if first:
            first = False
            await goes_on.wait()
            return
        raise ZeroDivisionError("a fault of the handler")

    async with serving(kind, mode, handle) as clients:
        other = await clients.connect()
        await until(lambda: clients.listener.statistics().serving == 1)
        for _ in range(3):
            await clients.see_the_end()
        statistics = clients.listener.statistics()
        assert (statistics.serving, statistics.handlers_failed, statistics.handlers_lost) == (1, 3, 0)
        goes_on.set()
        await until(lambda: not clients.listener.statistics().serving)
        await other.aclose()
    assert len(handler_failures) == 3
    assert all("a fault of the handler" in text and f"{LOCAL}:" in text for text in handler_failures)
    assert all("Traceback" in text for text in handler_failures)
    handler_failures.clear()
    assert {record.name for record in caplog.records if record.levelno >= logging.ERROR} == {"aiordma.serve"}


@pytest.mark.parametrize(
    "error",
    [
        anyio.BrokenResourceError("gone"),
        anyio.EndOfStream(),
        anyio.IncompleteRead(),
        ConnectionResetError("gone"),
        ExceptionGroup("tasks", [anyio.BrokenResourceError(), ExceptionGroup("more", [BrokenPipeError()])]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_loss_of_a_client_is_no_failure(
    kind: str, mode: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose(connection: Any) -> None:
        raise error

    caplog.set_level(logging.INFO, "aiordma.serve")
    async with serving(kind, mode, lose) as clients:
        await clients.see_the_end()
        statistics = clients.listener.statistics()
        assert (statistics.handlers_failed, statistics.handlers_lost) == (0, 1)
    (record,) = [record for record in caplog.records if record.name == "aiordma.serve"]
    assert record.levelno == logging.INFO
    assert f"{LOCAL}:{clients.listener.port}" in record.getMessage()
    assert record.exc_info is None


async def test_a_refused_connection_to_another_server_is_a_failure(
    kind: str, mode: str, handler_failures: list[str]
) -> None:
    async def forward(connection: Any) -> None:
        raise ExceptionGroup("tasks", [BrokenPipeError(), ConnectionRefusedError("of a database")])

    async with serving(kind, mode, forward) as clients:
        await clients.see_the_end()
        assert clients.listener.statistics().handlers_failed == 1
    assert len(handler_failures) == 1
    handler_failures.clear()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_takes_the_errors(kind: str, mode: str, is_async: bool) -> None:
    seen: list[tuple[str, str]] = []

    def note(connection: Any, exc: Exception) -> None:
        seen.append((connection.path, repr(exc)))

    async def note_late(connection: Any, exc: Exception) -> None:
        await anyio.lowlevel.checkpoint()
        note(connection, exc)

    async def fail(connection: Any) -> None:
        raise KeyError("x")

    async with serving(kind, mode, fail, on_error=note_late if is_async else note) as clients:
        await clients.see_the_end()
        await clients.see_the_end()
        assert clients.listener.statistics().handlers_failed == 2
    assert seen == [(mode, "KeyError('x')")] * 2


@pytest.mark.parametrize("outcome", ["returns", "raises", "is noted", "closes and raises"])
async def test_what_breaks_off_is_no_whole(
    kind: str, mode: str, outcome: str, handler_failures: list[str]
) -> None:
    """The peer of a handler that fails gets an error, not the end in order of a stream or of datagrams."""
    if kind == "channels":
        return  # no end of theirs looks whole: each message is
    goes_on = anyio.Event()

    async def half(connection: Any) -> None:
        await connection.send(b"half")
        await goes_on.wait()
        if outcome == "closes and raises":
            await connection.aclose()
        if outcome != "returns":
            raise KeyError("x")

    options = {"on_error": lambda *_: None} if outcome == "is noted" else {}
    async with serving(kind, mode, half, **options) as clients, await clients.connect() as client:
        assert await client.receive() == b"half"
        goes_on.set()
        in_order = outcome in ("returns", "closes and raises")
        with pytest.raises(anyio.EndOfStream if in_order else anyio.BrokenResourceError):
            await client.receive()
    handler_failures.clear()


async def serve_one(
    kind: str, mode: str, handler: Callable[[Any], Awaitable[object]], **options: Any
) -> None:
    async with serving(kind, mode, handler, **options) as clients:
        await clients.see_the_end()
        await anyio.sleep_forever()


async def test_errors_are_raised_on_demand(kind: str, mode: str) -> None:
    async def fail(connection: Any) -> None:
        raise KeyError("x")

    with pytest.raises(ExceptionGroup) as caught:
        await serve_one(kind, mode, fail, on_error="raise")
    group: BaseException = caught.value
    while isinstance(group, ExceptionGroup):
        (group,) = group.exceptions
    assert isinstance(group, KeyError)


class Stop(BaseException):
    """As KeyboardInterrupt, which test runners take for themselves."""


async def test_what_is_no_exception_passes_through(kind: str, mode: str) -> None:
    async def stop(connection: Any) -> None:
        raise Stop

    with pytest.raises(BaseExceptionGroup) as caught:
        await serve_one(kind, mode, stop)
    assert caught.group_contains(Stop)


async def test_on_error_is_checked(kind: str, mode: str) -> None:
    async with await LISTEN[kind](LOCAL) as listener:
        with pytest.raises(ValueError, match=r"on_error='ignore' .*'log', 'raise'"):
            await listener.serve(lambda _: None, on_error="ignore")


async def test_cancelling_closes_the_connections(kind: str, mode: str) -> None:
    async def wait(connection: Any) -> None:
        await anyio.sleep_forever()

    async with serving(kind, mode, wait) as clients:
        client = await clients.connect()
        await until(lambda: clients.listener.statistics().serving == 1)
    with anyio.fail_after(30):
        if kind != "channels":
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await client.receive()
    await client.aclose()
    assert clients.listener.statistics().serving == 0
