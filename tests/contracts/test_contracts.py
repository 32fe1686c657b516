"""Each behaviour of the table on each carrier: its trace is that of plain asyncio, or of plain uvloop there.

How to add one: CONTRIBUTING.md, "a contract".
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from aiordma.negotiation import peer_cache
from tests.project.tree import ROOT

from . import (  # noqa: F401  # these fill the table
    clients,
    datagrams,
    files,
    reading,
    secure,
    servers,
    streams,
    transports,
    writing,
)
from .carriers import CARRIERS, PLAIN
from .differences import DIFFERENCES
from .stage import Stage
from .table import BEHAVIOURS

if TYPE_CHECKING:
    from .carriers import Carrier
    from .table import Behaviour

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def play(behaviour: Behaviour, carrier: Carrier, loop: str) -> dict[str, list[Any]]:
    """Run it once, on a loop of its own."""

    async def main() -> dict[str, list[Any]]:
        stage = Stage(carrier)
        try:
            await behaviour(stage)
        except BaseException:
            await stage.finish()
            raise
        return await stage.finish()

    peer_cache.forget()
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        trace = runner.run(main())
    gc.collect()  # what was left open must warn here
    return trace


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_contract(name: str, loop: str) -> None:
    behaviour = BEHAVIOURS[name]
    right = [play(behaviour, PLAIN, each) for each in dict.fromkeys((loop, "asyncio"))]
    found = {}
    for carrier in CARRIERS:
        trace = play(behaviour, carrier, loop)
        if trace not in right:
            found[carrier.name] = trace
    listed = DIFFERENCES.get(name)
    allowed = listed.carriers if listed is not None and loop in listed.loops else set()
    assert found.keys() == allowed, f"plain: {right}\n" + "\n".join(
        f"{carrier}: {found.get(carrier, 'as plain, so it need not be listed')}"
        for carrier in sorted(found.keys() ^ allowed)
    )


def test_the_differences_are_explained() -> None:
    page = " ".join((ROOT / "docs/howto/run.md").read_text(encoding="utf-8").split())
    carriers = {carrier.name for carrier in CARRIERS}
    for name, difference in DIFFERENCES.items():
        assert name in BEHAVIOURS, name
        assert difference.carriers <= carriers, name
        assert difference.loops <= LOOPS.keys(), name
        assert difference.reason in page, f"{name}: docs/howto/run.md does not say: {difference.reason}"
