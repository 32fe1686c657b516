"""A program of mpi4py: an all-reduce of three sizes over all ranks, every number checked."""

from __future__ import annotations

import importlib
from array import array


def main() -> None:
    mpi = importlib.import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    for count in (1, 1000, 300_000):
        mine = array("d", (i + world.rank for i in range(count)))
        both = array("d", bytes(8 * count))
        world.Allreduce([mine, mpi.DOUBLE], [both, mpi.DOUBLE])
        extra = sum(range(world.size))
        assert both == array("d", (i * world.size + extra for i in range(count)))
    print(f"rank {world.rank} of {world.size}: sums are right", flush=True)


if __name__ == "__main__":
    main()
