"""Look into a running program and steer it: :func:`aiordma.statistics`, :func:`aiordma.switch_path`,
:func:`aiordma.change_settings`, :func:`aiordma.use_device`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from .config import Config
from .links import engine
from .streams.info import StreamInfo
from .verbs.adopted import adopt
from .wake.interrupts import uninterrupted

if TYPE_CHECKING:
    import asyncio

    from .datagrams.connection import DatagramConnection
    from .links.statistics import EngineStatistics
    from .streams.stream import RdmaStream

    Switchable: TypeAlias = (
        RdmaStream | DatagramConnection | StreamInfo | asyncio.StreamWriter | asyncio.BaseTransport
    )

Path = Literal["tcp", "rdma"]


def statistics() -> EngineStatistics | None:
    """Counters of the running event loop's RDMA engine: devices, links, memory, completions, wake-ups.

    The result is a plain dictionary of numbers and strings, so ``json.dumps()`` takes it.

    :return: None while the loop has no engine: none of its connections has tried RDMA yet, or RDMA is not
        available here (``stream.fallback_reason`` says why).
    :raises RuntimeError: (or its relatives) no event loop is running in this thread.
    """
    running = engine.running()
    return None if running is None else cast("EngineStatistics", running.statistics())


@uninterrupted
def change_settings(**changes: Any) -> Config:
    """Change *online* settings (:class:`aiordma.Config`) of the running event loop's engine.

    They apply at once to everything that the engine does: polling, limits, keepalive, timers, tracing, fault
    rules. ``aiordma.change_settings(busy_poll_us=0)`` makes a loop sleep instead of polling. What a
    connection reads when it is made, such as ``negotiate_timeout_ms``, comes from its ``config=`` or from the
    environment.

    :return: the settings from now on.
    :raises ValueError: an unknown setting, one that is read when the engine starts, or a value that is not
        allowed; nothing has changed.
    :raises RuntimeError: the loop has no engine yet, or no event loop is running in this thread.
    """
    running = engine.running()
    if running is None:
        raise RuntimeError(
            "no engine is running in this event loop, so there is nothing to change: set AIORDMA_* "
            "variables, or pass config= to the first connection"
        )
    config = running.devices.config.changed(**changes)
    running.devices.change_config(config)
    return config


def use_device(context: Any, pd: Any = None, *, port: int = 0, config: Config | None = None) -> str:
    """Have the running event loop's connections use an RDMA device that the program has opened with pyverbs.

    aiordma makes its queue pairs, completion queues and regions on it, and reads its asynchronous events; the
    program goes on using it, too. Call it before the loop's first connection, and close the device after the
    loop's end: until then pyverbs refuses to close it.

    :param context: a ``pyverbs.device.Context``.
    :param pd: a ``pyverbs.pd.PD`` on it, for all queue pairs and regions. Every peer with a queue pair on a
        protection domain can use each key of it, so without one each peer gets its own.
    :param port: of the device; 0: the first one that is active.
    :return: the device's name.
    :raises TypeError: no objects of pyverbs. :raises ValueError: closed ones, or of two devices.
    :raises RuntimeError: the loop uses a device already, or no event loop is running in this thread.
    :raises aiordma.NegotiationError: the device cannot be used. :raises aiordma.VerbsError: a call failed.
    """
    backend = adopt(context, pd, port)
    engine.begin_on(backend, config or Config.from_env())
    return backend.name


@uninterrupted
async def switch_path(target: Switchable | None, path: Path, *, reason: str = "") -> int:
    """Move a connection from RDMA to its TCP connection, or back, without losing or repeating a byte.

    Sending and receiving go on meanwhile. To TCP, the function returns at once; the connection moves when
    both ends are ready, in about one round trip. To RDMA, it returns when this end is on RDMA again.

    :param target: a stream, a datagram connection, an asyncio writer or transport, or the
        :class:`aiordma.StreamInfo` of one. None, with ``"tcp"`` only: all connections of the running loop.
        New connections still use RDMA.
    :param reason: why; the other end and ``fallback_reason`` show it.
    :return: how many connections move. 0: it is on this path already, or it is closed, or (to TCP) its link
        is not up.
    :raises ValueError: another path, or all connections to RDMA.
    :raises TypeError: a target that cannot change its path.
    :raises aiordma.NegotiationError: not back to RDMA now; ``code`` and ``text`` say why. The connection
        stays on TCP.
    """
    from .links.failover import leave

    if path not in get_args(Path):
        raise ValueError(f"path={path!r} is not valid: it must be 'tcp' or 'rdma'")
    if target is None:
        if path == "rdma":
            raise ValueError("connections go back to RDMA one by one: name the target")
        running = engine.running()
        engines = [] if running is None else running.devices.engines
        return sum([leave.switch_engine(each, reason) for each in engines])
    pipe = _pipe_of(target)
    if pipe is None or pipe.path == path:
        return 0
    if path == "tcp":
        return int(leave.switch_pipe(pipe, reason))
    await leave.switch_back(pipe)
    return 1


def _pipe_of(target: Any) -> Any:
    """The switchable pipe beneath ``target``; None: it began on TCP, where nothing can change."""
    found = target
    if hasattr(found, "get_extra_info"):
        found = found.get_extra_info("aiordma.stream")
        if found is None:
            if target.get_extra_info("aiordma.path") is None:
                raise TypeError(f"{target!r} is not a connection of aiordma")
            return None
    pipe = getattr(found, "_pipe", None)
    if pipe is None:
        raise TypeError(f"{target!r} is not a connection of aiordma")
    # Datagrams on a ring are a layer over a pipe that can leave.
    return pipe if hasattr(pipe, "leave") else getattr(pipe, "ring", None)
