"""Faults of the software device in virtual time."""

from __future__ import annotations

import asyncio

import pytest

import aiordma
from aiordma.testing import DeviceFaults
from tests.world import DEVICE

from .test_virtual_time import on_virtual_loop, pair

pytestmark = pytest.mark.skipif(DEVICE != "soft", reason="faults are the software device's")


def test_faults_begin_and_end_by_the_loops_time() -> None:
    async def body(one: aiordma.RdmaStream, other: aiordma.RdmaStream) -> None:
        with DeviceFaults() as faults:
            number = faults("at=5s slow=1ms for=600s")
            assert f"{number}: at=5s slow=1ms for=600s (begins in 5.000 s)" in faults("list")
            await asyncio.sleep(6)
            assert "(now, 599.000 s left)" in faults("list")
            await asyncio.sleep(600)
            assert "no faults" in faults("list")
            with pytest.raises(ValueError, match="down or up"):
                faults("port=left")
            faults("drop=1")
        with DeviceFaults() as faults:
            assert "no faults" in faults("list")

    on_virtual_loop(lambda: pair(body, "rdma"))


def test_a_stream_outlives_a_port_that_flaps() -> None:
    async def body(one: aiordma.RdmaStream, other: aiordma.RdmaStream) -> None:
        with DeviceFaults() as faults:
            faults("at=1s port=down for=2s every=10s")
            for number in range(40):
                await one.send(b"%04d" % number)
                assert await other.receive() == b"%04d" % number
                await asyncio.sleep(0.9)

    on_virtual_loop(lambda: pair(body, "rdma"))
