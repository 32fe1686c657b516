"""`python -m benchmarks.first_byte`: when the first byte of a plain peer arrives, beside ``mode="tcp"``.

As root, which makes two network namespaces with a cable between them (veth) and loads the program of SMC's
TCP option into this kernel; nothing of it is left behind. One end is plain: sockets that know nothing of it.
The other one is aiordma, by turns with ``mode="tcp"`` and with the option set up (``AIORDMA_SMCR_STRICT=1``):

* a client of a server that speaks first, as of SMTP, MySQL and SSH: from connect() to the first byte;
* a client that speaks first: from connect() to the first byte of the answer;
* both again as the first connection of a process, with all that is loaded for it;
* a silent client of a server here that speaks first: from connect() to the first byte, beside asyncio's.

Medians over many connections, and of their difference the middle half of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiordma
from aiordma.cli.smcr.setup import find_cgroup
from aiordma.config import Config
from aiordma.negotiation.sockops import SynProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    #: By what was measured, and by mode: microseconds of each connection.
    Found = dict[str, dict[str, list[float]]]

CLIENT, SERVER = "10.98.1.1", "10.98.1.2"
#: A server that greets, one that echoes, and a listener of aiordma.
GREETS, ECHOES, LISTENS = 7001, 7002, 7003
SPEAKS = {GREETS: "server first", ECHOES: "client first"}
GREETING = b"220 ready\r\n"
MODES = "tcp", "option"
_MODULE = "benchmarks.first_byte"
_NEW_NETWORK = 0x40000000


# ---- plain ends


def serve() -> None:
    """Both servers, with blocking sockets, in a namespace of their own."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare")
    print("apart", flush=True)
    sys.stdin.readline()
    for port, first in ((GREETS, GREETING), (ECHOES, b"")):
        listener = socket.create_server((SERVER, port), backlog=64)
        threading.Thread(target=_accept, args=(listener, first), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_greeted(int(line))), flush=True)


def _accept(listener: socket.socket, first: bytes) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(first or connection.recv(64))
            connection.recv(64)  # the end


def _greeted(port: int) -> float:
    """Microseconds that a silent client waits for its greeting."""
    with socket.socket() as sock:
        began = time.perf_counter()
        sock.connect((CLIENT, port))
        assert sock.recv(64)
        return (time.perf_counter() - began) * 1e6


# ---- ends of aiordma


def config_of(mode: str, map_fd: int) -> Config:
    if mode == "tcp":
        return Config.from_env(mode="tcp", smcr="off")
    return Config.from_env(smcr=f"fd:{map_fd}", smcr_strict=1)


async def by_stream(port: int, config: Config) -> float:
    began = time.perf_counter()
    stream = await aiordma.connect(SERVER, port, config=config)
    if port == ECHOES:
        await stream.send(b"hello")
    await stream.receive()
    took = time.perf_counter() - began
    assert stream.path == "tcp"
    await stream.aclose()
    return took * 1e6


async def by_asyncio(port: int, config: Config) -> float:
    began = time.perf_counter()
    reader, writer = await aiordma.open_connection(SERVER, port, config=config)
    if port == ECHOES:
        writer.write(b"hello")
    await reader.read(64)
    took = time.perf_counter() - began
    writer.close()
    await writer.wait_closed()
    return took * 1e6


SURFACES: dict[str, Callable[[int, Config], Coroutine[Any, Any, float]]] = {
    "connect": by_stream,
    "open_connection": by_asyncio,
}


