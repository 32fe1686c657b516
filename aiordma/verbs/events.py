"""Asynchronous events of a device: a port that went down, a QP that failed without a completion."""

from __future__ import annotations

import os
import select
from typing import NamedTuple

from ..errors import VerbsError
from .abi import EventType
from .device import Backend, translated


class DeviceEvent(NamedTuple):
    """One asynchronous event."""

    #: An EventType, or the bare number of one that is newer than this library.
    type: int
    #: ``"qp"``, ``"port"``, ``"cq"``, ``"srq"`` or ``"device"``.
    source: str
    #: QP number, port number, address of the CQ or SRQ, or 0.
    number: int

    @property
    def is_fatal(self) -> bool:
        """Whether its source can no longer be used."""
        return self.type in (
            EventType.QP_FATAL, EventType.QP_REQ_ERR, EventType.QP_ACCESS_ERR, EventType.CQ_ERR,
            EventType.SRQ_ERR, EventType.DEVICE_FATAL, EventType.PORT_ERR,
        )  # fmt: skip

    @property
    def is_violation(self) -> bool:
        """Whether a QP was stopped because its peer did what it had no right to."""
        return self.type in (EventType.QP_REQ_ERR, EventType.QP_ACCESS_ERR)

    def __str__(self) -> str:
        try:
            name = EventType(self.type).name
        except ValueError:
            name = f"event {self.type}"
        return name if self.source == "device" else f"{name} on {self.source} {self.number:#x}"


class AsyncEvents:
    """Reads a device's asynchronous events without blocking. Watch :attr:`fd` for readability."""

    def __init__(self, backend: Backend) -> None:
        backend.check_process()
        self._backend = backend
        pointers = backend.binding.pointers
        self._source = pointers.async_event_source
        self.fd: int = pointers.async_fd(backend.context)
        #: Why the last :meth:`read` ended early, None if it did not. What it was reading may be lost.
        self.failure: VerbsError | MemoryError | None = None
        os.set_blocking(self.fd, False)

    def read(self, limit: int = 16) -> list[DeviceEvent]:
        """Events that are there, at most ``limit``, acknowledged: those before a :attr:`failure`, too."""
        self._backend.check_process()
        self.failure = None
        events: list[DeviceEvent] = []
        try:
            self._read_into(events, limit)
        except (VerbsError, MemoryError) as error:
            self.failure = error
        return events

    def _read_into(self, events: list[DeviceEvent], limit: int) -> None:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        # Asked first: pyverbs gives no errno here, so "nothing there" would look like any other failure.
        while len(events) < limit and poll.poll(0):
            with translated(self._backend.binding, "ibv_get_async_event", self._backend.name):
                event = self._backend.context.get_async_event()
            # Destroying the event's object waits for the acknowledgement, so it always comes.
            try:
                source, number = self._source(event)
            finally:
                event.ack()
            events.append(DeviceEvent(event.event_type, source, number))
