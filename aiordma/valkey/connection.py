"""What a connection to a valkey-server consists of: queue pair, registered memory, rdma_cm, keepalive."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import anyio

from ..errors import Code, LinkError, NegotiationError, VerbsError
from ..observe.connections import next_number
from ..proto.valkey import COMMAND_BYTES
from ..verbs.lifetime import release_all
from ..verbs.memory.budget import MemoryLimitError
from ..verbs.qp import QpSize, RcQp
from ..verbs.registrar import DeviceRegistrar
from ._pipe import ValkeyPipe
from .cm import CmClient

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

    from ..addresses import Address
    from ..links.contracts import EngineView
    from ..verbs.events import DeviceEvent
    from ..verbs.memory.arena import Arena, Block
    from ..wake.base import Handle, Waker

_log = logging.getLogger("aiordma.valkey")

#: A server that sends more than these receives at once waits until the loop has taken some: it repeats
#: without end (rnr_retry 7). A megabyte of answers is 64 of valkey-server's blocks.
_RECEIVES, _SENDS = 72, 256
#: Of the sends, every 64th WRITE and the commands are signalled. With the receives that is as much of the
#: completion queue as a link takes: there is room for some 150.
_SIGNALLED = 32
#: Transfer buffers of this end: one is written while another is read.
_BUFFERS = 2
_LINGER_SECONDS = 1.0
_LINGER_LOOK_SECONDS = 0.0005


class Seen(NamedTuple):
    """What `aiordma stat` shows of a connection, beside its pipe."""

    number: int
    #: seconds of ``time.monotonic()``
    since: float
    local: Address
    remote: Address


class Connection:
    """One end of a connection, not connected yet.

    :param buffer_bytes: size of one transfer buffer, a power of two.
    :raises NegotiationError: the device lacks something that it needs, or memory.
    """

    def __init__(self, engine: EngineView, buffer_bytes: int) -> None:
        backend = engine.backend
        if backend.is_iwarp:
            raise NegotiationError(
                Code.NO_SMCR_DEVICE,
                f"{backend.name} is iWARP, and Valkey's protocol needs immediate data, which iWARP has not",
            )
        library = backend.rdma_cm()
        receives, sends = (min(count, backend.limits.max_qp_wr) for count in (_RECEIVES, _SENDS))
        self.engine = engine
        self._buffer_bytes = buffer_bytes
        self._receives, self._sends = receives, sends
        self._memory: list[tuple[Arena, Block]] = []
        self._released = False
        self._timer: Handle | None = None
        self._heard = 0
        #: for those who look from outside: None until it is connected
        self.seen: Seen | None = None
        self._active, self._active_at = (0, 0), monotonic()
        self._reserved = engine.reserve_completions(receives + _SIGNALLED)
        self._undo: list[Callable[[], object]] = [lambda: engine.return_completions(self._reserved)]
        try:
            self._make(library)
        except BaseException as error:
            self._release_parts()
            if isinstance(error, MemoryLimitError):
                raise NegotiationError(error.code, str(error)) from error
            if isinstance(error, VerbsError):
                raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
            raise
        engine.users.add(self)
        connections(engine.waker).add(self)

    def _make(self, library: ctypes.CDLL) -> None:
        engine, backend = self.engine, self.engine.backend
        self.pd = backend.alloc_pd()
        self._undo.append(self.pd.close)
        self._undo.append(self._free_memory)
        size = QpSize(send_wr=self._sends, recv_wr=self._receives, send_sge=1, recv_sge=1)
        self.qp = RcQp(backend, self.pd, engine.cq, size)
        self._undo.append(self.qp.close)
        buffers = self._allocate(_BUFFERS * self._buffer_bytes, remote=True)
        commands = self._allocate((self._receives + self._sends) * COMMAND_BYTES)
        self.pipe = ValkeyPipe(
            engine.poller,
            self.qp.pointer,
            self.qp.number,
            buffers=buffers.address,
            rkey=buffers.rkey,
            buffer_bytes=self._buffer_bytes,
            buffer_count=_BUFFERS,
            recv_addr=commands.address,
            recv_count=self._receives,
            recv_lkey=commands.lkey,
            command_addr=commands.address + self._receives * COMMAND_BYTES,
            command_lkey=commands.lkey,
            sq_depth=min(self._sends, self.qp.size.send_wr),
            max_inline=self.qp.size.inline_bytes or 0,
            owner=self,
        )
        self._undo.append(self.pipe.detach)
        self.cm = CmClient(engine.waker, library, backend.name, self._on_end)
        self._undo.append(self.cm.close)

    def _allocate(self, length: int, *, remote: bool = False) -> Block:
        """Registered memory. Each connection has a protection domain: a server writes to its own only."""
        registrar = DeviceRegistrar(self.engine.backend, self.pd, remote=remote)
        arena = self.engine.pool.arena(registrar, first_slab_bytes=max(4096, length))
        block = arena.allocate(length)
        self._memory.append((arena, block))
        return block

    # ---- connecting

    async def connect(self, where: Address) -> Address:
        """Until the server has registered its transfer buffer; time limits are the caller's.

        :return: the address of this end.
        :raises VerbsError: no connection. :raises BrokenResourceError: it was lost at once.
        :raises NegotiationError: there is no memory to send from.
        """
        local = await self.cm.connect(where, self.qp, self.pipe.start)
        self.pipe.begin()
        news = self.engine.waker.new_waiter()
        self.pipe.on_writable = news.set
        while not self.pipe.is_registered:
            self.pipe.try_send(b"")  # raises what has ended it
            await news.wait()
        self.pipe.on_writable = None
        try:
            self.pipe.make_mirror()
        except MemoryLimitError as error:
            raise NegotiationError(error.code, str(error)) from error
        self._look_later()
        self.seen = Seen(next_number(), monotonic(), local, where)
        return local

    # ---- keepalive

    def _look_later(self) -> None:
        milliseconds = self.engine.config.keepalive_ms
        if milliseconds:
            waker = self.engine.waker
            self._timer = waker.call_at(waker.now() + milliseconds / 1000, self._look)

    def _look(self) -> None:
        """A server sends a keepalive every 3 s. Ask one that is silent: its device answers, or it is gone."""
        self._timer = None
        pipe = self.pipe
        if pipe.error is None and not pipe.is_closed:
            if pipe.last_received == self._heard:
                pipe.keepalive()
            self._heard = pipe.last_received
            self.active_at()
            self._look_later()

    def parting(self) -> None:
        """The pipe is closed, and waits until the server's device has all of it. One that takes nothing more,
        but acknowledges what takes no receive, would keep the memory and the queue pair for ever."""
        if self._timer is not None:
            self._timer.cancel()
        self._heard = self.pipe.last_received
        config, waker = self.engine.config, self.engine.waker
        patience = max(config.stopped_peer_ms / 1000, config.failover_timeout_ms / 1000, _LINGER_SECONDS)
        self._timer = waker.call_at(waker.now() + patience, self._look_at_parting)

    def _look_at_parting(self) -> None:
        self._timer = None
        if self.pipe.error is not None or self._released:
            return
        if self.pipe.last_received != self._heard:
            self.parting()
        else:
            _log.debug("QP %d: the server has not taken what was sent before the close", self.qp.number)
            self.pipe.abort()

    def active_at(self) -> float:
        """When data was last seen to have gone or come (``time.monotonic()``). That is looked at here, and
        with each keepalive."""
        if self.pipe.counters != self._active:
            self._active, self._active_at = self.pipe.counters, monotonic()
        return self._active_at

    # ---- called by the pipe

    def mirror(self, length: int) -> tuple[int, int]:
        """Registered memory for copies of what is sent: address and lkey. :raises MemoryLimitError:"""
        block = self._allocate(length)
        return block.address, block.lkey

    def failed(self, reason: BaseException) -> None:
        """The pipe is broken. The user still holds it; the server should know."""
        _log.debug("QP %d: %s", self.qp.number, reason)
        self.engine.waker.call_soon(self._give_up)

    def _give_up(self) -> None:
        if not self._released:
            release_all("a connection to Valkey", self.qp.to_error, self.cm.disconnect)

    def finished(self) -> None:
        """The pipe is closed, and nothing of it is under way. Called inside completions, too."""
        self.engine.waker.call_soon(self.release)

    # ---- called by rdma_cm and by the device

    def _on_end(self, why: str) -> None:
        # What arrived before is in the completion queue.
        self.engine.poller.drain()
        _log.debug("QP %d: the server has ended the connection: %s", self.qp.number, why)
        self.pipe.server_ended()

    @property
    def qp_num(self) -> int:
        return self.qp.number

    def device_event(self, event: DeviceEvent) -> None:
        """For the engine: the queue pair, its port or its device has failed."""
        self.engine.poller.drain()
        self.pipe.break_off(LinkError(str(event)))

    # ---- the end

    def release(self) -> None:
        """End the connection and release everything. Idempotent; nothing in a forked child."""
        if self._released or self.engine.backend.in_forked_child:
            return
        self.engine.users.discard(self)
        connections(self.engine.waker).discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release_parts()

    def _release_parts(self) -> None:
        self._released = True
        undo, self._undo = self._undo, []
        if not self.engine.closed:
            release_all("a connection to Valkey", *reversed(undo))

    def _free_memory(self) -> None:
        for arena, block in self._memory:
            arena.close()
            block.free()


# ---- the end of a loop

_KEY = "valkey"


def connections(waker: Waker) -> set[Connection]:
    """The connections of a loop. They end before its engine, which was there first."""
    found: set[Connection] | None = waker.locals.get(_KEY)
    if found is None:
        found = waker.locals[_KEY] = set()
        ending = found
        waker.at_loop_end(lambda: _end(waker, ending), lambda _: _end_now(ending))
    return found


async def _end(waker: Waker, ending: set[Connection]) -> None:
    """What was closed in order gets some time, to reach its server."""
    deadline = waker.now() + _LINGER_SECONDS
    try:
        while waker.now() < deadline and any(_is_parting(each) for each in ending):
            await anyio.sleep(_LINGER_LOOK_SECONDS)
            for each in list(ending):
                each.engine.poller.drain()
    finally:
        _end_now(ending)


def _is_parting(connection: Connection) -> bool:
    return connection.pipe.is_closed and connection.pipe.error is None


def _end_now(ending: set[Connection]) -> None:
    for each in list(ending):
        each.pipe.break_off(LinkError("the event loop has ended"))
        each.release()
