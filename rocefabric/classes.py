"""Traffic classes: which DSCP is in which queue, and which priority hosts pause for it.

A pause frame names priorities. Switches pause the priority that has the number of the queue; hosts pause the
one that they file a DSCP under, which is its upper three bits unless they are told otherwise. Where the two
differ, neither end obeys the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PRESETS", "Lossless", "Marking"]


@dataclass(frozen=True)
class Lossless:
    """One class that is paused instead of dropped."""

    dscp: int
    #: Of switches, and the priority that they pause.
    queue: int
    #: The priority that hosts pause.
    priority: int


#: Values of a table that names them as its `preset`; the table's own keys come first.
PRESETS: dict[str, dict[str, int]] = {
    # The article's.
    "ucloud": {"roce_dscp": 46, "roce_queue": 5, "cnp_dscp": 48, "cnp_queue": 6},
    # What NVIDIA's guides for ConnectX and Spectrum set up.
    "nvidia": {"roce_dscp": 26, "roce_queue": 3, "cnp_dscp": 48, "cnp_queue": 6, "other_queue": 0},
    # SONiC's own maps: DSCP 3 and 4 in the lossless queues 3 and 4, where hosts would file both under 0.
    "sonic": {
        "roce_dscp": 3, "roce_queue": 3, "roce_priority": 3,
        "second_dscp": 4, "second_queue": 4, "second_priority": 4,
        "cnp_dscp": 48, "cnp_queue": 6, "other_queue": 1,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Marking:
    """Which DSCP goes to which queue, and how the queues are served."""

    #: Values for keys that are not given.
    preset: str = field(default="ucloud", metadata={"one_of": tuple(PRESETS), "presets": PRESETS})
    roce_dscp: int = field(default=46, metadata={"least": 0, "most": 63})
    roce_queue: int = field(default=5, metadata={"least": 0, "most": 7})
    #: What hosts file RoCE's DSCP under. -1: its upper three bits, as adapters do it by themselves.
    roce_priority: int = field(default=-1, metadata={"least": -1, "most": 7})
    #: A second lossless class, with buffers of its own; -1: there is none.
    second_dscp: int = field(default=-1, metadata={"least": -1, "most": 63})
    second_queue: int = field(default=-1, metadata={"least": -1, "most": 7})
    second_priority: int = field(default=-1, metadata={"least": -1, "most": 7})
    cnp_dscp: int = field(default=48, metadata={"least": 0, "most": 63})
    cnp_queue: int = field(default=6, metadata={"least": 0, "most": 7})
    other_dscp: int = field(default=0, metadata={"least": 0, "most": 63})
    other_queue: int = field(default=2, metadata={"least": 0, "most": 7})
    #: Weighted shares: of each lossless class, and of everything else that is not strict.
    roce_weight: int = field(default=70, metadata={"least": 1, "most": 100})
    other_weight: int = field(default=30, metadata={"least": 1, "most": 100})
    #: Cap of the strict CNP queue. 0: what the planner works out.
    cnp_cap_mbps: float = field(default=0, metadata={"least": 0})

    def lossless(self) -> tuple[Lossless, ...]:
        """The classes that are paused, RoCE's first."""
        rows = [(self.roce_dscp, self.roce_queue, self.roce_priority)]
        if self.second_dscp >= 0:
            rows.append((self.second_dscp, self.second_queue, self.second_priority))
        return tuple(
            Lossless(dscp, queue, priority if priority >= 0 else dscp // 8) for dscp, queue, priority in rows
        )
