"""The broker: topics, subscribers, and the treatment of slow subscribers.

A subscriber's queue is its own ring: unread messages wait in its memory, not in the broker's. When the
ring is full there are two choices, each one line of code: drop the message and report the loss later
(``send_nowait``), or make the publisher wait (``send``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute

from . import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    import aiordma

log = logging.getLogger("pubsub")


class Subscriber:
    """A connection that has subscribed to something."""

    def __init__(self, connection: aiordma.DatagramConnection, *, wait: bool) -> None:
        self._connection = connection
        self._wait = wait
        # Two publishers may want to send to it at the same time.
        self._turn = anyio.Lock()
        self.sent = self.lost = 0
        self._untold = 0

    async def deliver(self, message: bytes) -> None:
        """Send or drop one message. A subscriber that has disconnected detects this itself."""
        try:
            if self._wait:
                async with self._turn:
                    await self._connection.send(message)
            else:
                if self._untold:
                    self._connection.send_nowait(wire.lost(self._untold))
                    self._untold = 0
                self._connection.send_nowait(message)
        except anyio.WouldBlock:
            self.lost += 1
            self._untold += 1
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        else:
            self.sent += 1


class Broker:
    """:param wait: slow subscribers make publishers wait, instead of dropping messages."""

    def __init__(self, *, wait: bool = False) -> None:
        self._wait = wait
        self._topics: dict[str, set[Subscriber]] = {}
        self._prefixes: dict[str, set[Subscriber]] = {}
        self.published = 0

    async def serve(self, connection: aiordma.DatagramConnection) -> None:
        """Serve one connection: a publisher, a subscriber or both."""
        peer = connection.extra(SocketAttribute.remote_address)
        log.info("%s: connected by %s", peer, connection.path)
        subscriber = Subscriber(connection, wait=self._wait)
        try:
            async with connection:
                while True:
                    for data in await connection.receive_many():
                        await self._take(subscriber, data)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
        except wire.WireError as error:
            log.warning("%s: %s", peer, error)
        finally:
            self._forget(subscriber)
            log.info("%s: gone, %d messages sent, %d lost", peer, subscriber.sent, subscriber.lost)

    async def _take(self, subscriber: Subscriber, data: bytes) -> None:
        kind = data[:1]
        if kind == wire.PUBLISH:
            topic = wire.read_message(data).topic
            message = wire.relay(data)
            self.published += 1
            for other in list(self._subscribers(topic)):
                await other.deliver(message)
        elif kind == wire.SUBSCRIBE:
            pattern = wire.read_pattern(data)
            if pattern.endswith("*"):
                self._prefixes.setdefault(pattern[:-1], set()).add(subscriber)
            else:
                self._topics.setdefault(pattern, set()).add(subscriber)
            # After this answer the subscriber receives everything published.
            await subscriber.deliver(data)
        else:
            raise wire.WireError(f"a message that begins with {kind!r}")

    def _subscribers(self, topic: str) -> Iterator[Subscriber]:
        yield from self._topics.get(topic, ())
        for prefix, subscribers in self._prefixes.items():
            if topic.startswith(prefix):
                yield from subscribers

    def _forget(self, subscriber: Subscriber) -> None:
        for table in (self._topics, self._prefixes):
            for name in [name for name, subscribers in table.items() if subscriber in subscribers]:
                table[name].discard(subscriber)
                if not table[name]:
                    del table[name]
