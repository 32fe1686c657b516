"""Behaviours of TLS sessions: how they end, how they are upgraded, and streams inside them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

from .files import file_of
from .secure import accepted, pair, silent
from .stage import Stage, Traced, attempt, outcome
from .streams import result
from .table import behaviour
from .writing import Counts, Quiet


@behaviour
async def close_of_the_server_inside_tls(stage: Stage) -> None:
    """The accepting end answers and closes: the answer, EOF, and an end without an error at both."""
    near, far = await pair(stage)
    near.transport.write(b"question")
    await stage.until(lambda: far.data)
    far.transport.write(b"answer")
    far.transport.close()
    await stage.both_end()


@behaviour
async def both_close_inside_tls(stage: Stage) -> None:
    """Both ends close in the same turn."""
    near, far = await pair(stage)
    near.transport.close()
    far.transport.close()
    stage.note("inside", [near.ended, far.ended])
    await stage.both_end()
    for end in (near, far):
        end.events[:] = [event for event in end.events if event != "eof"]  # who was first


@behaviour
async def abort_inside_tls(stage: Stage) -> None:
    """abort(): connection_lost(None) from the loop; the peer comes to its end."""
    near, far = await pair(stage)
    near.transport.abort()
    stage.note("lost inside", near.ended)
    await stage.both_end()
    stage.note("near", list(near.events))
    far.events.clear()  # an EOF without TLS's own, or a reset


@behaviour
async def a_pause_inside_tls(stage: Stage) -> None:
    """pause_reading() and resume_reading() inside TLS."""
    near, far = await pair(stage)
    far.transport.pause_reading()
    near.transport.write(b"later")
    await stage.turns(30)
    stage.note("while paused", bytes(far.data))
    far.transport.resume_reading()
    await stage.until(lambda: far.data)
    near.transport.close()
    await stage.both_end()


@behaviour
async def a_slow_reader_inside_tls(stage: Stage) -> None:
    """Much is written to a peer that reads later: everything arrives before the end."""
    client, server = tls_contexts()
    port = await stage.listen(stage.far(Counts), ssl=server)
    near = (await stage.client.create_connection(stage.near(Quiet), LOCAL, port, ssl=client))[1]
    await stage.until(lambda: stage.made("far"))
    far = stage.made("far")[0]
    far.transport.pause_reading()
    near.transport.write(bytes(6_000_000))
    near.transport.close()
    await stage.turns(30)
    far.transport.resume_reading()
    await stage.until(lambda: far.ended and near.ended)
    stage.note("arrived", far.count)


@behaviour
async def writes_after_close_inside_tls(stage: Stage) -> None:
    """write() after close() does nothing."""
    near, far = await pair(stage)
    near.transport.write(b"before")
    near.transport.close()
    stage.note("write", attempt(near.transport.write, b"after"))
    stage.note("closing", near.transport.is_closing())
    await stage.both_end()
    stage.note("arrived", bytes(far.data))


@behaviour
async def wrong_kinds_of_data_inside_tls(stage: Stage) -> None:
    """write() refuses what has no bytes, and the session goes on."""
    near, far = await pair(stage)
    wrong: list[Any] = ["text", 7, None]
    stage.note("errors", [attempt(near.transport.write, each) for each in wrong])
    near.transport.write(b"good")
    await stage.until(lambda: far.data)
    near.transport.close()
    await stage.both_end()


@behaviour
async def streams_inside_tls(stage: Stage) -> None:
    """open_connection(ssl=): lines, a half-close that is refused, an end."""
    client, server = tls_contexts()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.write(b"and more")
        writer.close()

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0, ssl=server))
    reader, writer = await stage.client.open_connection(LOCAL, port, ssl=client)
    stage.writers.append(writer)
    stage.note("can", writer.can_write_eof())
    writer.write(b"line\n")
    stage.note("line", await reader.readline())
    stage.note("rest", await result(reader.read()))
    writer.close()
    stage.note("closed", await outcome(writer.wait_closed()))


@behaviour
async def a_file_inside_tls(stage: Stage) -> None:
    """loop.sendfile() to a transport of TLS reads the file and sends it inside."""
    near, far = await pair(stage)
    with file_of(b"a file") as file:
        stage.note("sent", await outcome(stage.loop.sendfile(near.transport, file)))
    near.transport.write(b" end")
    await stage.until(lambda: far.data.endswith(b"end"))
    near.transport.close()
    await stage.both_end()


@behaviour
async def an_authority_that_is_unknown(stage: Stage) -> None:
    """ssl=True has the system's authorities: SSLCertVerificationError, and no protocol is connected."""
    _, server = tls_contexts()
    port = await stage.listen(ssl=server)
    stage.note("error", await outcome(stage.client.create_connection(stage.near(), LOCAL, port, ssl=True)))
    stage.trace.pop("near", None)


@behaviour
async def a_given_socket_without_a_name(stage: Stage) -> None:
    """ssl= with a socket needs a name to be checked, which is a ValueError."""
    client, _ = tls_contexts()
    with socket.socket() as sock:
        connect = stage.client.create_connection
        stage.note("no name", await outcome(connect(stage.near(), sock=sock, ssl=client)))
    stage.trace.pop("near", None)


