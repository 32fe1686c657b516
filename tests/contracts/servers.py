"""Behaviours of servers."""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from typing import Any

from tests.roles import LOCAL

from .stage import Stage, Traced, attempt, kind, outcome
from .table import behaviour


async def server_of(stage: Stage, **options: Any) -> Any:
    """A server, which the stage closes."""
    server = await stage.server.create_server(stage.far(), LOCAL, 0, **options)
    stage.keep(server)
    return server


def port_of(server: Any) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


@behaviour
async def what_a_server_tells(stage: Stage) -> None:
    """is_serving(), sockets and get_loop(), before and after close()."""
    server = await server_of(stage)
    stage.note("open", [server.is_serving(), len(server.sockets), server.get_loop() is stage.loop])
    stage.note("address", server.sockets[0].getsockname()[0])
    stage.note("family", server.sockets[0].family.name)
    server.close()
    stage.note("closed", [server.is_serving(), list(server.sockets)])
    stage.note("wait_closed", await outcome(server.wait_closed()))


@behaviour
async def close_a_server_twice(stage: Stage) -> None:
    """The second close() does nothing, nor does a second wait_closed()."""
    server = await server_of(stage)
    server.close()
    server.close()
    stage.note("wait_closed", [await outcome(server.wait_closed()) for _ in range(2)])


@behaviour
async def a_server_as_a_context(stage: Stage) -> None:
    """`async with` closes it at the end."""
    server = await server_of(stage)
    async with server as inside:
        stage.note("same", inside is server)
        stage.note("serving", server.is_serving())
    stage.note("after", server.is_serving())


@behaviour
async def a_server_that_does_not_serve_yet(stage: Stage) -> None:
    """start_serving=False: nothing is accepted before start_serving()."""
    server = await server_of(stage, start_serving=False)
    stage.note("serving", server.is_serving())
    stage.note("connect", await outcome(stage.connect(stage.near(), port_of(server))))
    stage.protocols.clear()
    await server.start_serving()
    stage.note("serving", server.is_serving())
    near = await stage.connect(stage.near(), port_of(server))
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def start_serving_twice(stage: Stage) -> None:
    """The second start_serving() does nothing."""
    server = await server_of(stage)
    stage.note("again", await outcome(server.start_serving()))


@behaviour
async def serve_forever_after_close(stage: Stage) -> None:
    """serve_forever() of a closed server is an error."""
    server = await server_of(stage)
    server.close()
    stage.note("forever", await outcome(server.serve_forever()))


@behaviour
async def serve_forever_and_cancel(stage: Stage) -> None:
    """Cancelling serve_forever() closes the server."""
    server = await server_of(stage)
    forever = asyncio.ensure_future(server.serve_forever())
    await stage.turns(3)
    stage.note("twice", await outcome(server.serve_forever()))
    forever.cancel()
    stage.note("forever", await outcome(forever))
    stage.note("serving", server.is_serving())


@behaviour
async def serve_forever_with_a_connection(stage: Stage) -> None:
    """Cancelling serve_forever() closes connections, or waits for them, or does neither, as Python has it."""
    near, far = await stage.pair()
    server = stage.servers[0]
    forever = asyncio.ensure_future(server.serve_forever())
    await stage.turns(3)
    forever.cancel()
    await stage.until(lambda: not server.is_serving())
    stage.note("closes", far.transport.is_closing())
    if not far.transport.is_closing():
        await stage.turns()
        stage.note("waits", not forever.done())
        near.transport.close()
    await stage.both_end()
    stage.note("forever", await outcome(forever))


@behaviour
async def connections_survive_their_server(stage: Stage) -> None:
    """close() of the server leaves its connections open."""
    near, far = await stage.pair()
    stage.servers[0].close()
    near.transport.write(b"still here")
    await stage.until(lambda: far.data)
    far.transport.write(b"yes")
    await stage.until(lambda: near.data)


@behaviour
async def a_closed_port_refuses(stage: Stage) -> None:
    """Nothing listens after close()."""
    server = await server_of(stage)
    port = port_of(server)
    server.close()
    await server.wait_closed()
    stage.note("connect", await outcome(stage.client.create_connection(stage.near(), LOCAL, port)))


@behaviour
async def servers_arguments_that_do_not_fit(stage: Stage) -> None:
    """Each combination that is refused is refused with the same kind of error."""
    with socket.socket() as sock, socket.socket(type=socket.SOCK_DGRAM) as wrong:
        for host, port, options in (
            (None, None, {}),
            (LOCAL, 0, {"sock": sock}),
            (None, None, {"sock": wrong}),
            (LOCAL, 0, {"ssl": True}),
            (LOCAL, 0, {"ssl_handshake_timeout": 1.0}),
            (LOCAL, 0, {"ssl_shutdown_timeout": 1.0}),
            ("192.0.2.1", 0, {}),
        ):
            stage.note("error", await outcome(stage.server.create_server(stage.far(), host, port, **options)))


