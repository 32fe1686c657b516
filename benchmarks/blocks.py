"""Many blocks in one call, beside NIXL and Mooncake: ``make bench-blocks``.

64 blocks of 64 KiB, in an order of their own, between two processes, each on a CPU of its own: READ and WRITE
in one call, of aiordma between allocated regions and of the others between registered ones, by turns in the
same run, beside a memcpy of each block within one process. Each row of the others names its transport: NIXL's
backend UCX by shared memory and TCP as it chooses (without TCP it does not start), by TCP, and by verbs on
the same software device; Mooncake's engine by TCP and by verbs, where it must have found the device, since it
goes by TCP otherwise. All programs prepare what can be prepared (pieces, transfer handles) before. Prints
medians of all calls, the 99th percentile, bandwidths, and the CPU time of the calling process for each call.
Without an interpreter that has the package, its rows are left out; a transport that does not work is said.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from aiordma.verbs import softlib

LOCAL = "127.0.0.1"
BLOCK, BLOCKS = 65_536, 64
BYTES = BLOCK * BLOCKS
DEVICE = "soft0"
#: Seconds that a program may take for what it is asked.
LIMIT = 30.0


def order(seed: int) -> list[int]:
    """Block numbers, shuffled: neighbours would be one transfer."""
    numbers = list(range(BLOCKS))
    random.Random(seed).shuffle(numbers)
    return numbers


def percentile(ordered: list[float], share: float) -> float:
    """Of sorted numbers."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(taken: list[float], used: float) -> None:
    """One turn, to the program that asked."""
    print(json.dumps({"us": [each * 1e6 for each in taken], "cpu_us": used / len(taken) * 1e6}), flush=True)


def blocking(call: Callable[[str], None]) -> None:
    """Turns of a program without an event loop, as asked."""
    print(json.dumps("ready"), flush=True)
    while asked := sys.stdin.readline():
        what, seconds = json.loads(asked)
        taken: list[float] = []
        for _ in range(10):
            call(what)
        used, end = time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < end:
            begun = time.perf_counter()
            call(what)
            taken.append(time.perf_counter() - begun)
        report(taken, time.process_time() - used)


# ---- aiordma


async def own() -> None:
    """Have a region."""
    import anyio

    from aiordma import memory

    async with memory.serve(LOCAL) as server, await memory.alloc(BYTES) as region:
        region[:].view[:] = bytes(BYTES)
        print(json.dumps([server.port, region.descriptor().hex()]), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)


async def use(port: int, descriptor: str) -> None:
    """Turns of READ or WRITE as asked."""
    from aiordma import memory

    async with await memory.connect(LOCAL, port) as peer, await memory.alloc(BYTES) as region:
        remote = await peer.open(bytes.fromhex(descriptor))
        there, here = remote.blocks(BLOCK, order(1)), region.blocks(BLOCK, order(2))
        print(json.dumps(peer.path), flush=True)
        while asked := sys.stdin.readline():  # one question at a time: nothing else runs in this loop
            what, seconds = json.loads(asked)
            await repeated(there.read if what == "READ" else there.write, here, seconds)


async def repeated(call: Callable[[Any], Awaitable[None]], here: Any, seconds: float) -> None:
    """One turn."""
    taken: list[float] = []
    for _ in range(10):
        await call(here)
    used, end = time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        await call(here)
        taken.append(time.perf_counter() - begun)
    report(taken, time.process_time() - used)


# ---- NIXL


def nixl_agent(name: str, *, works_alone: bool) -> tuple[Any, Any]:
    """An agent, and memory that it has registered.

    :param works_alone: has a thread that answers peers: by TCP it has to, by others when one connects.
    """
    import numpy as np

    try:
        nixl: Any = importlib.import_module("nixl._api")
    except ModuleNotFoundError:
        nixl = importlib.import_module("nixl_cu12._api")  # what nixl is a name for, since 1.0
    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=works_alone, backends=["UCX"]))
    memory = np.ones(BYTES, np.uint8)
    agent.register_memory([(memory.ctypes.data, BYTES, 0, "")], "DRAM")
    return agent, memory


def nixl_blocks(address: int, seed: int) -> list[tuple[int, int, int]]:
    """Descriptors of the blocks."""
    return [(address + number * BLOCK, BLOCK, 0) for number in order(seed)]


