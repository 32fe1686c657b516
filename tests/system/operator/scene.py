"""Two servers under load, as an operator finds them: feed.py with two readers, and shop.py with a buyer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HERE = Path(__file__).parent
_COMMAND = "import sys; from aiordma.cli.main import main; main(prog_name='aiordma')"


class Program:
    """One of them. :param settings: more of its environment."""

    def __init__(self, name: str, *arguments: object, **settings: str) -> None:
        self.name = f"{name}.py"
        environment = {**os.environ, "AIORDMA_DEVICE": DEVICE, **settings}
        command = [sys.executable, str(_HERE / self.name), *map(str, arguments)]
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )
        self.pid = self._popen.pid
        #: as tools call it
        self.shown = f"{self.name}[{self.pid}]"
        #: the same in a pattern
        self.named = re.escape(self.shown)

    def hear(self) -> str:
        """Its next line."""
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()

    def say(self, word: str) -> str:
        """:return: what it answers."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{word}\n")
        self._popen.stdin.flush()
        return self.hear()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def log(self) -> str:
        """End it. :return: what it has said on stderr."""
        self._popen.send_signal(signal.SIGINT)
        return self._popen.communicate(timeout=FULL_PATIENCE)[1]

    def end(self) -> None:
        """As Ctrl-C does: it closes its event loop, and was not killed."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGINT)
        try:
            self._popen.communicate(timeout=FULL_PATIENCE)
        finally:
            self._popen.kill()


class Scene:
    """All of them, and what tools say about them."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        # A link that delivers nothing is given up after nine seconds of silence, and not before.
        probes = {"AIORDMA_KEEPALIVE_MS": "4000"}
        self.feed = self._begin("feed", AIORDMA_MEMORY_LIMIT_BYTES=str(4 << 20), **probes)
        self.shop = self._begin("shop")
        at = self.feed.hear()
        self.readers = [
            self._begin("reader", at, AIORDMA_RING_BYTES=str(64 << 10), **probes) for _ in range(2)
        ]
        self.buyer = self._begin("buyer", self.shop.hear())
        for each in (*self.readers, self.buyer):
            assert each.hear() == "begun"
        self._page = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "top", "--serve", "0", "-i", "0.5"],
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._end_page)
        assert self._page.stdout is not None
        self.address = self._page.stdout.readline().partition(" ")[0]

    def _begin(self, name: str, *arguments: object, **settings: str) -> Program:
        program = Program(name, *arguments, **settings)
        self._stack.callback(program.end)
        return program

    def _end_page(self) -> None:
        self._page.terminate()
        self._page.communicate()

    def page(self) -> dict[str, Any]:
        """What the live page has now."""
        with urllib.request.urlopen(f"{self.address}top.json") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def sentences(self) -> list[str]:
        """Its sentences."""
        return [each["text"] for each in self.page()["sentences"]]

    def until_page(self, holds: Callable[[dict[str, Any]], object]) -> None:
        """Wait until the live page has it."""
        deadline = time.monotonic() + FULL_PATIENCE
        while not holds(page := self.page()):
            said = "\n".join(each["text"] for each in page["sentences"])
            assert time.monotonic() < deadline, f"it never came true; the sentences:\n{said}"
            time.sleep(0.2)

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until a sentence of the live page begins so."""
        found: list[re.Match[str]] = []

        def is_said(page: dict[str, Any]) -> bool:
            matches = (re.match(pattern, each["text"]) for each in page["sentences"])
            found.extend(filter(None, matches))
            return bool(found)

        self.until_page(is_said)
        return found[0]

    def command(self, *arguments: str) -> str:
        """What ``aiordma`` prints."""
        command = [sys.executable, "-c", _COMMAND, *arguments]
        environment = {**os.environ, "COLUMNS": "200"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return done.stdout + done.stderr


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    """Until the block is left."""
    with contextlib.ExitStack() as stack:
        yield Scene(stack)
