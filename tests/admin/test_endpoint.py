"""The admin endpoint: what a process tells, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import aiordma
from aiordma import wake
from aiordma.admin import answers, asked, asking, conversation, directory, endpoint, page
from aiordma.admin.messages import (
    Connection,
    Connections,
    Devices,
    Done,
    Fallbacks,
    Links,
    MemoryUse,
    Totals,
    packed,
)
from aiordma.admin.requests import Show
from tests.forking import fork
from tests.health import descriptors, endpoint_begun, until
from tests.loops import LOOPS
from tests.processes import PATIENCE, process
from tests.world import DEVICE

from .looking import EVERYTHING, ask_one, descriptors_of, listed, loops_of, rows
from .returned import returned

if TYPE_CHECKING:
    pass

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

ROLE = "tests.admin.roles:connected"
CONFIG = aiordma.Config(device=DEVICE)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_process_tells_what_it_has(loop: str) -> None:
    with process(ROLE, loop, device=DEVICE, streams=3, plain=1) as other:
        port = other.hear()
        answered = ask_one(other.pid)
        assert (answered.state, answered.text) == ("answered", "")
        identity = answered.identity
        assert identity is not None
        assert (identity.pid, identity.uid) == (other.pid, os.getuid())
        assert identity.loop == {"asyncio+uvloop": "uvloop"}.get(loop, loop)
        found: list[Connection] = rows(answered, Connections)
        assert sorted((each.side, each.path) for each in found) == [
            ("client", "rdma"),
            ("client", "rdma"),
            ("client", "tcp"),
            ("server", "rdma"),
            ("server", "rdma"),
            ("server", "tcp"),
        ]
        assert {each.bytes_sent for each in found} == {5}
        assert {each.bytes_received for each in found} == {5}
        for each in found:
            assert each.state == "active"
            assert (each.remote if each.side == "client" else each.local) == f"127.0.0.1:{port}"
            if each.path == "rdma":
                assert (each.mode, each.reason) == ("RDMA", "")
                assert each.rx_produced == each.rx_consumed == each.tx_produced == "0000:00000005"
            else:
                assert each.mode.startswith("TCP 0x")
                assert each.reason
        links = rows(answered, Links)
        assert sorted(link.side for link in links) == ["client", "server"]
        assert {each.qp_num for each in found if each.path == "rdma"} == {link.qp_num for link in links}
        (device,) = rows(answered, Devices)
        assert (device.state, device.links) == ("open", 2)
        (memory,) = rows(answered, MemoryUse)
        assert 0 < memory.used_bytes <= memory.registered_bytes <= memory.limit_bytes
        assert sum(each.connections for each in rows(answered, Fallbacks)) == 2
        (totals,) = [part for part in answered.parts if isinstance(part, Totals)]
        assert (totals.open, totals.links, totals.fell_back, totals.left_rdma) == (6, 2, 2, 0)
        assert totals.connections == {
            "stream/client/rdma": 2,
            "stream/server/rdma": 2,
            "stream/client/tcp": 1,
            "stream/server/tcp": 1,
        }


def test_a_process_without_rdma_tells_why() -> None:
    with process(ROLE, device="none-such", streams=1, plain=1) as other:
        other.hear()
        found = rows(ask_one(other.pid), Connections)
        assert [each.path for each in found] == ["tcp", "tcp"]


@pytest.mark.anyio
async def test_off_is_off() -> None:
    async with await aiordma.listen("127.0.0.1", config=aiordma.Config(device=DEVICE, admin="off")):
        assert "aiordma.admin.endpoint" not in wake.current().locals  # not even about to begin


@pytest.mark.anyio
async def test_the_files_are_the_users_alone_and_go_with_the_loop() -> None:
    async with await aiordma.listen("127.0.0.1", config=CONFIG):
        (loop,) = await anyio.to_thread.run_sync(loops_of, os.getpid())
        folder = Path(loop.home)
        for path in (folder, folder.parent):
            status = path.stat()
            assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, os.getuid())
        (answered,) = await anyio.to_thread.run_sync(asking.ask, EVERYTHING, [loop])
        assert answered.state == "answered"


def test_nothing_is_left_of_a_loop() -> None:
    async def main() -> None:
        async with await aiordma.listen("127.0.0.1", config=CONFIG):
            assert len(await anyio.to_thread.run_sync(loops_of, os.getpid())) == 1

    for backend, options in LOOPS.values():
        anyio.run(main, backend=backend, backend_options=options)
        assert listed(os.getpid()) == []


#: A loop is closed by the garbage collector while another runs. Prints the threads that were started then,
#: and what the admin endpoint has left.
DROPPED = """
import _thread, asyncio, concurrent.futures, gc, os, sys, time
start, started = _thread.start_new_thread, []
def counted(function, *arguments):
    started.append(function)
    return start(function, *arguments)
