"""Memory that the receiver of a long message has named: its bytes go there, and nowhere else.

The user of a channel is asked for it when a long message is about to be received
(:class:`.contracts.Placer`). On RDMA the message is pulled straight into it, on TCP it is received into it. A
:class:`Placement` knows whether the device still may write there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Registered(Protocol):
    """Memory that keeps its own registrations, such as a region of ``aiordma.memory``."""

    def lkey(self, memory: Any, /) -> int:
        """Key for requests of this end on one link. :raises VerbsError: the device refuses."""

    def begin_use(self) -> None:
        """A device begins to use it. :raises ValueError: it is closed."""

    def end_use(self) -> None:
        """It has let go."""


class Placement:
    """Where the body of one message goes.

    :param view: writable bytes, as many as the body has.
    :param region: what they lie in, if that knows how to register itself.
    """

    __slots__ = ("nbytes", "on_released", "region", "registration", "released", "view")

    def __init__(self, view: memoryview, region: Registered | None = None) -> None:
        self.view, self.region = view, region
        self.nbytes = view.nbytes
        #: What the link holds while its device may write here; for the link alone.
        self.registration: Any = None
        #: Whether no device writes here any more; ``on_released()`` is called when it becomes so.
        self.released = False
        self.on_released: Callable[[], object] | None = None

    def release(self) -> None:
        """Nothing writes here any more. Idempotent."""
        if not self.released:
            self.released = True
            callback, self.on_released = self.on_released, None
            if callback is not None:
                callback()

    def forget(self) -> None:
        """Hold the memory no more; it was released. The message may still be on its way."""
        self.view, self.region = memoryview(b""), None
