"""Other processes in tests of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiordma import memory
from aiordma.config import Config
from aiordma.memory import Rights
from tests.roles import LOCAL

if TYPE_CHECKING:
    from tests.program import Control


async def owner(control: Control, nbytes: int, **settings: Any) -> None:
    """Serves a region. Says its port and descriptor, then the sum of its bytes whenever it hears anything,
    then that everything is closed."""
    config = Config(**settings)
    async with memory.serve(LOCAL, config=config) as server:
        region = await memory.alloc(nbytes, config=config)
        rights = Rights.READ | Rights.WRITE | Rights.ATOMIC
        control.say([server.port, region.descriptor(rights).hex()])
        async for _ in heard(control):
            control.say(sum(region[:].view))
        await region.aclose()
    control.say("closed")


async def heard(control: Control) -> Any:
    """What it is told, until nothing more comes."""
    while True:
        try:
            yield await control.hear()
        except EOFError:
            return
