"""Who attacks a server's TLS, before, during or after the handshake: only its own connection ends."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import aiordma
from tests.health import check_echo
from tests.processes import PATIENCE
from tests.roles import LOCAL, echo
from tests.streams.pairs import tls_contexts
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


class Attacker:
    """A client that does TLS by hand, in a thread."""

    def __init__(self, port: int) -> None:
        client, _ = tls_contexts()
        self.sock = socket.create_connection((LOCAL, port))
        self.sock.settimeout(PATIENCE)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = client.wrap_bio(self.incoming, self.outgoing, server_hostname=LOCAL)

    def hello(self) -> bytes:
        """The first message of a handshake."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.session.do_handshake()
        return self.outgoing.read()

    def shake_hands(self) -> None:
        """To the end."""
        while True:
            done = True
            try:
                self.session.do_handshake()
            except ssl.SSLWantReadError:
                done = False
            self.sock.sendall(self.outgoing.read())
            if done:
                return
            self.incoming.write(self.sock.recv(65536))

    def sealed(self, data: bytes) -> bytes:
        """Records that carry it."""
        self.session.write(data)
        return self.outgoing.read()

    def end(self) -> None:
        """Read until the server has ended the connection."""
        with contextlib.suppress(ConnectionError):
            while self.sock.recv(65536):
                pass
        self.sock.close()


def record(kind: int, body: bytes, length: int | None = None) -> bytes:
    """One of TLS in clear text; what it says of its length may be wrong."""
    return bytes((kind, 3, 3)) + (len(body) if length is None else length).to_bytes(2) + body


ALERT, HANDSHAKE, DATA = 21, 22, 23
FATAL = bytes((2, 40))


def truncated_hello(attacker: Attacker) -> bytes:
    hello = attacker.hello()
    attacker.sock.sendall(hello[: len(hello) // 2])
    attacker.sock.shutdown(socket.SHUT_WR)
    return b""


def renegotiation(attacker: Attacker) -> bytes:
    """The beginning once more, unprotected."""
    hello = attacker.hello()
    attacker.sock.sendall(hello)
    attacker.incoming.write(attacker.sock.recv(65536))
    attacker.shake_hands()
    return hello


def changed_record(attacker: Attacker) -> bytes:
    attacker.shake_hands()
    data = bytearray(attacker.sealed(b"what the server expects"))
    data[-1] ^= 1
    return bytes(data)


def replayed_record(attacker: Attacker) -> bytes:
    attacker.shake_hands()
    data = attacker.sealed(b"once")
    return data + data


def after_it(data: bytes) -> Callable[[Attacker], bytes]:
    def attack(attacker: Attacker) -> bytes:
        attacker.shake_hands()
        return data

    return attack


ATTACKS: dict[str, Callable[[Attacker], bytes]] = {
    "a truncated hello": truncated_hello,
    "a record that is too long": lambda _: record(HANDSHAKE, b"\1" + bytes(17_000), 0xFFFF),
    "an empty hello": lambda _: record(HANDSHAKE, b"\1\0\0\0"),
    "an alert first": lambda _: record(ALERT, FATAL),
    "data first": lambda _: record(DATA, bytes(100)),
    "an alert behind the hello": lambda attacker: attacker.hello() + record(ALERT, FATAL),
    "garbage behind the hello": lambda attacker: attacker.hello() + b"garbage" * 100,
    "an alert in clear text": after_it(record(ALERT, FATAL)),
    "a record in clear text": after_it(record(DATA, b"in clear text")),
    "a record that is too long afterwards": after_it(record(DATA, bytes(20_000), 20_000)),
    "plain bytes": after_it(b"GET / HTTP/1.0\r\n\r\n"),
    "a plain Proposal": after_it(b"\xe2\xd4\xc3\xd9\x01\x00\x40\x10" + bytes(56)),
    "a changed record": changed_record,
    "a replayed record": replayed_record,
    "a second hello": renegotiation,
}


def carry_out(attack: Callable[[Attacker], bytes], port: int) -> None:
    attacker = Attacker(port)
    data = attack(attacker)
    with contextlib.suppress(ConnectionError):
        attacker.sock.sendall(data)
    attacker.end()


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("name", ATTACKS)
async def test_only_the_attacker_is_lost(name: str, outside: bool) -> None:
    client, server = tls_contexts()
    config = aiordma.Config(
        device=DEVICE, negotiate_timeout_ms=30_000, server_first_wait_ms=30_000, head_start_ms=30_000
    )
    options: dict[str, Any] = {"rdma_outside_tls": outside, "config": config}
    async with await aiordma.listen(LOCAL, ssl=server, **options) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            async with await aiordma.connect(LOCAL, listener.port, ssl=client, **options) as bystander:
                assert bystander.path == ("rdma" if outside else "tcp")
                await check_echo(bystander, b"before")
                await anyio.to_thread.run_sync(carry_out, ATTACKS[name], listener.port)
                await check_echo(bystander)
            async with await aiordma.connect(LOCAL, listener.port, ssl=client, **options) as stream:
                await check_echo(stream)
            tasks.cancel_scope.cancel()