@behaviour
async def a_server_of_plain_text(stage: Stage) -> None:
    """A client of TLS at a server that greets in clear gets an SSLError, and no protocol is connected."""
    client, _ = tls_contexts()
    async with silent(stage) as (port, accept):
        connecting = stage.loop.create_task(
            stage.client.create_connection(stage.near(), LOCAL, port, ssl=client)
        )
        sock = await accept()
        sock.setblocking(False)
        await stage.loop.sock_sendall(sock, b"220 hello\r\n")
        stage.note("error", await outcome(connecting))
    stage.trace["near"] = [event for event in stage.trace.get("near", []) if event == "made"]


async def upgraded(stage: Stage, near: Traced, far: Traced, **options: Any) -> None:
    """Both ends of a connection begin with TLS."""
    client, server = tls_contexts()

    async def upgrade(api: Any, end: Traced, context: ssl.SSLContext, **more: Any) -> None:
        end.transport = await api.start_tls(end.transport, end, context, **more)

    accepting = stage.loop.create_task(upgrade(stage.server, far, server, server_side=True))
    await upgrade(stage.client, near, client, server_hostname=LOCAL, **options)
    await accepting


@behaviour
async def what_an_upgraded_transport_tells(stage: Stage) -> None:
    """After start_tls(): addresses, session, half-close, and the protocol."""
    near, far = await stage.pair()
    names = [near.transport.get_extra_info(name) for name in ("peername", "sockname")]
    await upgraded(stage, near, far)
    get = near.transport.get_extra_info
    stage.note("names", [get(name) for name in ("peername", "sockname")] == names)
    stage.note("session", [get("ssl_object").version(), bool(get("peercert")), get("nothing", 7)])
    stage.note("half-close", near.transport.can_write_eof())
    stage.note("protocol", near.transport.get_protocol() is near)
    far.transport.close()
    await stage.both_end()


@behaviour
async def much_in_an_upgraded_session(stage: Stage) -> None:
    """Both directions at the same time, and close() behind it."""
    near, far = await stage.pair(Counts, Counts)
    await upgraded(stage, near, far)
    near.transport.write(bytes(3_000_000))
    far.transport.write(bytes(3_000_000))
    await stage.until(lambda: near.count == 3_000_000 and far.count == 3_000_000)
    near.transport.close()
    await stage.both_end()


@behaviour
async def a_certificate_of_another_in_an_upgrade(stage: Stage) -> None:
    """start_tls() checks the name: SSLCertVerificationError at the client, an end at the server."""
    client, server = tls_contexts()
    near, far = await stage.pair()
    accepting = stage.loop.create_task(
        outcome(stage.server.start_tls(far.transport, far, server, server_side=True))
    )
    starting = stage.client.start_tls(near.transport, near, client, server_hostname="other.example")
    stage.note("error", await outcome(starting))
    stage.note("server", isinstance(await accepting, str) or await until_ended(stage, far))
    del stage.trace["near"]
    del stage.trace["far"]
    near.ended = far.ended = True


async def until_ended(stage: Stage, end: Traced) -> bool:
    await stage.until(lambda: end.ended)
    return True


@behaviour
async def abort_of_an_upgraded_transport(stage: Stage) -> None:
    """abort() after start_tls(): connection_lost(None) at this end, an end at the other one."""
    near, far = await stage.pair()
    await upgraded(stage, near, far)
    near.transport.abort()
    await stage.both_end()
    stage.note("near", list(near.events))
    far.events.clear()


@behaviour
async def writers_that_begin_with_tls(stage: Stage) -> None:
    """StreamWriter.start_tls() at both ends: lines before and after it."""
    client, server = tls_contexts()
    ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    listening = await stage.server.start_server(lambda r, w: ends.append((r, w)), LOCAL, 0)
    reader, writer = await stage.client.open_connection(LOCAL, stage.keep(listening))
    stage.check_path(writer)
    await stage.until(lambda: ends)
    far_reader, far_writer = ends[0]
    stage.writers += [writer, far_writer]
    writer.write(b"STARTTLS\n")
    stage.note("first", await far_reader.readline())
    accepting = stage.loop.create_task(outcome(far_writer.start_tls(server)))
    stage.note("started", await outcome(writer.start_tls(client, server_hostname=LOCAL)))
    stage.note("accepted", await accepting)
    writer.write(b"secret\n")
    stage.note("second", await far_reader.readline())
    far_writer.write(b"answer")
    far_writer.close()
    stage.note("answer", await result(reader.read()))
    writer.close()
    stage.note("closed", await outcome(writer.wait_closed()))


@behaviour
async def a_peer_that_cuts_tls_off(stage: Stage) -> None:
    """A peer that closes TCP without the end of TLS: the data comes, then an end."""
    client, server = tls_contexts()
    async with silent(stage) as (port, accept):
        connecting = stage.loop.create_task(
            stage.client.create_connection(stage.near(), LOCAL, port, ssl=client)
        )
        session, sock = await accepted(stage, await accept(), server)
        near = (await connecting)[1]
        session.object.write(b"cut off")
        await stage.loop.sock_sendall(sock, session.outgoing.read())
        sock.shutdown(socket.SHUT_WR)
        await stage.until(lambda: near.ended)
        stage.note("data", bytes(near.data))
