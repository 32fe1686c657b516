"""Behaviours of what ends without being closed: event loops of a process that lives on."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any

from tests.roles import LOCAL

from .stage import KeepsOpen, Stage, Traced, attempt
from .table import behaviour

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Elsewhere:
    """Runs coroutines one after the other in a thread, each on an event loop of its own like the stage's.

    What they leave open is reported when it is dropped, here, where nobody complains.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        #: What the coroutines want to be kept from the collector until :meth:`run` returns.
        self.kept: list[Any] = []

    async def run(self, *mains: Callable[[], Awaitable[Any]]) -> list[Any]:
        """What they return."""
        make = type(self.stage.loop)
        results: list[Any] = []

        def work() -> None:
            for main in mains:
                with asyncio.Runner(loop_factory=make) as runner:
                    results.append(runner.run(_awaited(main)))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            thread = threading.Thread(target=work)
            thread.start()
            await self.stage.until(lambda: not thread.is_alive())
            thread.join()
            self.kept.clear()
            gc.collect()
        return results


async def _awaited(main: Callable[[], Awaitable[Any]]) -> Any:
    return await main()


@behaviour
async def a_loop_that_ends_with_its_connection(stage: Stage) -> None:
    """A client writes and its loop ends: its peer gets everything, EOF, and an end without an error."""
    port = await stage.listen()

    async def client() -> None:
        writer = (await stage.client.open_connection(LOCAL, port))[1]
        writer.write(b"the last words")
        await writer.drain()

    await Elsewhere(stage).run(client)
    await stage.until(lambda: stage.made("far"))
    await stage.until(lambda: stage.made("far")[0].ended)


@behaviour
async def a_loop_that_ends_with_much_that_was_taken(stage: Stage) -> None:
    """The same with much that the transport does not hold any more; the peer reads later."""

    class Later(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.pause_reading()

    port = await stage.listen(stage.far(Later))

    async def client() -> None:
        writer = (await stage.client.open_connection(LOCAL, port))[1]
        for _ in range(40):
            writer.write(b"h" * 1000)
            await stage.until(lambda: not writer.transport.get_write_buffer_size())

    await Elsewhere(stage).run(client)
    await stage.until(lambda: stage.made("far"))
    (far,) = stage.made("far")
    far.transport.resume_reading()
    await stage.until(lambda: far.ended)
    stage.note("arrived", len(far.data))
    stage.note("end", far.events[-2:])
    far.events.clear()


@behaviour
async def a_loop_that_ends_with_a_reader(stage: Stage) -> None:
    """A client whose task waits for data when its loop ends: its peer gets EOF, and no error."""
    port = await stage.listen()

    async def client() -> None:
        reader, writer = await stage.client.open_connection(LOCAL, port)
        writer.write(b"waits")

        async def read() -> None:
            await reader.read()

        task = asyncio.ensure_future(read())
        await writer.drain()
        await asyncio.sleep(0)
        assert not task.done()

    await Elsewhere(stage).run(client)
    await stage.until(lambda: stage.made("far"))
    await stage.until(lambda: stage.made("far")[0].ended)


@behaviour
async def a_loop_that_ends_with_its_server(stage: Stage) -> None:
    """A server's loop ends with a connection in it: its client gets the answer, EOF, and an end."""
    ports: list[int] = []
    near: list[Any] = []

    async def server() -> None:
        ends: list[Traced] = []

        class Answers(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def data_received(self, data: bytes) -> None:
                self.transport.write(data.upper())
                ends.append(self)  # type: ignore[arg-type]

        made = await stage.server.create_server(Answers, LOCAL, 0)
        ports.append(made.sockets[0].getsockname()[1])
        await stage.until(lambda: ends)
        await asyncio.sleep(0)

    async def ask() -> None:
        await stage.until(lambda: ports)
        stage.met_before(ports[0])
        near.append(await stage.connect(stage.near(), ports[0]))
        near[0].transport.write(b"question")

    asking = asyncio.ensure_future(ask())
    await Elsewhere(stage).run(server)
    await asking
    await stage.until(lambda: near[0].ended)


@behaviour
async def one_loop_after_the_other(stage: Stage) -> None:
    """Three loops of a process connect, one after the other: each is served."""
    port = await stage.listen(stage.far(KeepsOpen))

    async def client() -> bytes:
        reader, writer = await stage.client.open_connection(LOCAL, port)
        writer.write(b"x")
        writer.close()
        await writer.wait_closed()
        rest: bytes = await reader.read()
        return rest

    stage.note("read", await Elsewhere(stage).run(client, client, client))
    await stage.until(lambda: [bytes(each.data) for each in stage.made("far")] == [b"x"] * 3)
    await stage.until(lambda: stage.trace["far"].count("eof") == 3)
    del stage.trace["far"]


@behaviour
async def a_transport_after_its_loop(stage: Stage) -> None:
    """Calls on a transport whose loop is closed are errors or nothing, and the peer comes to its end."""
    port = await stage.listen()
    elsewhere = Elsewhere(stage)
    found: list[Any] = []

    async def client() -> Any:
        _, writer = await stage.client.open_connection(LOCAL, port)
        writer.write(b"x")
        await writer.drain()
        return writer.transport

    async def look() -> None:
        found.append(bool(repr(elsewhere.kept[0])))
        found.append(elsewhere.kept[0].get_extra_info("peername") == (LOCAL, port))
        for name in ("abort", "close"):
            kind = attempt(getattr(elsewhere.kept[0], name))
            found.append(kind in (None, "RuntimeError"))

    async def both() -> None:
        elsewhere.kept.append(await client())

    await elsewhere.run(both, look)
    stage.note("found", found)
    await stage.until(lambda: stage.made("far"))
    await stage.until(lambda: stage.made("far")[0].ended)
    stage.note("data", bytes(stage.made("far")[0].data))
    del stage.trace["far"]
