"""All pairs of many hosts: ``aiordma ping --mesh``. Each host measures to each other one, and in no moment a
host takes part in two measurements."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

from .. import rpc
from ..addresses import is_nameable
from ..config import Config
from ..errors import NegotiationError
from ..streams.connector import connect
from .diagnostics import PING, services_of
from .ping import PingRequest, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SCHEMA = "aiordma-mesh/1"
#: Beyond what a server takes for its measurement.
_PATIENCE_S = 30.0
_CONNECT_S = 15.0


class Pair(Struct):
    """Round trips from one host to another. Times are 0 where there were none."""

    source: str
    target: str
    #: ``rdma`` or ``tcp``; empty if there was no connection
    path: str
    #: as ``smcss`` shows it
    mode: str
    error: str
    count: int
    min_us: float
    median_us: float
    p99_us: float
    max_us: float


class Mesh(Struct):
    """What ``aiordma ping --mesh --json`` prints."""

    schema: str
    #: seconds since the epoch
    taken_at: float
    size_bytes: int
    hosts: list[str]
    pairs: list[Pair]


def hosts_of(text: str, port: int) -> list[tuple[str, int]]:
    """A host in each line, as ``HOST`` or ``HOST:PORT``; ``#`` begins a comment.

    :param port: of those without one.
    :raises ValueError: one of them is none, a host is there twice, or there are not two.
    """
    found: list[tuple[str, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        host, colon, given = name.rpartition(":")
        if not colon or name.endswith("]") or (":" in host and not host.endswith("]")):
            host, given = name, str(port)
        if not (host.strip("[]") and given.isdecimal() and 0 < int(given) < 65536) or " " in host:
            raise ValueError(f"line {number}: {name!r} is not HOST or HOST:PORT")
        entry = host.strip("[]"), int(given)
        if not is_nameable(entry[0]):
            raise ValueError(f"line {number}: {entry[0]!r} is no host's name")
        if entry in found:
            raise ValueError(f"line {number}: {name!r} is there twice")
        found.append(entry)
    if len(found) < 2:
        raise ValueError("a mesh has two hosts at least")
    return found


def rounds_of(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of ``count`` hosts, in rounds in which no host is twice (as tournaments do it)."""
    around: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(len(around) - 1):
        half = len(around) // 2
        pairs = zip(around[:half], reversed(around[half:]), strict=True)
        rounds.append([(one, other) for one, other in pairs if one is not None and other is not None])
        around.insert(1, around.pop())
    return rounds


class _Hosts:
    """The connections for calls to all hosts, and what went wrong with the others."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.clients: dict[int, rpc.Client] = {}
        self.errors: dict[int, str] = {}

    async def open(self, number: int, host: str, port: int, stack: contextlib.AsyncExitStack) -> None:
        try:
            with anyio.fail_after(_CONNECT_S):
                async with await connect(host, port, config=self._config) as stream:
                    services = await services_of(stream)
            opened = rpc.connect(host, services.calls, config=self._config)
            self.clients[number] = await stack.enter_async_context(opened)
        except NegotiationError as error:
            self.errors[number] = error.text
        except (OSError, TimeoutError, rpc.RpcError, anyio.BrokenResourceError) as error:
            self.errors[number] = getattr(error, "strerror", None) or str(error) or "no connection in time"


async def measure_mesh(
    hosts: list[tuple[str, int]],
    size: int,
    count: int,
    timeout_s: float,
    progress: Callable[[Mesh, int], None],
) -> Mesh:
    """Measure each pair, both ways. Cancelled: ``progress`` has what there was until then.

    :param progress: called with the result so far, and the number of pairs in all.
    """
    names = [f"{host}:{port}" for host, port in hosts]
    mesh = Mesh(SCHEMA, time.time(), size, names, [])
    total = len(hosts) * (len(hosts) - 1)
    progress(mesh, total)
    async with contextlib.AsyncExitStack() as stack:
        # Questions and answers only: the hosts measure among themselves.
        known = _Hosts(Config.from_env())
        for number, (host, port) in enumerate(hosts):
            await known.open(number, host, port, stack)

        async def both(one: int, other: int) -> None:
            for source, target in ((one, other), (other, one)):
                request = PingRequest(*hosts[target], size, count, timeout_s)
                run = await _asked(known, source, request)
                mesh.pairs.append(_pair(names[source], names[target], run))
                progress(mesh, total)

        for pairs in rounds_of(len(hosts)):
            async with anyio.create_task_group() as tasks:
                for one, other in pairs:
                    tasks.start_soon(both, one, other)
    mesh.pairs.sort(key=lambda pair: (names.index(pair.source), names.index(pair.target)))
    return mesh


async def _asked(known: _Hosts, source: int, request: PingRequest) -> Run | str:
    """What that host has measured, or why not."""
    client = known.clients.get(source)
    if client is None:
        return known.errors[source]
    try:
        seconds = request.timeout_s * 2 + _PATIENCE_S
        return await client.call(PING, request, returns=Run, timeout=seconds)
    except rpc.RpcError as error:
        return str(error)


def _pair(source: str, target: str, run: Run | str) -> Pair:
    if isinstance(run, str):
        return Pair(source, target, "", "", run, 0, 0.0, 0.0, 0.0, 0.0)
    times = run.min_us, run.median_us, run.p99_us, run.max_us
    return Pair(source, target, run.path, run.mode, run.error, run.count, *times)


def matrix(mesh: Mesh) -> dict[tuple[str, str], Pair]:
    """The pairs by (source, target)."""
    return {(pair.source, pair.target): pair for pair in mesh.pairs}


def problems(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Pairs without a result, and those on TCP, by what is wrong."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        text = pair.error or (pair.mode if pair.path == "tcp" else "")
        if text:
            found.setdefault(text, []).append(pair)
    return found
