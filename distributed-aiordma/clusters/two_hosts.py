"""The client of the test on two hosts: ``python two_hosts.py SCHEDULER``."""

from __future__ import annotations

import sys

import numpy as np
from distributed import Client

from distributed_aiordma import comm_paths

MIB = 1 << 20


def main() -> None:
    with Client(sys.argv[1]) as client:
        client.wait_for_workers(2, timeout=60)
        workers = {info["name"]: address for address, info in client.scheduler_info()["workers"].items()}
        near, far = workers["host0"], workers["host1"]
        data = client.submit(np.arange, 2 * MIB, workers=[near])
        assert client.submit(np.sum, data, workers=[far]).result(timeout=60) == np.arange(2 * MIB).sum()
        gathered = client.submit(np.ones, 4 * MIB, np.uint8, workers=[far]).result(timeout=60)
        assert gathered.sum() == 4 * MIB
        for counts in (*client.run(comm_paths).values(), client.run_on_scheduler(comm_paths)):
            assert "rdma:// tcp" not in counts, counts
            assert counts["rdma:// rdma"] > 0
        print("all on RDMA")


if __name__ == "__main__":
    main()
