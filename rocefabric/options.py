"""What holds for a whole simulation, in the engine's units."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Times are picoseconds, buffers are cells."""

    seed: int = 1
    cell_bytes: int = 208
    #: Packets that a RoCE sender may have under way.
    window: int = 512
    #: From a threshold to the start of a pause frame, and from its arrival to silence.
    answer_ps: int = 750_000
    obey_ps: int = 750_000
    #: How far a priority group falls below its threshold before it resumes.
    resume_cells: int = 16
    #: Between two looks at a queue; 0: the exact length at each packet.
    poll_ps: int = 0
    #: Weight of the newest look.
    weight: float = 1.0
    #: Marks are set when a packet leaves the queue, not when it arrives.
    mark_departing: bool = False
    #: Marks are spaced as Linux' RED does it, not drawn for each packet alone.
    spaced_marks: bool = False
    cnp_interval_ps: int = 50_000_000
    #: A receiver notifies when an interval ends in which a packet was marked, not as soon as one arrives.
    cnp_at_interval: bool = False
    #: Without progress for this long, a sender goes back to the last acknowledged packet.
    timeout_ps: int = 2_000_000_000
    #: After so long in pause with something to send, a switch's watchdog empties a queue, and lets nothing
    #: into it until the pause is over; it looks again after the second time. 0: there is none.
    watchdog_ps: int = 0
    restore_ps: int = 0
    #: Bytes that a turn of the weighted round robin is worth.
    bulk_quantum: int = 1200
    roce_quantum: int = 2800
