"""Behaviours of create_connection(): its arguments, addresses, sockets, and what transports tell."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import socket
from typing import Any

from tests.roles import LOCAL

from .stage import Stage, Traced, attempt, outcome
from .table import behaviour


async def begun(stage: Stage, **options: Any) -> Any:
    """What a connect with these arguments returns: its protocol, or the kind of its error."""

    async def connect() -> Any:
        return await stage.client.create_connection(stage.near(), **options)

    done = await outcome(connect())
    return done if isinstance(done, str) else done[1]


@behaviour
async def clients_arguments_that_do_not_fit(stage: Stage) -> None:
    """Each combination that is refused is refused with the same kind of error."""
    with socket.socket() as sock, socket.socket(type=socket.SOCK_DGRAM) as wrong:
        for options in (
            {},
            {"host": LOCAL, "port": 1, "sock": sock},
            {"sock": wrong},
            {"host": LOCAL, "port": 1, "server_hostname": "localhost"},
            {"host": LOCAL, "port": 1, "ssl_handshake_timeout": 1.0},
            {"host": LOCAL, "port": 1, "ssl_shutdown_timeout": 1.0},
            {"sock": sock, "ssl": True},
            {"host": LOCAL, "port": 70_000},
            {"host": LOCAL, "port": -1},
        ):
            stage.note("error", await begun(stage, **options))


@behaviour
async def a_refused_connection(stage: Stage) -> None:
    """Nothing listens: ConnectionRefusedError, and no protocol is made."""
    with socket.socket() as sock:
        sock.bind((LOCAL, 0))
        stage.met_before(sock.getsockname()[1])
        stage.note("error", await begun(stage, host=LOCAL, port=sock.getsockname()[1]))


@behaviour
async def a_connect_cancelled_at_once(stage: Stage) -> None:
    """A connect that is cancelled before its first step connects nothing."""
    port = await stage.listen()
    connecting = asyncio.ensure_future(stage.client.create_connection(stage.near(), LOCAL, port))
    connecting.cancel()
    stage.note("cancelled", await outcome(connecting))


@behaviour
async def a_name(stage: Stage) -> None:
    """A name is looked up: localhost is this host."""
    port = await stage.listen()
    near = await begun(stage, host="localhost", port=port)
    stage.note("peer", near.transport.get_extra_info("peername") == (LOCAL, port))
    await stage.until(lambda: stage.made("far"))


@behaviour
async def a_name_with_a_family(stage: Stage) -> None:
    """family, proto and flags choose among the addresses of a name."""
    port = await stage.listen()
    for options in (
        {"family": socket.AF_INET},
        {"proto": socket.IPPROTO_TCP},
        {"flags": socket.AI_NUMERICSERV},
    ):
        near = await begun(stage, host="localhost", port=port, **options)
        stage.note("peer", near.transport.get_extra_info("peername")[0])
        near.transport.close()
        await stage.until(lambda: len(stage.made("far")) * 2 == len(stage.protocols))
        await stage.both_end()


@behaviour
async def a_local_address(stage: Stage) -> None:
    """local_addr with any port: the connection comes from there."""
    port = await stage.listen()
    near = await begun(stage, host=LOCAL, port=port, local_addr=("127.0.0.3", 0))
    stage.note("from", near.transport.get_extra_info("sockname")[0])
    await stage.until(lambda: stage.made("far"))
    stage.note("seen", stage.made("far")[0].transport.get_extra_info("peername")[0])


@behaviour
async def a_local_address_that_is_not_ours(stage: Stage) -> None:
    """local_addr of another host is an OSError."""
    port = await stage.listen()
    stage.note("error", await begun(stage, host=LOCAL, port=port, local_addr=("192.0.2.1", 0)))


@behaviour
async def a_given_socket(stage: Stage) -> None:
    """sock=: a connected socket becomes the transport's."""
    port = await stage.listen()
    sock = socket.socket()
    sock.setblocking(False)
    await stage.loop.sock_connect(sock, (LOCAL, port))
    name = sock.getsockname()
    near = await begun(stage, sock=sock)
    near.transport.write(b"x")
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))
    stage.note("address", len(name))
    await stage.until(lambda: sock.fileno() == -1)


class _Wrapped(socket.socket):
    """As a library's own sockets are: with methods beside those of a socket."""

    def do_handshake(self) -> None:
        """Nothing of TLS."""