def nixl_own() -> None:
    """Have memory."""
    agent, memory = nixl_agent("owner", works_alone=True)
    print(json.dumps([agent.get_agent_metadata().hex(), memory.ctypes.data]), flush=True)
    sys.stdin.readline()


def nixl_use(metadata: str, address: int) -> None:
    """Turns of READ or WRITE as asked."""
    agent, memory = nixl_agent("client", works_alone=False)
    peer = agent.add_remote_agent(bytes.fromhex(metadata))
    here = agent.get_xfer_descs(nixl_blocks(memory.ctypes.data, 2), "DRAM")
    there = agent.get_xfer_descs(nixl_blocks(address, 1), "DRAM")
    handles = {what: agent.initialize_xfer(what, here, there, peer) for what in ("READ", "WRITE")}

    def once(what: str) -> None:
        state = agent.transfer(handles[what])
        while state != "DONE":
            if state == "ERR":
                raise OSError("NIXL reports an error")
            state = agent.check_xfer_state(handles[what])

    blocking(once)


# ---- Mooncake


def mooncake_engine(protocol: str) -> tuple[Any, Any]:
    """An engine, and memory that it has registered. Without a device it would go by TCP, and not say so."""
    import numpy as np

    engine: Any = importlib.import_module("mooncake.engine").TransferEngine()
    if engine.initialize(LOCAL, "P2PHANDSHAKE", protocol, DEVICE if protocol == "rdma" else ""):
        raise OSError(f"Mooncake does not start on {protocol}")
    if protocol == "rdma" and DEVICE not in engine.get_local_topology():
        raise OSError(f"Mooncake has not found {DEVICE}")
    memory = np.ones(BYTES, np.uint8)
    if engine.register_memory(memory.ctypes.data, BYTES):
        raise OSError("Mooncake does not register the memory")
    return engine, memory


def mooncake_own(protocol: str) -> None:
    """Have memory."""
    engine, memory = mooncake_engine(protocol)
    print(json.dumps([f"{LOCAL}:{engine.get_rpc_port()}", memory.ctypes.data]), flush=True)
    sys.stdin.readline()


def mooncake_use(protocol: str, peer: str, address: int) -> None:
    """Turns of READ or WRITE as asked."""
    engine, memory = mooncake_engine(protocol)
    here = [memory.ctypes.data + number * BLOCK for number in order(2)]
    there = [address + number * BLOCK for number in order(1)]
    calls = {"READ": engine.batch_transfer_sync_read, "WRITE": engine.batch_transfer_sync_write}

    def once(what: str) -> None:
        if calls[what](peer, here, there, [BLOCK] * BLOCKS):
            raise OSError("Mooncake reports an error")

    blocking(once)


# ---- memcpy, for comparison


def copy() -> None:
    """Turns of copying each block, within one process."""
    here, there = memoryview(bytearray(b"\1" * BYTES)), memoryview(bytearray(b"\1" * BYTES))
    pairs = [
        (there[a * BLOCK : (a + 1) * BLOCK], here[b * BLOCK : (b + 1) * BLOCK])
        for a, b in zip(order(1), order(2), strict=True)
    ]

    def once(_: str) -> None:
        for to, source in pairs:
            to[:] = source

    blocking(once)


# ---- the program that asks


class Program:
    """One process of this module."""

    def __init__(self, python: list[str], cpu: int, environment: dict[str, str], *arguments: str) -> None:
        root = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            [*python, "-m", "benchmarks.blocks", "--role", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, **environment},
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
        )

    def hear(self) -> Any:
        """What it says next. :raises OSError: it has ended, or says nothing and was ended."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(LIMIT, self._process.kill)
        watchdog.start()
        try:
            for line in self._process.stdout:
                with contextlib.suppress(ValueError):  # others are log messages
                    return json.loads(line)
        finally:
            watchdog.cancel()
        raise OSError(f"a program of the benchmark ended with status {self._process.wait()}")

    def say(self, what: object) -> None:
        """Ask it for a turn."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def measure(programs: dict[str, Program], turns: int, seconds: float) -> None:
    """By turns; prints the results."""
    taken: dict[tuple[str, str], list[float]] = {}
    used: dict[tuple[str, str], list[float]] = {}
    lost: set[str] = set()
    for _, what, name in itertools.product(range(turns), ("READ", "WRITE"), programs):
        if name in lost:
            continue
        try:
            programs[name].say([what, seconds])
            heard = programs[name].hear()
        except OSError as error:
            print(f"{name}, {what}: not measured ({error})")
            lost.add(name)
            continue
        taken.setdefault((name, what), []).extend(heard["us"])
        used.setdefault((name, what), []).append(heard["cpu_us"])
    for (name, what), each in sorted(
        taken.items(), key=lambda found: (found[0][1], [*programs].index(found[0][0]))
    ):
        each.sort()
        median = percentile(each, 0.5)
        cpu = percentile(sorted(used[name, what]), 0.5)
        print(
            f"{what:5} {name:28} median {median:8.1f} us  p99 {percentile(each, 0.99):8.1f} us  "
            f"{BYTES / median / 1e3:6.2f} GB/s  {cpu:8.1f} us of CPU time of its process for each"
        )


