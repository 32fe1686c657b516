"""Two hosts on one machine: network namespaces with a cable (veth) between them. Needs root; for tests and
benchmarks."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESSES = {"ipv4": ("10.78.0.1", "10.78.0.2"), "ipv6": ("fd78::1", "fd78::2")}
"""Of the near and the far end."""

_count = itertools.count()


class NoNamespacesError(RuntimeError):
    """Network namespaces cannot be created here."""


class Host(NamedTuple):
    namespace: str
    address: str
    address6: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *arguments]


def ip(*arguments: str) -> None:
    """Raise RuntimeError with the output of ``ip`` if it fails."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextlib.contextmanager
def namespaces(*names: str) -> Iterator[None]:
    """Raises NoNamespacesError."""
    made = []
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except RuntimeError as error:
                if "not permitted" not in str(error) and "denied" not in str(error):
                    raise
                raise NoNamespacesError(f"no network namespaces (they need root): {error}") from error
            made.append(name)
        yield
    finally:
        for name in made:
            ip("netns", "del", name)


@contextlib.contextmanager
def cable(near: str | None, far: str) -> Iterator[None]:
    """Connect two namespaces (None: the initial one), IPv4 and IPv6; the interface is "cable" in each.

    Frames of 4500 bytes are large enough for a path MTU of 4096.
    """
    first = ["netns", near] if near else []
    ip("link", "add", "cable", *first, "type", "veth", "peer", "name", "cable", "netns", far)
    try:
        for number, name in enumerate((near, far)):
            where = ["-n", name] if name else []
            v4, v6 = (addresses[number] for addresses in ADDRESSES.values())
            ip(*where, "addr", "add", f"{v4}/24", "dev", "cable")
            ip(*where, "addr", "add", f"{v6}/64", "dev", "cable", "nodad")
            ip(*where, "link", "set", "cable", "mtu", "4500", "up")
            ip(*where, "link", "set", "lo", "up")
        yield
    finally:
        ip("-n", far, "link", "del", "cable")


@contextlib.contextmanager
def cabled_hosts() -> Iterator[tuple[Host, Host]]:
    """Namespaces owned by this process. Raises NoNamespacesError."""
    number = next(_count)
    near, far = (f"aiordma-{os.getpid()}-{number}-{n}" for n in "ab")
    with namespaces(near, far), cable(near, far):
        addresses = zip(*ADDRESSES.values(), strict=True)
        first, second = (Host(name, *ends) for name, ends in zip((near, far), addresses, strict=True))
        yield first, second
