"""Clusters that change: workers that are killed, come and go, and are restarted."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import numpy as np
from distributed import Client, LocalCluster, wait

if TYPE_CHECKING:
    import distributed

MIB = 1 << 20


def until(condition: object, seconds: float = 60) -> None:
    """Wait until ``condition()`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_killed_while_it_sends(client: Client) -> None:
    """What it had is computed again elsewhere, and the result is right."""
    first, second = client.scheduler_info()["workers"]
    pid = client.run(os.getpid)[first]

    def make(number: int) -> np.ndarray:
        return np.full(64 * MIB, number, np.uint8)

    def add(*arrays: np.ndarray) -> int:
        return sum(int(array[0]) + int(array[-1]) for array in arrays)

    parts = [client.submit(make, n, workers=[first], allow_other_workers=True, pure=False) for n in range(12)]
    wait(parts)
    total = client.submit(add, *parts, workers=[second], allow_other_workers=True, pure=False)

    def receiving(dask_worker: distributed.Worker) -> bool:
        return bool(dask_worker.state.in_flight_workers) or dask_worker.state.transfer_incoming_bytes > 0

    def started() -> bool:
        return bool(total.done() or client.run(receiving, workers=[second])[second])

    until(started)
    os.kill(pid, signal.SIGKILL)
    assert total.result(timeout=60) == 2 * sum(range(12))
    until(lambda: len(client.scheduler_info()["workers"]) == 2)  # the nanny has made a new one


def test_the_nannies_restart_the_workers(client: Client) -> None:
    before = set(client.run(os.getpid).values())
    data = client.scatter(np.ones(MIB))
    client.restart(timeout=60)
    after = set(client.run(os.getpid).values())
    assert len(after) == 2
    assert before.isdisjoint(after)
    assert data.status in ("cancelled", "lost")
    assert client.submit(sum, [3, 4]).result(timeout=30) == 7
    assert all(address.startswith("rdma://") for address in client.scheduler_info()["workers"])


def test_adaptive_scaling() -> None:
    with (
        LocalCluster(
            protocol="rdma", n_workers=0, threads_per_worker=1, dashboard_address=None, memory_limit=None
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=3, interval="100ms", wait_count=2, target_duration="100ms")

        def slow(number: int) -> int:
            time.sleep(0.1)
            return number

        futures = client.map(slow, range(60), pure=False)
        assert sum(client.gather(futures)) == sum(range(60))
        assert len(cluster.workers) > 1
        del futures
        until(lambda: not cluster.workers)  # and all of them are taken away again
        assert client.submit(sum, [1, 1]).result(timeout=60) == 2
