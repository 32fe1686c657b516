"""Calls under any mix of rules: each ends in time, with its own result or an error with the reason."""

from __future__ import annotations

from random import Random

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiordma import faults, rpc
from aiordma.errors import AioRdmaError
from aiordma.links import engine as engines
from tests.loops import LOOPS
from tests.tuned import tuned
from tests.virtual import in_virtual_time
from tests.world import DEVICE

from .kit import PATIENCE

CONFIG = tuned(
    device=DEVICE,
    ring_bytes=16384,
    keepalive_ms=50,
    keepalive_timeout_ms=100,
    link_timeout_ms=500,
    negotiate_timeout_ms=1000,
    link_idle_ms=0,
)
DEADLINE_S = 1.0

service = rpc.Service("t")


@service.method
def reverse(number: int, data: bytes) -> tuple[int, bytes]:
    return number, data[::-1]


@service.method
async def reverse_late(number: int, data: bytes) -> tuple[int, bytes]:
    await anyio.sleep(0.001)
    return number, data[::-1]


# Bit errors in a message are left out: only the application can check its payload.
_RULES = (
    "delay op={op} p={p} ms={ms}",
    "delay dir=in op={message} p={p} ms={ms}",
    "duplicate op={data} p={p}",
    "drop dir=in op=message nth={nth}",
    "reorder dir=in op=message p={p} ms={ms}",
    "duplicate dir=in op=message nth={nth}",
    "drop op={op} nth={nth} ms={ms}",
    "rnr op={message} nth={nth} ms={ms}",
    "error op={op} nth={nth}",
    "error dir=in op={message} nth={nth}",
    "disconnect op={op} nth={nth}",
    "disconnect dir=in op={message} nth={nth}",
    "duplicate op={message} nth={nth}",
    "corrupt op=llc nth={nth}",
)


def rule_set(seed: int) -> str:
    random = Random(seed)
    rules = [
        each.format(
            op=random.choice(("message", "read", "llc", "nop", "send", "any", "message,read")),
            data=random.choice(("read", "write")),
            message=random.choice(("message", "llc", "message,llc")),
            p=random.choice((0.01, 0.05, 0.2)),
            ms=random.choice((0, 1, 3)),
            nth=random.choice((1, 2, 3, 5, 10, 20, 40)),
        )
        + random.choice(("", " side=client", " side=server"))
        for each in random.choices(_RULES, k=random.randrange(1, 4))
    ]
    return f"seed={seed}; " + "; ".join(rules)


async def calls_work(address: tuple[str, int]) -> None:
    """May succeed only after the server has noticed that the old link is down."""
    while True:
        try:
            async with rpc.connect(*address, config=CONFIG, mode="rdma") as client:
                assert await client.call("t.reverse", 7, b"ab", timeout=10.0) == [7, b"ba"]
                return
        except (AioRdmaError, OSError):
            await anyio.sleep(0.01)


async def calls(rules: str, seed: int, tasks_count: int) -> None:
    random = Random(seed)
    engine = await engines.current(CONFIG)
    ended: list[rpc.RpcError | None] = []

    async def call(client: rpc.Client, number: int) -> None:
        for step in range(5):
            data = random.randbytes(random.choice((0, 64, 3000, 5000, 200_000)))
            method = random.choice(("t.reverse", "t.reverse_late"))
            try:
                found = await client.call(
                    method, number * 100 + step, data, timeout=DEADLINE_S, returns=tuple[int, bytes]
                )
            except rpc.RpcError as error:
                ended.append(error)
            else:
                assert found == (number * 100 + step, data[::-1]), rules
                ended.append(None)

    with anyio.fail_after(PATIENCE):
        async with rpc.serve(service, "127.0.0.1", 0, config=CONFIG, drain_timeout=0.0) as server:
            address = ("127.0.0.1", server.port)
            with faults.injected(rules):
                try:
                    async with rpc.connect(*address, config=CONFIG, mode="rdma") as client:
                        async with anyio.create_task_group() as tasks:
                            for number in range(tasks_count):
                                tasks.start_soon(call, client, number)
                        assert len(ended) == 5 * tasks_count
                        codes = {error.code for error in ended if error is not None}
                        assert codes <= {rpc.Code.UNAVAILABLE, rpc.Code.DEADLINE_EXCEEDED}, (rules, ended)
                except (AioRdmaError, OSError):
                    pass  # it could not connect, and raised the reason
            await calls_work(address)
        while any(group.members for group in engine.all_groups):  # noqa: ASYNC110
            await anyio.sleep(0.001)
    engine.close()


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 30), tasks=st.integers(1, 8))
def test_one_loop(loop: str, seed: int, tasks: int) -> None:
    backend, options = LOOPS[loop]
    anyio.run(calls, rule_set(seed), seed, tasks, backend=backend, backend_options=options)


@pytest.mark.anyio
@in_virtual_time  # of a machine that is busy, the deadline could be over before there is a reply to drop
async def test_a_reply_that_never_comes_ends_in_the_deadline() -> None:
    # The link must not be lost before.
    config = tuned(CONFIG, keepalive_ms=PATIENCE * 1000, keepalive_timeout_ms=PATIENCE * 1000)
    async with rpc.serve(service, "127.0.0.1", 0, config=config) as server:
        async with rpc.connect("127.0.0.1", server.port, config=config, mode="rdma") as client:
            assert await client.call("t.reverse", 1, b"ab") == [1, b"ba"]
            with faults.injected("drop dir=in op=message side=client nth=1") as injected:
                with pytest.raises(rpc.RpcTimeout):
                    await client.call("t.reverse", 2, b"ab", timeout=0.05)
                assert injected.fired == 1
    (await engines.current()).close()
