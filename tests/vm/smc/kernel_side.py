"""Programs with the kernel's AF_SMC sockets: ``serve HOST PORT``, and ``client LOCAL HOST PORT BYTES``.

The server echoes, and the client checks echoes. They say "ready" and "closed", and know nothing of aiordma.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading

from benchmarks.smc_socket import modes, smc_socket


def serve(host: str, port: int) -> None:
    listener = smc_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(16)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
        print("end", flush=True)
        connection.shutdown(socket.SHUT_WR)


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


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        client(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
