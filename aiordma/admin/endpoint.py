"""The admin endpoint of an event loop: its socket, who may use it, and the loop's page.

It begins a moment after the loop's first engine, or after RDMA turned out not to be available, and costs a
listening socket and a timer that writes the page once a second. What answers requests (:mod:`.session`) is
imported, in a thread, when the first one comes.

In any thread and on any loop: everything goes through the loop's waker, and nothing here blocks or waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import socket
import threading
import weakref
from typing import TYPE_CHECKING

from ..wake import clock
from ..wake.accepting import Acceptor
from ..wake.base import run_guarded
from ..wake.beside import start_thread
from . import directory
from .counting import open_connections
from .credentials import credentials
from .late_timers import late_timers
from .page import BEAT_SECONDS, PageWriter, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wake.base import Handle, Waker
    from .session import Session

_log = logging.getLogger("aiordma.admin")

#: Requests at the same time; further ones are turned away.
_SESSIONS = 8
#: Leftovers of killed processes that a new endpoint looks at.
_SWEPT = 32

_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()
#: The log has it already that there is no place for the files.
_warned = False


def prepare(loop: str) -> Files | None:
    """The files of an endpoint; None if it cannot be had, which keeps no program from running. Of that the
    log has one warning, however many loops the process begins.

    :param loop: name of the kind of loop.
    """
    global _warned
    try:
        return Files(loop)
    except OSError as error:
        _log.log(
            logging.INFO if _warned else logging.WARNING,
            "aiordma stat will not see this process: %s (AIORDMA_ADMIN=off does without)",
            error,
        )
        _warned = True
        return None


def begin(waker: Waker, files: Files) -> Endpoint:
    """The endpoint of a loop."""
    return Endpoint(waker, files)


def tidy() -> None:
    """Remove what processes have left that were killed."""
    for home in directory.makeable():
        with contextlib.suppress(OSError), contextlib.closing(home):
            for stem in home.stems()[:_SWEPT]:
                page = read(home, stem)
                if page is not None and page.is_over:
                    home.bury(stem)
            home.remove_drafts_of_the_dead()


class Files:
    """Its socket and its page. Made in a thread: file systems may be slow.

    :raises OSError: there is no place for it, or no descriptor.
    """

    def __init__(self, loop: str) -> None:
        problem = OSError("there is no directory for its socket")
        for home in directory.makeable():
            with contextlib.closing(home):
                try:
                    self._settle(home, loop)
                    return
                except OSError as error:
                    problem = error
        raise problem

    def _settle(self, home: directory.Directory, loop: str) -> None:
        self.path, self.stem = home.path, f"{os.getpid()}-{secrets.token_hex(4)}"
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self.page = PageWriter(home, self.stem, loop)
            try:
                self.sock.bind(home.address(self.stem + directory.SOCKET))
                self.sock.listen(_SESSIONS)
            except BaseException:
                home.remove(self.stem)
                self.page.close()
                raise
        except BaseException:
            self.sock.close()
            raise

    def close(self, run: Callable[[Callable[[], None]], None]) -> None:
        """Close them, and have ``run`` remove them, in a thread for example."""
        self.abandon()
        run(self._remove)

    def discard(self) -> None:
        """They are not needed after all. Finalizers do this, too."""
        self.close(run_guarded)

    def _remove(self) -> None:
        home = directory.at(self.path, os.getuid())
        if home is not None:
            home.remove(self.stem)
            home.close()

    def abandon(self) -> None:
        """Close them only: in a forked child they are the parent's."""
        self.sock.close()
        self.page.close()