def transports(
    nixl: str | None, mooncake: str | None, softdev: str | None
) -> Iterator[tuple[str, list[str], dict[str, str], list[str]]]:
    """:return: a row's name, its interpreter, its environment, and the arguments of its role."""
    if nixl:
        verbs = {
            "LD_PRELOAD": str(softlib.locate()),
            "SOFTDEV_DEVICE": "soft",
            "UCX_NET_DEVICES": f"{DEVICE}:1",
        }
        for title, tls, more in (
            ("shared memory and TCP, as it chooses", "posix,cma,tcp,self", {}),
            ("TCP", "tcp,self", {}),
            ("verbs, on this device", "rc_v,self", verbs),
        ):
            yield f"NIXL: UCX, {title}", [nixl], {"UCX_TLS": tls, **more}, ["nixl"]
    if mooncake:
        yield "Mooncake: TCP", [mooncake], {}, ["mooncake", "tcp"]
        if softdev:  # it looks into /sys and /dev
            command = [softdev, "present", mooncake]
            yield "Mooncake: verbs, on this device", command, {"SOFTDEV_DEVICE": "soft"}, ["mooncake", "rdma"]


def main() -> None:
    """Run all processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nixl", metavar="PYTHON", help="an interpreter with the package nixl")
    parser.add_argument(
        "--mooncake", metavar="PYTHON", help="an interpreter with the package mooncake-transfer-engine"
    )
    parser.add_argument("--softdev", metavar="COMMAND", help="the installed command of the software device")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        play(*arguments.role)
        return
    cpus = sorted(os.sched_getaffinity(0))
    started: list[Program] = []

    def start(python: list[str], cpu: int, environment: dict[str, str], *role: str) -> tuple[Program, Any]:
        program = Program(python, cpu, environment, *role)
        started.append(program)
        return program, program.hear()

    try:
        programs: dict[str, Program] = {}
        _, where = start([sys.executable], cpus[-1], {}, "own")
        programs["aiordma"], path = start([sys.executable], cpus[0], {}, "use", *map(str, where))
        for title, python, environment, (kind, *protocol) in transports(
            arguments.nixl, arguments.mooncake, arguments.softdev
        ):
            try:
                _, where = start(python, cpus[-1], environment, f"{kind}_own", *protocol)
                programs[title], _ = start(
                    python, cpus[0], environment, f"{kind}_use", *protocol, *map(str, where)
                )
            except OSError as error:
                print(f"{title}: not measured ({error}; its last words are above)")
        programs["memcpy"], _ = start([sys.executable], cpus[0], {}, "copy")
        print(f"{BLOCKS} blocks of {BLOCK} bytes; aiordma on {path}; load {os.getloadavg()[0]:.1f}")
        measure(programs, arguments.turns, arguments.seconds)
    finally:
        for program in started:
            program.end()


def play(role: str, *rest: str) -> None:
    """One of the processes."""
    if role in ("own", "use"):
        import anyio

        if role == "own":
            anyio.run(own)
        else:
            anyio.run(use, int(rest[0]), rest[1])
    elif role == "nixl_own":
        nixl_own()
    elif role == "nixl_use":
        nixl_use(rest[0], int(rest[1]))
    elif role == "mooncake_own":
        mooncake_own(rest[0])
    elif role == "mooncake_use":
        mooncake_use(rest[0], rest[1], int(rest[2]))
    else:
        copy()


if __name__ == "__main__":
    main()
