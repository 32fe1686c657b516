"""What `aiordma doctor` looks at, in the order in which RDMA needs it: from Python to a round trip."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import os
import platform
import resource
import statistics
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from ...config import PREFIXES, Config, unknown_variables
from ...errors import Code, NegotiationError
from ...negotiation.connect import connect_and_negotiate
from ...negotiation.options import ConnectOptions
from ...proto.clc import Kind
from ...streams.connector import connect
from ...streams.listener import listen
from ...verbs import hardware, softlib
from ...verbs.bindings import VARIABLE
from ...verbs.choice import name_and_port, names_in
from ...verbs.installation import built_for, explain_missing_modules, explain_missing_pyverbs, locate_pyverbs
from ...verbs.remedies import with_remedy
from . import kernel_smc, network, private
from .findings import Finding, failed, note, ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...streams.stream import RdmaStream

_LOCAL = "127.0.0.1"
_ROUND_TRIPS = 200
_PATIENCE_S = 20
#: Where the packages lie.
_ROOT = Path(__file__).parents[3]
_ASK_THERE = "is the server running, with aiordma, and is RDMA on there? Run the doctor there, too"
#: A stream to itself takes a few; a program with many connections should have more.
_FEW_FILES = 256


def examine(peer: tuple[str, int] | None = None) -> Iterator[Finding]:
    """Every step in turn; what needs a failed one is skipped."""
    missing = ""
    for step, check in _CHECKS.items():
        if missing and check in (_device, _round_trip):
            yield Finding(step, "skipped", f"needs: {missing}")
            continue
        finding = _guarded(step, check)
        if finding.state == "failed" and step in _NEEDED:
            missing = missing or step
        yield finding
    if peer is not None:
        yield _guarded("peer", lambda: _peer(*peer))


def verdict(findings: list[Finding]) -> str:
    """One line that a user can act on."""
    for finding in findings:
        if finding.state == "failed":
            return f"RDMA does not work: {finding.step}: {finding.remedy or finding.text}"
    last = findings[-1]
    notes = [f"{each.step}: {each.remedy or each.text}" for each in findings if each.state == "note"]
    works = f"RDMA works: {last.text}"
    return f"{works}. But look at {notes[0]}" if notes else works


def _guarded(step: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()._replace(step=step)
    except Exception as error:  # a doctor reports what it finds, and goes on
        return Finding(step, "failed", f"{type(error).__name__}: {error}")


def _of_error(error: NegotiationError) -> Finding:
    return failed(with_remedy(error, hint="").text)


# ---- what is installed


def _python() -> Finding:
    text = f"{platform.python_version()} ({sys.executable}), {platform.platform()}"
    if sys.platform != "linux":
        return failed(text, "RDMA needs Linux; here aiordma uses TCP only")
    return ok(text)


def _compiled() -> Finding:
    names = [
        ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for package in ("aiordma", "rocefabric")
        for path in sorted((_ROOT / package).rglob("*.pyi"))
    ]
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        error = explain_missing_modules(ImportError(f"{len(missing)} are missing, {missing[0]} first"))
        return failed(f"{len(names) - len(missing)} of {len(names)} are there", error.text)
    return ok(f"all {len(names)} are there, for {sysconfig.get_config_var('SOABI')}")


def _pyverbs() -> Finding:
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted == "own":
        return ok(f"not asked: {VARIABLE}=own, aiordma's own binding is used")
    folder = locate_pyverbs()
    tags = built_for(folder, "device") if folder is not None else []
    text = f"{folder}, built for {', '.join(tags) or 'no Python that can be told'}" if folder else "none"
    if sysconfig.get_config_var("SOABI") in tags:
        return ok(text)
    if wanted == "pyverbs":
        return failed(text, explain_missing_pyverbs(ImportError("no module that fits")).text)
    return ok(f"{text}; so aiordma's own binding is used")


def _libibverbs() -> Finding:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError as error:
        if all(each.problem for each in hardware.scan()):
            return ok(f"{error}; the software device needs none")
        return failed(str(error), "install it: apt-get install libibverbs1 ibverbs-providers")
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = [line.split()[-1] for line in lines if "/libibverbs.so" in line]
    return ok(paths[0] if paths else "libibverbs.so.1 loads")


# ---- the machine


def _kernel_devices() -> Finding:
    found = hardware.scan()
    if not found:
        return ok("none (in /sys/class/infiniband), so the software device is used")
    text = ", ".join(f"{each.name}: {each.problem or 'usable'}" for each in found)
    if all(each.problem for each in found):
        return note(text, f"no device of the kernel is usable ({text}); the software device is used")
    return ok(text)


def _memlock() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return ok("unlimited")
    text = f"{limit} bytes may be locked"
    if any(not each.problem for each in hardware.scan()):
        return note(text, f"{text}, and the kernel's devices lock what they use: ulimit -l unlimited")
    return ok(f"{text}; the software device locks none")


def _software_device() -> Finding:
    path = softlib.locate()
    if path is None:
        return failed(
            f"{softlib.LIBRARY} is not installed",
            "install libibverbs-dev and librdmacm-dev, and build aiordma again",
        )
    if not os.path.isdir("/proc/self/fd"):
        return failed("/proc is not there", "mount it: two processes share memory through /proc/self/fd")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        softlib.load()
    except (OSError, AttributeError) as error:
        return failed(str(error), f"it does not load; build aiordma again on this machine ({error})")
    text = f"{path} loads, {limit} files may be open"
    return note(text, f"raise the limit of {limit} open files: ulimit -n") if limit < _FEW_FILES else ok(text)


def _settings() -> Finding:
    names = sorted(name for name in os.environ if name.startswith(PREFIXES))
    text = (
        ", ".join(f"{name}={os.environ[name]}" for name in names)
        or "no variable of aiordma or its device is set"
    )
    try:
        config = Config.from_env()
    except ValueError as error:
        return failed(text, str(error))
    unknown = unknown_variables(names)
    if unknown:
        hints = [f"{name} is unknown" + (f": {near}?" if near else "") for name, near in unknown.items()]
        return note(text, "; ".join(hints))
    if config.mode == "tcp":
        return note(text, "AIORDMA_MODE=tcp switches RDMA off for connections without a mode of their own")
    return ok(text)


# ---- RDMA


def _device() -> Finding:
    from ...verbs.backend import open_backend  # it loads the verbs binding

    try:
        backend = open_backend(Config.from_env().device)
    except NegotiationError as error:
        return _of_error(error)
    try:
        kind = "software" if backend.is_soft else "kernel"
        gid = backend.gid.raw.hex(":", 2)
        where = f"port {backend.port}, MTU {backend.mtu.size}, GID {gid}"
        return ok(f"{backend.name} ({kind}), {where}; verbs: {backend.binding.name}")
    finally:
        backend.close()


def _round_trip() -> Finding:
    """Over each device that could be used: the one of the settings first, whose failure counts."""
    chosen = Config.from_env().device
    try:
        texts = [f"{_measured(chosen)} to itself by RDMA and back (median of {_ROUND_TRIPS}, 1 byte)"]
    except NegotiationError as error:
        return _of_error(error)
    broken = []
    for name in _other_devices(chosen):
        try:
            texts.append(f"{name}: {_measured(name)}")
        except NegotiationError as error:
            broken.append(f"{name}: {error.text}")
    text = "; ".join(texts + broken)
    return note(text, f"not every device works: {'; '.join(broken)}") if broken else ok(text)


def _other_devices(chosen: str | None) -> list[str]:
    """Devices that the settings do not use."""
    usable = [each.name for each in hardware.scan() if not each.problem]
    if chosen is None:
        return [*usable[1:], *(["soft"] if usable else [])]
    if chosen == "auto":
        return []
    used = {name_and_port(name)[0] for name in names_in(chosen)}
    return [name for name in (*usable, "soft") if name not in used]


def _measured(device: str | None) -> str:
    return f"{anyio.run(_loop_back, device) * 1e6:.0f} us"


async def _loop_back(device: str | None) -> float:
    config = dataclasses.replace(Config.from_env(), device=device, mode="rdma")

    async def echo(stream: RdmaStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)

    times = []
    with anyio.fail_after(_PATIENCE_S):
        async with listen(_LOCAL, config=config) as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            async with connect(_LOCAL, listener.port, config=config) as client:
                for _ in range(_ROUND_TRIPS):
                    begun = time.perf_counter()
                    await client.send(b"x")
                    await client.receive()
                    times.append(time.perf_counter() - begun)
            tasks.cancel_scope.cancel()
    return statistics.median(times)


def _peer(host: str, port: int) -> Finding:
    return anyio.run(_ask_peer, host, port)


async def _ask_peer(host: str, port: int) -> Finding:
    options = ConnectOptions.of(host, mode="auto")
    for kind in (Kind.STREAM, Kind.CALLS, Kind.DATAGRAMS, Kind.MEMORY):
        begun = time.perf_counter()
        try:
            with anyio.fail_after(_PATIENCE_S):
                result = await connect_and_negotiate(host, port, options, kind)
        except NegotiationError as error:
            if error.code == Code.WRONG_KIND:
                continue
            return failed(f"{host}:{port}: {error.text}")
        except (OSError, TimeoutError) as error:
            return _no_answer(error)
        seconds = time.perf_counter() - begun
        if result.pipe is None:
            result.sock.close()
            assert result.fallback is not None
            text = f"{host}:{port} answers, but the connection runs on {result.fallback}"
            return failed(text, f"{text}; {_ASK_THERE}")
        result.pipe.abort()
        what = kind.name.lower()
        return ok(f"{host}:{port} serves {what} over RDMA, agreed on in {seconds * 1e3:.1f} ms")
    return failed(f"{host}:{port} serves no kind of connection that this version knows")


def _no_answer(error: OSError) -> Finding:
    text = f"no server answers: {error.strerror or str(error) or 'in time'}"
    return failed(text, f"{text}; {_ASK_THERE}")


_CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": _python,
    "compiled modules": _compiled,
    "pyverbs": _pyverbs,
    "libibverbs": _libibverbs,
    "kernel devices": _kernel_devices,
    "GIDs": network.gids,
    "MTU": network.mtus,
    "locked memory": _memlock,
    "software device": _software_device,
    "settings": _settings,
    "private APIs": private.interfaces,
    "port 4791": network.udp_port,
    "namespaces": network.namespaces,
    "DSCP and PFC": network.lossless,
    "kernel SMC-R": kernel_smc.kernel_smc,
    "device": _device,
    "round trip": _round_trip,
}
_NEEDED = {"Python", "compiled modules", "pyverbs", "libibverbs", "settings", "device"}