_thread.start_new_thread = counted
import aiordma
from aiordma import wake
from tests.admin.looking import listed, loops_of

async def connect():
    config = aiordma.Config(device=sys.argv[1])
    wake.current().locals["kept"] = await aiordma.listen("127.0.0.1", config=config)
    await asyncio.to_thread(loops_of, os.getpid())

async def drop():
    loops = [asyncio.new_event_loop()]
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: loops[0].run_until_complete(connect())).result()
    assert len(listed(os.getpid())) == 1
    started.clear()
    loops.clear()
    gc.collect()
    # The thread that has answered may hold the loop for a moment more.
    until = time.monotonic() + 30
    while (left := listed(os.getpid())) and time.monotonic() < until:
        time.sleep(0.01)
        gc.collect()
    print(started, left)

asyncio.run(drop())
"""


@pytest.mark.parametrize("device", [DEVICE, "none-such"])
def test_a_loop_that_is_dropped_leaves_nothing_and_starts_no_thread(device: str) -> None:
    """One that had not run yet when the process ended crashed it. And why there is no device was kept as an
    error, whose traceback kept the loop."""
    program = [sys.executable, "-c", DROPPED, device]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("[] []\n", 0), done.stderr


def test_a_killed_process_is_swept() -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        (loop,) = loops_of(other.pid)
        files = [Path(loop.home, loop.stem + suffix) for suffix in (directory.SOCKET, directory.PAGE)]
        assert all(each.exists() for each in files)
        other.kill()
        other.wait()
        # Found before it was killed. Any look of this user sweeps, so another test's may have been first.
        assert asking.ask(EVERYTHING, [loop]) == []
        assert listed(other.pid) == []
        assert not any(each.exists() for each in files)
        ((uid, seen),) = asking.killed(pid=other.pid)
        assert (uid, seen.pid, seen.connections) == (os.getuid(), other.pid, loop.page.connections)


def test_a_process_that_ends_by_itself_was_not_killed() -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        assert loops_of(other.pid)
        other.hush()
        other.wait()
        assert listed(other.pid) == []
        assert asking.killed(pid=other.pid) == []


def test_a_program_that_ends_after_its_loop_was_not_killed() -> None:
    with returned("asyncio", "in order") as other:
        assert len(loops_of(other.pid)) == 1
        other.kill()
        other.wait()
        assert listed(other.pid) == []
        assert asking.killed(pid=other.pid) == []


def test_so_many_killed_processes_are_kept(tmp_path: Path) -> None:
    """A program that is begun again and again, and crashes, fills no file system."""
    now = tmp_path.stat().st_mtime
    with contextlib.closing(directory.Directory(str(tmp_path), os.getuid())) as home:

        def bury(number: int, at: float) -> None:
            page.PageWriter(home, f"{number}-a", "asyncio").close()
            os.utime(tmp_path / f"{number}-a.page", (at, at))
            home.bury(f"{number}-a")

        for number in range(20):
            bury(number, now - 3600)
        assert home.killed() == []  # they are too old
        for number in range(100):
            bury(number, now + 600 + number)
        assert sorted(home.killed()) == sorted(f"{number}-a" for number in range(36, 100))
        assert len(os.listdir(tmp_path)) == 64


def test_late_timers_are_counted() -> None:
    """By the loop's own timer, which is to have come half a second ago here."""

    async def main() -> Totals:
        async with await aiordma.listen("127.0.0.1", config=CONFIG):
            await endpoint_begun()
            own: Any = wake.current().locals["aiordma.admin.endpoint"].value
            own._due -= 0.5
            own._queued_s = float("inf")  # else a busy machine counts as the cause
            beats = len(own.late)
            await until(lambda: len(own.late) > beats)
            parts = answers.answer(wake.current(), Show(("totals",)), (0, 0))
            (found,) = [part for part in parts if isinstance(part, Totals)]
        return found

    found = asyncio.run(main())
    assert found.late_timers >= 1
    assert found.latest_timer_ms >= 500


