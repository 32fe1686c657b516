"""A real valkey-server: ``make test-valkey``, which builds it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

# Its compilation takes minutes.
if not os.environ.get("AIORDMA_VALKEY_SERVER"):
    collect_ignore_glob = ["test_*.py"]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demolib.valkey import Valkey


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    from demolib.valkey import start_valkey

    running = start_valkey(str(tmp_path_factory.mktemp("valkey")), "--enable-debug-command", "local")
    yield running
    assert running.program.stop() == 0, running.program.output


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def redis_may_read(blockbuster: Any) -> None:
    """redis-py reads its own version from a file when it makes a connection."""
    for function in blockbuster.functions.values():
        function.can_block_in("redis/utils.py", "get_lib_version")
