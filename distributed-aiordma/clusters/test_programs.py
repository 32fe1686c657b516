"""``dask scheduler`` and ``dask worker`` from the command line, on one host and on two."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from distributed import Client
from programs import program, scheduler_address

from distributed_aiordma import comm_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
HERE = Path(__file__).parent


def test_on_one_host(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(
            program(
                *("scheduler", "--host", "127.0.0.1", "--port", "0", "--protocol", "rdma"),
                *("--no-dashboard", "--scheduler-file", str(file)),
                log=tmp_path / "scheduler.log",
            )
        )
        address = scheduler_address(file, scheduler)
        assert address.startswith("rdma://127.0.0.1:")
        for number in range(2):
            stack.enter_context(
                program(
                    *("worker", address, "--nthreads", "1", "--no-dashboard", "--memory-limit", "0"),
                    *("--host", "127.0.0.1", "--protocol", "rdma"),
                    log=tmp_path / f"worker{number}.log",
                )
            )
        client = stack.enter_context(Client(address))
        client.wait_for_workers(2, timeout=60)
        first, second = client.scheduler_info()["workers"]
        data = client.submit(np.ones, 8 * MIB, np.uint8, workers=[first])
        assert client.submit(np.sum, data, workers=[second]).result(timeout=60) == 8 * MIB
        for counts in (*client.run(comm_paths).values(), client.run_on_scheduler(comm_paths)):
            assert "rdma:// tcp" not in counts
            assert counts["rdma:// rdma"] > 0


@pytest.fixture
def hosts() -> Iterator[list[tuple[list[str], str]]]:
    """(the command that runs a program there, its address) of two hosts with a cable between them."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    names = [f"dask{os.getpid()}{side}" for side in "ab"]
    addresses = ("10.79.0.1", "10.79.0.2")

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "cable", "netns", names[1])
        for name, address in zip(names, addresses, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "mtu", "4500", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [
            (["ip", "netns", "exec", name], address) for name, address in zip(names, addresses, strict=True)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_on_two_hosts(tmp_path: Path, hosts: list[tuple[list[str], str]]) -> None:
    """A worker on each; the data goes over the wire, by RoCEv2."""
    file = tmp_path / "scheduler.json"
    wire = {"SOFTDEV_WIRE": "auto", "AIORDMA_DEVICE": "soft"}
    with contextlib.ExitStack() as stack:
        inside, here = hosts[0]
        scheduler = stack.enter_context(
            program(
                *("scheduler", "--host", here, "--port", "0", "--protocol", "rdma"),
                *("--no-dashboard", "--scheduler-file", str(file)),
                log=tmp_path / "scheduler.log",
                prefix=inside,
                **wire,
            )
        )
        address = scheduler_address(file, scheduler)
        for number, (inside_it, its_address) in enumerate(hosts):
            stack.enter_context(
                program(
                    *("worker", address, "--nthreads", "1", "--no-dashboard", "--memory-limit", "0"),
                    *("--host", its_address, "--protocol", "rdma", "--name", f"host{number}"),
                    log=tmp_path / f"worker{number}.log",
                    prefix=inside_it,
                    **wire,
                )
            )
        done = subprocess.run(
            [*inside, sys.executable, str(HERE / "two_hosts.py"), address],
            env={**os.environ, **wire},
            timeout=110,
            capture_output=True,
            text=True,
            check=False,
        )
        logs = "".join(log.read_text() for log in tmp_path.glob("*.log"))
        assert done.returncode == 0, done.stdout + done.stderr + logs
        assert "all on RDMA" in done.stdout
