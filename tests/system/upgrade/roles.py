"""Both ends of a surface as processes of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.system.upgrade.surfaces import SURFACES, tls

if TYPE_CHECKING:
    from tests.program import Control


async def server(control: Control, surface: str, **options: Any) -> None:
    """Says where its aiordma lies and its port; serves until it hears no more."""
    async with SURFACES[surface].serve(tls(options)) as port:
        control.say([_where(), port])
        await control.heard_all()


async def client(control: Control, surface: str, port: int, **options: Any) -> None:
    """Says where its aiordma lies, and then what it has seen of the path."""
    control.say(_where())
    control.say(await SURFACES[surface].use(port, tls(options)))


def _where() -> str:
    import aiordma

    return aiordma.__file__