def test_a_loop_that_begins_sweeps_what_killed_processes_have_left() -> None:
    """In its thread, when the device has been handed over."""
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        (loop,) = loops_of(other.pid)
        files = [Path(loop.home, loop.stem + suffix) for suffix in (directory.SOCKET, directory.PAGE)]
        other.kill()
        other.wait()

    async def main() -> None:
        async with await aiordma.listen("127.0.0.1", config=CONFIG):
            await until(lambda: not any(each.exists() for each in files))

    asyncio.run(main())


def _own_files() -> list[str]:
    with contextlib.closing(next(directory.makeable())) as home:
        return [name for name in os.listdir(home.path) if name.startswith(f"{os.getpid()}-")]


@pytest.mark.parametrize("step", ["pwrite", "short pwrite", "bind", "listen"])
def test_an_endpoint_that_cannot_be_had_leaves_no_files(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried in each place, and the log has one warning."""
    before, tried = _own_files(), []
    files = len(descriptors())

    def fail(*_: object) -> None:
        tried.append(step)
        raise OSError(errno.EMFILE, "Too many open files")

    def write_some(*_: object) -> int:
        tried.append(step)
        return 100

    monkeypatch.setattr(endpoint, "_warned", False)
    if step in ("bind", "listen"):
        monkeypatch.setattr(socket, "socket", type("Socket", (socket.socket,), {step: fail}))
    else:
        monkeypatch.setattr(os, "pwrite", fail if step == "pwrite" else write_some)
    assert endpoint.prepare("asyncio") is endpoint.prepare("asyncio") is None
    assert _own_files() == before
    assert len(tried) == 2 * len(list(map(directory.Directory.close, directory.makeable())))
    assert [record.levelname for record in caplog.records if "will not see" in record.message] == ["WARNING"]
    assert len(descriptors()) == files


def test_a_page_that_is_cut_off_kills_nobody(tmp_path: Path) -> None:
    """It was a mapping: whoever cut it off ended the process with SIGBUS at its next beat."""
    with contextlib.closing(directory.Directory(str(tmp_path), os.getuid())) as home:
        writer = page.PageWriter(home, "8-a", "asyncio")
        child = fork()
        if not child:
            os.truncate(tmp_path / "8-a.page", 0)
            writer.beat(3, 4)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        found = page.read(home, "8-a")
        assert found is not None
        assert (found.connections, found.completions) == (3, 4)
        writer.close()


def test_drafts_of_the_dead_are_swept() -> None:
    """What a process leaves that is killed in the microseconds in which it has one."""
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    with contextlib.closing(next(directory.makeable())) as home:
        left, own = (Path(home.path, f"{pid}-x{directory.DRAFT}") for pid in (dead.pid, os.getpid()))
        try:
            for each in (left, own):
                each.touch()
            endpoint.tidy()
            assert (left.exists(), own.exists()) == (False, True)
        finally:
            own.unlink()


def test_a_forked_child_is_not_its_parent() -> None:
    """What it has of the endpoint must not take requests in the parent's name."""

    def look() -> None:
        read, write = os.pipe()
        child = fork()
        if not child:  # it has nothing to do but to be there
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
        (loop,) = loops_of(os.getpid())
        listening = [line.split() for line in Path("/proc/net/unix").read_text("utf-8").splitlines()]
        (number,) = [row[6] for row in listening if row[-1].endswith(loop.stem + directory.SOCKET)]
        assert f"socket:[{number}]" in descriptors_of(os.getpid())
        anyio.run(until, lambda: f"socket:[{number}]" not in descriptors_of(child))
        os.close(write)
        os.waitpid(child, 0)

    async def main() -> None:
        async with await aiordma.listen("127.0.0.1", config=CONFIG):
            await anyio.to_thread.run_sync(look)

    asyncio.run(main())


def test_a_slow_process_gets_more_time_than_its_first_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page says that its loop comes by: a machine that is busy. Answered after the third look at it."""
    monkeypatch.setattr(conversation, "PATIENCE_S", 0.02)
    looked, comes_by = [0], asked.Loop.comes_by
    enough = threading.Event()

    def counted(loop: asked.Loop) -> bool:
        looked[0] += 1
        if looked[0] == 3:
            enough.set()
        return comes_by(loop)

    monkeypatch.setattr(asked.Loop, "comes_by", counted)
    stem = f"{os.getpid()}-slow"
    with contextlib.closing(next(directory.makeable())) as home, socket.socket(socket.AF_UNIX) as listening:
        writer = page.PageWriter(home, stem, "asyncio")
        listening.bind(home.address(stem + directory.SOCKET))
        listening.listen()

        def answer() -> None:
            sock, _ = listening.accept()
            with sock:
                enough.wait()
                sock.sendall(packed(Done()))

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            mine = [each for each in loops_of(os.getpid()) if each.stem == stem]
            (loop,) = asking.ask(EVERYTHING, mine, 0.02)
        finally:
            enough.set()
            thread.join()
            home.remove(stem)
            writer.close()
    assert (loop.state, looked[0] >= 3) == ("answered", True)


def test_a_stuck_loop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_STUCK_S", 0.5)
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        anyio.run(until, lambda: loops_of(other.pid)[0].page.connections == 4)
        other.say("sleep")
        assert other.hear() == "asleep"
        (loop,) = asking.ask(EVERYTHING, loops_of(other.pid), 1.0)
        assert loop.state == "stuck"
        assert loop.text.startswith("its event loop has not come by for ")
        assert loop.page.connections == 4
        other.say("wake up")
        assert other.hear() == "awake"
        assert ask_one(other.pid).state == "answered"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["in order", "thread", "overtaken"])
def test_a_loop_that_has_returned_is_stopped_not_stuck(
    loop: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose thread has ended, and one that an exception has ended before another began."""
    monkeypatch.setattr(asking, "_STUCK_S", 0.0)
    with returned(loop, how) as other:
        found = asking.ask(EVERYTHING, loops_of(other.pid), 0.05)
        assert len(found) == (2 if how == "overtaken" else 1)
        assert {each.state for each in found} == {"stopped"}, [each.text for each in found]


def test_a_loop_that_runs_again_answers_and_returns_again() -> None:
    with returned("asyncio", "in order") as other:
        assert other.stdin is not None
        assert other.stdout is not None
        (before,) = loops_of(other.pid)
        assert before.page.returned_ns
        other.stdin.write(f"{PATIENCE}\n")
        other.stdin.flush()
        anyio.run(until, lambda: loops_of(other.pid)[0].page.returned_ns == 0)
        assert ask_one(other.pid).state == "answered"
        other.kill()


def test_the_page_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    with contextlib.closing(directory.Directory(str(tmp_path), os.getuid())) as home:
        writer = page.PageWriter(home, "7-a", "asyncio")
        writer.beat(3, 4)
        found = page.read(home, "7-a")
        assert found is not None
        assert (found.pid, found.connections, found.completions, found.loop) == (os.getpid(), 3, 4, "asyncio")
        assert not found.is_over
        file = tmp_path / "7-a.page"
        data = bytearray(file.read_bytes())
        struct.pack_into("=Q", data, 8, 1)  # one generation in front, another one behind
        file.write_bytes(data)
        assert page.read(home, "7-a") is None
        writer.close()


def test_a_pid_that_was_given_again_is_not_the_process() -> None:
    assert directory.is_running(os.getpid(), directory.started(os.getpid()))
    assert not directory.is_running(os.getpid(), directory.started(os.getpid()) - 1)
