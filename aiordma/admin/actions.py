"""What tools may change in a running process. Each change is logged here, with who asked for it."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import logging
import pwd
import struct
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from .. import faults
from ..config import Config, settings
from ..errors import NegotiationError
from ..observe import capture, connections
from ..proto.filter import parse_rule
from .messages import Done, FaultRule, FaultRules, Packet, Packets, Refused, Setting, Settings
from .pause import Pause
from .requests import Capture, Change, Close, Drain, Faults, FromTool, ShowSettings, Switch, Trim, Undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from msgspec import Struct

    from ..observe.capture import Capture as CaptureOfProcess
    from ..wake.base import Waker

_log = logging.getLogger("aiordma.admin")

#: Where a loop keeps what its settings were before each change, and how many changes.
_MADE, _UNDONE = "changes of settings", 16

#: In one message; with payload each may have 32 KiB, of the 1 MiB that a message may have.
_PACKETS = 16
#: Streams that return to RDMA at the same time.
_BACK_AT_ONCE = 64
_AF_UNSPEC = struct.pack("=H14x", 0)


def _who(asker: tuple[int, int]) -> str:
    pid, uid = asker
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return f"asked by {name}, process {pid}"


def _engine(waker: Waker) -> Any:
    return waker.locals.get("engine")


_NO_ENGINE = Refused("this event loop has no RDMA engine")


# ---- settings


def settings_of(waker: Waker) -> Settings:
    """Of a loop that has an engine."""
    values = dataclasses.asdict(_engine(waker).devices.config)
    return Settings(
        [
            Setting(row.name, values[row.name], row.default, row.online, row.allowed, row.help)
            for row in settings()
        ]
    )


def _show_settings(waker: Waker, request: ShowSettings, asker: tuple[int, int]) -> Iterator[Struct]:
    engine = _engine(waker)
    if engine is None:
        yield _NO_ENGINE
        return
    yield settings_of(waker)
    yield Done()


def _change(waker: Waker, request: Change, asker: tuple[int, int]) -> Iterator[Struct]:
    engine = _engine(waker)
    if engine is None:
        yield _NO_ENGINE
        return
    before: Config = engine.devices.config
    try:
        text = _apply(engine, request.changes, asker)
    except ValueError as error:
        yield Refused(str(error))
        return
    made = waker.locals.setdefault(_MADE, deque(maxlen=_UNDONE))
    made.append({name: getattr(before, name) for name in request.changes})
    yield Done(len(request.changes), text)


def _undo(waker: Waker, request: Undo, asker: tuple[int, int]) -> Iterator[Struct]:
    engine, made = _engine(waker), waker.locals.get(_MADE)
    if engine is None:
        yield _NO_ENGINE
    elif not made:
        yield Refused("no change of settings is left that could be undone")
    else:
        try:
            text = _apply(engine, made[-1], asker)
        except ValueError as error:
            yield Refused(str(error))
            return
        yield Done(len(made.pop()), text)


def _apply(engine: Any, changes: Mapping[str, Any], asker: tuple[int, int]) -> str:
    """What has changed. :raises ValueError: they are not valid."""
    before: Config = engine.devices.config
    config = before.changed(**changes)
    engine.devices.change_config(config)
    text = ", ".join(f"{name}: {getattr(before, name)} -> {getattr(config, name)}" for name in changes)
    _log.warning("settings changed, %s: %s", _who(asker), text)
    return text


# ---- connections


def _found(waker: Waker, numbers: tuple[int, ...]) -> list[connections.Entry]:
    """:raises LookupError: one of them is not there."""
    table = connections.of_loop(waker)
    found = []
    for number in numbers:
        entry = table.get(number)
        if entry is None:
            if _to_valkey(waker, number):
                raise LookupError(f"connection {number} is one to a valkey-server: only its program ends it")
            raise LookupError(f"there is no connection {number} (any more)")
        found.append(entry)
    return found


def _to_valkey(waker: Waker, number: int) -> bool:
    module = sys.modules.get("aiordma.valkey.connection")
    found = () if module is None else module.connections(waker)
    return any(each.seen is not None and each.seen.number == number for each in found)


def _switch(waker: Waker, request: Switch, asker: tuple[int, int]) -> Iterator[Struct | Pause]:
    if request.connections is None:
        entries = list(connections.of_loop(waker))
    else:
        try:
            entries = _found(waker, request.connections)
        except LookupError as error:
            yield Refused(str(error))
            return
    pipes = [entry.pipe for entry in entries]
    pipes = [pipe for pipe in pipes if hasattr(pipe, "rejoin") and pipe.path != request.path]
    if request.path == "tcp":
        from ..links.failover import leave

        text = request.reason or _who(asker)
        count = sum([leave.switch_pipe(pipe, text) for pipe in pipes])
        problems: list[str] = []
    else:
        count, problems = yield from _back(waker, pipes)
    _log.warning("%d connections switch to %s, %s", count, request.path.upper(), _who(asker))
    if problems:
        yield Refused(f"{count} of {len(pipes)} connections are on RDMA again; {problems[0]}")
    elif request.connections is not None and count < len(request.connections):
        yield Refused(
            f"{count} of {len(request.connections)} connections switch to {request.path}: the others are "
            "there already, began without RDMA, or carry calls, which do not switch"
        )
    else:
        yield Done(count)


def _back(waker: Waker, pipes: list[Any]) -> Any:
    pause, problems = Pause(), list[str]()
    count = 0

    async def main() -> None:
        nonlocal count
        try:
            for at in range(0, len(pipes), _BACK_AT_ONCE):
                count += await _back_together(pipes[at : at + _BACK_AT_ONCE], problems)
        finally:
            pause.end()

    waker.spawn(main)
    yield pause
    return count, problems


async def _back_together(pipes: list[Any], problems: list[str]) -> int:
    """At once: a stream whose peer does not read takes seconds, and they need not add up."""
    attempts = []
    for pipe in pipes:
        try:
            attempts.append(pipe.rejoin())
        except NegotiationError as error:
            problems.append(error.text)
    count = 0
    for attempt in attempts:
        try:
            await attempt.wait()
            count += 1
        except NegotiationError as error:
            problems.append(error.text)
    return count


def _close(waker: Waker, request: Close, asker: tuple[int, int]) -> Iterator[Struct]:
    try:
        entries = _found(waker, request.connections)
    except LookupError as error:
        yield Refused(str(error))
        return
    for entry in entries:
        sock = entry.sock
        if sock is not None:
            _reset(sock.fileno())
            _log.warning("connection %d is reset, %s", entry.number, _who(asker))
    yield Done(len(entries))


def _reset(fd: int) -> None:
    """Reset the TCP connection, which on each path takes the connection with it: both ends find out by
    themselves, as they do when the network or a process fails. The descriptor stays its owner's."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.connect(fd, _AF_UNSPEC, len(_AF_UNSPEC))


