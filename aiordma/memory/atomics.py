"""Who carries out the atomic operations on a region: its owner's event loop, or a device.

Operations of two kinds on one word must be atomic with each other. The loop's are the CPU's. Those of a
device that says ``IBV_ATOMIC_GLOB`` (the software device) are atomic with them; those of most cards
(``IBV_ATOMIC_HCA``) only with each other. So the peers that have a region open at one time use one kind only.
"""

from __future__ import annotations

from typing import NamedTuple

from ..proto.memory import Fault
from ..verbs.abi import AtomicCap
from .errors import MemoryAccessError

_CPU = ""


class Atomics(NamedTuple):
    """A way to carry out atomic operations."""

    #: The device that they are atomic on; empty: they are atomic with the CPU's.
    domain: str
    by_device: bool

    def check_by_loop(self) -> None:
        """:raises MemoryAccessError: the loop must not carry one out."""
        if self.domain != _CPU:
            raise MemoryAccessError(
                Fault.RIGHTS, f"atomic operations on this memory are those of device {self.domain}"
            )


BY_LOOP = Atomics(_CPU, by_device=False)


def atomics_of(device: str, capability: AtomicCap) -> Atomics:
    """That of a link on ``device``."""
    if capability is AtomicCap.GLOB:
        return Atomics(_CPU, by_device=True)
    if capability is AtomicCap.HCA:
        return Atomics(device, by_device=True)
    return BY_LOOP


class RegionAtomics:
    """Those of one region: its openings with the right to them share a domain."""

    def __init__(self) -> None:
        self._domain = _CPU
        self._openings = 0

    def join(self, wanted: Atomics) -> Atomics:
        """One more opening: how its atomic operations are carried out.

        :raises MemoryAccessError: others use a device that this one cannot join.
        """
        if self._openings and wanted.domain != self._domain:
            if self._domain != _CPU:
                raise MemoryAccessError(
                    Fault.LIMIT,
                    "other peers have atomic operations on this region by the owner's device "
                    f"{self._domain}, and those of this path would not be atomic with them: use the same "
                    "device, or a descriptor without Rights.ATOMIC",
                )
            wanted = BY_LOOP
        self._domain = wanted.domain
        self._openings += 1
        return wanted

    def leave(self) -> None:
        """One opening less."""
        self._openings -= 1