async def given(stage: Stage, port: int, kind_of: type[socket.socket] = socket.socket) -> socket.socket:
    """A socket that is connected to a server of the stage."""
    sock = kind_of()
    sock.setblocking(False)
    await stage.loop.sock_connect(sock, (LOCAL, port))
    return sock


@behaviour
async def a_given_socket_with_more_methods(stage: Stage) -> None:
    """sock=: a socket is one of TLS by its class, not by the name of a method."""
    near = await begun(stage, sock=await given(stage, await stage.listen(), _Wrapped))
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def a_given_socket_whose_protocol_fails(stage: Stage) -> None:
    """sock=: it stays open, or is closed, as Python has it, when the factory of protocols raises."""

    def factory() -> Any:
        raise ZeroDivisionError

    with await given(stage, await stage.listen()) as sock:
        stage.note("error", await outcome(stage.client.create_connection(factory, sock=sock)))
        stage.note("closed", sock.fileno() == -1)
    stage.trace.pop("far", None)  # the server may have seen the connection by then, or not


@behaviour
async def addresses_of_both_ends(stage: Stage) -> None:
    """peername and sockname of one end are sockname and peername of the other."""
    near, far = await stage.pair()
    for one, other in ((near, far), (far, near)):
        name = one.transport.get_extra_info("sockname")
        stage.note("same", name == other.transport.get_extra_info("peername"))
        stage.note("shape", [type(part).__name__ for part in name])


