"""A key-value store as a service: an ordinary class with marked methods and annotated types.

aiordma checks arguments against the annotations before it calls a method: `put("", b"x")` fails with
INVALID_ARGUMENT and names `key`. The method needs no check of its own.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import anyio
import msgspec

from aiordma import rpc

log = logging.getLogger("kv_rpc")

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Entry(msgspec.Struct, frozen=True):
    """The value stored under a key, with its version."""

    key: str
    value: bytes
    #: Counts the changes of the whole store.
    version: int


class Pair(msgspec.Struct, frozen=True):
    """A key and the value to store."""

    key: Key
    value: bytes


class Store:
    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # sorted
        self._version = 0
        self._changed = anyio.Event()

    # A plain `def` runs at once, without a task: right for methods that never wait.
    @rpc.method(idempotent=True)
    def get(self, key: Key) -> Entry:
        """Return the entry of a key; NOT_FOUND if there is none."""
        if key not in self._entries:
            raise rpc.RpcError(rpc.Code.NOT_FOUND, f"no key {key!r}")
        return self._entries[key]

    @rpc.method
    def put(self, key: Key, value: bytes, *, if_version: int | None = None) -> int:
        """Store a value and return its version.

        With `if_version`, store only if the key has that version now (0: does not exist), else fail with
        ABORTED. Two concurrent writers then cannot overwrite each other's change.
        """
        now = self._entries[key].version if key in self._entries else 0
        if if_version not in (None, now):
            raise rpc.RpcError(rpc.Code.ABORTED, f"{key!r} has version {now}, not {if_version}")
        if key not in self._entries:
            bisect.insort(self._keys, key)
        self._version += 1
        self._entries[key] = Entry(key, value, self._version)
        self._changed.set()
        self._changed = anyio.Event()
        return self._version

    @rpc.method(idempotent=True)
    def delete(self, key: Key) -> bool:
        """Delete a key; return whether it existed."""
        if self._entries.pop(key, None) is None:
            return False
        del self._keys[bisect.bisect_left(self._keys, key)]
        return True

    # A generator streams. It runs only as fast as the caller consumes items, and is cancelled when the caller
    # stops.
    @rpc.method(idempotent=True)
    async def scan(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Entry]:
        """Stream the entries whose keys begin with `prefix`, in key order; `after`: only keys behind it."""
        sent = 0
        try:
            for entry in self._from(prefix, after):
                yield entry
                sent += 1
        finally:
            log.info("scan of %r: %d entries were sent", prefix, sent)

    def _from(self, prefix: str, after: str) -> Iterator[Entry]:
        """Search for the position again before each entry: the store may change between two."""
        at = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, after))
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            key = self._keys[at]
            yield self._entries[key]
            at = bisect.bisect_right(self._keys, key)

    # The other direction: the caller streams.
    @rpc.method
    async def load(self, pairs: AsyncIterator[Pair]) -> int:
        """Store everything the caller sends; return the count."""
        count = 0
        async for pair in pairs:
            self.put(pair.key, pair.value)
            count += 1
        return count

    # A call that may wait forever: the caller's deadline or cancellation ends it.
    @rpc.method(idempotent=True)
    async def wait(self, key: Key, context: rpc.Context, *, newer_than: int = 0) -> Entry:
        """Return the entry of a key once its version is above `newer_than`."""
        try:
            while True:
                entry = self._entries.get(key)
                if entry is not None and entry.version > newer_than:
                    return entry
                await self._changed.wait()
        except anyio.get_cancelled_exc_class():
            log.info("no caller waits for %r any more (%s)", key, context.peer)
            raise
