"""The two ends of a test: the kernel's rxe here, the software device in another network namespace."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tests import cable as cables
from tests.cable import ADDRESSES, namespaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NAMESPACE = "soft"
CLONE_NEWNET = 0x40000000  # sched.h
RXE, SOFT = "rxe0", "soft0"
MTU = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}


def gid(address: str) -> str:
    """As pyverbs writes it: all its digits."""
    if ":" in address:
        return ipaddress.IPv6Address(address).exploded
    low = int(ipaddress.IPv4Address(address))
    return f"{'0000:' * 5}ffff:{low >> 16:04x}:{low & 0xFFFF:04x}"


def inside(*command: str, namespace: str = NAMESPACE) -> list[str]:
    """That command in the software device's namespace, or in another one."""
    return ["ip", "netns", "exec", namespace, *command]


def enter(namespace: Path) -> None:
    """Moves this thread to a network namespace, which a file stands for."""
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))


@contextlib.contextmanager
def namespaced(name: str) -> Iterator[None]:
    """For this thread; sockets that it makes stay there."""
    before = Path(f"/proc/self/task/{threading.get_native_id()}/ns/net")
    with before.open() as held:
        enter(Path("/run/netns", name))
        yield
        enter(Path(f"/proc/self/fd/{held.fileno()}"))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


@contextlib.contextmanager
def cable(near: str | None = None, far: str = NAMESPACE) -> Iterator[None]:
    """Between two namespaces that it makes (None: the initial one, the only one where rxe works)."""
    with namespaces(*(name for name in (near, far) if name)), cables.cable(near, far):
        yield


@contextlib.contextmanager
def rxe(name: str = RXE, interface: str = "cable") -> Iterator[None]:
    run("rdma", "link", "add", name, "type", "rxe", "netdev", interface)
    try:
        yield
    finally:
        run("rdma", "link", "del", name)


@contextlib.contextmanager
def netem(*harm: str, near: str | None = None, far: str = NAMESPACE) -> Iterator[None]:
    """What `tc netem` does to packets of the cable, in both directions."""
    commands = [["tc", "-n", name] if name else ["tc"] for name in (near, far)]
    for command in commands:
        run(*command, "qdisc", "add", "dev", "cable", "root", "netem", "limit", "10000", *harm)
    try:
        yield
    finally:
        for command in commands:
            run(*command, "qdisc", "del", "dev", "cable", "root")


class End:
    """A process of peer.py. Its methods are those of Peer there."""

    def __init__(
        self, device: str, environ: dict[str, str], library: Path, namespace: str = NAMESPACE
    ) -> None:
        self.device = device
        command = [sys.executable, str(Path(__file__).with_name("peer.py")), device]
        if device == SOFT:
            command = inside("env", f"LD_PRELOAD={library}", *command, namespace=namespace)
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        hello = self._answer()
        self.addr: int = hello["addr"]
        self.rkey: int = hello["rkey"]
        self.mtu: int = hello["mtu"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the end on {self.device} is gone: {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, f"{self.device}: {answer['error']}"
        return answer

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": name, "args": args, **kwargs}) + "\n")
            self._process.stdin.flush()
            return self._answer()["result"]

        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


class Side(NamedTuple):
    """One end with its queue pair of a connection."""

    end: End
    qpn: int
    gid: str
    peer_addr: int
    peer_rkey: int

    def post(self, what: str, **kwargs: Any) -> None:
        self.end.post(self.qpn, what, **kwargs)

    def receive(self, wr_id: int, **kwargs: Any) -> None:
        self.end.receive(self.qpn, wr_id, **kwargs)

    def completions(self, count: int, seconds: float = 30) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.end.poll(count, seconds)
        assert len(found) == count, f"{self.end.device}: {len(found)} of {count} completions: {found[-8:]}"
        return found

    def completion(self) -> dict[str, Any]:
        return self.completions(1)[0]

    def remote(self, offset: int = 0) -> dict[str, int]:
        """Arguments of a one-sided operation on the peer's memory."""
        return {"raddr": self.peer_addr + offset, "rkey": self.peer_rkey}

    def close(self) -> None:
        self.end.close(self.qpn)


def connect(
    first: End,
    second: End,
    family: str,
    mtu: int = 1024,
    *,
    kind: str = "rc",
    psn: int = 0xFFFFF8,
    **settings: int,
) -> tuple[Side, Side]:
    """A connection between them. ``psn``: of the first one's first packet; the other's is as far on again."""
    gids = {device: gid(address) for device, address in zip((RXE, SOFT), ADDRESSES[family], strict=True)}
    qpns = [first.make(kind), second.make(kind)]
    ends: Iterable[tuple[End, End, int, int, int, int]] = (
        (first, second, qpns[0], qpns[1], psn, (psn + 3) & 0xFFFFFF),
        (second, first, qpns[1], qpns[0], (psn + 3) & 0xFFFFFF, psn),
    )
    sides = []
    for end, other, qpn, to_qpn, sq_psn, rq_psn in ends:
        here, there = gids[end.device], gids[other.device]
        if kind != "ud":
            number = end.connect(
                qpn, gid=here, to=there, to_qpn=to_qpn, mtu=MTU[mtu], sq_psn=sq_psn, rq_psn=rq_psn, **settings
            )
            assert number == MTU[mtu], f"{end.device} has path MTU {number}"
        sides.append(Side(end, qpn, here, other.addr, other.rkey))
    return sides[0], sides[1]