@behaviour
async def the_socket_of_a_transport(stage: Stage) -> None:
    """The extra info "socket" is the connection's, for its addresses and options."""
    near, far = await stage.pair()
    for end in (near, far):
        sock = end.transport.get_extra_info("socket")
        stage.note("family", [sock.family.name, sock.type.name])
        stage.note("addresses", sock.getpeername() == end.transport.get_extra_info("peername"))
        stage.note("blocks", sock.gettimeout())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        stage.note("option", sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


@behaviour
async def no_delay(stage: Stage) -> None:
    """TCP_NODELAY is set on both ends."""
    near, far = await stage.pair()
    for end in (near, far):
        sock = end.transport.get_extra_info("socket")
        stage.note("no delay", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)


@behaviour
async def extra_info_that_is_unknown(stage: Stage) -> None:
    """An unknown name gives None, or the default."""
    near, _ = await stage.pair()
    get = near.transport.get_extra_info
    stage.note("unknown", [get("nothing"), get("nothing", 7), get("ssl_object"), get("cipher", "none")])


@behaviour
async def addresses_after_the_end(stage: Stage) -> None:
    """peername and sockname are known after the connection is lost."""
    near, _ = await stage.pair()
    before = [near.transport.get_extra_info(name) for name in ("peername", "sockname")]
    near.transport.close()
    await stage.both_end()
    stage.note("same", [near.transport.get_extra_info(name) for name in ("peername", "sockname")] == before)


@behaviour
async def a_descriptor_in_use(stage: Stage) -> None:
    """add_reader() of a transport's descriptor is refused."""
    near, _ = await stage.pair()
    descriptor = near.transport.get_extra_info("socket").fileno()
    stage.note("add_reader", attempt(stage.loop.add_reader, descriptor, print))
    stage.note("remove_reader", attempt(stage.loop.remove_reader, descriptor))


@behaviour
async def calls_after_the_end(stage: Stage) -> None:
    """After connection_lost() every method of the transport still answers."""
    near, _ = await stage.pair()
    near.transport.close()
    await stage.both_end()
    transport = near.transport
    for name in ("close", "abort", "is_closing", "is_reading", "get_write_buffer_size", "can_write_eof"):
        stage.note(name, attempt(getattr(transport, name)))
    stage.note("write", attempt(transport.write, b"x"))
    stage.note("repr", bool(repr(transport)))


@behaviour
async def context_of_callbacks(stage: Stage) -> None:
    """The client's callbacks see the context variables of the caller of create_connection()."""
    variable = contextvars.ContextVar("variable", default="none")

    class Looks(Traced):
        def data_received(self, data: bytes) -> None:
            self.events.append(variable.get())

        def connection_lost(self, exc: BaseException | None) -> None:
            self.events.append(variable.get())
            super().connection_lost(exc)

    variable.set("connecting")
    _near, far = await stage.pair(Looks)
    variable.set("later")
    far.transport.write(b"x")
    far.transport.close()
    await stage.both_end()


@behaviour
async def in_debug_mode(stage: Stage) -> None:
    """The loop's debug mode changes nothing that protocols see."""
    stage.loop.set_debug(True)
    stage.loop.slow_callback_duration = 3600
    near, far = await stage.pair()
    near.transport.write(b"x" * 30_000)
    await stage.until(lambda: len(far.data) == 30_000)
    far.transport.write(b"y")
    far.transport.close()
    await stage.both_end()


@behaviour
async def the_protocol_of_a_transport(stage: Stage) -> None:
    """create_connection() returns what connection_made() got, and the protocol of the factory."""
    port = await stage.listen()
    made: list[Traced] = []

    def factory() -> Traced:
        made.append(Traced(stage, "near"))
        return made[-1]

    transport, protocol = await stage.client.create_connection(factory, LOCAL, port)
    stage.note("same", [protocol is made[0], transport is made[0].transport, len(made)])
    stage.note("protocol", transport.get_protocol() is protocol)
    stage.note("kind", isinstance(transport, asyncio.Transport))
    await stage.until(lambda: stage.made("far"))


@behaviour
async def arguments_that_there_are_not(stage: Stage) -> None:
    """An argument of no meaning is a TypeError, and connects nothing."""
    port = await stage.listen()
    stage.note("error", await begun(stage, host=LOCAL, port=port, nonsense=1))
    stage.trace.pop("near", None)
    stage.trace.pop("far", None)


@behaviour
async def addresses_tried_in_turn(stage: Stage) -> None:
    """happy_eyeballs_delay and interleave, where the loop has them."""
    port = await stage.listen()
    for options in (
        {"happy_eyeballs_delay": 0.25},
        {"interleave": 1},
        {"happy_eyeballs_delay": 0.25, "interleave": 2},
    ):
        near = await begun(stage, host="localhost", port=port, **options)
        stage.note("made", near if isinstance(near, str) else near.transport.get_extra_info("peername")[0])
        if not isinstance(near, str):
            near.transport.close()
            await stage.both_end()
    stage.trace.pop("near", None)
    stage.trace.pop("far", None)


@behaviour
async def a_local_port(stage: Stage) -> None:
    """local_addr with a port: the connection comes from it."""
    port = await stage.listen()
    with socket.socket() as free:
        free.bind((LOCAL, 0))
        own = free.getsockname()
    near = await begun(stage, host=LOCAL, port=port, local_addr=own)
    stage.note("from", near.transport.get_extra_info("sockname") == own)
    await stage.until(lambda: stage.made("far"))
    stage.note("seen", stage.made("far")[0].transport.get_extra_info("peername") == own)


@behaviour
async def hosts_that_cannot_be_reached(stage: Stage) -> None:
    """No such name, a name of bytes, no port, a port that is a word: the same kinds of errors."""
    port = await stage.listen()
    for host, number in (("a..b", port), (LOCAL, "no such service"), (LOCAL, None), ("", None)):
        stage.note("error", await begun(stage, host=host, port=number))
    near = await begun(stage, host=LOCAL.encode(), port=port)
    stage.note("bytes", near if isinstance(near, str) else "connected")
    if not isinstance(near, str):
        near.transport.close()
        await stage.until(lambda: near.ended)
    stage.trace.pop("near", None)
    stage.trace.pop("far", None)


@behaviour
async def another_context_of_transports(stage: Stage) -> None:
    """Two connections that are made in different contexts keep theirs apart."""
    variable = contextvars.ContextVar("variable", default="none")

    class Looks(Traced):
        def data_received(self, data: bytes) -> None:
            self.events.append((variable.get(), data))
            self.data += data

    port = await stage.listen()

    async def connect(value: str) -> Any:
        variable.set(value)
        return await stage.connect(stage.near(Looks), port)

    ends = [await asyncio.create_task(connect(value)) for value in ("one", "two")]
    await stage.until(lambda: len(stage.made("far")) == 2)
    for far, near in zip(stage.made("far"), ends, strict=True):
        far.transport.write(b"x")
        await stage.until(functools.partial(getattr, near, "data"))
    stage.note("outside", variable.get())