class Endpoint:
    """The endpoint itself, which owns its files."""

    def __init__(self, waker: Waker, files: Files) -> None:
        self.waker, self._files = waker, files
        self._sessions: set[Session] = set()
        self._loading: list[socket.socket] | None = None
        self._timer: Handle | None = None
        self._closed = False
        self._due = waker.now()
        self._queued_s = _queued_s()
        self.late = late_timers(waker)
        _endpoints.add(self)
        self._acceptor = Acceptor(waker, [files.sock], self, most=1, holds=True)
        self._acceptor.resume()
        waker.at_loop_end(self.close, self._loop_closed)
        waker.follow_runs(files.page.ran)
        self._beat()

    @property
    def path(self) -> str:
        """Of the socket."""
        return f"{self._files.path}/{self._files.stem}{directory.SOCKET}"

    # ---- the page

    @clock.periodic
    def _beat(self) -> None:
        queued, before = _queued_s(), self._queued_s
        late, waited = max(0.0, self.waker.now() - self._due), max(0.0, queued - before)
        self._queued_s = queued
        # What the thread waited for a processor is nothing that the program did.
        self.late.append((max(0.0, late - waited), min(late, waited)))
        engine = self.waker.locals.get("engine")
        done = 0 if engine is None else sum(each.poller.completions for each in engine.devices.engines)
        self._files.page.beat(open_connections(self.waker), done)
        # At odd moments: what blocks the loop once a second would else be met always, or never.
        self._due = self.waker.now() + BEAT_SECONDS * random.uniform(0.6, 1.0)
        self._timer = self.waker.call_at(self._due, self._beat)

    # ---- requests

    def has_room(self) -> bool:
        """What does not fit is closed."""
        return True

    def accept_failed(self, error: OSError | MemoryError, *, pauses: bool) -> None:
        """The tool waits, or has gone."""

    def take(self, sock: socket.socket) -> None:
        """A tool has connected."""
        if len(self._sessions) + len(self._loading or ()) >= _SESSIONS or not _may_ask(sock):
            sock.close()
        elif self._loading is not None:
            self._loading.append(sock)
        elif not self._sessions and _session_module() is None:
            self._loading = [sock]
            try:
                threading.Thread(target=self._load, name="aiordma admin", daemon=True).start()
            except (RuntimeError, MemoryError):  # there is no thread for it; the next tool may find one
                self._loading = None
                sock.close()
        else:
            self._begin(sock)

    def _load(self) -> None:
        """In a thread: the loop goes on while msgspec and the classes of messages are imported."""
        try:
            from . import session  # noqa: F401
        except Exception as error:  # there is no descriptor or memory for it; a later tool may find one
            _log.info("a tool gets no answer: %s", error)
        self.waker.call_from_anywhere(self._loaded)

    def _loaded(self) -> None:
        waiting, self._loading = self._loading or [], None
        loaded = _session_module() is not None
        for sock in waiting:
            if self._closed or not loaded:
                sock.close()
            else:
                self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        from .session import Session

        session = Session(self.waker, sock, credentials(sock), self._sessions.discard)
        self._sessions.add(session)
        session.begin()

    # ---- the end

    def close(self) -> None:
        """Idempotent; called at the end of the loop."""
        self._end(start_thread)

    def _loop_closed(self, _patient: bool) -> None:
        # No thread: a finalizer closes loops, too, in the middle of anything. While this thread holds a lock
        # of threading, which Thread.start() takes, it would stand still for ever; and a thread of _thread's
        # that has not run yet when the process ends crashes it (CPython 3.11 frees what it begins with).
        self._end(run_guarded)

    def _end(self, run: Callable[[Callable[[], None]], None]) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._acceptor.close()
        for session in list(self._sessions):
            session.close()
        for sock in self._loading or ():
            sock.close()
        self._files.close(run)

    def forget(self) -> None:
        """In a forked child: the files are the parent's, whose end tools must see."""
        self._closed = True
        for session in self._sessions:
            session.abandon()
        self._files.abandon()


def _session_module() -> object:
    import sys

    return sys.modules.get(f"{__package__}.session")


def _queued_s() -> float:
    """For how long this thread has waited for a processor since it began; 0 where that is not counted."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError, MemoryError):
        return 0.0


def _may_ask(sock: socket.socket) -> bool:
    try:
        return credentials(sock)[1] in (os.getuid(), 0)
    except OSError:
        return False


def _after_fork() -> None:
    for endpoint in list(_endpoints):
        endpoint.forget()


os.register_at_fork(after_in_child=_after_fork)
