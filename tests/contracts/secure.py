"""Behaviours of TLS: `ssl=` and start_tls()."""

from __future__ import annotations

import ssl
from typing import Any

from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

from .stage import Stage, Traced, attempt, outcome
from .table import behaviour


async def pair(stage: Stage, **options: Any) -> tuple[Any, Any]:
    """The protocols of both ends, inside TLS."""
    client, server = tls_contexts()
    port = await stage.listen(ssl=server)
    near = (await stage.client.create_connection(stage.near(), LOCAL, port, ssl=client, **options))[1]
    await stage.until(lambda: stage.made("far"))
    return near, stage.made("far")[0]


@behaviour
async def data_inside_tls(stage: Stage) -> None:
    """Both directions, in order, and an end without an error."""
    near, far = await pair(stage)
    near.transport.write(b"question")
    await stage.until(lambda: far.data == b"question")
    far.transport.writelines([b"ans", bytearray(b"wer")])
    await stage.until(lambda: near.data == b"answer")
    near.transport.close()
    await stage.both_end()


@behaviour
async def what_tls_tells(stage: Stage) -> None:
    """The extra info about the session at both ends."""
    near, far = await pair(stage)
    for end in (near, far):
        get = end.transport.get_extra_info
        stage.note("version", get("ssl_object").version())
        stage.note("cipher", get("cipher")[1])
        stage.note("context", type(get("sslcontext")).__name__)
        stage.note("names", [get("peername")[0], get("sockname")[0], get("nothing", 7)])
    stage.note("certificate", bool(near.transport.get_extra_info("peercert")))


@behaviour
async def no_half_close_inside_tls(stage: Stage) -> None:
    """can_write_eof() is false, and write_eof() not implemented."""
    near, _ = await pair(stage)
    stage.note("can", near.transport.can_write_eof())
    stage.note("write_eof", attempt(near.transport.write_eof))


@behaviour
async def much_inside_tls(stage: Stage) -> None:
    """A large write before close() arrives whole."""
    near, far = await pair(stage)
    near.transport.write(bytes(2_000_000))
    near.transport.close()
    await stage.both_end()
    stage.note("arrived", len(far.data))
    for each in (near, far):
        each.events.clear()


@behaviour
async def tls_later(stage: Stage) -> None:
    """start_tls() at both ends of a connection that carries data already."""
    client, server = tls_contexts()
    near, far = await stage.pair()
    near.transport.write(b"STARTTLS")
    await stage.until(lambda: far.data == b"STARTTLS")

    async def upgrade(api: Any, end: Traced, context: ssl.SSLContext, **options: Any) -> None:
        end.transport = await api.start_tls(end.transport, end, context, **options)

    accepting = stage.loop.create_task(upgrade(stage.server, far, server, server_side=True))
    await upgrade(stage.client, near, client, server_hostname=LOCAL)
    await accepting
    near.transport.write(b" and secrets")
    await stage.until(lambda: far.data == b"STARTTLS and secrets")
    near.transport.close()
    await stage.both_end()


@behaviour
async def tls_of_something_else(stage: Stage) -> None:
    """start_tls() needs a context."""
    near, _ = await stage.pair()
    wrong: Any = None
    stage.note("error", await outcome(stage.client.start_tls(near.transport, near, wrong)))
