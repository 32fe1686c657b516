"""The peers compared: each is a transport (imported only where it runs), a loop and an environment."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

from .base import Transport

# The workloads for byte transports (see `workloads/`), and those for call transports.
BYTES = frozenset({"setup", "roundtrip", "load", "throughput", "connections", "throughput_kept", "memory"})
DATAGRAMS = frozenset({"datagrams"})
CALLS = frozenset({"calls", "orders", "call_streams", "calls_beside_bulk"})
UNARY = frozenset({"calls", "orders"})
ROUND_TRIPS = frozenset({"roundtrip"})
# On one loop only: six rates take their time.
LOAD = frozenset({"load"})

ASLEEP, ADAPTIVE, AWAKE = "asleep", "adaptive", "awake"


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    factory: str
    """`module:function` in this package; makes the Transport."""
    loop: str = "asyncio"
    environment: dict[str, str] = field(default_factory=dict)
    path: str | None = None
    """What aiordma must say carries the bytes; a run on another path is no result."""
    workloads: frozenset[str] = BYTES
    waits: str = ASLEEP
    """How an end waits for the other: `ASLEEP`, `ADAPTIVE` (awake for a bounded time) or `AWAKE`."""
    keeps_loop_awake: bool = False
    """The worker gives the loop something to do in each turn, so that it polls and never sleeps."""

    @property
    def ours(self) -> bool:
        return self.path is not None

    def transport(self) -> Transport:
        module, function = self.factory.split(":")
        made: Transport = getattr(importlib.import_module(f".{module}", __package__), function)()
        return made


def _ours() -> list[Peer]:
    modes = [
        ("hybrid", "", {}, "rdma", BYTES, ADAPTIVE),
        ("events", ", events only", {"AIORDMA_BUSY_POLL_US": "0"}, "rdma", BYTES, ASLEEP),
        ("spin", ", always polling", {"AIORDMA_BUSY_POLL_US": "1000000"}, "rdma", ROUND_TRIPS, AWAKE),
        ("tcp", ", TCP fallback", {"AIORDMA_MODE": "tcp"}, "tcp", BYTES, ASLEEP),
    ]
    surfaces = [
        ("stream", "aiordma streams", "bytestream:aiordma_bytestream"),
        ("writer", "aiordma StreamWriter", "streams:aiordma_streams"),
    ]
    return [
        Peer(
            f"{surface}-{mode}-{loop}",
            f"{title}{suffix} ({loop})",
            factory,
            loop,
            environment,
            path,
            workloads if loop == "uvloop" else workloads - LOAD,
            waits,
        )
        for surface, title, factory in surfaces
        for mode, suffix, environment, path, workloads, waits in modes
        for loop in ("asyncio", "uvloop")
    ]


def _others() -> list[Peer]:
    found = [
        Peer(
            f"{name}-{loop}",
            f"{loop} {title}",
            factory,
            loop,
            workloads=BYTES if loop == "uvloop" else BYTES - LOAD,
        )
        for name, title, factory in (
            ("tcp", "TCP streams", "streams:asyncio_tcp"),
            ("unix", "Unix streams", "streams:asyncio_unix"),
        )
        for loop in ("asyncio", "uvloop")
    ]
    found += [
        Peer(f"anyio-{loop}", f"anyio TCP ({loop})", "bytestream:anyio_tcp", loop, workloads=BYTES - LOAD)
        for loop in ("asyncio", "uvloop")
    ]
    # Its endpoints are designed for few, long connections, not for a thousand.
    few = frozenset({"roundtrip", "load", "throughput", "throughput_kept", "setup"})
    found += [
        Peer(
            f"ucxx-{mode}",
            f"ucxx ({mode} progress)",
            "ucxx:ucxx_endpoints",
            "asyncio",
            {"UCXPY_PROGRESS_MODE": mode, "UCX_WARN_UNUSED_ENV_VARS": "n"},
            workloads=few,
            waits=waits,
        )
        for mode, waits in (("thread", ASLEEP), ("polling", AWAKE))
    ]
    return found + _round_trips()


def _round_trips() -> list[Peer]:
    """What programs on one host would use otherwise, and their loops kept awake."""
    awake = [
        Peer(
            f"{name}-spin-{loop}",
            f"{loop} {title}, loop never sleeps",
            factory,
            loop,
            workloads=ROUND_TRIPS,
            waits=AWAKE,
            keeps_loop_awake=True,
        )
        for name, title, factory in (
            ("tcp", "TCP streams", "streams:asyncio_tcp"),
            ("unix", "Unix streams", "streams:asyncio_unix"),
        )
        for loop in ("asyncio", "uvloop")
    ]
    return awake + [
        Peer(name, title, factory, loop, workloads=ROUND_TRIPS, waits=waits)
        for name, title, factory, loop, waits in (
            ("socket-blocking", "Unix socket, blocking", "blocking:blocking_sockets", "asyncio", ASLEEP),
            ("socket-spin", "Unix socket, non-blocking", "blocking:spinning_sockets", "asyncio", AWAKE),
            ("connection", "multiprocessing.Connection", "blocking:connections", "asyncio", ASLEEP),
            ("zmq-blocking", "pyzmq ipc, blocking", "queues:zmq_blocking", "asyncio", ASLEEP),
            ("zmq-spin", "pyzmq ipc, NOBLOCK", "queues:zmq_spinning", "asyncio", AWAKE),
            ("zmq-asyncio", "pyzmq ipc (asyncio)", "queues:zmq_asyncio", "asyncio", ASLEEP),
            ("zmq-uvloop", "pyzmq ipc (uvloop)", "queues:zmq_asyncio", "uvloop", ASLEEP),
            ("nng-blocking", "pynng ipc, blocking", "queues:nng_blocking", "asyncio", ASLEEP),
            ("nng-spin", "pynng ipc, block=False", "queues:nng_spinning", "asyncio", AWAKE),
            ("nng-asyncio", "pynng ipc (asyncio)", "queues:nng_asyncio", "asyncio", ASLEEP),
            ("iceoryx2", "iceoryx2, woken by its events", "shared:iceoryx_blocking", "asyncio", ASLEEP),
            ("iceoryx2-spin", "iceoryx2, spinning", "shared:iceoryx_spinning", "asyncio", AWAKE),
            ("zenoh", "Zenoh, Unix socket and shared memory", "shared:zenoh_threads", "asyncio", ASLEEP),
        )
    ]


def _callers() -> list[Peer]:
    traced = {"AIORDMA_TRACE_SAMPLE": "64"}
    each = {"AIORDMA_TRACE_SAMPLE": "1"}
    both, one = ("asyncio", "uvloop"), ("uvloop",)
    found = [
        Peer(
            f"rpc-{name}-{loop}",
            f"aiordma {title} ({loop})",
            f"rpc:{factory}",
            loop,
            environment,
            path,
            workloads=CALLS,
        )
        for name, title, factory, environment, path, loops in (
            ("bare", "calls", "async_handler", {}, "rdma", both),
            ("def", "calls, def handler", "def_handler", {}, "rdma", both),
            ("view", "calls, views instead of bytes", "view_handler", {}, "rdma", one),
            ("events", "calls, events only", "async_handler", {"AIORDMA_BUSY_POLL_US": "0"}, "rdma", one),
            ("traced", "calls, one in 16 traced", "async_handler", traced, "rdma", one),
            (
                "each",
                "calls, each traced",
                "async_handler",
                each,
                "rdma",
                one,
            ),
            ("tcp", "calls, TCP fallback", "async_handler", {"AIORDMA_MODE": "tcp"}, "tcp", both),
        )
        for loop in loops
    ]
    return (
        found
        + [
            Peer(f"{name}-{loop}", f"{title} ({loop})", factory, loop, workloads=CALLS)
            for name, title, factory, loops in (
                ("grpc", "grpc.aio", "grpcaio:grpc_aio", ("asyncio",)),
                ("grpclib", "grpclib", "grpclib_peer:grpclib_calls", ("uvloop",)),
                ("msgpack", "msgpack over streams", "packed:msgpack_calls", ("asyncio", "uvloop")),
            )
            for loop in loops
        ]
        + [
            Peer(f"{name}-{loop}", f"{title} ({loop})", factory, loop, workloads=UNARY)
            for name, title, factory, loop in (
                ("zmq-calls", "pyzmq DEALER/ROUTER, ipc", "remote:zmq_calls", "uvloop"),
                ("flight", "Arrow Flight actions, a thread a call", "remote:flight_calls", "asyncio"),
                ("ray", "Ray, an actor's methods", "rayactor:ray_actor", "asyncio"),
            )
        ]
    )


def _datagrams() -> list[Peer]:
    ours: tuple[tuple[str, str, str, dict[str, str], str], ...] = (
        ("datagrams", "datagrams, connected", "connected", {}, "rdma"),
        ("datagrams-batch", "datagrams, connected, in batches", "connected_batches", {}, "rdma"),
        ("datagrams-protocol", "datagrams, connected, protocols", "connected_protocols", {}, "rdma"),
        ("datagrams-tcp", "datagrams, TCP fallback", "connected", {"AIORDMA_MODE": "tcp"}, "tcp"),
        ("endpoint", "datagram endpoint (UD)", "endpoints", {}, "rdma"),
        ("endpoint-udp", "datagram endpoint, UDP fallback", "endpoints", {"AIORDMA_MODE": "tcp"}, "udp"),
    )
    return [
        Peer(
            f"{name}-{loop}",
            f"aiordma {title} ({loop})",
            f"datagrams:{factory}",
            loop,
            environment,
            path,
            DATAGRAMS,
        )
        for name, title, factory, environment, path in ours
        for loop in ("asyncio", "uvloop")
    ] + [
        Peer(f"udp-{loop}", f"{loop} UDP", "datagrams:udp", loop, workloads=DATAGRAMS)
        for loop in ("asyncio", "uvloop")
    ]


PEERS: dict[str, Peer] = {peer.name: peer for peer in _ours() + _others() + _callers() + _datagrams()}
