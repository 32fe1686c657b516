"""Endpoints that others have made: what they say stands for their own processes, and ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiordma.admin import asking, conversation, directory, page
from aiordma.admin.messages import Done, Task, Tasks, packed
from aiordma.admin.requests import Capture, Show
from tests.processes import FULL_PATIENCE

from .looking import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiordma.admin.asked import Loop

NOBODY = 65534
AIORDMA = [sys.executable, "-m", "aiordma"]
PART = packed(Tasks([Task("t", ["x" * 1000] * 60)]))


@contextlib.contextmanager
def endpoint(name: str, answer: Callable[[socket.socket], None]) -> Iterator[Loop]:
    """One of this process, whose answers a thread makes."""
    stem, homes = f"{os.getpid()}-{name}", list(directory.makeable())
    with contextlib.ExitStack() as stack:
        for home in homes:
            stack.enter_context(contextlib.closing(home))
        home = homes[0]
        writer = stack.enter_context(contextlib.closing(page.PageWriter(home, stem, "asyncio")))
        stack.callback(home.remove, stem)
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(home.address(stem + directory.SOCKET))
        listening.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                sock, _ = listening.accept()
                with sock:
                    answer(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        stack.callback(thread.join)
        stack.callback(listening.shutdown, socket.SHUT_RDWR)
        writer.beat(0, 0)
        (loop,) = [each for each in asking.loops(pid=os.getpid()) if each.stem == stem]
        yield loop


def endless(sock: socket.socket) -> None:
    while True:
        sock.sendall(PART)


def drip(sock: socket.socket) -> None:
    """A whole part again and again, each long before patience ends."""
    pause = threading.Event()
    while True:
        sock.sendall(packed(Tasks([])))
        pause.wait(0.01)


def test_an_answer_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_MOST_BYTES", 1 << 20)
    with endpoint("endless1", endless) as loop:
        asking.ask(EVERYTHING, [loop])
        assert (loop.state, loop.text) == ("refused", "its answer is longer than 1048576 bytes")
        assert len(loop.parts) <= (1 << 20) // len(PART)


def test_an_answer_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_ANSWER_S", 0.2)
    with endpoint("drip1", drip) as loop:
        asking.ask(EVERYTHING, [loop], 0.1)
        assert loop.state == "refused"
        assert loop.text.startswith("its answer has not ended after ")


def test_all_answers_have_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_ALL_S", 0.2)
    monkeypatch.setattr(asking, "_AT_A_TIME_OF_USER", 1)
    with endpoint("drip1", drip) as first, endpoint("drip2", drip) as second:
        asking.ask(EVERYTHING, [first, second], 0.1)
        assert first.text.startswith("it has not answered in ")
        assert second.text.startswith("there was no time left to ask it")


@pytest.mark.parametrize("request_", [EVERYTHING, Capture("take")], ids=["rows", "packets"])
def test_the_answers_of_a_user_have_a_size_together(
    monkeypatch: pytest.MonkeyPatch, request_: Show | Capture
) -> None:
    monkeypatch.setattr(conversation, "_MOST_OF_USER", 3 << 20)
    monkeypatch.setattr(conversation, "_PACKETS_OF_USER", 3 << 20)
    with endpoint("endless1", endless) as first, endpoint("endless2", endless) as second:
        loops = [first, second]
        asking.ask(request_, loops)
        for loop in loops:
            assert loop.state == "refused"
            assert loop.text == f"the processes of its user answer with more than {3 << 20} bytes"
        assert sum(len(loop.parts) for loop in loops) <= (3 << 20) // len(PART)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["stat", "--all"], 3),
        (["stat", "--all", "--json"], 3),
        (["top", "--json", "--count", "1"], 0),
        (["adm", "trim"], 4),
        (["debug-bundle", "--no-doctor"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("way", ["endless", "odd"])
def test_every_tool_ends(way: str, command: list[str], status: int, tmp_path: Path) -> None:
    """Endless: it was listened to until the tool was killed. Odd: values that no program has."""
    program = [sys.executable, "-m", "tests.admin.impostor", way]
    with subprocess.Popen(program, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as impostor:
        try:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == b"ready\n"
            pid = ["--pid", str(impostor.pid)]
            at = 1 if command[0] == "adm" else len(command)
            done = subprocess.run(
                [*AIORDMA, *command[:at], *pid, *command[at:]],
                cwd=tmp_path,
                capture_output=True,
                timeout=FULL_PATIENCE,
                check=False,
            )
        finally:
            impostor.kill()
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.returncode in (0, status), done.stderr.decode()
    if way == "endless":
        assert done.returncode == status


def _page(folder: Path, stem: str, pid: int, namespace: int) -> None:
    """A page that names another process."""
    numbers = 1, pid, namespace, directory.started(pid), 0, 0, 0
    data = page._FIXED.pack(b"aiordma1", *numbers, b"asyncio", b"victim") + struct.pack("=Q", 1)
    (folder / f"{stem}.page").write_bytes(data.ljust(4096, b"\0"))


@pytest.mark.parametrize("where", ["here", "in a container"])
def test_a_page_cannot_stand_for_another_process(where: str) -> None:
    """It names one of the same user; this process answers."""
    with endpoint("mine1", endless) as loop, subprocess.Popen(["sleep", "1000"]) as other:
        try:
            namespace = directory.namespace() + (where != "here")
            _page(Path(loop.home), loop.stem, other.pid, namespace)
            found = [each for each in asking.loops(pid=other.pid) if each.stem == loop.stem]
            assert len(found) == 1
            asking.ask(EVERYTHING, found)
        finally:
            other.kill()
    assert (found[0].state, found[0].parts) == ("not allowed", [])
    assert found[0].text == f"process {os.getpid()} answers in its place"


def _directory_of_nobody() -> Path:
    """One that is not there: programs that this user has run have left theirs."""
    for folder in map(Path, directory._shared_bases(NOBODY)):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise AssertionError("all names are taken")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_users_page_cannot_name_a_process_of_another() -> None:
    folder = _directory_of_nobody()
    try:
        (folder / "admin").mkdir(mode=0o700)
        _page(folder / "admin", "1-root", os.getpid(), directory.namespace())
        for each in (folder, folder / "admin"):
            os.chown(each, NOBODY, NOBODY)
        assert [each.home for each in asking.loops() if each.uid == NOBODY] == []
    finally:
        shutil.rmtree(folder)


#: Names under which a user's directories are, and names of his choice.
NAMES = [f"aiordma-{NOBODY}", f"aiordma-{NOBODY}.7", *(f"aiordma-{number}" for number in range(1, 100))]


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """One user has made many directories with many pages each. :return: what is read of them."""
    for name in [*NAMES, "aiordma-other", f"aiordma-{NOBODY}.8", "aiordma-01"]:
        admin = tmp_path / name / "admin"
        admin.mkdir(mode=0o700, parents=True)
        for number in range(10):
            _page(admin, f"1-{number}", 1, directory.namespace() + 1)
            (admin / f"2-{number}.killed").write_bytes(b"")
        for each in (admin.parent, admin):
            each.chmod(0o700)
            os.chown(each, NOBODY, NOBODY)
    (tmp_path / "aiordma-1000").symlink_to(tmp_path / NAMES[0])
    monkeypatch.setattr(directory, "_SHARED", (str(tmp_path),))
    read: list[tuple[str, str]] = []
    actual = page.read

    def seen(home: directory.Directory, stem: str, *suffix: str) -> page.Page | None:
        if home.uid == NOBODY:
            read.append((Path(home.path).parent.name, stem))
        return actual(home, stem, *suffix)

    monkeypatch.setattr(page, "read", seen)
    return read


@pytest.mark.skipif(os.getuid() != 0, reason="only root looks at what other users have")
def test_no_user_has_more_loops_for_having_more_directories(
    crowd: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_MOST_LOOPS", 25)
    found = [each for each in asking.loops() if each.uid == NOBODY]
    assert len(found) == len(crowd) == 25
    assert {f"aiordma-{NOBODY}", f"aiordma-{NOBODY}.7"} < {name for name, _ in crowd}


@pytest.mark.skipif(os.getuid() != 0, reason="only root looks at what other users have")
def test_no_user_has_more_killed_processes_for_having_more_directories(
    crowd: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MOST_KILLED_READ", 25)
    asking.killed()
    assert len(crowd) == 25
    assert {f"aiordma-{NOBODY}", f"aiordma-{NOBODY}.7"} < {name for name, _ in crowd}


@pytest.mark.skipif(os.getuid() != 0, reason="only root looks at what other users have")
def test_only_so_many_directories_of_a_user_are_opened(crowd: list[tuple[str, str]]) -> None:
    opened = []
    for home in directory.places():
        with contextlib.closing(home):
            if home.uid == NOBODY:
                opened.append(Path(home.path).parent.name)
    assert len(opened) == directory._MOST_PLACES
    assert opened[:2] == NAMES[:2]
    assert set(opened) <= set(NAMES)


def test_a_directory_with_more_names_than_a_user_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_MOST_NAMES", 50)
    tmp_path.chmod(0o700)
    for number in range(100):
        (tmp_path / f"1-{number}.page").touch()
        (tmp_path / f"1-{number}.killed").touch()
    with contextlib.closing(directory.Directory(str(tmp_path), os.getuid())) as home:
        assert 0 < len(home.stems()) + len(home.killed()) <= 100


def test_a_link_in_place_of_the_socket_is_not_followed(tmp_path: Path) -> None:
    """To a socket that only root can reach, for example."""
    other = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening, endpoint("link1", lambda sock: None) as loop:
        listening.bind(str(other))
        listening.listen()
        listening.setblocking(False)
        path = Path(loop.home, f"{loop.stem}{directory.SOCKET}")
        path.rename(path.with_suffix(".moved"))
        try:
            path.symlink_to(other)
            asking.ask(EVERYTHING, [loop])
        finally:
            path.with_suffix(".moved").replace(path)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert (loop.state, loop.parts) == ("no answer", [])


def test_a_pid_names_the_process_here_before_those_of_containers() -> None:
    """``adm --pid`` changed both, as if they were one process."""
    with endpoint("here1", lambda sock: sock.sendall(packed(Done()))) as loop:
        there = [f"{os.getpid()}-there{number}" for number in (1, 2)]
        for number, stem in enumerate(there, 1):
            _page(Path(loop.home), stem, os.getpid(), directory.namespace() + number)
        try:
            assert [each.stem for each in asking.loops(pid=os.getpid())] == [loop.stem]
            Path(loop.home, f"{loop.stem}.page").unlink()
            found = asking.loops(pid=os.getpid())
            assert [each.stem for each in found] == there
            command = [*AIORDMA, "adm", "--pid", str(os.getpid()), "trim"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 2
            assert "there are 2 processes" in done.stderr
        finally:
            for stem in there:
                Path(loop.home, f"{stem}.page").unlink()