async def warm(rounds: int, map_fd: int) -> Found:
    found: Found = {}
    configs = {mode: config_of(mode, map_fd) for mode in MODES}
    for turn in range(-rounds // 10, rounds):
        for name, surface in SURFACES.items():
            for port, speaks in SPEAKS.items():
                for mode in _turn(turn):
                    took = await surface(port, configs[mode])
                    if turn >= 0:
                        _note(found, f"{name}, {speaks}", mode, took)
    return found


def _turn(turn: int) -> tuple[str, ...]:
    return MODES if turn % 2 else MODES[::-1]


def _note(found: Found, name: str, mode: str, took: float) -> None:
    found.setdefault(name, {}).setdefault(mode, []).append(took)


def one(surface: str, mode: str, port: int, map_fd: int) -> None:
    """The first connection of a process that has imported aiordma."""
    print(asyncio.run(SURFACES[surface](port, config_of(mode, map_fd))), flush=True)


#: A program that knows nothing of aiordma; the port is in its environment.
_PROGRAM = f"""
import asyncio, os, time
async def main():
    port = int(os.environ["FIRST_BYTE_PORT"])
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("{SERVER}", port)
    if port == {ECHOES}:
        writer.write(b"hello")
    await reader.read(64)
    print((time.perf_counter() - began) * 1e6, flush=True)
    writer.close()
asyncio.run(main())
"""


def in_process(surface: str, mode: str, port: int, map_fd: int) -> float:
    """Microseconds, in a process of its own, for which every server is an unknown one."""
    if surface in SURFACES:
        command, more = [_MODULE, "one", surface, mode, str(port), str(map_fd)], {}
    else:
        command = ["aiordma", "run", "-c", _PROGRAM]
        more = {"AIORDMA_MODE": "tcp"} if mode == "tcp" else {"AIORDMA_SMCR_STRICT": "1"}
        more |= {"AIORDMA_SMCR": f"fd:{map_fd}", "FIRST_BYTE_PORT": str(port)}
    with tempfile.TemporaryDirectory() as cache:
        said = subprocess.run(
            [sys.executable, "-m", *command],
            check=True,
            capture_output=True,
            pass_fds=[map_fd],
            env={**os.environ, **more, "XDG_CACHE_HOME": cache},
        ).stdout
    return float(said)


def fresh(rounds: int, map_fd: int) -> Found:
    found: Found = {}
    for turn in range(rounds):
        for surface in (*SURFACES, "aiordma run"):
            for port, speaks in SPEAKS.items():
                for mode in _turn(turn):
                    took = in_process(surface, mode, port, map_fd)
                    _note(found, f"first of a process, {surface}, {speaks}", mode, took)
    return found


async def listening(rounds: int, map_fd: int, plain: Plain) -> Found:
    """Beside asyncio's server: one of aiordma with mode="tcp" waits for a silent client, who may propose."""

    async def greet(stream: aiordma.RdmaStream) -> None:
        async with stream:
            await stream.send(GREETING)

    def greet_it(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        writer.close()

    found: Found = {}
    config = config_of("option", map_fd)
    server = await asyncio.start_server(greet_it, CLIENT, LISTENS)
    ours = await aiordma.start_server(greet_it, CLIENT, LISTENS + 1, config=config)
    async with server, ours, await aiordma.listen(CLIENT, LISTENS + 2, config=config) as listener:
        task = asyncio.ensure_future(listener.serve(greet))
        for turn in range(-rounds // 10, rounds):
            for name, place in (("start_server", 1), ("listen", 2)):
                for mode in _turn(turn):
                    port = LISTENS + (place if mode == "option" else 0)
                    took = await asyncio.to_thread(plain.greeted, port)
                    if turn >= 0:
                        _note(found, f"{name}, silent client", mode, took)
        task.cancel()
    return found


# ---- what is made for it


class Plain:
    """The process with the plain ends, at the other end of a cable."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", _MODULE, "serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._expect("apart")
        pid = str(self._process.pid)
        _ip("link", "add", "first0", "type", "veth", "peer", "name", "first1", "netns", pid)
        there = "nsenter", "-t", pid, "-n"
        for prefix, device, address in ((), "first0", CLIENT), (there, "first1", SERVER):
            _ip("addr", "add", f"{address}/24", "dev", device, prefix=prefix)
            _ip("link", "set", device, "up", prefix=prefix)
            _ip("link", "set", "lo", "up", prefix=prefix)
        print(file=self._in, flush=True)
        self._expect("ready")

    def _expect(self, said: str) -> None:
        if self._out.readline().strip() != said:
            raise RuntimeError("the process with the plain ends has ended")

    def greeted(self, port: int) -> float:
        print(port, file=self._in, flush=True)
        return float(json.loads(self._out.readline()))

    def close(self) -> None:
        """Its namespace, and the cable, go with it."""
        self._process.kill()
        self._process.wait()


def _ip(*words: str, prefix: tuple[str, ...] = ()) -> None:
    subprocess.run([*prefix, "ip", *words], check=True)


@contextlib.contextmanager
def program() -> Iterator[int]:
    """The map of the program, attached to all processes."""
    with contextlib.ExitStack() as stack:
        try:
            root = find_cgroup()
        except LookupError:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            subprocess.run(["mount", "-t", "cgroup2", "none", root], check=True)
            stack.callback(lambda: subprocess.run(["umount", root], check=True))
        made = SynProgram(str(root))
        stack.callback(made.close)
        os.set_inheritable(made.options.map_fd, True)
        yield made.options.map_fd


def table(found: Found) -> str:
    lines = ['| | `mode="tcp"`, or asyncio, us | option, us | more |', "| --- | ---: | ---: | ---: |"]
    for name, each in found.items():
        tcp, option = each["tcp"], each["option"]
        more = sorted(100 * (b / a - 1) for a, b in zip(tcp, option, strict=True))
        low, high = more[len(more) // 4], more[3 * len(more) // 4]
        middle, other = statistics.median(tcp), statistics.median(option)
        lines.append(
            f"| {name} | {middle:.0f} | {other:.0f} | {100 * (other / middle - 1):+.1f} % "
            f"({low:+.0f} to {high:+.0f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=2000, help="connections of each kind [2000]")
    parser.add_argument("--processes", type=int, default=40, help="processes for the first connection [40]")
    parser.add_argument("--json", help="a file for all figures")
    options = parser.parse_args()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        raise SystemExit("it takes root: " + os.strerror(ctypes.get_errno()))
    plain = Plain()
    try:
        with program() as map_fd:
            found = asyncio.run(warm(options.rounds, map_fd))
            if options.processes:
                found |= fresh(options.processes, map_fd)
            found |= asyncio.run(listening(options.rounds, map_fd, plain))
    finally:
        plain.close()
    print(table(found))
    if options.json:
        Path(options.json).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    elif sys.argv[1:2] == ["one"]:
        one(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
