"""The way back: a stream that went on over TCP (``framed.py``) negotiates itself a ring again, in between its
own data on that connection. Both ends drive the engine's offers here, as ``negotiate.py`` does at first.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import Code, CompletionError, LinkError, NegotiationError, RemoteProtocolError, VerbsError
from ...proto import clc
from ...proto.frames import negotiation_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...wake.base import Job
    from ..contracts import EngineView, GroupView
    from .framed_pipe import FramedPipe

__all__ = ["Comeback"]

M = TypeVar("M", clc.Accept, clc.Confirm)


class Comeback:
    """One attempt of one end.

    :param peer: the other end, for people.
    """

    def __init__(self, framed: FramedPipe, engine: EngineView, peer: str) -> None:
        self._framed, self._engine, self._peer = framed, engine, peer
        self._inbox: deque[clc.Message] = deque()
        self._news = engine.waker.new_waiter()
        self._ended = engine.waker.new_waiter()
        self._offer: Any = None
        self._job: Job | None = None
        #: Of our own Proposal, while we wait for its answer.
        self._asking: clc.Proposal | None = None
        #: The new pipe is ready here.
        self.ready = False
        self.over = False
        self.error: Exception | None = None
        #: Called when it is over.
        self.on_over: Callable[[], None] | None = None

    # ---- from outside

    def ask(self) -> None:
        """Begin."""
        self._job = self._engine.waker.spawn(self._ask)

    def answer(self, proposal: clc.Proposal) -> None:
        """The peer has begun."""

        async def answer() -> None:
            await self._guarded(proposal)

        self._job = self._engine.waker.spawn(answer)

    def heard(self, message: clc.Message) -> None:
        """The peer's next message."""
        if self.ready and isinstance(message, clc.Decline):
            self.fail(NegotiationError(message.diagnosis))
        else:
            self._inbox.append(message)
            self._news.set()

    async def wait(self) -> None:
        """Until both ends are on their rings. :raises NegotiationError: or another error: not this time."""
        while not self.over:
            await self._ended.wait()
        self._ended.set()
        if self.error is not None:
            raise self.error

    def succeed(self) -> None:
        """Both ends are on their rings."""
        self._end()

    @property
    def group(self) -> GroupView | None:
        """Where it leads, or led."""
        return None if self._offer is None else self._offer.group

    def _end(self) -> None:
        self.over = True
        self._ended.set()
        if self.on_over is not None:
            self.on_over()

    def fail(self, error: Exception) -> None:
        """It stays on TCP."""
        if not self.over:
            self.over = True
            self.error = error
            if self._offer is not None:
                self._offer.abandon()
            self._framed.stay()
            self._end()

    def cancel(self) -> None:
        """The stream has ended meanwhile."""
        if not self.over:
            self.fail(NegotiationError(Code.SHUTTING_DOWN, "the stream was closed"))
            if self._job is not None:
                self._job.cancel()

    # ---- inside

    def _say(self, message: clc.Message) -> None:
        self._framed.say(negotiation_frame(message.encode()))

    async def _hear(self) -> clc.Message:
        waker = self._engine.waker
        deadline = waker.now() + self._engine.config.negotiate_timeout_ms / 1000
        while not self._inbox:
            if not await self._news.wait_until(deadline):
                raise NegotiationError(Code.OUT_OF_SYNC, "the peer did not answer in time")
        return self._inbox.popleft()

    def _expect(self, message: clc.Message, kind: type[M]) -> M:
        if isinstance(message, clc.Decline):
            raise NegotiationError(message.diagnosis)
        if not isinstance(message, kind):
            raise NegotiationError(Code.OUT_OF_SYNC, f"{type(message).__name__} out of turn")
        return message

    async def _ask(self) -> None:
        await self._guarded(None)

    async def _guarded(self, proposal: clc.Proposal | None) -> None:
        declined = False
        try:
            pipe = await (self._as_client() if proposal is None else self._as_server(proposal))
            if pipe.error is not None:
                pipe.abort()
                raise LinkError(str(pipe.error), self._peer)
        except NegotiationError as error:
            declined, reason = True, error
        except (LinkError, VerbsError, CompletionError, RemoteProtocolError) as error:
            declined, reason = True, NegotiationError(Code.DEVICE_FAILURE, str(error))
        if declined:
            if not self.over:
                self._say(clc.Decline(diagnosis=reason.code))
            self.fail(reason)
        elif self.over:
            pipe.abort()
        else:
            self.ready = True
            self._framed.ready(pipe)

    async def _as_client(self) -> Any:
        propose = functools.partial(
            self._engine.propose, peer=self._peer, traffic_class=self._framed.traffic_class
        )
        self._offer = offer = await propose()
        offer.awaits_tcp = True
        self._asking = offer.proposal
        self._say(offer.proposal)
        message = await self._hear()
        self._asking = None
        if isinstance(message, clc.Proposal):
            # Both have asked at the same time. One of them answers, and both know which.
            if message.nonce > offer.proposal.nonce:
                offer.abandon()
                return await self._as_server(message)
            message = await self._hear()
        accept = self._expect(message, clc.Accept)
        try:
            confirm = await offer.accepted(accept, self._peer)
        except NegotiationError as error:
            if error.code != Code.LINK_NOT_FOUND:
                raise
            # It has failed at this end only: once more, with a new one.
            offer.abandon()
            self._offer = offer = await propose(unknown_qpn=accept.qpn)
            offer.awaits_tcp = True
            self._say(offer.proposal)
            confirm = await offer.accepted(self._expect(await self._hear(), clc.Accept), self._peer)
        self._say(confirm)
        return await offer.established()

    async def _as_server(self, proposal: clc.Proposal) -> Any:
        self._offer = offer = await self._engine.answer(proposal, self._peer)
        self._say(offer.accept)
        message = await self._hear()
        if isinstance(message, clc.Proposal) and message.unknown_qpn == offer.accept.qpn != 0:
            offer.abandon()
            self._offer = offer = await self._engine.answer(message, self._peer)
            self._say(offer.accept)
            message = await self._hear()
        confirm = self._expect(message, clc.Confirm)
        offer.awaits_tcp = True
        pipe = await offer.confirmed(confirm)
        self._framed.first = True
        return pipe
