"""Any mix of rules: every stream ends, in time, with its data whole or with a clear error on some side."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiordma import faults
from aiordma.errors import AioRdmaError
from aiordma.links import engine as engines
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from tests.loops import LOOPS
from tests.processes import process
from tests.tuned import tuned
from tests.world import DEVICE

from .kit import PATIENCE, Outcome, exchange, read, write_quietly

if TYPE_CHECKING:
    from aiordma.streams.stream import RdmaStream
    from tests.program import Control

pytestmark = pytest.mark.slow

SETTINGS = {
    "device": DEVICE,
    "ring_bytes": 16384,
    "keepalive_ms": 50,
    "keepalive_timeout_ms": 100,
    "link_timeout_ms": 500,
}

# Left out are faults that nothing below an application can detect: bit errors in the payload (corrupt
# op=write), and lost messages (drop dir=in). At least one end must detect all others.
_HARMLESS = (
    "delay op={op} p={p} ms={ms}",
    "delay dir=in op={message} p={p} ms={ms}",
    "reorder dir=in op=cdc p={p} ms={ms}",
    "duplicate dir=in op=cdc p={p}",
    "duplicate op=write p={p}",
)
_HARMFUL = (
    "drop op={op} nth={nth} ms={ms}",
    "drop op={op} nth={nth} ms=never",
    "rnr op={message} nth={nth} ms={ms}",
    "error op={op} nth={nth} status={status}",
    "error dir=in op={message} nth={nth}",
    "disconnect op={op} nth={nth}",
    "disconnect dir=in op={message} nth={nth}",
    "duplicate op={message} nth={nth}",
    "corrupt op={message} nth={nth}",
    "corrupt dir=in op={message} nth={nth}",
)


def rule_text(template: str, random: Random) -> str:
    text = template.format(
        op=random.choice(("cdc", "write", "llc", "nop", "send", "any", "cdc,write")),
        message=random.choice(("cdc", "llc", "cdc,llc")),
        p=random.choice((0.01, 0.05, 0.2)),
        ms=random.choice((0, 1, 3)),
        nth=random.choice((1, 2, 3, 5, 10, 20, 40, 80)),
        status=random.choice(
            ("RETRY_EXC_ERR", "REM_ACCESS_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "FATAL_ERR")
        ),
    )
    return text + random.choice(("", " side=client", " side=server"))


def rule_set(seed: int) -> str:
    random = Random(seed)
    harmless = [rule_text(each, random) for each in random.choices(_HARMLESS, k=random.randrange(4))]
    harmful = [rule_text(each, random) for each in random.choices(_HARMFUL, k=random.randrange(3))]
    return f"seed={seed}; " + "; ".join(random.sample(harmless + harmful, len(harmless + harmful)))


def is_harmless(rules: str) -> bool:
    patient = re.compile("seed=|delay|reorder|duplicate (dir=in|op=write)")
    return all(patient.match(rule) for rule in rules.split("; ") if rule)


def judge(rules: str, outcomes: tuple[Outcome, Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.sent.startswith(outcome.got), rules
        assert outcome.whole or not outcome.ended, rules
    if not all(outcome.whole for outcome in outcomes):
        errors = [error for outcome in outcomes for error in outcome.errors]
        assert errors, rules
        assert all(error.__cause__ is not None for error in errors), (rules, errors)


async def one_loop(rules: str, size: int, streams: int) -> None:
    config = tuned(**SETTINGS)  # type: ignore[arg-type]
    engine = await engines.current(config)
    accepted: dict[int, RdmaStream] = {}
    outcomes: list[tuple[Outcome, Outcome]] = []

    async def client(port: int, number: int) -> None:
        try:
            stream = await connect("127.0.0.1", port, config=config, mode="rdma")
        except (AioRdmaError, OSError):
            return  # a clear error, too
        async with stream:
            try:
                await stream.send(bytes([number]))
            except anyio.BrokenResourceError:
                return
            # Until the other end has it, or this one knows that it never will.
            while number not in accepted and stream._pipe.error is None:  # noqa: ASYNC110
                await anyio.sleep(0.001)
            if number in accepted:
                outcomes.append(await exchange(stream, accepted[number], size, number))

    async def greet(stream: RdmaStream) -> None:
        try:
            accepted[(await stream.receive(1))[0]] = stream
            await anyio.sleep_forever()  # when this returns, the stream is closed
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            await stream.aclose()
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise

    with faults.injected(rules), anyio.fail_after(PATIENCE):
        async with await listen("127.0.0.1", config=config, mode="rdma") as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, greet)
                async with anyio.create_task_group() as clients:
                    for number in range(streams):
                        clients.start_soon(client, listener.port, number)
                tasks.cancel_scope.cancel()
    for each in outcomes:
        judge(rules, each)
    if is_harmless(rules):
        assert len(outcomes) == streams
        assert all(outcome.whole for each in outcomes for outcome in each), rules
    for stream in accepted.values():
        await stream.aclose()
    with anyio.fail_after(PATIENCE):
        while any(group.members for group in engine.all_groups):  # noqa: ASYNC110
            await anyio.sleep(0.001)
    engine.close()


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 30), size=st.sampled_from([0, 1000, 60_000]), streams=st.integers(1, 3))
def test_one_loop(loop: str, seed: int, size: int, streams: int) -> None:
    backend, options = LOOPS[loop]
    anyio.run(one_loop, rule_set(seed), size, streams, backend=backend, backend_options=options)


# ---- two processes, each with rules of its own


async def server(control: Control, size: int) -> None:
    """Accepts and runs exchanges; reports its port, and then the outcome of each."""

    async def handle(stream: RdmaStream) -> None:
        forth, back = Outcome(Random(1).randbytes(size)), Outcome(Random(2).randbytes(size))
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(read, stream, forth, Random(3))
            tasks.start_soon(write_quietly, stream, back, Random(4))
        assert forth.sent.startswith(forth.got)
        control.say([forth.ended, forth.whole, [repr(e.__cause__) for e in forth.errors + back.errors]])

    async with await listen("127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        control.say(listener.port)
        await control.heard_all()
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(4))
async def test_two_processes(seed: int, anyio_backend: tuple[str, dict[str, Any]]) -> None:
    size = 100_000
    config = tuned(**SETTINGS)  # type: ignore[arg-type]
    loop = list(LOOPS)[seed % 3]
    rules = [rule_set(seed * 2 + 1000), rule_set(seed * 2 + 1001)]
    env = {f"AIORDMA_{name.upper()}": str(value) for name, value in SETTINGS.items()}
    with process(f"{__name__}:server", loop, env={**env, "AIORDMA_FILTER": rules[0]}, size=size) as peer:
        port = await peer.heard()
        with faults.injected(rules[1]), anyio.fail_after(PATIENCE):
            for _ in range(5):
                try:
                    stream = await connect("127.0.0.1", port, config=config, mode="rdma")
                except (AioRdmaError, OSError) as error:
                    assert not (is_harmless(rules[0]) and is_harmless(rules[1])), error  # noqa: PT017
                    continue
                forth, back = Outcome(Random(1).randbytes(size)), Outcome(Random(2).randbytes(size))
                async with stream, anyio.create_task_group() as tasks:
                    tasks.start_soon(write_quietly, stream, forth, Random(5))
                    tasks.start_soon(read, stream, back, Random(6))
                assert back.sent.startswith(back.got), rules
                assert back.whole or not back.ended, rules
                if not (is_harmless(rules[0]) and is_harmless(rules[1])):
                    continue
                assert back.whole, (rules, back.errors)
                assert await peer.heard() == [True, True, []]
        (await engines.current()).close()
        peer.hush()
        assert "Traceback" not in peer.stderr()
