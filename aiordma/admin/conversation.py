"""A tool's conversation with one event loop: whether it is the one it says, and limits of its answer."""

from __future__ import annotations

import errno
import socket
import time
from typing import TYPE_CHECKING

from . import directory
from .credentials import credentials
from .messages import HEADER, MAX_ANSWER_BYTES, Done, GarbageError, Refused, length_of, packed, parse_answer
from .requests import Capture, FromTool, Inspect

if TYPE_CHECKING:
    from .asked import Loop
    from .directory import Directory

#: How long a process may take for each step of its answer; and in all, if it is only slow: its loop comes by.
PATIENCE_S = 1.0
_MOST_S = 10.0
#: For the whole answer, however busily it comes.
_ANSWER_S = 30.0
#: Bytes of one answer, and of those of all loops of a user: of rows, and with the packets of a capture.
_MOST_BYTES, _MOST_OF_USER = 24 << 20, 64 << 20
_PACKETS_BYTES, _PACKETS_OF_USER = 96 << 20, 256 << 20


class Question:
    """One request to many loops, and what their users have answered together."""

    def __init__(self, request: FromTool, patience_s: float) -> None:
        self.message, self.patience_s = packed(request), patience_s
        has_packets = isinstance(request, (Capture, Inspect))
        self.most = _PACKETS_BYTES if has_packets else _MOST_BYTES
        self._most_of_user = _PACKETS_OF_USER if has_packets else _MOST_OF_USER
        self._of_user: dict[int, int] = {}

    def count(self, uid: int, nbytes: int) -> None:
        """:raises GarbageError: that is too much."""
        self._of_user[uid] = self._of_user.get(uid, 0) + nbytes
        if self._of_user[uid] > self._most_of_user:
            raise GarbageError(f"the processes of its user answer with more than {self._most_of_user} bytes")


class Conversation:
    """With one loop.

    :raises OSError: it is not there; ``PermissionError``: or not who it says.
    """

    def __init__(self, loop: Loop, home: Directory, question: Question) -> None:
        self.loop, self._question = loop, question
        self._input = bytearray()
        self._bytes = 0
        self.began = time.monotonic()
        self.deadline = self.began + question.patience_s
        self._end = self.deadline + _ANSWER_S
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            home.connect(self.sock, loop.stem + directory.SOCKET)
            self._check_peer()
            self.sock.send(question.message)  # it is short, and nothing is there yet
        except BaseException:
            self.sock.close()
            raise

    def _check_peer(self) -> None:
        """A user's page and socket stand for that user's processes only, and for the one that the page
        names: no tool asks, or changes, another one by its files."""
        pid, uid = credentials(self.sock)
        if uid not in (self.loop.uid, 0):
            raise PermissionError(errno.EPERM, "another user answers in its place")
        if not self.loop.page.is_of(pid, self.loop.uid):
            raise PermissionError(errno.EPERM, f"process {pid} answers in its place")
        self.loop.pid = pid

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
        now = time.monotonic()
        self._bytes += len(data)
        if self._bytes > self._question.most:
            raise GarbageError(f"its answer is longer than {self._question.most} bytes")
        if now >= self._end:
            raise GarbageError(f"its answer has not ended after {now - self.began:.0f} s")
        self._question.count(self.loop.uid, len(data))
        self.deadline = now + PATIENCE_S
        self._input += data
        return self._take()

    def _take(self) -> bool:
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
