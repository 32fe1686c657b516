"""The admin endpoint and tools that are hostile, clumsy, or another user's: nobody pays for them."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from aiordma.admin import asking, directory, page
from aiordma.admin.messages import (
    HEADER,
    Connections,
    Done,
    Refused,
    length_of,
    packed,
    parse_answer,
)
from aiordma.admin.requests import Show
from tests.forking import fork
from tests.health import until
from tests.processes import FULL_PATIENCE, process
from tests.world import DEVICE

from .looking import EVERYTHING, ask_one, connected_to, drained, listed, loops_of, rows, sockets_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

ROLE = "tests.admin.roles:connected"

#: Requests that are well formed, or nearly, and that change nothing.
REFUSED: list[dict[str, Any]] = [
    {"type": "drain", "devices": ["x" * 1000] * 50},
    {"type": "drain", "devices": "soft0"},
    {"type": "capture", "action": "explode"},
    {"type": "capture", "action": "start", "kept_bytes": -1},
    {"type": "capture", "action": "start", "kept_bytes": 1 << 62},
    {"type": "capture", "action": "take"},
    {"type": "faults", "add": ["drop op=cdc", "\0" * 5000]},
    {"type": "faults", "remove": [1 << 60]},
    {"type": "set", "changes": {"leak_after_ms": "soon"}},
    {"type": "set", "changes": {"leak_frames": 65}},
]


def garbage(source: random.Random) -> bytes:
    """Bytes that are no request, or a damaged one."""
    fine = packed(Show(("connections",)))
    kind = source.randrange(8)
    if kind == 0:
        return source.randbytes(source.randrange(1, 4096))
    if kind == 1:
        return HEADER.pack(b"aio", 1, source.choice([0, 1 << 17, 1 << 31])) + source.randbytes(50)
    if kind == 2:
        body = source.randbytes(source.randrange(1, 2000))
        return HEADER.pack(b"aio", 1, len(body)) + body
    if kind == 3:
        return fine[: source.randrange(len(fine))]
    if kind == 4:
        return fine + fine
    if kind == 5:
        body = b"\x91" * 60_000  # arrays in arrays
        return HEADER.pack(b"aio", 1, len(body)) + body
    if kind == 6:
        body = msgspec.msgpack.encode(source.choice(REFUSED))
        return HEADER.pack(b"aio", 1, len(body)) + body
    body = msgspec.msgpack.encode({"type": "show", "views": ["connections"], "more": 1})
    return HEADER.pack(b"aio", 1, len(body)) + body


def test_200_garbage_requests_cost_nobody_anything() -> None:
    source = random.Random(5)
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        before = sockets_of(other.pid)
        for _ in range(200):
            with connected_to(other.pid) as sock:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sock.sendall(garbage(source))
                    if source.random() < 0.5:
                        sock.shutdown(socket.SHUT_WR)
                        drained(sock)
        assert ask_one(other.pid).state == "answered"
        other.say("echo")
        assert other.hear() == "echoed"
        other.say("log")
        assert other.hear() == []

        def over() -> bool:
            return sockets_of(other.pid) <= before

        anyio.run(until, over)


def test_another_version_is_told() -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        for header in (HEADER.pack(b"aio", 9, 5), HEADER.pack(b"aio", 1, 5) + b"\xc1\xc1\xc1\xc1\xc1"):
            with connected_to(other.pid) as sock:
                sock.sendall(header)
                answer = drained(sock)
            length = length_of(answer[: HEADER.size], 1 << 20)
            refused = parse_answer(answer[HEADER.size :][:length])
            assert isinstance(refused, Refused)
            assert refused.text


def test_more_tools_than_allowed_are_turned_away_and_slow_ones_do_not_matter() -> None:
    with process(ROLE, device=DEVICE) as other, contextlib.ExitStack() as stack:
        other.hear()
        ask_one(other.pid)
        silent = [stack.enter_context(connected_to(other.pid)) for _ in range(8)]
        late = stack.enter_context(connected_to(other.pid))
        assert drained(late) == b""
        silent[0].close()
        anyio.run(until, lambda: ask_one(other.pid).state == "answered")


def test_kill_9_in_the_middle_of_the_answer() -> None:
    """Of the tool: the program goes on. Of the program: the tool says so."""
    # Their rows are more than a socket takes while nobody reads.
    with process(ROLE, device=DEVICE, streams=400) as other:
        other.hear()
        for _ in range(20):
            with connected_to(other.pid) as sock:
                sock.sendall(packed(EVERYTHING))
                assert sock.recv(100)
        answered = ask_one(other.pid)
        assert len(rows(answered, Connections)) == 800
        (loop,) = loops_of(other.pid)
        with connected_to(other.pid) as sock:
            sock.sendall(packed(EVERYTHING))
            assert sock.recv(100)
            other.kill()
            other.wait()
            data = drained(sock)
            assert not data.endswith(packed(Done()))
        assert asking.ask(EVERYTHING, [loop]) == []


def test_an_impostor_is_not_asked(tmp_path: Path) -> None:
    """A directory that others may enter is none of ours, and a page that is no page is passed over."""
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError):
        directory.Directory(str(tmp_path), os.getuid())
    tmp_path.chmod(0o700)
    with contextlib.closing(directory.Directory(str(tmp_path), os.getuid())) as home:
        for data in (b"", b"aiordma1", b"\xff" * 4096, b"aiordma1" + b"\xff" * 4088):
            (tmp_path / "1-a.page").write_bytes(data)
            found = page.read(home, "1-a")
            assert found is None or not directory.is_running(found.pid, found.started)
        (tmp_path / "2-a.page").symlink_to("/etc/passwd")
        os.mkfifo(tmp_path / "3-a.page")
        assert page.read(home, "2-a") is page.read(home, "3-a") is page.read(home, "4-a") is None


_NOBODY = 65534


def as_nobody(work: Callable[[], bool], folder: str) -> bool:
    """What another user's process makes of it, in a folder that it could not enter by itself."""
    child = fork()
    if not child:
        status = 2
        try:
            os.chdir(folder)
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_other_users_neither_see_nor_ask_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        (loop,) = loops_of(other.pid)
        assert as_nobody(lambda: listed(other.pid) == [], "/")
        # Even if the files let somebody through, the process does not answer.
        name = loop.stem + directory.SOCKET
        assert loop.home == f"{tmp_path}/aiordma/admin"
        os.chmod(loop.home, 0o711)
        os.chmod(f"{loop.home}/{name}", 0o777)

        def ask() -> bool:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(FULL_PATIENCE)
                sock.connect(name)
                with contextlib.suppress(BrokenPipeError):
                    sock.sendall(packed(EVERYTHING))
                return drained(sock) == b""

        assert as_nobody(ask, loop.home)
