"""The file copy: complete, interrupted anywhere and resumed, with hostile peers."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.abc import SocketAttribute
from demolib.processes import Program
from filecopy.receiver import receive_files
from filecopy.sender import Sent, send_file
from filecopy.store import Partial, Refused, check_name
from filecopy.wire import BLOCK_BYTES, Channel, PeerError
from hypothesis import given
from hypothesis import strategies as st

import aiordma
from tests.processes import FULL_PATIENCE

from .conftest import EXAMPLES, MODES
from .stack import until

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from aiordma.config import Mode


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "from").mkdir()
    return tmp_path / "from"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


def make(directory: Path, name: str, size: int) -> Path:
    path = directory / name
    path.write_bytes(random.Random(size).randbytes(size))
    return path


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def ignore(done: int, total: int) -> None:
    pass


class Cut:
    """A stream that breaks after a given number of sent bytes."""

    def __init__(self, stream: Any, left: int) -> None:
        self._stream = stream
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, data: bytes) -> None:
        part = data[: self._left]
        self._left -= len(part)
        if part:
            await self._stream.send(part)
        if len(part) < len(data):
            await self._stream.aclose()
            raise anyio.BrokenResourceError


class Receiver:
    """A receiver in this process, for one connection after another."""

    def __init__(self, into: Path, mode: Mode) -> None:
        self.into = into
        self.mode = mode

    async def __aenter__(self) -> Self:
        self.listener = await aiordma.listen("127.0.0.1", 0, mode=self.mode)
        self.group = anyio.create_task_group()
        await self.group.__aenter__()
        self.group.start_soon(self.listener.serve, self._handle)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.group.cancel_scope.cancel()
        await self.group.__aexit__(None, None, None)
        await self.listener.aclose()

    async def connect(self) -> Any:
        port = self.listener.extra(SocketAttribute.local_port)
        return await aiordma.connect("127.0.0.1", port, mode=self.mode)

    async def take(self, path: Path, cut_after: int | None = None) -> Sent:
        async with await self.connect() as stream:
            shown: list[int] = []
            channel = Channel(stream if cut_after is None else Cut(stream, cut_after))  # type: ignore[arg-type]
            sent = await send_file(channel, path, lambda done, total: shown.append(done))
            assert shown[0] == sent.start
            assert shown[-1] == sent.size
            return sent

    async def _handle(self, stream: Any) -> None:
        async with stream:
            await receive_files(stream, str(self.into), "peer")


@pytest.mark.anyio
async def test_files_of_any_size(source: Path, into: Path, mode: Mode) -> None:
    async with Receiver(into, mode) as receiver, await receiver.connect() as stream:
        channel = Channel(stream)
        for size in (0, 1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 7):
            path = make(source, f"file {size} ä.bin", size)
            sent = await send_file(channel, path, ignore)
            assert sent == (size, 0, hashlib.sha256(path.read_bytes()).hexdigest())
            assert (into / path.name).read_bytes() == path.read_bytes()
    assert len(names(into)) == 6, "nothing else is left"


@pytest.mark.anyio
async def test_cut_off_again_and_again(source: Path, into: Path, mode: Mode) -> None:
    path = make(source, "big", 3 * BLOCK_BYTES + 12_345)
    part = into / ".big.part"
    rng = random.Random(7)
    starts = []
    async with Receiver(into, mode) as receiver:
        for cut_after in (0, 3, 50, 90, 5000, *(rng.randrange(BLOCK_BYTES // 2) for _ in range(6))):
            have = size_of(part)
            with pytest.raises((anyio.BrokenResourceError, anyio.IncompleteRead)):
                await receiver.take(path, cut_after)
            assert size_of(into / "big") == 0
            # The receiver may still be writing: wait until it has released the file.
            await until_unlocked(into, "big")
            assert size_of(part) >= have, "nothing that had arrived was lost"
            starts.append(have)
        sent = await receiver.take(path)
    assert starts[-1] > 0
    assert sent.start > 0
    assert (into / "big").read_bytes() == path.read_bytes()
    assert names(into) == ["big"]


async def until_unlocked(into: Path, name: str) -> None:
    while True:
        try:
            partial = Partial(str(into), name)
        except Refused:
            await anyio.sleep(0.005)
        else:
            partial.close()
            return


@pytest.mark.anyio
async def test_only_what_differs_is_sent_again(source: Path, into: Path, mode: Mode) -> None:
    path = make(source, "f", 3 * BLOCK_BYTES)
    content = bytearray(path.read_bytes())
    async with Receiver(into, mode) as receiver:
        content[BLOCK_BYTES + 5] ^= 1
        (into / ".f.part").write_bytes(content)
        assert (await receiver.take(path)).start == BLOCK_BYTES
        (into / ".f.part").write_bytes(path.read_bytes() + b"more than the file has")
        assert (await receiver.take(path)).start == path.stat().st_size
        (into / ".f.part").write_bytes(b"something else")
        assert (await receiver.take(path)).start == 0
    assert (into / "f").read_bytes() == path.read_bytes()


NAMES = ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", ".hidden", "a\0b", "a\nb", "a\x1b[2Jb"]
NAMES += ["x" * 241, "\udcff"]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names(name: str) -> None:
    with pytest.raises(Refused):
        check_name(name)


@given(name=st.text(max_size=20))
def test_no_name_leaves_the_directory(name: str) -> None:
    try:
        check_name(name)
    except Refused:
        return
    assert "/" not in name
    assert name not in ("", ".", "..")


@pytest.mark.anyio
@pytest.mark.parametrize("name", [*NAMES[:5], 7, None, ["x"]])
async def test_hostile_names_are_refused_by_the_receiver(into: Path, mode: Mode, name: object) -> None:
    async with Receiver(into, mode) as receiver, await receiver.connect() as stream:
        channel = Channel(stream)
        await channel.send("offer", name=name, size=1)
        with pytest.raises((PeerError, anyio.IncompleteRead)):
            await channel.receive("have")
    assert names(into) == []
    assert names(into.parent) == ["into"]


@pytest.mark.anyio
async def test_what_is_in_the_way_is_not_touched(source: Path, into: Path, mode: Mode) -> None:
    target = make(source, "outside", 10)
    before = target.read_bytes()
    (into / ".link.part").symlink_to(target)
    (into / "directory").mkdir()
    (into / "final").symlink_to(target)
    async with Receiver(into, mode) as receiver:
        for name, words in (("link", "cannot store"), ("directory", "is a directory")):
            with pytest.raises(PeerError, match=words):
                await receiver.take(make(source, name, 20))
        await receiver.take(make(source, "final", 20))
    assert target.read_bytes() == before
    assert not (into / "final").is_symlink(), "the link was replaced, not followed"


@pytest.mark.anyio
async def test_one_sender_at_a_time_for_a_name(source: Path, into: Path, mode: Mode) -> None:
    path = make(source, "f", 20)
    async with Receiver(into, mode) as receiver, await receiver.connect() as first:
        channel = Channel(first)
        await channel.send("offer", name="f", size=20)
        await channel.receive("have")
        with pytest.raises(PeerError, match="just being received"):
            await receiver.take(path)
        await channel.send("data", start=0)
        await first.send(path.read_bytes())
        await channel.send("end", sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        await channel.receive("done")


@pytest.mark.anyio
async def test_a_wrong_digest_never_gets_a_name(into: Path, mode: Mode) -> None:
    async with Receiver(into, mode) as receiver, await receiver.connect() as stream:
        channel = Channel(stream)
        await channel.send("offer", name="f", size=3)
        await channel.receive("have")
        await channel.send("data", start=0)
        await stream.send(b"abc")
        await channel.send("end", sha256="0" * 64)
        with pytest.raises(PeerError, match="digest does not agree"):
            await channel.receive("done")
    assert names(into) == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xffxxxx",
        b"\0\0\0\4nope",
        b"\0\0\0\2[]",
        b'\0\0\0\x10{"kind":"other"}',
        b'\0\0\0\x2a{"kind":"offer","name":"f","size":-1     }',
        b'\0\0\0\x2a{"kind":"offer","name":"f","size":true   }',
        b'\0\0\0\x2a{"kind":"offer","name":"f","size":"1"    }',
        b"\0\0",
    ],
)
async def test_garbage_ends_its_connection_only(
    source: Path, into: Path, mode: Mode, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with Receiver(into, mode) as receiver, await receiver.connect() as stream:
        await stream.send(data)
        await stream.send_eof()
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
        await receiver.take(make(source, "good", 10))
    assert names(into) == ["good"]
    assert next(r.levelname for r in caplog.records if r.name == "file_copy") == "WARNING"


@pytest.mark.anyio
async def test_a_sender_checks_what_the_receiver_says(source: Path, mode: Mode) -> None:
    path = make(source, "f", 10)
    answers: list[dict[str, object]] = [
        {"size": 5, "blocks": []},
        {"size": -1, "blocks": []},
        {"size": 5, "blocks": "x"},
        {"size": 5},
    ]

    async def lie(stream: Any) -> None:
        async with stream:
            channel = Channel(stream)
            await channel.receive("offer")
            await channel.send("have", **answers[0])
            await channel.at_end()

    async with (
        await aiordma.listen("127.0.0.1", 0, mode=mode) as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, lie)
        while answers:
            port = listener.extra(SocketAttribute.local_port)
            async with await aiordma.connect("127.0.0.1", port, mode=mode) as stream:
                with pytest.raises(PeerError):
                    await send_file(Channel(stream), path, ignore)
            answers.pop(0)
        group.cancel_scope.cancel()


# ---- as programs -----------------------------------------------------------------------------------------


class Programs:
    """The receiver as a process; senders are run against it."""

    def __init__(self, into: Path, mode: Mode) -> None:
        self.into = into
        self.mode = mode
        self.port = 0
        self.start()

    def start(self) -> None:
        self.receiver = Program(
            *self.command("receive"), "--listen", f"127.0.0.1:{self.port}", "--into", str(self.into),
            ready="listening on ",
        )  # fmt: skip
        self.port = int(self.receiver.first_line.rpartition(":")[2])

    def command(self, role: str) -> list[str]:
        return [sys.executable, str(EXAMPLES / "file_copy.py"), role, "--mode", self.mode]

    def send(self, *paths: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command("send"), f"127.0.0.1:{self.port}", *map(str, paths)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


@pytest.fixture
def programs(into: Path, mode: Mode) -> Any:
    programs = Programs(into, mode)
    yield programs
    programs.receiver.stop(signal.SIGKILL)
    assert "Traceback" not in programs.receiver.output


@pytest.mark.slow
def test_several_files_by_the_programs(programs: Programs, source: Path, into: Path) -> None:
    paths = [make(source, f"f{size}", size) for size in (0, 10, 5_000_000)]
    sender = programs.send(*paths)
    out, err = sender.communicate(timeout=FULL_PATIENCE)
    assert sender.returncode == 0, err
    for path in paths:
        assert (into / path.name).read_bytes() == path.read_bytes()
        assert f"{path.name}: {path.stat().st_size} bytes, SHA-256 " in out
    assert programs.receiver.stop(signal.SIGINT) == 130
    missing = programs.send(source / "missing")
    assert missing.communicate(timeout=FULL_PATIENCE)[1].count("\n") == 1, "one line, no traceback"
    assert missing.returncode == 1


@pytest.mark.slow
# The signal and the path have nothing to do with each other: each meets both ends.
@pytest.mark.parametrize(
    ("mode", "number", "victim"),
    [
        ("rdma", signal.SIGINT, "sender"),
        ("rdma", signal.SIGKILL, "receiver"),
        ("tcp", signal.SIGINT, "receiver"),
        ("tcp", signal.SIGKILL, "sender"),
    ],
    indirect=["mode"],
)
def test_stopped_in_the_middle_and_run_again(
    programs: Programs, source: Path, into: Path, victim: str, number: signal.Signals
) -> None:
    path = source / "big"
    size = 200_000_000
    with path.open("wb") as file:
        file.truncate(size)
        file.write(random.Random(1).randbytes(1_000_000))
    part = into / ".big.part"
    sender = programs.send(path)
    until(lambda: sender.poll() is not None or size_of(part) > 5_000_000, "the copy is under way")
    if victim == "sender":
        sender.send_signal(number)
        _, err = sender.communicate(timeout=FULL_PATIENCE)
        assert sender.returncode == (130 if number == signal.SIGINT else -9)
        assert number == signal.SIGKILL or "run it again to go on from here" in err
        assert "Traceback" not in err
    else:
        programs.receiver.stop(number)
        _, err = sender.communicate(timeout=FULL_PATIENCE)
        assert sender.returncode == 1
        assert "run it again to go on from here" in err
        assert not (into / "big").exists()
        programs.start()
    assert not (into / "big").exists()
    for _ in range(100):
        again = programs.send(path)
        out, err = again.communicate(timeout=FULL_PATIENCE)
        if "just being received" not in err:
            break
    assert again.returncode == 0, err
    assert "resumed at byte " in out
    digests = [subprocess.check_output(["sha256sum", str(p)]).split()[0] for p in (path, into / "big")]
    assert digests[0] == digests[1]