# ---- memory


def _trim(waker: Waker, request: Trim, asker: tuple[int, int]) -> Iterator[Struct]:
    engine = _engine(waker)
    if engine is None:
        yield _NO_ENGINE
        return
    released = sum(each.pool.trim(now=True) for each in engine.devices.engines)
    _log.warning("%d bytes of unused memory were released, %s", released, _who(asker))
    yield Done(released, f"{released} bytes were released")


# ---- draining


def _drain(waker: Waker, request: Drain, asker: tuple[int, int]) -> Iterator[Struct]:
    engine = _engine(waker)
    if engine is None:
        yield _NO_ENGINE
        return
    what = "all RDMA devices" if request.devices is None else ", ".join(request.devices)
    try:
        if request.revoke:
            count = engine.devices.revoke_drain(request.devices)
            text = f"{count} devices are used again; `aiordma adm switch rdma` brings connections back"
        else:
            count = engine.devices.drain(request.devices, request.reason or _who(asker))
            text = f"{count} connections leave, {_staying(engine.devices)} stay until they are closed"
    except LookupError as error:
        yield Refused(str(error))
        return
    _log.warning("%s: %s, %s: %s", what, "used again" if request.revoke else "drained", _who(asker), text)
    yield Done(count, text)


def _staying(devices: Any) -> int:
    """Connections on drained devices that cannot leave: those of calls."""
    return sum(
        not member.fails_over and member.needs_link
        for engine in devices.engines
        if engine.drained is not None
        for group in engine.all_groups
        for member in group.members
    )


# ---- captures and fault rules


def _capture(waker: Waker, request: Capture, asker: tuple[int, int]) -> Iterator[Struct]:
    if request.action == "start":
        try:
            found = capture.start(request.kept_bytes, payload=request.payload)
        except ValueError as error:
            yield Refused(str(error))
            return
        faults.listen_in(found.on_link, found.message_bytes)
        what = "with payload" if request.payload else "without payload"
        _log.warning("a capture of messages has begun, %s, %s", what, _who(asker))
        yield Done(0, f"the last {request.kept_bytes} bytes of messages are kept, {what}")
        return
    running = capture.running()
    if running is None:
        yield Refused("no capture runs: `aiordma adm capture start` begins one")
        return
    if request.action == "stop":
        faults.listen_in(None)
        capture.stop()
        _log.warning("the capture of messages has ended, %s", _who(asker))
    yield from packets_of(running)
    yield Done(running.seen, running.told)


def packets_of(running: CaptureOfProcess) -> Iterator[Struct]:
    """What a capture has kept, some of it in each part."""
    rows = iter(running.packets())
    while some := list(itertools.islice(rows, _PACKETS)):
        yield Packets([Packet(each.at_ns, each.outbound, each.length, each.data) for each in some])


def _faults(waker: Waker, request: Faults, asker: tuple[int, int]) -> Iterator[Struct]:
    try:
        rules = [parse_rule(text) for text in request.add]
    except ValueError as error:
        yield Refused(f"this is no fault rule: {error}")
        return
    there = faults.rules()
    removed = list(there) if request.remove is None else list(request.remove)
    if unknown := [number for number in removed if number not in there]:
        yield Refused(
            f"there is no fault rule {unknown[0]}: there are {', '.join(map(str, there)) or 'none'}"
        )
        return
    for number in removed:
        faults.remove(number)
    for rule in rules:
        faults.add(rule)
    if removed or rules:
        _log.warning("%d fault rules removed, %d added, %s", len(removed), len(rules), _who(asker))
    now = faults.rules().items()
    yield FaultRules(
        [FaultRule(number, str(rule), counts.matched, counts.fired) for number, (rule, counts) in now]
    )
    yield Done(len(removed) + len(rules))


ACTIONS: dict[type[FromTool], Callable[..., Iterator[Any]]] = {
    ShowSettings: _show_settings,
    Change: _change,
    Undo: _undo,
    Switch: _switch,
    Close: _close,
    Trim: _trim,
    Drain: _drain,
    Capture: _capture,
    Faults: _faults,
}
