"""What people do with Dask, on ``LocalCluster(protocol="rdma")``: results, and that nothing runs on TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dask
import dask.array as da
import numpy as np
import pytest

from distributed_aiordma import comm_paths

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

MIB = 1 << 20


def on_rdma_only(client: Client) -> None:
    """Every open comm of the workers, the scheduler and this process runs on RDMA."""
    seen = [*client.run(comm_paths).values(), client.run_on_scheduler(comm_paths), comm_paths()]
    for counts in seen:
        assert counts.get("rdma:// rdma", 0) > 0
        assert "rdma:// tcp" not in counts
        assert "tcp://" not in counts


def test_addresses(client: Client, cluster: LocalCluster) -> None:
    assert cluster.scheduler_address.startswith("rdma://")
    assert all(address.startswith("rdma://") for address in client.scheduler_info()["workers"])
    assert client.submit(sum, [1, 2]).result() == 3
    on_rdma_only(client)


def test_an_array_transposed_against_itself(client: Client) -> None:
    x = da.random.default_rng(7).integers(0, 1000, size=(3000, 3000), chunks=(500, 500)).persist()
    y = (x + x.T).sum(axis=0)
    host = x.compute()
    np.testing.assert_array_equal(y.compute(), (host + host.T).sum(axis=0))
    on_rdma_only(client)


def test_ten_thousand_tiny_tasks(client: Client) -> None:
    futures = client.map(lambda number: number + 1, range(10_000), pure=False)
    assert sum(client.gather(futures)) == sum(range(1, 10_001))
    on_rdma_only(client)


def test_scatter_and_gather_of_large_arrays(client: Client) -> None:
    sent = [np.random.default_rng(n).integers(0, 255, 32 * MIB, np.uint8) for n in range(3)]
    futures = client.scatter(sent, broadcast=True)
    for received, original in zip(client.gather(futures), sent, strict=True):
        np.testing.assert_array_equal(received, original)
    on_rdma_only(client)


def test_rechunk_by_p2p(client: Client) -> None:
    x = da.arange(4_000_000, chunks=100_000).reshape(2000, 2000)
    with dask.config.set({"array.rechunk.method": "p2p", "optimization.fuse.active": False}):
        y = x.rechunk((2000, 50)).compute()
    np.testing.assert_array_equal(y, np.arange(4_000_000).reshape(2000, 2000))
    on_rdma_only(client)


def test_shuffle_by_p2p(client: Client) -> None:
    pandas = pytest.importorskip("pandas", reason="distributed-aiordma[test] has it")
    import dask.dataframe as dd

    frame = pandas.DataFrame({"key": np.arange(200_000) % 97, "value": np.arange(200_000)})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        shuffled = dd.from_pandas(frame, npartitions=12).shuffle("key")
        by_partition = client.compute(shuffled.to_delayed(), sync=True)
    together = pandas.concat(by_partition)
    assert together["value"].sum() == frame["value"].sum()
    assert len(together) == len(frame)
    owners = [set(part["key"]) for part in by_partition if len(part)]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 97  # each key is in one partition
    on_rdma_only(client)


def test_arrays_stay_whole_while_the_memory_of_others_is_used_again(client: Client) -> None:
    """Received data is kept, dropped and received again in the same memory, for a while."""
    first, second = client.scheduler_info()["workers"]

    def make(number: int) -> np.ndarray:
        return np.full(3 * MIB, number % 251, np.uint8)

    def check(data: np.ndarray, number: int) -> bool:
        return bool((data == number % 251).all())

    kept = []
    for number in range(60):
        made = client.submit(make, number, workers=[first], pure=False)
        checked = client.submit(check, made, number, workers=[second], pure=False)
        assert checked.result()
        if number % 7 == 0:
            kept.append((made, number))
    for made, number in kept:
        assert client.submit(check, made, number, workers=[second], pure=False).result()
