"""Faults for the model to find, each in a life that has none: the mend of one that was real, or a slip."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from aiordma.proto.cdc import StateFlag
from aiordma.proto.failover import Agreed, CursorExchange
from aiordma.proto.frames import end_frame
from aiordma.proto.life.frames import FramesLife
from tests.proto.life.machine import Resume, RingStage, StreamLife
from tests.proto.life.machine.rings import RingsLife

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["FAULTS", "Fault"]


class Fault(NamedTuple):
    """One fault."""

    owner: type
    method: str
    replacement: Callable[..., Any]
    #: What the model says of it.
    found: str

    def planted(self) -> Any:
        """A context in which every life has it."""
        return mock.patch.object(self.owner, self.method, self.replacement)


def _no_look_ahead(life: StreamLife) -> None:
    """What is awaited behind the peer's data is read when the user reads."""


def _free_at_once(ring: RingsLife) -> None:
    """A closed end does not wait for the peer's last word."""
    if ring.closed and ring.stage is RingStage.ON_RDMA:
        ring.free()


def _return_silently(ring: RingsLife) -> None:
    """An end that does not leave after all does not say what it could not say meanwhile."""
    ring.stage = RingStage.ON_RDMA
    ring._last_posted = False
    ring._out.append(Resume(ring.number))


def _close_and_end(frames: FramesLife[Any]) -> None:
    """An end that has closed answers the peer's close with a second, smaller end."""
    frames._put(end_frame(closed=True))


_compare = CursorExchange._compare


def _from_the_placed_byte(exchange: CursorExchange) -> Any:
    """What the peer knows to have arrived does not count."""
    ledger = exchange._ledger
    return [
        event.changed(send_from=ledger.placed) if isinstance(event, Agreed) and ledger else event
        for event in _compare(exchange)
    ]


_after_attempt = StreamLife._after_attempt


def _nobody_first(life: StreamLife, now: float) -> None:
    """Each end waits for the other to move to the new rings."""
    attempt = life._attempt
    assert attempt is not None
    if attempt.failed is None and attempt.agreed and not attempt.begun:
        attempt.begun = True
        life._peer_moved(attempt, now)
    else:
        _after_attempt(life, now)


_stay_broken = RingsLife.stay_broken


def _go_on_as_before(ring: RingsLife, reason: str, *, fault: bool = False) -> None:
    """A half-closed stream whose ends could not agree sends on, into a ring that the peer may have freed."""
    if ring.stage is RingStage.QUIESCED and ring.peer & StateFlag.SENDING_DONE and not ring.link_failed:
        ring._return()
    else:
        _stay_broken(ring, reason, fault=fault)


FAULTS = {
    "no look-ahead": Fault(StreamLife, "_look_ahead", _no_look_ahead, "they wait for each other"),
    "freed at once": Fault(RingsLife, "free_if_done", _free_at_once, "a ring"),
    "not said again": Fault(RingsLife, "_return", _return_silently, "it is not over"),
    "a second end": Fault(FramesLife, "_put_close", _close_and_end, "cannot be here"),
    "the wrong byte": Fault(CursorExchange, "_compare", _from_the_placed_byte, "other bytes"),
    "neither moves": Fault(StreamLife, "_after_attempt", _nobody_first, "they wait for each other"),
    "goes on as before": Fault(RingsLife, "stay_broken", _go_on_as_before, "a ring"),
}
