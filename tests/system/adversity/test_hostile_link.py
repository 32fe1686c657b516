"""A peer that breaks the rules on its link harms itself only, and the victim's error says what it did."""

from __future__ import annotations

import logging
import re

import anyio
import pytest

import aiordma
from tests.health import check_echo, check_end, nothing_left, until
from tests.processes import process
from tests.roles import LOCAL
from tests.world import PERSONALITY, needs_pyverbs

from .hostile import ATTACKS, DEVICE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ATTACKER = "tests.system.adversity.hostile:attacker"
PUMP = "tests.roles:pumping_clients"


def reasons(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return "; ".join(texts)


@needs_pyverbs
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, id=f"{kind}-{name.replace(' ', '-')}")
        for kind, names in ATTACKS.items()
        for name in names
    ],
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_attacks(kind: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """One attack on a server, while an honest client's bytes flow."""
    if name == "fetches and adds" and PERSONALITY in {"irdma", "bnxt_re", "erdma", "iwarp", "siw"}:
        pytest.skip(f"{PERSONALITY} has no atomics")
    broken: list[str] = []
    ended: list[str] = []
    served: list[aiordma.RdmaStream] = []

    async def serve(stream: aiordma.RdmaStream) -> None:
        served.append(stream)
        async with stream:
            try:
                async for part in stream:
                    await stream.send(part)
                ended.append("end")
            except anyio.BrokenResourceError as error:
                broken.append(reasons(error))

    wrong: list[object] = []

    def noticed(expected: str) -> str:
        """What the victim says of it."""
        if broken:
            return broken[0]
        stream = served[-1]
        if expected is DEVICE and not engine.backend.is_soft and stream.path == "tcp":
            return str(stream.fallback_reason)
        return ""

    async def attack(port: int) -> None:
        expected = ATTACKS[kind][name][1]
        with process(ATTACKER, port=port, kind=kind, attack=name) as attacker:
            assert await attacker.heard() == "attacked"
            if expected is not None:
                try:
                    await until(lambda: bool(noticed(expected)))
                except AssertionError:
                    wrong.append((name, "goes unnoticed"))
                else:
                    if not re.search(expected, noticed(expected)):
                        wrong.append((name, noticed(expected)))
            attacker.kill()
        await until(lambda: len(broken) + len(ended) == 1, lambda: (name, broken, ended))
        goal = 100_000
        while goal > 0:
            goal -= await bystander.heard()

    async with nothing_left() as engine, await aiordma.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            with process(PUMP, port=listener.port) as bystander:
                assert await bystander.heard() == "rdma"
                await attack(listener.port)
                assert not wrong
                await until(lambda: len(engine.all_groups) == 1, engine.statistics)
                bystander.kill()
            async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as stream:
                await check_echo(stream)
                await check_end(stream)
            tasks.cancel_scope.cancel()
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
