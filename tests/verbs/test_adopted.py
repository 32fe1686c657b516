"""aiordma on a device, protection domain or region that the program has opened with pyverbs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import memory
from aiordma.errors import NegotiationError
from aiordma.verbs import adopted, bindings
from aiordma.verbs.backend import open_backend
from tests.world import SLOWER

from .conftest import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(importlib.util.find_spec("pyverbs") is None, reason="there is no pyverbs"),
]


def context_name() -> str:
    """The tests' device; it loads the software device's library, if it is that."""
    backend = open_backend(DEVICE)
    backend.close()
    return backend.name


@pytest.fixture(params=["auto", "own"])
def context(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The program's; aiordma uses one binding or the other for itself."""
    name = context_name()
    monkeypatch.setenv(bindings.VARIABLE, request.param)
    import pyverbs.device

    opened = pyverbs.device.Context(name=name)
    yield opened
    opened.close()


async def echo_once(size: int = 100_000) -> str:
    """A stream over the loop's engine, both ways; its path."""

    async def echo(stream: aiordma.RdmaStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)

    sent = bytes(range(256)) * (size // 256)
    async with aiordma.listen("127.0.0.1", mode="rdma") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        async with aiordma.connect("127.0.0.1", listener.port, mode="rdma") as stream:
            tasks.start_soon(stream.send, sent)
            received = bytearray()
            while len(received) < len(sent):
                received += await stream.receive()
            path: str = stream.path
        tasks.cancel_scope.cancel()
    assert received == sent
    return path


async def test_streams_on_the_programs_device(context: Any) -> None:
    name = aiordma.use_device(context)
    assert await echo_once() == "rdma"
    statistics = aiordma.statistics()
    assert statistics is not None
    assert statistics["device"] == name
    with pytest.raises(Exception, match=r"(?i)busy"):  # it would take the device from under the streams
        context.close()
    assert await echo_once() == "rdma"


async def test_all_links_on_the_programs_protection_domain(context: Any) -> None:
    from pyverbs.mr import MR
    from pyverbs.pd import PD

    pd = PD(context)
    own = MR(pd, 4096, 7)
    aiordma.use_device(context, pd)
    assert await echo_once() == "rdma"
    own.write(b"still the program's", 19)
    assert bytes(own.read(19, 0)) == b"still the program's"
    with pytest.raises(Exception, match=r"(?i)busy"):  # after it has closed the program's regions
        pd.close()
    assert await echo_once() == "rdma"


async def test_once_for_each_loop_and_before_its_first_connection(context: Any) -> None:
    aiordma.use_device(context)
    with pytest.raises(RuntimeError, match=r"uses RDMA device .* already: call use_device\(\) before"):
        aiordma.use_device(context)
    assert await echo_once() == "rdma"


async def test_what_cannot_be_used_is_refused(context: Any) -> None:
    from pyverbs.device import Context
    from pyverbs.pd import PD

    with pytest.raises(TypeError, match=r"'soft0' is no pyverbs\.device\.Context"):
        aiordma.use_device("soft0")
    with pytest.raises(TypeError, match=r"no pyverbs\.pd\.PD"):
        aiordma.use_device(context, context)
    with pytest.raises(NegotiationError, match=r"not a port 7"):
        aiordma.use_device(context, port=7)
    name = context.name.decode() if isinstance(context.name, bytes) else context.name
    with Context(name=name) as other, PD(other) as foreign:
        with pytest.raises(ValueError, match="made on another Context"):
            aiordma.use_device(context, foreign)
    with pytest.raises(ValueError, match="pyverbs Context is closed"):
        aiordma.use_device(other)
    assert aiordma.statistics() is None


async def test_a_region_of_the_program_is_memory_for_peers(context: Any) -> None:
    from pyverbs.mr import MR
    from pyverbs.pd import PD

    with PD(context) as pd, MR(pd, 4096, 1) as region:
        region.write(b"from pyverbs", 12)
        async with memory.register(region) as shared:
            assert shared.nbytes == 4096
            received = bytearray(12)
            async with (
                memory.serve("127.0.0.1", config=aiordma.Config(mode="rdma")) as server,
                await memory.connect("127.0.0.1", server.port, config=aiordma.Config(mode="rdma")) as peer,
            ):
                remote = await peer.open(shared.descriptor())
                await remote[:12].read(received)
                await remote[:4].write(b"FROM")
            assert received == b"from pyverbs"
        assert bytes(region.read(12, 0)) == b"FROM pyverbs"


def test_two_libibverbs_in_a_process_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyPI's pyverbs brings its own: calls of another library on its objects would end the process."""
    maps = tmp_path / "maps"
    lines = [
        f"7f00-7f01 r-xp 00000000 fe:00 1 {path}"
        for path in (
            "/usr/lib/libibverbs.so.1",
            "/usr/lib/libibverbs/librxe-rdmav34.so",
            "/x/pyverbs.libs/libibverbs-1a2b.so.1",
        )
    ]
    monkeypatch.setattr(adopted, "_MAPS", maps)
    maps.write_text("\n".join(lines[:2]))
    adopted._refuse_two_libraries()
    maps.write_text("\n".join(lines))
    with pytest.raises(NegotiationError, match=r"libibverbs-1a2b.*apt-get install python3-pyverbs"):
        adopted._refuse_two_libraries()


def test_the_device_outlives_aiordma_and_not_the_other_way_round() -> None:
    """A program of its own: after the loop's end the device can be closed; at its exit nothing crashes."""
    name = context_name()
    program = f"""
import asyncio, aiordma
from pyverbs.device import Context
from pyverbs.pd import PD
from tests.verbs.test_adopted import echo_once

async def main(*opened):
    aiordma.use_device(*opened)
    assert await echo_once() == "rdma"

with Context(name="{name}") as context:
    asyncio.run(main(context))
    with PD(context) as pd:
        asyncio.run(main(context, pd))
left_open = Context(name="{name}")
asyncio.run(main(left_open))
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=55 * SLOWER,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n")
    # pyverbs has set up logging, so there is output: no more than that.
    # Nor do the rules of `make test-late` count.
    usual = ("[INFO]", "fault rule from the settings")
    assert [line for line in done.stderr.splitlines() if not any(each in line for each in usual)] == []
