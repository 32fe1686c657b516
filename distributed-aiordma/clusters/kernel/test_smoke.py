"""A small cluster on a given device: `make test-dask-rxe` runs this in a virtual machine with rxe."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

import aiordma
from distributed_aiordma import comm_paths

if TYPE_CHECKING:
    from distributed import Client

MIB = 1 << 20
#: The device of the kernel that the cluster must be on, such as rxe0; empty: the software device.
DEVICE = os.environ.get("AIORDMA_DEVICE", "")


async def device() -> str | None:
    """That of the loop that runs this: where a worker's comms are."""
    statistics = aiordma.statistics()
    return None if statistics is None else statistics.get("device")


def test_arrays_and_tasks(client: Client) -> None:
    first, second = client.scheduler_info()["workers"]
    assert client.gather(client.map(lambda n: n + 1, range(50), pure=False)) == list(range(1, 51))
    data = client.submit(np.arange, MIB, workers=[first])  # 8 MiB, more than a ring
    total = client.submit(np.sum, data, workers=[second], pure=False)
    assert total.result() == np.arange(MIB).sum()
    sent = np.random.default_rng(1).integers(0, 255, 4 * MIB, np.uint8)
    back = client.gather(client.scatter(sent, workers=[second]))
    np.testing.assert_array_equal(back, sent)
    for counts in (*client.run(comm_paths).values(), client.run_on_scheduler(comm_paths), comm_paths()):
        assert counts["rdma:// rdma"] > 0
        assert "rdma:// tcp" not in counts
    found = set(client.run(device).values())
    assert found == {DEVICE} if DEVICE else len(found) == 1
