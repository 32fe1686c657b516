"""The file of plain servers: it outlives the process, expires, stays small, and is nobody else's."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import threading
import time
from typing import TYPE_CHECKING

import pytest

from aiordma.negotiation import plain_peers
from aiordma.negotiation.plain_peers import LIFETIME_S, PlainPeers, cache_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "plain-peers"


def test_another_process_knows(path: Path) -> None:
    peers = PlainPeers(path)
    assert not peers.is_plain("db", 5000)
    peers.remember("db", 5000, True)
    peers.remember("db", 5000, True)
    assert path.read_text().count("\n") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    later = PlainPeers(path)
    assert later.is_plain("db", 5000)
    assert not later.is_plain("db", 5001)
    later.remember("db", 5000, False)
    assert not PlainPeers(path).is_plain("db", 5000)


def test_findings_expire(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PlainPeers(path).remember("db", 5000, True)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + LIFETIME_S + 2)
    assert not PlainPeers(path).is_plain("db", 5000)
    monkeypatch.setattr(time, "time", lambda: now - LIFETIME_S)  # the clock was wrong then
    assert not PlainPeers(path).is_plain("db", 5000)


def test_whatever_is_in_the_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe\n1 2\nnan a b\n9e99 host 1\n\n" + f"{int(time.time()) + 60} ok 7\n9".encode())
    peers = PlainPeers(path)
    assert peers.is_plain("ok", 7)
    assert not peers.is_plain("host", 1)


def test_a_file_that_others_may_write_is_not_believed(path: Path) -> None:
    PlainPeers(path).remember("db", 5000, True)
    path.chmod(0o666)
    assert not PlainPeers(path).is_plain("db", 5000)


def test_a_link_is_not_written_through(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    PlainPeers(path).remember("db", 5000, True)
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    peers = PlainPeers(tmp_path / "file" / "plain-peers")
    peers.remember("db", 5000, True)
    assert peers.is_plain("db", 5000)  # in this process


def test_a_pipe_in_its_place_is_not_waited_for(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path, 0o600)
    peers = PlainPeers(path)
    assert not peers.is_plain("db", 5000)
    peers.remember("db", 5000, True)
    assert peers.is_plain("db", 5000)
    assert not PlainPeers(path).is_plain("db", 5000)


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one that could not be written stayed beside it."""
    monkeypatch.setattr(plain_peers, "_MAX_BYTES", 15)
    path.parent.mkdir()
    victim = path.parent / "victim"
    victim.write_text("precious")
    (path.parent / f"plain-peers.{os.getpid()}").symlink_to(victim)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        PlainPeers(path).remember("db", 5000, True)
    assert PlainPeers(path).is_plain("db", 5000)
    assert sorted(os.listdir(path.parent)) == ["plain-peers", f"plain-peers.{os.getpid()}", "victim"]
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("room", range(1, 5))
def test_a_line_that_was_cut_off_is_none(path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A full disk takes a part of it: port 50 is not port 5000."""
    PlainPeers(path).remember("before", 5000, True)

    def write(descriptor: int, data: bytes, true: Callable[[int, bytes], int] = os.write) -> int:
        return true(descriptor, data[:-room])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        PlainPeers(path).remember("db", 5000, True)
    found = PlainPeers(path)
    assert not [port for port in (5, 50, 500, 5000) if found.is_plain("db", port)]
    PlainPeers(path).remember("db", 5001, True)
    PlainPeers(path).remember("db", 5002, True)
    found = PlainPeers(path)
    assert found.is_plain("before", 5000)
    assert found.is_plain("db", 5002)  # the line behind the cut one may be lost with it


def test_the_file_stays_small(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_peers, "_MAX_BYTES", 4096)
    monkeypatch.setattr(plain_peers, "_KEPT_LINES", 20)
    peers = PlainPeers(path)
    for number in range(1000):
        peers.remember(f"host{number}", 1, True)
        assert path.stat().st_size < 4096 + 100
    assert PlainPeers(path).is_plain("host999", 1)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("host", ["a b", "a\nb", "x" * 300, "ü"])
def test_names_that_do_not_fit_a_line(path: Path, host: str) -> None:
    PlainPeers(path).remember(host, 1, True)
    assert not path.exists()


def test_many_writers_at_the_same_time(path: Path) -> None:
    def write(writer: int) -> None:
        for number in range(50):
            PlainPeers(path).remember(f"host{writer}", number + 1, True)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peers = PlainPeers(path)
    assert all(peers.is_plain(f"host{writer}", number + 1) for writer in range(8) for number in range(50))


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_file() == "/cache/aiordma/plain-peers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/me")
    assert cache_file() == "/me/.cache/aiordma/plain-peers"


def test_nothing_is_remembered_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry in /etc/passwd, as in a container: a folder ``~`` was made where the program
    runs."""

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    peers = PlainPeers(cache_file())
    peers.remember("server", 80, True)
    assert peers.is_plain("server", 80)
    assert list(tmp_path.iterdir()) == []
