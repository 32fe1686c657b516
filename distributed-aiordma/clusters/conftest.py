"""Clusters of several processes, for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from distributed import Client, LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Two workers, each a process with a nanny."""
    with LocalCluster(
        protocol="rdma", n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=None
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """Connected to :func:`cluster`."""
    with Client(cluster) as client:
        yield client
