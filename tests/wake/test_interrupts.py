"""Ctrl-C on trio comes out of the main task, and never out of the midst of an operation of ours."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

import aiordma
from aiordma import memory, rpc
from aiordma.channels import channel
from aiordma.config import Config
from aiordma.verbs.lifetime import protect
from aiordma.wake import _trio
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Arm = Callable[[], None]

LOCAL = "127.0.0.1"


def config_of(path: str) -> Config:
    return Config(device=DEVICE if path == "rdma" else "none")


async def streams(stack: AsyncExitStack, config: Config) -> tuple[Any, Any]:
    listener = await stack.enter_async_context(await aiordma.listen(LOCAL, 0, config=config))
    one = await stack.enter_async_context(await aiordma.connect(LOCAL, listener.port, config=config))
    return one, await stack.enter_async_context(await listener.accept())


async def connect(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    listener = await stack.enter_async_context(await aiordma.listen(LOCAL, 0, config=config))
    arm()
    await stack.enter_async_context(await aiordma.connect(LOCAL, listener.port, config=config))


async def listen(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    arm()
    listener = await stack.enter_async_context(await aiordma.listen(LOCAL, 0, config=config))
    with trio.move_on_after(0.01):
        await listener.accept()


async def send(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    one, _ = await streams(stack, config)
    arm()
    await one.send(bytes(8 << 20))


async def receive(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    one, other = await streams(stack, config)
    await one.send(b"data")
    await other.receive()
    arm()
    await other.receive()


async def finish(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    one, _ = await streams(stack, config)
    arm()
    await one.send_eof()


async def close(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    one, _ = await streams(stack, config)
    arm()
    await one.aclose()


async def messages(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    listener = await stack.enter_async_context(await channel.listen(LOCAL, config=config))
    one = await stack.enter_async_context(await channel.connect(LOCAL, listener.port, config=config))
    other = await stack.enter_async_context(await listener.accept())
    arm()
    one.send_soon([b"message"])
    await one.flush()
    await other.aclose()


async def datagram_connection(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    listener = await stack.enter_async_context(await aiordma.listen_datagram(LOCAL, 0, config=config))
    one = await stack.enter_async_context(await aiordma.connect_datagram(LOCAL, listener.port, config=config))
    arm()
    await one.send(b"datagram")
    await one.receive()


async def datagrams(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    one = await stack.enter_async_context(aiordma.open_datagram_endpoint((LOCAL, 0), config=config))
    arm()
    await one.send((b"datagram", one.local_address))
    await one.receive()


class Service:
    @rpc.method
    async def late(self) -> int:
        await trio.lowlevel.checkpoint()
        return 1


async def call(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    server = await stack.enter_async_context(rpc.serve(rpc.Service("s", Service()), LOCAL, 0, config=config))
    client = await stack.enter_async_context(rpc.connect(LOCAL, server.port, config=config))
    arm()
    await client.call("s.late")


async def remote_memory(stack: AsyncExitStack, config: Config, arm: Arm) -> None:
    server = await stack.enter_async_context(memory.serve(LOCAL, config=config))
    peer = await stack.enter_async_context(await memory.connect(LOCAL, server.port, config=config))
    region = await memory.alloc(1 << 16, config=config)
    arm()
    await (await peer.open(region.descriptor())).read(bytearray(1 << 16))


OPERATIONS = [
    connect,
    listen,
    send,
    receive,
    finish,
    close,
    messages,
    datagram_connection,
    datagrams,
    call,
    remote_memory,
]


def interrupting(monkeypatch: pytest.MonkeyPatch) -> tuple[Arm, list[str]]:
    """Once armed, SIGINT comes the next time that the package asks trio for something."""
    armed: list[bool] = []
    came: list[str] = []

    def come(name: str) -> None:
        if armed:
            armed.clear()
            came.append(name)
            signal.raise_signal(signal.SIGINT)

    def plant(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def planted(self: Any, *args: Any, **keywords: Any) -> Any:
            come(name)
            return real(self, *args, **keywords)

        monkeypatch.setattr(kind, name, planted)

    for name in ("call_soon", "call_at", "watch_fd", "wait_readable", "wait_writable", "checkpoint"):
        plant(_trio.TrioWaker, name)
    for name in ("cancel_check", "shielded_yield", "cancel_requested", "share_overdue"):
        plant(_trio.TrioWaker, name)
    for name in ("wait", "wait_until", "set"):
        plant(_trio.TrioWaiter, name)
    return partial(armed.append, True), came


@pytest.mark.parametrize("path", ["rdma", "tcp"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations(
    operation: Callable[[AsyncExitStack, Config, Arm], Awaitable[None]],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    arm, came = interrupting(monkeypatch)
    ended: list[BaseException] = []

    async def operate() -> None:
        try:
            async with AsyncExitStack() as stack:
                await operation(stack, config_of(path), arm)
                await trio.sleep_forever()
        except BaseException as error:
            ended.append(error)
            raise

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(operate)
            await trio.sleep_forever()

    try:
        with pytest.raises(BaseException) as caught:  # noqa: PT011  # looked at below
            trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)
    assert came
    assert [type(error) for error in ended] == [trio.Cancelled]
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert type(error) is KeyboardInterrupt


class Held:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_what_cannot_be_kept_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end in the collector's order, and its memory is freed by then."""

    def fails(_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("aiordma.verbs.lifetime._objects.add", fails)
    held = Held()
    with pytest.raises(MemoryError):
        protect(held)
    assert held.closed
