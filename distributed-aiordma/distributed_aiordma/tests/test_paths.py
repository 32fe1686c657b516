"""The path of a comm: the warning, and the refusal."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import dask
import pytest
from distributed.comm import connect, listen
from distributed.comm.core import CommClosedError, FatalCommClosedError

from distributed_aiordma import paths
from distributed_aiordma.settings import PREFIX, Settings

from .pairs import comm_pair

if TYPE_CHECKING:
    from distributed_aiordma.comm import RdmaComm


@pytest.fixture
def _no_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORDMA_DEVICE", "none")
    monkeypatch.setattr(paths, "_warned", set())


@pytest.mark.asyncio
@pytest.mark.usefixtures("_no_rdma")
async def test_one_warning_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "distributed.comm.aiordma"):
        for _ in range(3):
            async with comm_pair() as (a, b):
                assert a.path == b.path == "tcp"
                await a.write({"x": 1})
                assert await b.read() == {"x": 1}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len({text.partition(" is on TCP, not on RDMA: ")[2] for text in said}) <= 2
    assert all("is on TCP, not on RDMA: " in text and "aiordma doctor" in text for text in said)


@pytest.mark.asyncio
@pytest.mark.usefixtures("_no_rdma")
async def test_a_client_that_requires_rdma_does_not_try_again() -> None:
    async def handle(comm: RdmaComm) -> None: ...

    async with listen("rdma://127.0.0.1", handle) as listener:
        with (
            dask.config.set({f"{PREFIX}.require-rdma": True}),
            pytest.raises(FatalCommClosedError, match="require-rdma is set"),
        ):
            await connect(listener.contact_address, timeout=30)


@pytest.mark.asyncio
@pytest.mark.usefixtures("_no_rdma")
async def test_a_listener_that_requires_rdma_turns_clients_away() -> None:
    called = False

    async def handle(comm: RdmaComm) -> None:
        nonlocal called
        called = True

    with dask.config.set({f"{PREFIX}.require-rdma": True}):
        listener = await listen("rdma://127.0.0.1", handle)
    try:
        with pytest.raises(CommClosedError):
            await connect(listener.contact_address, timeout=10)
        assert not called
    finally:
        listener.stop()


@pytest.mark.asyncio
async def test_no_warning_on_rdma(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), dask.config.set({f"{PREFIX}.require-rdma": True}):
        async with comm_pair() as (a, _):
            assert a.path == "rdma"
    assert caplog.records == []


@pytest.mark.asyncio
async def test_a_busy_server_is_not_taken_for_a_plain_one() -> None:
    """Its loop does not run for longer than other clients wait for an answer (AIORDMA_HEAD_START_MS)."""
    listening: concurrent.futures.Future[str] = concurrent.futures.Future()
    accepted: concurrent.futures.Future[str] = concurrent.futures.Future()
    busy = threading.Event()

    async def handle(comm: RdmaComm) -> None:
        accepted.set_result(comm.path)
        await comm.close()

    def block() -> None:
        busy.set()
        time.sleep(1.3)  # what a program does that computes in its event loop

    async def serve() -> None:
        async with listen("rdma://127.0.0.1", handle) as listener:
            asyncio.get_running_loop().call_later(0.05, block)
            listening.set_result(listener.contact_address)
            await asyncio.wrap_future(accepted)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        address = await asyncio.wrap_future(listening)
        await asyncio.to_thread(busy.wait)
        comm = await connect(address, timeout=30)
        assert comm.path == "rdma"
        assert await asyncio.wrap_future(accepted) == "rdma"
        await comm.close()
    finally:
        await asyncio.to_thread(thread.join)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("require-rdma", "perhaps", "true or false"),
        ("write-behind", "many", "is no size"),
        ("write-behind", 0, "at least 1 byte"),
        ("pool", -1, "at least 0 bytes"),
    ],
)
def test_a_wrong_setting_is_named(key: str, value: object, text: str) -> None:
    with dask.config.set({f"{PREFIX}.{key}": value}), pytest.raises(ValueError, match=f"{key}.*{text}"):
        Settings.now()


def test_the_environment_goes_before_the_ring_of_comms(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AIORDMA_RING_BYTES", "AIORDMA_MAX_RING_BYTES"):
        monkeypatch.delenv(variable, raising=False)
    config = Settings.now().config()
    assert (config.ring_bytes, config.max_ring_bytes) == (1 << 20, 4 << 20)
    with dask.config.set({f"{PREFIX}.ring": "300 kiB"}):
        config = Settings.now().config()
        assert (config.ring_bytes, config.max_ring_bytes) == (1 << 19, 1 << 19)  # powers of two
    monkeypatch.setenv("AIORDMA_RING_BYTES", "65536")
    config = Settings.now().config()
    assert (config.ring_bytes, config.max_ring_bytes) == (65536, None)


@pytest.mark.parametrize("chosen", ["", "auto"])
def test_a_process_of_dask_needs_no_pyverbs_unless_it_says_so(chosen: str) -> None:
    program = (
        "import os, sys, distributed_aiordma.backend\n"
        "print(os.environ['AIORDMA_VERBS'], 'pyverbs' in sys.modules)"
    )
    environment = os.environ | {"AIORDMA_VERBS": chosen}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    verbs, loaded = ran.stdout.split()
    assert verbs == (chosen or "own")
    if not chosen:
        assert loaded == "False"
