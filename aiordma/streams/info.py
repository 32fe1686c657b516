"""What the asyncio surface lets its users see of the stream below a transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .stream import RingCredit

if TYPE_CHECKING:
    from ..errors import FallbackReason


class StreamInfo:
    """A read-only view: ``transport.get_extra_info("aiordma.stream")``.

    It stays valid when the connection is closed or lost, and follows the stream when its path changes.
    :func:`aiordma.switch_path` takes it.
    """

    __slots__ = ("_pipe",)

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    @property
    def path(self) -> str:
        """``"rdma"`` or ``"tcp"``."""
        path: str = self._pipe.path
        return path

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why the stream left RDMA; None while it is on RDMA."""
        reason: FallbackReason | None = getattr(self._pipe, "fallback_reason", None)
        return reason

    @property
    def credit(self) -> RingCredit:
        """Room in the peer's ring."""
        pipe = self._pipe
        return RingCredit(pipe.writable, getattr(pipe.statistics(), "peer_ring_bytes", 0))

    def statistics(self) -> Any:
        """Counters of the stream: a named tuple, whose fields depend on the path."""
        return self._pipe.statistics()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}>"
