"""Two hosts for tests: network namespaces with a cable (veth) between them."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_count = itertools.count()


class Host(NamedTuple):
    namespace: str
    address: str
    address6: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *arguments]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def cabled_hosts() -> Iterator[tuple[Host, Host]]:
    """Both with IPv4 and IPv6; the cable takes frames of 4500 bytes."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces are for root to make")
    number = next(_count)
    names = [f"aiordma-{os.getpid()}-{number}-{n}" for n in "ab"]
    made = []
    try:
        for name in names:
            probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if probe.returncode:
                pytest.skip(f"network namespaces cannot be made here: {probe.stderr.strip()}")
            made.append(name)
        peer = ["peer", "name", "cable", "netns", names[1]]
        ip("link", "add", "cable", "netns", names[0], "type", "veth", *peer)
        for n, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.78.0.{n}/24", "dev", "cable")
            ip("-n", name, "addr", "add", f"fd78::{n}/64", "dev", "cable", "nodad")
            ip("-n", name, "link", "set", "cable", "mtu", "4500", "up")
            ip("-n", name, "link", "set", "lo", "up")
        first, second = (Host(name, f"10.78.0.{n}", f"fd78::{n}") for n, name in enumerate(names, 1))
        yield first, second
    finally:
        for name in made:
            ip("netns", "del", name)
