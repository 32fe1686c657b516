"""Behaviours of servers whose clients say nothing at first."""

from __future__ import annotations

from typing import Any

from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

from .stage import Stage, Traced
from .table import behaviour


class Looks(Traced):
    """Looks whose the transport is as soon as there is one."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.stage.note("its own", transport.get_protocol() is self)


@behaviour
async def whose_transport_it_is(stage: Stage) -> None:
    """get_protocol() is the program's protocol, from connection_made() on."""
    near, far = await stage.pair(far=Looks)
    await stage.turns()
    stage.note("still", far.transport.get_protocol() is far)
    near.transport.write(b"at last")
    await stage.until(lambda: far.data)
    stage.note("later", far.transport.get_protocol() is far)


@behaviour
async def another_protocol_before_the_first_bytes(stage: Stage) -> None:
    """set_protocol(): they go to the new one, and so does the end."""
    near, far = await stage.pair()
    other = Traced(stage, "other")
    far.transport.set_protocol(other)
    stage.note("the other", far.transport.get_protocol() is other)
    near.transport.write(b"at last")
    await stage.until(lambda: other.data)
    near.transport.close()
    await stage.until(lambda: near.ended and other.ended)
    far.ended = True


@behaviour
async def another_protocol_when_it_is_made(stage: Stage) -> None:
    """set_protocol() in connection_made()."""

    class HandsOn(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_protocol(other)

    other = Traced(stage, "other")
    near, far = await stage.pair(far=HandsOn)
    near.transport.write(b"at last")
    await stage.until(lambda: other.data)
    near.transport.close()
    await stage.until(lambda: near.ended and other.ended)
    far.ended = True


@behaviour
async def tls_for_the_protocol_of_the_transport(stage: Stage) -> None:
    """A server speaks first, and both go on inside TLS: start_tls(transport, transport.get_protocol())."""
    client, server = tls_contexts()
    near, far = await stage.pair()
    far.transport.write(b"go")
    await stage.until(lambda: near.data == b"go")

    async def upgrade(api: Any, end: Traced, context: Any, **options: Any) -> None:
        transport = end.transport
        end.transport = await api.start_tls(transport, transport.get_protocol(), context, **options)

    accepting = stage.loop.create_task(upgrade(stage.server, far, server, server_side=True))
    await upgrade(stage.client, near, client, server_hostname=LOCAL)
    await accepting
    for part in (b"hello ", b"world"):
        near.transport.write(part)
        await stage.until(lambda part=part: far.data.endswith(part))  # type: ignore[misc]
    far.transport.write(b" and back")
    await stage.until(lambda: near.data == b"go and back")
    near.transport.close()
    await stage.both_end()


@behaviour
async def a_pause_before_the_first_bytes(stage: Stage) -> None:
    """What comes meanwhile waits for resume_reading()."""
    near, far = await stage.pair()
    far.transport.pause_reading()
    near.transport.write(b"at last")
    await stage.turns()
    stage.note("meanwhile", bytes(far.data))
    far.transport.resume_reading()
    await stage.until(lambda: far.data == b"at last")
