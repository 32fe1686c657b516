"""How tools ask: one request to every process at once, with a limit of time for each."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections import Counter
from typing import TYPE_CHECKING

from . import directory, page
from .asked import Loop
from .conversation import PATIENCE_S, Conversation, Question
from .messages import GarbageError
from .requests import FromTool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .page import Page

#: Conversations at a time, with one user and in all: no user takes all descriptors of a tool.
_AT_A_TIME_OF_USER, _AT_A_TIME = 64, 256
#: Of one user, so many loops are looked at, in however many directories they are.
_MOST_LOOPS = 4096
#: For all conversations; who has not been asked then is not.
_ALL_S = 60.0
#: A loop that has been away for so long is stuck: its timer comes every second.
_STUCK_S = 3.0
#: Killed processes are told of for so long.
_TOLD_S = 600.0
#: One that has returned for so long is not asked: others run again at once.
_RETURNED_S = 2 * page.BEAT_SECONDS


def loops(wanted: Callable[[Page], bool] | None = None, pid: int | None = None) -> list[Loop]:
    """All loops of this user's processes (for root: of all users') that run. Leftovers of killed processes
    are removed.

    :param pid: only of this process, or, if there is none here, of those that have the number in containers.
    """
    found = []
    looked_at = Counter[int]()
    for home in directory.places():
        with contextlib.closing(home):
            stems = home.stems()[: _MOST_LOOPS - looked_at[home.uid]]
            looked_at[home.uid] += len(stems)
            for stem in stems:
                seen = page.read(home, stem)
                if seen is None:
                    continue
                if seen.is_over:
                    if home.uid == os.getuid():
                        home.bury(stem)
                elif not seen.is_possible(home.uid):
                    continue
                elif pid in (None, seen.pid) and (wanted is None or wanted(seen)):
                    found.append(Loop(home.path, stem, home.uid, seen))
    if pid is not None:
        found = [each for each in found if each.page.namespace == directory.namespace()] or found
    return sorted(found, key=lambda each: (each.page.pid, each.stem))


def killed(wanted: Callable[[Page], bool] | None = None, pid: int | None = None) -> list[tuple[int, Page]]:
    """Processes that ended in the last minutes without closing their event loops, each with its user: they
    were killed, or have crashed. What they had open is in the page of their last loop."""
    found: dict[tuple[object, ...], tuple[int, Page]] = {}
    looked_at = Counter[int]()
    for home in directory.places():
        with contextlib.closing(home):
            stems = home.killed()[: directory.MOST_KILLED_READ - looked_at[home.uid]]
            looked_at[home.uid] += len(stems)
            for stem in stems:
                seen = page.read(home, stem, directory.KILLED)
                if seen is None or pid not in (None, seen.pid) or seen.silent_s > _TOLD_S:
                    continue
                if not seen.is_over or seen.returned_ns:  # its program had ended before its loop was closed
                    continue
                known = found.get((home.uid, *seen.process))
                if known is not None:
                    others = known[1].connections
                    seen = max(seen, known[1], key=lambda each: each.beat_ns)
                    seen = seen._replace(connections=others + seen.connections)
                if wanted is None or wanted(seen):
                    found[(home.uid, *seen.process)] = home.uid, seen
    return sorted(found.values(), key=lambda each: -each[1].silent_s)


def ask(request: FromTool, whom: Iterable[Loop], patience_s: float = PATIENCE_S) -> list[Loop]:
    """Ask each of them, many at the same time. :return: those that are still there, with their answers (to
    this request only).

    :param patience_s: for requests that take time.
    """
    asked = list(whom)
    for loop in asked:
        loop.forget()
    with selectors.DefaultSelector() as selector:
        _Asker(
            selector, Question(request, patience_s), [each for each in asked if not is_stopped(each)]
        ).run()
    _find_overtaken(asked)
    return [loop for loop in asked if loop.state != "no answer" or not loop.page.is_over]


class _Asker:
    """Holds the conversations."""

    def __init__(self, selector: selectors.BaseSelector, question: Question, loops: Iterable[Loop]) -> None:
        self._selector, self._question = selector, question
        self._waiting, self._busy = list(loops), Counter[int]()
        self._until = time.monotonic() + question.patience_s + _ALL_S

    def run(self) -> None:
        self._begin()
        while self._selector.get_map():
            self._listen()
            self._begin()
        for loop in self._waiting:
            loop.text = f"there was no time left to ask it: others have taken {_ALL_S:.0f} s"

    def _begin(self) -> None:
        """Begin as many conversations as may be."""
        left = []
        for loop in self._waiting if time.monotonic() < self._until else ():
            if self._busy.total() >= _AT_A_TIME or self._busy[loop.uid] >= _AT_A_TIME_OF_USER:
                left.append(loop)
                continue
            try:
                with contextlib.closing(directory.Directory(loop.home, loop.uid)) as home:
                    conversation = Conversation(loop, home, self._question)
            except BlockingIOError:
                _no_answer(loop, "as many tools wait for its answer as can")
            except PermissionError as error:
                loop.state, loop.text = "not allowed", error.strerror or str(error)
            except OSError as error:
                _lost(loop, error)
            else:
                self._busy[loop.uid] += 1
                self._selector.register(conversation.sock, selectors.EVENT_READ, conversation)
        if time.monotonic() < self._until:
            self._waiting = left

    def _listen(self) -> None:
        now = time.monotonic()
        first = min(key.data.deadline for key in self._selector.get_map().values())
        for key, _ in self._selector.select(max(0.0, first - now)):
            conversation: Conversation = key.data
            try:
                if conversation.read():
                    continue
            except GarbageError as error:
                conversation.loop.state, conversation.loop.text = "refused", str(error)
            except OSError as error:
                _lost(conversation.loop, error)
            self._end(conversation)
        for key in list(self._selector.get_map().values()):
            if key.data.is_over() or time.monotonic() >= self._until:
                waited = time.monotonic() - key.data.began
                _no_answer(key.data.loop, f"it has not answered in {waited:.1f} s")
                self._end(key.data)

    def _end(self, conversation: Conversation) -> None:
        self._busy[conversation.loop.uid] -= 1
        self._selector.unregister(conversation.sock)
        conversation.sock.close()


def is_stopped(loop: Loop) -> bool:
    """Whether its event loop is known not to run: then it need not be asked."""
    returned = loop.page.returned_s
    if loop.page.thread_is_over:
        loop.state, loop.text = "stopped", "the thread of its event loop has ended; the loop was not closed"
    elif returned >= _RETURNED_S:
        loop.state, loop.text = "stopped", f"its event loop returned {returned:.0f} s ago, and was not closed"
    return loop.state == "stopped"


def _find_overtaken(asked: Iterable[Loop]) -> None:
    """A thread runs one event loop at a time: where another one has come by later in the same thread, the
    loop that seems stuck had returned. (By an exception: it has not told.)"""
    asked = list(asked)
    last: dict[tuple[object, ...], int] = {}
    for loop in asked:
        key = (*loop.page.process, loop.page.thread)
        last[key] = max(last.get(key, 0), loop.page.beat_ns)
    for loop in asked:
        page = loop.page
        if loop.state == "stuck" and page.thread and last[(*page.process, page.thread)] > page.beat_ns:
            loop.state = "stopped"
            loop.text = f"its thread has run another event loop since it came by {page.silent_s:.0f} s ago"


def _no_answer(loop: Loop, why: str) -> None:
    silent = loop.page.silent_s
    if loop.page.returned_ns:
        loop.state, loop.text = "stopped", "its event loop has returned, and was not closed"
    elif silent >= _STUCK_S:
        loop.state = "stuck"
        loop.text = (
            f"its event loop has not come by for {silent:.0f} s; it had {loop.page.connections} connections"
        )
    else:
        loop.text = f"{why}; its event loop came by {silent:.1f} s ago"


def _lost(loop: Loop, error: OSError) -> None:
    loop.text = error.strerror or str(error)
