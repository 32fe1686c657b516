"""The last step of an end: its work on the link, while the TCP connection is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from ..errors import Code, CompletionError, LinkError, NegotiationError, RemoteProtocolError, VerbsError
from ..proto.events import Failed, LinkLost
from ..proto.handshake import ServerHandshake, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..proto.events import Event
    from ..proto.handshake import ClientHandshake
    from .clc_io import ClcIO


class LastStep:
    """Bring up this end; meanwhile the peer may decline, or die.

    The result of the work and the peer's message may arrive in the same turn of the event loop: what ends the
    handshake first decides.

    If the link fails, the two ends could disagree: the client may have answered the server's Confirm Link,
    and use RDMA. So the server decides, and tells the client by TCP: either that RDMA was agreed on and the
    connection leaves it (as in :mod:`aiordma.proto.failover`), or that the server declines.

    :param work: gives the pipe.
    :param outlive: the link has failed for this reason: gives a pipe that goes on over TCP, or None.
    :param proved: whether the peer has proved the link by what has come over it. The end of the TCP
        connection may overtake that: a process may connect, send and be killed before anybody has looked.
    :param may_decline: server: a client that uses RDMA already would notice that this end has declined, and
        break. (A stream could take what such a client sends for bytes of the stream.)
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[Any]],
        handshake: ClientHandshake | ServerHandshake,
        io: ClcIO,
        outlive: Callable[[Exception], Any] | None = None,
        *,
        proved: Callable[[], bool] | None = None,
        may_decline: bool = False,
    ) -> None:
        self._work, self._handshake, self._io, self._outlive = work, handshake, io, outlive
        self._proved, self._may_decline = proved, may_decline
        self._is_server = isinstance(handshake, ServerHandshake)
        self._pipe: Any = None
        self._events: list[Event] = []
        self._refused: NegotiationError | None = None
        #: Client: why the link has failed; the server's word is awaited.
        self._lost: Exception | None = None
        #: The TCP connection has ended behind what came over the link.
        self._ended = False

    async def run(self, *, watch: bool) -> tuple[Any, list[Event]]:
        """Return the pipe if the link is to be used, or was, else None; and the events that end the
        negotiation.

        :param watch: whether to read from the peer during the work. On a link that exists already there is
            nothing to wait for, and so nothing to watch.
        :raises NegotiationError: the peer's answer does not fit, or the link has failed; it can still be
            declined.
        """
        try:
            if watch:
                await self._work_watched()
            else:
                await self._do_work()
            if self._refused is not None and not self._events:
                self._on_refused(self._refused)
        except BaseException:
            # Cancelled after the work was done: the contact does not own the pipe any more.
            if self._pipe is not None:
                self._pipe.abort()
            raise
        self._take_the_servers_word()
        if self._pipe is not None and self._handshake.state is not State.RDMA:
            self._pipe.abort()
            self._pipe = None
        return self._pipe, self._events

    async def _work_watched(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            await self._do_work()
            if self._lost is None:
                tasks.cancel_scope.cancel()
            elif self._ended:  # that was the server's last word
                self._events.extend(self._handshake.eof(self._io.now()))

    async def _watch(self, scope: anyio.CancelScope) -> None:
        events = await self._io.receive(_Watched(self._handshake, self._outweighs_the_end))
        if events:
            self._events.extend(events)
            scope.cancel()

    def _outweighs_the_end(self) -> bool:
        """Whether the link is proved: the work is about to end, and what the peer has sent is in the ring.
        Not for a client whose link has failed since."""
        self._ended = self._lost is None and self._proved is not None and self._proved()
        return self._ended

    async def _do_work(self) -> None:
        try:
            self._pipe = await self._work()
        except NegotiationError as error:
            self._refused = error
        except (LinkError, VerbsError, CompletionError, RemoteProtocolError) as error:
            if not self._handshake.done:
                self._on_failed_link(error)
        else:
            # At once: what the peer sends from now on belongs to the stream.
            if not self._handshake.done:
                self._events.extend(self._handshake.established(self._io.now()))

    def _on_failed_link(self, error: Exception) -> None:
        """Of a client: wait for the server's word. Of a server: say it."""
        if self._outlive is not None and not isinstance(error, RemoteProtocolError):
            if not self._is_server:
                self._lost = error
                return
            self._pipe = self._outlive(error)
            if self._pipe is not None:
                self._events.extend(self._handshake.established(self._io.now()))
                return
            if self._may_decline:
                self._refused = NegotiationError(_code_of(error), str(error))
                return
        self._events.extend(self._handshake.broken(_code_of(error), str(error), self._io.now()))

    def _take_the_servers_word(self) -> None:
        """Client: the last event says what the server does about a link that has failed."""
        if not self._events:
            return
        last, lost = self._events[-1], self._lost
        if isinstance(last, LinkLost):
            reason = lost or LinkError("the server has lost the link", self._io.peer)
            if self._pipe is None and self._outlive is not None:
                self._pipe = self._outlive(reason)
            if self._pipe is None:
                self._events = [Failed(_code_of(reason), str(reason))]
        elif isinstance(last, Failed) and lost is not None:
            self._events = [Failed(_code_of(lost), f"{lost}; the server: {last.text}")]

    def _on_refused(self, error: NegotiationError) -> None:
        """A server can still decline; a client has sent its Confirm already."""
        if self._is_server:
            raise error
        self._events = self._handshake.broken(error.code, error.detail, self._io.now())


class _Watched:
    """The handshake, to which the end of the connection means nothing where something else outweighs it."""

    def __init__(
        self, handshake: ClientHandshake | ServerHandshake, outweighs_the_end: Callable[[], bool]
    ) -> None:
        self._handshake, self._outweighs_the_end = handshake, outweighs_the_end
        self.next_deadline, self.receive = handshake.next_deadline, handshake.receive
        self.on_timer = handshake.on_timer

    @property
    def done(self) -> bool:
        return self._handshake.done

    @property
    def heard_all(self) -> bool:
        return self._handshake.heard_all

    def eof(self, now: float) -> list[Event]:
        return [] if self._outweighs_the_end() else self._handshake.eof(now)


def _code_of(error: Exception) -> Code:
    if isinstance(error, RemoteProtocolError):
        return Code.PROTOCOL_VIOLATION
    return Code.TIMEOUT_CONFIRM_LINK if isinstance(error, LinkError) else Code.DEVICE_FAILURE
