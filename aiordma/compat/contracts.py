"""What the asyncio transport and the readers and servers above it require of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from ..pipes.contracts import Pipe


class PulledTransport(Protocol):
    """What a pulling reader asks of its transport."""

    def ring_empty(self) -> None:
        """Nothing is readable: find out whether this is the end of the data, or a failure."""

    def ring_failed(self, exc: BaseException) -> None:
        """The pipe raised ``exc``."""

    def park_reading(self) -> None:
        """The reader is about to wait."""


class PullReader(Protocol):
    """A reader that takes its data from the ring itself."""

    def ring_attached(self, transport: PulledTransport, pipe: Pipe | None) -> None:
        """Take from `pipe` from now on; None: not now (reading is paused, or nothing more will come)."""

    def ring_detached(self) -> None:
        """From now on the pipe, with the data in it, belongs to another protocol."""

    def ring_closing(self) -> None:
        """The pipe is about to be closed: the last chance to take what has arrived."""

    def ring_news(self) -> None:
        """Data has arrived."""

    def takes_ahead(self) -> int:
        """How many bytes it would have taken by itself, if its transport pushed its data."""

    def is_full(self) -> bool:
        """Whether so much has arrived that it would have paused its transport, if that pushed its data."""


class PullProtocol:
    """Mixin of protocols whose data is pulled: names the reader that does it."""

    def pull_reader(self) -> PullReader | None:
        """The reader; None when it is gone, and nothing will be read any more."""
        raise NotImplementedError


class TransportOwner(Protocol):
    """A server: counts its connections."""

    def attach(self, transport: asyncio.BaseTransport) -> None: ...
    def detach(self, transport: asyncio.BaseTransport) -> None: ...
