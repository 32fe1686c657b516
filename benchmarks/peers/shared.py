"""Peers that hand messages over in shared memory: iceoryx2, spinning or woken by its events, and Zenoh.

Each message is copied in and out as bytes, as a stream's are.
"""

from __future__ import annotations

import ctypes
import json
import queue
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from .blocking import BlockingTransport, Message, socket_path

_LARGEST = 65536


class _Iceoryx:
    """One end: it publishes to one service and subscribes to the other."""

    def __init__(self, name: str, outward: str, inward: str, *, spins: bool) -> None:
        import iceoryx2

        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        self._node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        self._spins = spins

        def service(kind: str) -> Any:
            return self._node.service_builder(iceoryx2.ServiceName.new(f"{name}/{kind}"))

        bytes_ = iceoryx2.Slice[ctypes.c_uint8]
        outward_service = service(outward).publish_subscribe(bytes_).open_or_create()
        inward_service = service(inward).publish_subscribe(bytes_).open_or_create()
        # The subscriber comes first: what is published before there is one is lost.
        self._subscriber = inward_service.subscriber_builder().create()
        self._publisher = outward_service.publisher_builder().initial_max_slice_len(_LARGEST).create()
        self._notifier = service(f"{outward}-event").event().open_or_create().notifier_builder().create()
        self._listener = service(f"{inward}-event").event().open_or_create().listener_builder().create()

    def send(self, message: Message) -> None:
        sample = self._publisher.loan_slice_uninit(len(message))
        ctypes.memmove(sample.payload_ptr, bytes(message), len(message))
        sample.assume_init().send()
        if not self._spins:
            self._notifier.notify()

    def receive(self, size: int) -> bytes:
        take, wait = self._subscriber.receive, self._listener.blocking_wait
        while (sample := take()) is None:
            if not self._spins:
                wait()
        message = ctypes.string_at(sample.payload_ptr, sample.header.number_of_elements)
        sample.delete()
        return message

    def close(self) -> None:
        for port in (self._subscriber, self._publisher, self._notifier, self._listener):
            port.delete()


def _iceoryx(*, spins: bool) -> BlockingTransport:
    def listen(ready: Callable[[str], None]) -> Iterator[_Iceoryx]:
        name = f"aiordma-bench/{uuid.uuid4()}"
        server = _Iceoryx(name, "replies", "requests", spins=spins)
        ready(name)
        yield server

    return BlockingTransport(listen, lambda name: _Iceoryx(name, "requests", "replies", spins=spins))


def iceoryx_blocking() -> BlockingTransport:
    return _iceoryx(spins=False)


def iceoryx_spinning() -> BlockingTransport:
    return _iceoryx(spins=True)


class _Zenoh:
    """One end of two keys; a callback of Zenoh's threads hands each message over."""

    def __init__(self, session: Any, name: str, outward: str, inward: str) -> None:
        self._session = session
        self._arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._subscriber = session.declare_subscriber(
            f"{name}/{inward}", lambda sample: self._arrived.put(sample.payload.to_bytes())
        )
        self._publisher = session.declare_publisher(f"{name}/{outward}")
        self.send = self._publisher.put

    def receive(self, size: int) -> bytes:
        return self._arrived.get()

    def close(self) -> None:
        self._session.close()


def _session(where: str, path: str) -> Any:
    import zenoh

    config = zenoh.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5(f"{where}/endpoints", json.dumps([f"unixsock-stream/{path}"]))
    if where == "connect":
        config.insert_json5("listen/endpoints", "[]")
    return zenoh.open(config)


def zenoh_threads() -> BlockingTransport:
    """Its default: shared memory for messages of 3 KiB and more, the Unix socket for smaller ones."""

    def listen(ready: Callable[[str], None]) -> Iterator[_Zenoh]:
        with socket_path() as path:
            server = _Zenoh(_session("listen", path), "bench", "replies", "requests")
            ready(path)
            yield server

    return BlockingTransport(
        listen, lambda path: _Zenoh(_session("connect", path), "bench", "requests", "replies")
    )