@behaviour
async def a_port_in_use(stage: Stage) -> None:
    """A port that another server has is an OSError."""
    server = await server_of(stage)
    stage.note("second", await outcome(stage.server.create_server(stage.far(), LOCAL, port_of(server))))


@behaviour
async def a_port_of_several(stage: Stage) -> None:
    """reuse_port: several servers share a port."""
    server = await server_of(stage, reuse_port=True)
    second = await stage.server.create_server(stage.far(), LOCAL, port_of(server), reuse_port=True)
    stage.keep(second)
    stage.note("same port", port_of(second) == port_of(server))
    for each in (server, second):
        stage.note("option", each.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) > 0)


@behaviour
async def several_hosts(stage: Stage) -> None:
    """A sequence of hosts: a socket for each, the same one once."""
    server = await stage.server.create_server(stage.far(), [LOCAL, "127.0.0.2", LOCAL], 0)
    stage.keep(server)
    stage.note("hosts", sorted(sock.getsockname()[0] for sock in server.sockets))


@behaviour
async def hosts_of_which_one_is_elsewhere(stage: Stage) -> None:
    """An address of another machine beside one of this: an error, or it is left out, as Python has it."""
    made = await outcome(stage.server.create_server(stage.far(), ["192.0.2.1", LOCAL], 0))
    if not isinstance(made, str):
        stage.keep(made)
        made = [sock.getsockname()[0] for sock in made.sockets]
    stage.note("hosts", made)


@behaviour
async def keep_alive_of_a_server(stage: Stage) -> None:
    """keep_alive=: the connections have the option, or the argument is unknown, as Python has it."""

    async def create() -> Any:  # the call itself raises what is wrong with its names
        return await stage.server.create_server(stage.far(), LOCAL, 0, keep_alive=True)

    made = await outcome(create())
    if isinstance(made, str):
        stage.note("error", made)
        return
    stage.keep(made)
    stage.note("option", made.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) > 0)


@behaviour
async def the_port_as_a_text(stage: Stage) -> None:
    """A port may be a text of digits."""
    server = await stage.server.create_server(stage.far(), LOCAL, "0")
    port = stage.keep(server)
    near = (await stage.client.create_connection(stage.near(), LOCAL, str(port)))[1]
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def a_server_on_a_given_socket(stage: Stage) -> None:
    """sock=: a bound socket becomes the server's, and is closed with it."""
    sock = socket.socket()
    sock.bind((LOCAL, 0))
    server = await stage.server.create_server(stage.far(), sock=sock)
    port = stage.keep(server)
    near = await stage.connect(stage.near(), port)
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))
    server.close()
    await stage.until(lambda: sock.fileno() == -1)


@behaviour
async def an_accepted_socket(stage: Stage) -> None:
    """connect_accepted_socket() serves what the program has accepted."""
    with socket.socket() as listener:
        listener.bind((LOCAL, 0))
        listener.listen()
        listener.setblocking(False)
        stage.met_before(listener.getsockname()[1])
        port = listener.getsockname()[1]
        connecting = asyncio.ensure_future(stage.connect(stage.near(), port, announced=False))
        accepted, _ = await stage.loop.sock_accept(listener)
        transport, far = await stage.server.connect_accepted_socket(stage.far(), accepted)
        near = await connecting
        stage.note("protocol", far.transport is transport)
        near.transport.write(b"x")
        near.transport.close()
        await stage.both_end()


@behaviour
async def many_connections(stage: Stage) -> None:
    """Twenty connections at the same time: each has its own protocol and data."""
    port = await stage.listen(lambda: Traced(stage, "far"))
    many = await asyncio.gather(*(stage.connect(lambda: Traced(stage, "near"), port) for _ in range(20)))
    for number, each in enumerate(many):
        each.transport.write(bytes([number]))
        each.transport.close()
    await stage.until(lambda: len(stage.protocols) == 40 and all(each.ended for each in stage.protocols))
    stage.note("data", sorted(bytes(each.data) for each in stage.protocols if each.data))
    stage.trace["near"].clear()
    stage.trace["far"].clear()


@behaviour
async def sockets_of_a_server_are_not_to_be_changed(stage: Stage) -> None:
    """The sockets of a server are shown without methods that would change them."""
    server = await server_of(stage)
    stage.note("type", type(server.sockets[0]).__name__)
    stage.note("container", type(server.sockets).__name__)
    stage.note("close", attempt(lambda: server.sockets[0].close()))


