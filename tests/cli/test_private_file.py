"""What `aiordma debug-bundle` and `adm capture` write: for the user alone, and where the user said."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from aiordma.cli.private_file import private_file

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534
only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")


def write(path: Path, data: bytes = b"secret") -> None:
    with private_file(path) as file:
        file.write(data)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def no_mask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def test_no_other_user_reads_it_at_any_time(tmp_path: Path) -> None:
    """Whatever was there before, and who has it open."""
    path = tmp_path / "it"
    path.touch(0o666)
    with open(path, "rb") as before:
        with private_file(path) as file:
            file.write(b"secret")
            file.flush()
            (draft,) = [each for each in tmp_path.iterdir() if each != path]
            assert mode(draft) == 0o600
            assert str(os.getpid()) not in draft.name
        assert before.read() == b""
    assert (mode(path), path.read_bytes(), os.listdir(tmp_path)) == (0o600, b"secret", ["it"])


def test_a_link_in_place_of_the_draft_cannot_be_made(tmp_path: Path) -> None:
    """The bundle's draft had the process's number as its name, and followed links."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for name in (f".it.{os.getpid()}", f".it.tgz.{os.getpid()}"):
        (tmp_path / name).symlink_to(victim)
    write(tmp_path / "it")
    write(tmp_path / "it.tgz")
    assert victim.read_bytes() == b"precious"


def test_an_own_link_leads_to_the_file(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    for _ in range(2):
        write(link)
        assert link.is_symlink()
        assert (target.read_bytes(), mode(target)) == (b"secret", 0o600)
        target.chmod(0o644)


@only_root
@pytest.mark.parametrize("kind", ["link", "file", "pipe"])
def test_another_users_is_refused(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / "it", tmp_path / "victim"
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "file":
        path.touch(0o666)
    else:
        os.mkfifo(path, 0o666)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(PermissionError, match="another user's"):
        write(path)
    assert os.listdir(tmp_path) == ["it"]


def test_pipes_and_devices_are_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    write(path)
    reader.join()
    assert found == [b"secret"]
    program = (
        "from pathlib import Path; from tests.cli.test_private_file import write; write(Path('/dev/stdout'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"secret"
    with open(tmp_path / "file", "wb") as to:
        subprocess.run([sys.executable, "-c", program], stdout=to, check=True)
    assert (tmp_path / "file").read_bytes() == b"secret"


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"before")
    with pytest.raises(TypeError), private_file(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path.joinpath("/dev/full"))
    assert (os.listdir(tmp_path), path.read_bytes()) == (["it"], b"before")
