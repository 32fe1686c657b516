"""How tools ask: one request to every process at once, with a limit of time for each."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Literal

from . import page, place
from .credentials import credentials
from .messages import (
    HEADER,
    MAX_ANSWER_BYTES,
    Answer,
    Done,
    FromTool,
    GarbageError,
    Identity,
    Refused,
    length_of,
    packed,
    parse_answer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .page import Page
    from .place import Place

__all__ = ["PATIENCE_S", "Loop", "ask", "loops"]

#: How long a process may take for each step of its answer; and in all, if it is only slow: its loop comes by.
PATIENCE_S = 1.0
_MOST_S = 10.0
#: A loop that has been away for so long is stuck: its timer comes every second.
_STUCK_S = 3.0

State = Literal["answered", "refused", "stuck", "no answer", "not allowed"]


class Loop:
    """One event loop of one process, and what it has answered."""

    def __init__(self, home: str, stem: str, uid: int, page: Page) -> None:
        self.home, self.stem, self.uid, self.page = home, stem, uid, page
        self.parts: list[Answer] = []
        self.state: State = "no answer"
        #: why there is no whole answer, for people
        self.text = ""

    @property
    def identity(self) -> Identity | None:
        """What it says of itself."""
        return next((part for part in self.parts if isinstance(part, Identity)), None)

    def comes_by(self) -> bool:
        """Whether its page, read anew, says that the loop is at work."""
        with contextlib.suppress(OSError), contextlib.closing(place.Place(self.home, self.uid)) as home:
            seen = page.read(home, self.stem)
            if seen is not None:
                self.page = seen
        return self.page.silent_s < 2 * page.BEAT_SECONDS

    @property
    def count(self) -> int:
        """What its last message counts."""
        last = self.parts[-1] if self.parts else None
        return last.count if isinstance(last, Done) else 0


def loops(wanted: Callable[[Page], bool] | None = None) -> list[Loop]:
    """All loops of this user's processes (for root: of all users') that run. Leftovers of killed processes
    are removed."""
    found = []
    for home in place.places():
        with contextlib.closing(home):
            for stem in home.stems():
                seen = page.read(home, stem)
                if seen is None:
                    continue
                if seen.is_over:
                    if home.uid == os.getuid():
                        home.remove(stem)
                elif wanted is None or wanted(seen):
                    found.append(Loop(home.path, stem, home.uid, seen))
    return sorted(found, key=lambda each: (each.page.pid, each.stem))


class _Conversation:
    """With one loop."""

    def __init__(self, loop: Loop, home: Place, request: bytes) -> None:
        self.loop, self._request = loop, request
        self._input = bytearray()
        self.began = time.monotonic()
        self.deadline = self.began + PATIENCE_S
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self.sock.connect(home.address(loop.stem + place.SOCKET))
            if credentials(self.sock)[1] not in (loop.uid, 0):
                raise PermissionError(errno.EPERM, "another user answers in its place")
            self.sock.send(self._request)  # it is short, and nothing is there yet
        except BaseException:
            self.sock.close()
            raise

    def is_over(self) -> bool:
        """Whether its time has passed. A busy machine gets more of it than a loop that stands still."""
        now = time.monotonic()
        if now < self.deadline:
            return False
        self.deadline = min(now + PATIENCE_S, self.began + _MOST_S)
        return now >= self.deadline or not self.loop.comes_by()

    def read(self) -> bool:
        """Whether more is to come. :raises GarbageError: or OSError"""
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "it ended in the middle of its answer")
        self.deadline = time.monotonic() + PATIENCE_S
        self._input += data
        at = 0
        while len(self._input) - at >= HEADER.size:
            length = length_of(bytes(self._input[at : at + HEADER.size]), MAX_ANSWER_BYTES)
            end = at + HEADER.size + length
            if len(self._input) < end:
                break
            part = parse_answer(bytes(self._input[at + HEADER.size : end]))
            self.loop.parts.append(part)
            at = end
            if isinstance(part, (Done, Refused)):
                self.loop.state = "answered" if isinstance(part, Done) else "refused"
                self.loop.text = part.text
                return False
        del self._input[:at]
        return True


def ask(request: FromTool, whom: Iterable[Loop], patience_s: float = PATIENCE_S) -> list[Loop]:
    """Ask each of them, at the same time. :return: those that are still there, with their answers.

    :param patience_s: for requests that take time.
    """
    message = packed(request)
    asked = list(whom)
    with selectors.DefaultSelector() as selector:
        for loop in asked:
            try:
                with contextlib.closing(place.Place(loop.home, loop.uid)) as home:
                    conversation = _Conversation(loop, home, message)
            except BlockingIOError:
                _no_answer(loop, "as many tools wait for its answer as can")
            except PermissionError as error:
                loop.state, loop.text = "not allowed", error.strerror or str(error)
            except OSError as error:
                _lost(loop, error)
            else:
                conversation.deadline += patience_s - PATIENCE_S
                selector.register(conversation.sock, selectors.EVENT_READ, conversation)
        _listen(selector)
    return [loop for loop in asked if loop.state != "no answer" or not loop.page.is_over]


def _listen(selector: selectors.BaseSelector) -> None:
    while selector.get_map():
        now = time.monotonic()
        first = min(key.data.deadline for key in selector.get_map().values())
        for key, _ in selector.select(max(0.0, first - now)):
            conversation: _Conversation = key.data
            try:
                if conversation.read():
                    continue
            except GarbageError as error:
                conversation.loop.state, conversation.loop.text = "refused", str(error)
            except OSError as error:
                _lost(conversation.loop, error)
            selector.unregister(conversation.sock)
            conversation.sock.close()
        for key in list(selector.get_map().values()):
            if key.data.is_over():
                waited = time.monotonic() - key.data.began
                _no_answer(key.data.loop, f"it has not answered in {waited:.1f} s")
                selector.unregister(key.fileobj)
                key.data.sock.close()


def _no_answer(loop: Loop, why: str) -> None:
    silent = loop.page.silent_s
    if silent >= _STUCK_S:
        loop.state = "stuck"
        loop.text = (
            f"its event loop has not come by for {silent:.0f} s; it had {loop.page.connections} connections"
        )
    else:
        loop.text = f"{why}; its event loop came by {silent:.1f} s ago"


def _lost(loop: Loop, error: OSError) -> None:
    loop.text = error.strerror or str(error)
