"""The back: accepts streams from fronts, with one connection to Redis for each."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from .hello import HELLO, READY, Line, refusal
from .net import Address, Mode, path_of, serve
from .pipe import join

if TYPE_CHECKING:
    from typing import Any

logger = logging.getLogger("redis_proxy.back")

CONNECT_TIMEOUT_S = 4.0  # below the front's, so that the front receives the reason


class Back:
    """Call `start()`, then `stop()`; both once."""

    def __init__(self, listen: Address, redis: Address, *, mode: Mode) -> None:
        self.listen = listen
        self.redis = redis
        self.mode = mode
        self.paths: dict[str, int] = {}  # streams so far by path
        self.refused = 0
        self._streams: set[Stream] = set()
        self._empty = asyncio.Event()
        self._server: Any = None

    async def start(self) -> None:
        """Listen. Raises OSError if that fails."""
        self._server = await serve(lambda: Stream(self), self.listen, self.mode)
        self.listen = self.listen._replace(port=self._server.sockets[0].getsockname()[1])
        logger.info("fronts connect to %s", self.listen)

    async def stop(self, grace_s: float) -> None:
        """Accept no new streams; give fronts that are also stopping up to `grace_s` to leave, then
        disconnect."""
        self._server.close()
        logger.info("stopping: %d streams", len(self._streams))
        for stream in list(self._streams):
            stream.finish()
        try:
            async with asyncio.timeout(grace_s):
                while self._streams:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            for stream in list(self._streams):
                stream.transport.abort()
        await asyncio.sleep(0)  # the transports' last callbacks

    def joined(self, stream: Stream) -> None:
        path = path_of(stream.transport)
        if path not in self.paths:
            logger.info("streams of %s travel by %s", stream.transport.get_extra_info("peername"), path)
        self.paths[path] = self.paths.get(path, 0) + 1
        self._streams.add(stream)

    def left(self, stream: Stream) -> None:
        self._streams.discard(stream)
        self._empty.set()

    def report(self) -> str:
        """Return a readable summary of the current state."""
        paths = ", ".join(f"{count} by {path}" for path, count in self.paths.items()) or "none"
        return (
            f"back {self.listen} -> redis {self.redis}\n"
            f"  streams {len(self._streams)} now, {self.refused} refused; in all: {paths}"
        )


class Stream(asyncio.Protocol):
    """A stream until its connection to Redis is established; then the two are joined."""

    def __init__(self, back: Back) -> None:
        self.back = back
        self.line = Line()
        self.redis: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # by contract, if not by class in uvloop
        self.back.joined(self)

    def data_received(self, data: bytes) -> None:
        if self._task is not None:
            self.transport.abort()  # a front must not send before the reply
            return
        try:
            rest = self.line.feed(data)
            if rest is None:
                return
            if self.line.text != HELLO or rest:
                raise ValueError(f"expected {HELLO!r}, got {(self.line.text + rest)[:40]!r}")
        except ValueError as exc:
            logger.warning("%s: not a front: %s", self.transport.get_extra_info("peername"), exc)
            self._refuse("this is the back of redis_proxy.py; Redis clients connect to its front")
            return
        self._task = asyncio.create_task(self._connect())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self.back.left(self)

    def finish(self) -> None:
        """Forward the EOF to Redis, which answers the commands it has read and disconnects."""
        if self.redis is not None:
            self.transport.pause_reading()
            self.redis.write_eof()
        else:
            self.transport.close()

    async def _connect(self) -> None:
        redis = self.back.redis
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                self.redis, _ = await loop.create_connection(asyncio.Protocol, redis.host, redis.port)
        except (OSError, UnicodeError) as exc:  # UnicodeError: a name that no host can have
            self._refuse(f"redis-server at {redis}: {str(exc) or 'no answer'}")
            return
        join(self.transport, self.redis, self._closed)
        self.transport.write(READY)

    def _closed(self) -> None:
        self.back.left(self)

    def _refuse(self, reason: str) -> None:
        self.back.refused += 1
        self.transport.write(refusal(reason))
        self.transport.close()
