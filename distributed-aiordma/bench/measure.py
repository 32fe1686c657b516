"""What is measured of one cluster: start-up, transfers between workers, scatter and gather, tiny tasks."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from distributed import Client, LocalCluster, wait

from distributed_aiordma import comm_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import distributed

__all__ = ["MIB", "Effort", "Sample", "measure"]

MIB = 1 << 20
#: Measurements of one kind that are taken however long they take.
_LEAST = 1
#: Their CPU time differs by a tenth and more from one time to the next, on any protocol.
_TINY_TIMES = 5


class Effort(Protocol):
    """How much is measured: the options of the command."""

    #: bytes
    sizes: list[int]
    times: int
    tasks: int
    #: for one kind of measurement on one size
    seconds: float


class Sample(NamedTuple):
    """One value of one round."""

    protocol: str
    #: such as "transfer", with the size in bytes (0: it has none)
    what: str
    nbytes: int
    value: float


def make(nbytes: int, seed: int) -> np.ndarray:
    """What no compression makes small in passing; most of it repeated, since random numbers take long."""
    return np.resize(np.random.default_rng(seed).integers(0, 255, MIB, np.uint8), nbytes)


def attempts(times: int, seconds: float) -> Iterator[int]:
    """0, for a first time that does not count (it opens a comm); 1 to ``times``, or fewer that take long."""
    began = time.perf_counter()
    for number in range(times + 1):
        yield number
        if number >= _LEAST and time.perf_counter() - began > seconds:
            return


def length(data: np.ndarray) -> int:
    return data.nbytes


def add_one(number: int) -> int:
    return number + 1


def cpu_seconds() -> float:
    return time.process_time()


def take_log(dask_worker: distributed.Worker) -> list[tuple[int, float]]:
    """(bytes, seconds) of the transfers to this worker, as it logs them itself; forgotten then."""
    log = [(entry["total"], entry["duration"]) for entry in dask_worker.transfer_incoming_log]
    dask_worker.transfer_incoming_log.clear()
    return log


class Round:
    """The measurements of one cluster."""

    def __init__(self, protocol: str, client: Client) -> None:
        self.protocol, self.client = protocol, client
        self.samples: list[Sample] = []
        self.sender, self.receiver = list(client.scheduler_info()["workers"])

    def add(self, what: str, nbytes: int, value: float) -> None:
        self.samples.append(Sample(self.protocol, what, nbytes, value))

    def cpu(self) -> float:
        """CPU seconds of the workers, the scheduler and this process, which has the client."""
        workers: float = sum(self.client.run(cpu_seconds).values())
        # The scheduler of a LocalCluster is in this process.
        return workers + time.process_time()

    def transfer(self, nbytes: int, times: int, seconds: float) -> None:
        """New arrays from one worker to the other, one by one: bytes per second, by the receiver's log."""
        for number in attempts(times, seconds):
            data = self.client.submit(make, nbytes, number, workers=[self.sender], pure=False)
            wait(data)
            before = sum(self.client.run(cpu_seconds).values())
            used = self.client.submit(length, data, workers=[self.receiver], pure=False)
            assert used.result() == nbytes
            spent = sum(self.client.run(cpu_seconds).values()) - before
            ((total, took),) = self.client.run(take_log, workers=[self.receiver])[self.receiver]
            if number:
                self.add("transfer", nbytes, total / took)
                self.add("transfer cpu", nbytes, spent)
            del data, used

    def scatter_and_gather(self, nbytes: int, times: int, seconds: float) -> None:
        """From this process to a worker and back: bytes per second."""
        for number in attempts(times, seconds):
            data = make(nbytes, number)
            began = time.perf_counter()
            future = self.client.scatter(data, workers=[self.receiver], direct=True, hash=False)
            wait(future)
            scattered = time.perf_counter()
            back = self.client.gather(future, direct=True)
            gathered = time.perf_counter()
            assert back[-1] == data[-1]
            if number:
                self.add("scatter", nbytes, nbytes / (scattered - began))
                self.add("gather", nbytes, nbytes / (gathered - scattered))
            del future, back

    def tiny(self, count: int) -> None:
        """Tasks that do next to nothing: CPU seconds of all processes for each, and tasks per second."""
        self.client.gather(self.client.map(add_one, range(200), pure=False))
        for _ in range(_TINY_TIMES):
            cpu, began = self.cpu(), time.perf_counter()
            futures = self.client.map(add_one, range(count), pure=False)
            assert len(self.client.gather(futures)) == count
            self.add("tiny task cpu", 0, (self.cpu() - cpu) / count)
            self.add("tiny tasks", 0, count / (time.perf_counter() - began))


def measure(
    protocol: str, effort: Effort, keep: Callable[[list[Sample], dict[str, Any] | None], None]
) -> None:
    """One round on a cluster of its own.

    :param keep: called after each kind of measurement with all that were taken so far; at last also with the
        paths of all comms.
    """
    began = time.perf_counter()
    with (
        LocalCluster(
            protocol=protocol,
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            memory_limit=None,
            silence_logs=40,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.submit(add_one, 1).result()
        this = Round(protocol, client)
        this.add("start-up", 0, time.perf_counter() - began)
        this.tiny(effort.tasks)
        keep(this.samples, None)
        for nbytes in effort.sizes:
            this.transfer(nbytes, effort.times, effort.seconds)
            keep(this.samples, None)
        for nbytes in effort.sizes:
            if nbytes >= 16 * MIB:
                this.scatter_and_gather(nbytes, max(1, effort.times // 2), effort.seconds)
                keep(this.samples, None)
        paths = {
            "workers": list(client.run(comm_paths).values()),
            "scheduler and client": comm_paths(),
            "load": os.getloadavg()[0],
        }
        keep(this.samples, paths)
