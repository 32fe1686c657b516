"""Programs with the kernel's AF_SMC sockets, which know nothing of aiordma.

Servers: ``serve HOST PORT`` echoes, ``forks HOST PORT`` does so in a process for each connection, and ``drain
HOST PORT`` counts and compares what comes. Clients: ``client LOCAL HOST PORT BYTES`` checks echoes, ``clients
LOCAL HOST PORT COUNT`` on many connections at a time, ``urgent LOCAL HOST PORT`` sends an urgent byte between
others, and ``pumps LOCAL HOST PORT`` makes a process for each line that it reads, which sends until it is
killed. They say "ready", "end" and "closed".
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

from benchmarks.smc_socket import modes, smc_socket
from tests.vm.smc.pattern import Checked, part

if TYPE_CHECKING:
    from collections.abc import Callable


def listening(host: str, port: int) -> socket.socket:
    listener = smc_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(16)
    print("ready", flush=True)
    return listener


def serve(host: str, port: int) -> None:
    listener = listening(host, port)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
        print("end", flush=True)
        connection.shutdown(socket.SHUT_WR)


def drain(host: str, port: int) -> None:
    listener = listening(host, port)
    while True:
        with listener.accept()[0] as connection:
            checked = Checked()
            while data := connection.recv(65536):
                checked.take(data)
            print(checked.count, flush=True)


def forks(host: str, port: int) -> None:
    listener = listening(host, port)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            print(os.getpid(), flush=True)
            print(echoed(connection), flush=True)
            os._exit(0)
        connection.close()


def echoed(connection: socket.socket) -> str:
    """One line, however it ends."""
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        return f"end: {error}"
    return "end"


def pumps(local: str, host: str, port: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for _ in sys.stdin:
        if not os.fork():
            try:
                pump(local, host, port)
            except OSError as error:
                print("end:", error, flush=True)
            os._exit(0)


def pump(local: str, host: str, port: int) -> None:
    """Until the other end has gone, or this process."""
    with smc_socket() as connection:
        connection.bind((local, 0))
        connection.connect((host, port))
        print(os.getpid(), flush=True)
        sent, checked = 0, Checked()
        while True:
            data = part(sent, 3000)
            connection.sendall(data)
            sent += len(data)
            if not (data := connection.recv(65536)):
                print("end", flush=True)
                return
            checked.take(data)


def clients(local: str, host: str, port: int, count: int) -> None:
    held = []
    for i in range(count):
        connection = smc_socket()
        connection.bind((local, 0))
        connection.connect((host, port))
        connection.settimeout(120)
        held.append((connection, part(i, 1000)))
    print("mode", *modes(port), flush=True)
    for connection, data in held:
        connection.sendall(data)
    for connection, data in held:
        assert exactly(connection, len(data)) == data
    print("exchanged", flush=True)
    sys.stdin.readline()
    for connection, _ in held:
        connection.close()
    print("closed", flush=True)


def urgent(local: str, host: str, port: int) -> None:
    with smc_socket() as connection:
        connection.bind((local, 0))
        connection.connect((host, port))
        connection.sendall(b"before")
        connection.send(b"!", socket.MSG_OOB)
        connection.sendall(b"behind")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(100):
            pass
    print("closed", flush=True)


def client(local: str, host: str, port: int, size: int) -> None:
    with smc_socket() as connection:
        connection.bind((local, 0))
        connection.connect((host, port))
        connection.settimeout(120)
        for _ in range(20):
            data = os.urandom(64)
            connection.sendall(data)
            assert exactly(connection, 64) == data
        print("mode", *modes(port), flush=True)
        bulk(connection, size)
    print("closed", flush=True)


def exactly(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = connection.recv(size - len(got))
        assert part, f"the end after {len(got)} bytes"
        got += part
    return got


def bulk(connection: socket.socket, size: int) -> None:
    data = os.urandom(size)

    def send() -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    sending = threading.Thread(target=send)
    sending.start()
    seen = hashlib.sha256()
    while part := connection.recv(65536):
        seen.update(part)
    sending.join()
    assert seen.digest() == hashlib.sha256(data).digest()


MODES: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (serve, drain, forks, pumps, urgent, client, clients)
}

if __name__ == "__main__":
    mode, *words = sys.argv[1:]
    MODES[mode](*(int(word) if word.isdigit() else word for word in words))
