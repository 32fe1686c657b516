"""A cluster within this process, and a client in a thread: what every change must not break."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from distributed import Client, Scheduler, Worker
from distributed.comm.core import Comm
from distributed.core import Status

from ..comm import RdmaComm

pytestmark = [
    # Of distributed's own: what it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

# At any free port: distributed warns, and so fails the test, if another cluster has its usual one.
SETTINGS = {"dashboard": False, "dashboard_address": ":0", "host": "127.0.0.1", "protocol": "rdma"}


@pytest.mark.asyncio
async def test_a_scheduler_two_workers_and_a_client() -> None:
    async with (
        Scheduler(port=0, **SETTINGS) as scheduler,
        Worker(scheduler.address, host="127.0.0.1", dashboard=False) as first,
        Worker(scheduler.address, host="127.0.0.1", dashboard=False) as second,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        assert scheduler.address.startswith("rdma://")
        assert first.address.startswith("rdma://")
        assert {first.status, second.status} == {Status.running}
        data = client.submit(np.arange, 1 << 18, workers=[first.address])
        total = client.submit(np.sum, data, workers=[second.address])
        assert await total == np.arange(1 << 18).sum()
        assert len(second.transfer_incoming_log) == 1
        comms = [comm for comm in Comm._instances if isinstance(comm, RdmaComm) and not comm.closed()]
        assert len(comms) >= 6
        assert {comm.path for comm in comms} == {"rdma"}


def test_a_client_in_a_thread_of_its_own() -> None:
    """The client's loop is one, the cluster's another, and this thread has none."""
    ready, end = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        async with (
            Scheduler(port=0, **SETTINGS) as scheduler,
            Worker(scheduler.address, host="127.0.0.1", dashboard=False),
        ):
            address.append(scheduler.address)
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        with Client(address[0]) as client:
            assert client.submit(lambda x: x + 1, 1).result(timeout=20) == 2
            (scattered,) = client.scatter([np.ones(1 << 18)])
            assert client.submit(np.sum, scattered).result(timeout=20) == 1 << 18
    finally:
        end.set()
        thread.join(20)
    assert not thread.is_alive()
