"""``aiordma debug-bundle``: one file with everything that helps to find out what is wrong, and no payload in
it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import sys
import tarfile
import time
import zlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...config import PREFIXES
from ..private_file import private_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...admin.asked import Loop
    from ...admin.page import Page

_NOBODY = 1
#: Thousands of tasks take a moment.
_PATIENCE_S = 5.0
SCHEMA = "aiordma-bundle/1"
_PACKAGES = ("aiordma", "anyio", "trio", "uvloop", "msgspec", "click", "opentelemetry-api")
#: Of each process, from /proc: no command line, no environment.
_PROC = ("status", "limits", "wchan", "cgroup")
#: What --read shows of one file at most.
_MOST_BYTES = 64 << 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="[aiordma-TIME.tar.gz]")
@click.option("--pid", type=int, metavar="PID", help="One process only.")
@click.option(
    "--doctor/--no-doctor", default=True, help="Whether to try RDMA on this host, as `aiordma doctor`."
)
@click.option("--read", "to_read", type=click.Path(dir_okay=False), metavar="FILE", help="Print one.")
def debug_bundle(output: str | None, pid: int | None, doctor: bool, to_read: str | None) -> None:
    """Collect in one file what helps to find out what is wrong: all views of `aiordma stat`, settings, tasks
    with the lines where they wait, traced calls, versions, limits, and what `aiordma doctor` says.

    It contains addresses, names of programs, functions and files, and AIORDMA_ variables; no payload, no
    values of variables, no arguments of programs.

    Past warnings of the library are in it, without the text of exceptions; and the messages that a capture
    keeps, if one runs (`aiordma adm capture start`), as packets.pcapng.

    Exit status: 0; 1 if no process uses aiordma (the file is written all the same).

    \b
    Examples:
      aiordma debug-bundle                          of all processes of this user
      aiordma debug-bundle --pid 4711 -o slow.tgz   of one
      aiordma debug-bundle --read slow.tgz          print it
    """
    if to_read is not None:
        _read(Path(to_read))
        return
    path = Path(output or time.strftime("aiordma-%Y%m%d-%H%M%S.tar.gz"))
    found = dict(_collected(pid, doctor))
    try:
        with private_file(path) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, data in found.items():
                entry = tarfile.TarInfo(f"aiordma/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                tar.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    loops = sum(name.endswith("/inspect.json") for name in found)
    text = f"{path}: {path.stat().st_size} bytes, {loops} event loops"
    click.echo(text, err=not path.is_file() or _is_stdout(path))  # what follows an archive spoils it
    sys.exit(0 if loops else _NOBODY)


def _is_stdout(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(1))
    return False


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _collected(pid: int | None, doctor: bool) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files."""
    import msgspec

    from ...admin.asking import ask, loops
    from ...admin.report import collect
    from ...admin.requests import Inspect
    from ...proto.packets import pcapng
    from ..adm.capture import packets_of
    from ..stat.command import VIEWS

    def wanted(page: Page) -> bool:
        return not page.is_own

    yield (
        "bundle.json",
        _json(
            {
                "schema": SCHEMA,
                "taken_at": time.time(),
                "host": platform.node(),
                "kernel": platform.release(),
                "machine": platform.machine(),
                "python": sys.version,
                "packages": _versions(),
                "environment": {
                    name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)
                },
            }
        ),
    )
    yield "stat.json", msgspec.json.encode(collect(VIEWS, wanted, pid))
    for loop in ask(Inspect(), loops(wanted, pid), _PATIENCE_S):
        folder = f"process-{loop.page.pid}-{loop.stem.rpartition('-')[2]}"
        yield f"{folder}/inspect.json", _inspected(loop)
        if packets := packets_of(loop):
            yield f"{folder}/packets.pcapng", pcapng(packets)
        for name, data in proc_files(loop).items():
            yield f"{folder}/{name}", data
    if doctor:
        yield "doctor.json", _doctor()


def proc_files(loop: Loop) -> dict[str, bytes]:
    """What the kernel knows of its process; nothing if that has ended, and another may have its number."""
    found = {}
    for name in _PROC if loop.pid else ():
        try:
            found[name] = Path(f"/proc/{loop.pid}/{name}").read_bytes()
        except OSError as error:
            found[name] = f"cannot be read: {error.strerror}\n".encode()
    return {} if loop.page.is_over else found


def _inspected(loop: Loop) -> bytes:
    import msgspec

    from ...admin.messages import Calls, Settings, Tasks, Warnings

    kinds: dict[str, type[Any]] = {"settings": Settings, "tasks": Tasks, "calls": Calls, "warnings": Warnings}
    rows: dict[str, list[Any]] = {name: [] for name in kinds}
    for part in loop.parts:
        for name, kind in kinds.items():
            if isinstance(part, kind):
                rows[name] += part.rows
    return msgspec.json.format(
        msgspec.json.encode({"pid": loop.page.pid, "state": loop.state, "text": loop.text, **rows}), indent=1
    )


def _doctor() -> bytes:
    import logging

    from ..doctor.checks import examine, verdict

    logging.getLogger("aiordma").addHandler(logging.NullHandler())
    findings = list(examine())
    return _json({"verdict": verdict(findings), "steps": [each._asdict() for each in findings]})


# ---- reading


def _read(path: Path) -> None:
    """Print every file; nothing is unpacked to the disk."""
    try:
        with tarfile.open(path, "r:gz") as tar:
            for entry in tar:
                file = tar.extractfile(entry) if entry.isfile() else None
                if file is not None:
                    _show(entry.name.removeprefix("aiordma/"), file.read(_MOST_BYTES))
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error


def _show(name: str, data: bytes) -> None:
    from ..tables import clean

    click.echo(f"==== {clean(name)}")
    lines: list[str] = []
    try:
        if name == "stat.json":
            lines = _stat_lines(data)
        elif name.endswith("inspect.json"):
            lines = _inspect_lines(json.loads(data))
        elif name.endswith(".pcapng"):
            lines = [f"{len(data)} bytes for Wireshark: unpack the file, and tshark -r {name}"]
        else:
            lines = data.decode("utf-8", "replace").splitlines()
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        OSError,
    ) as error:
        lines = [f"it is damaged: {error}"]
    click.echo("\n".join(clean(line.replace("\t", "    ")) for line in lines))


def _stat_lines(data: bytes) -> list[str]:
    import msgspec

    from ...admin.report import Report
    from ..stat.command import VIEWS
    from ..stat.views import lines

    return lines(msgspec.json.decode(data, type=Report), VIEWS, details=True)


def _inspect_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['state']} {found['text']}"]
    lines += [
        f"setting {row['name']}={row['value']}" for row in found["settings"] if row["value"] != row["default"]
    ]
    for task in found["tasks"]:
        lines += [f"task {task['name']}", *(f"  {frame}" for frame in task["frames"])]
    for call in found["calls"]:
        stages = ", ".join(f"{name} {value:.0f}us" for name, value in call["stages_us"].items())
        lines.append(
            f"call {call['side']} {call['method']} {call['peer']} {call['total_us']:.0f}us ({stages})"
        )
    for row in found.get("warnings", ()):  # bundles of older versions have none
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))
        lines.append(f"{row['level'].lower()} {when} {row['logger']}: {row['text']}")
    return lines