@behaviour
async def who_listens(stage: Stage) -> None:
    """The listening socket has SO_REUSEADDR, is not blocking, and is not inherited."""
    server = await server_of(stage)
    sock = server.sockets[0]
    stage.note("reuse", sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) > 0)
    stage.note("accepts", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    stage.note("type", kind(None) or sock.type.name)


@behaviour
async def wait_closed_and_a_connection(stage: Stage) -> None:
    """wait_closed() waits for connections after close(), or does not, as Python has it."""
    near, _ = await stage.pair()
    server = stage.servers[0]
    server.close()
    waiting = asyncio.ensure_future(server.wait_closed())
    await stage.turns()
    stage.note("waits", not waiting.done())
    near.transport.close()
    await stage.both_end()
    stage.note("closed", await outcome(waiting))


@behaviour
async def wait_closed_of_an_open_server(stage: Stage) -> None:
    """wait_closed() before close() waits for it, or does not, as Python has it."""
    server = await server_of(stage)
    waiting = asyncio.ensure_future(server.wait_closed())
    await stage.turns()
    stage.note("waits", not waiting.done())
    server.close()
    stage.note("closed", await outcome(waiting))


@behaviour
async def ends_of_clients_by_their_server(stage: Stage) -> None:
    """close_clients() and abort_clients() end connections, where Python has them."""
    for name in ("close_clients", "abort_clients"):
        far = (await stage.pair())[1]
        server = stage.servers[-1]
        has = isinstance(stage.loop, asyncio.BaseEventLoop) and sys.version_info >= (3, 13)
        stage.note("has", has)
        if has:
            getattr(server, name)()
        else:
            far.transport.abort()
        await stage.both_end()
        server.close()
        stage.note("closed", await outcome(server.wait_closed()))


@behaviour
async def start_serving_after_close(stage: Stage) -> None:
    """start_serving() of a closed server is an error."""
    server = await server_of(stage)
    server.close()
    # asyncio's and uvloop's have no words for it
    stage.note("again", await outcome(server.start_serving()) in ("TypeError", "RuntimeError"))


@behaviour
async def a_server_that_may_not_reuse(stage: Stage) -> None:
    """reuse_address=False leaves the option off."""
    server = await server_of(stage, reuse_address=False)
    stage.note("reuse", server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))


@behaviour
async def a_server_of_a_name(stage: Stage) -> None:
    """A name with a family: one socket, and clients of the name reach it."""
    server = await stage.server.create_server(stage.far(), "localhost", 0, family=socket.AF_INET)
    port = stage.keep(server)
    stage.note("sockets", [sock.getsockname()[0] for sock in server.sockets])
    near = (await stage.client.create_connection(stage.near(), "localhost", port))[1]
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def hosts_that_there_are_not(stage: Stage) -> None:
    """A family that the host has no address of, a port that is a word, a host that is no name."""
    for host, port, options in (
        (LOCAL, 0, {"family": socket.AF_INET6}),
        (LOCAL, "no such service", {}),
        ("a..b", 0, {}),
        (LOCAL, 70_000, {}),
        (LOCAL, -1, {}),
        (LOCAL, 0, {"nonsense": 1}),
    ):

        async def create(where: Any = (host, port), given: Any = options) -> Any:
            return await stage.server.create_server(stage.far(), *where, **given)

        made = await outcome(create())
        if not isinstance(made, str):  # uvloop takes some of the bits of a port
            made.close()
        stage.note("error", made if isinstance(made, str) else "none")


@behaviour
async def a_server_on_a_listening_socket(stage: Stage) -> None:
    """sock=: one that listens already, where a client waits: it is served."""
    sock = socket.create_server((LOCAL, 0))
    port = sock.getsockname()[1]
    stage.met_before(port)
    connecting = asyncio.ensure_future(stage.connect(stage.near(), port, announced=False))
    await stage.turns(3)
    stage.servers.append(await stage.server.create_server(stage.far(), sock=sock))
    near = await connecting
    near.transport.write(b"waited")
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def a_server_on_an_unbound_socket(stage: Stage) -> None:
    """sock=: one that is not bound listens at a port of the kernel's, on every interface."""
    server = await stage.server.create_server(stage.far(), sock=socket.socket())
    port = stage.keep(server)
    stage.note("host", server.sockets[0].getsockname()[0])
    near = await stage.connect(stage.near(), port)
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def a_server_on_a_unix_socket(stage: Stage) -> None:
    """sock=: one of Unix's serves its clients."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"{folder}/socket"
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(name)
        server = await stage.server.create_server(stage.far(), sock=sock)
        stage.servers.append(server)
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        await stage.loop.sock_connect(client, name)
        near = (await stage.client.create_connection(stage.near(), sock=client))[1]
        near.transport.write(b"x")
        near.transport.close()
        await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))
