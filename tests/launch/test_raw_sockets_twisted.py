"""twisted's reactors use sockets themselves, without a loop of asyncio: `--report` says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("twisted", reason="twisted is not installed")

pytestmark = pytest.mark.slow
#: Two connections to itself, one after the other, each with so many writes.
PROGRAM = """
import sys
name = sys.argv[1]
if name != "default":
    __import__(f"twisted.internet.{name}", fromlist=["install"]).install()
from twisted.internet import defer, protocol, reactor, task
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol

class Echo(protocol.Protocol):
    def dataReceived(self, data):
        self.transport.write(data)

class Client(protocol.Protocol):
    def connectionMade(self):
        self.left, self.done = 3, defer.Deferred()
        self.transport.write(b"x")

    def dataReceived(self, data):
        self.left -= 1
        if self.left:
            self.transport.write(b"x")
        else:
            self.transport.loseConnection()

    def connectionLost(self, reason):
        self.done.callback(None)

async def main(reactor):
    listening = reactor.listenTCP(0, protocol.Factory.forProtocol(Echo), interface="127.0.0.1")
    port = listening.getHost().port
    for _ in range(2):
        client = await connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", port), Client())
        await client.done
    await listening.stopListening()
    print(port, type(reactor).__name__)

task.react(lambda reactor: defer.ensureDeferred(main(reactor)))
"""
REACTORS = {
    "default": "EPollReactor",
    "pollreactor": "PollReactor",
    "selectreactor": "SelectReactor",
    "asyncioreactor": "AsyncioSelectorReactor",
}


@pytest.mark.parametrize("name", REACTORS)
def test_each_connection_is_counted_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "aiordma", "run", "--report", "program.py", name],
        capture_output=True, text=True, timeout=FULL_PATIENCE, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    port, reactor = done.stdout.split()
    assert reactor == REACTORS[name]
    rows = re.findall(r"(?m)^  (\w+) +(\d+)  (\S+ \S+) +(.*)$", done.stderr)
    why = "the program uses the socket itself"
    assert sorted(rows) == [
        ("tcp", "2", "client 127.0.0.1", why),
        ("tcp", "2", f"server 127.0.0.1:{port}", why),
    ], done.stderr
