"""Peers that ask and take no answers: each question of the control messages, in both roles.

The asker holds back every message that arrives on its link (a rule of its own filter), so that it returns no
credit, and asks as often as the window of its victim lets it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

import aiordma
from aiordma import faults
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.links.contact import ClientContact, ServerContact
from aiordma.proto import llc, llcown
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.links.link import Link
    from tests.program import Control

TIMES = 100_000
_SAID_EVERY = TIMES // 20


def _resize(**fields: Any) -> Callable[[int, int], bytes]:
    return lambda token, number: llcown.RingResize(token=token, **fields).encode()


def _offer_and_name(token: int, number: int) -> bytes:
    """The victim pauses for each offer, and goes on with each ring."""
    stage = llcown.ResizeStage.RING if number % 2 else llcown.ResizeStage.OFFER
    return llcown.RingResize(token=token, stage=stage, rkey=1, ring_addr=4096, ring_bytes=65536).encode()


def _ticket(token: int, number: int) -> bytes:
    """Of a listener that is not known: the victim returns it."""
    return llcown.Ticket(
        number=number + 1, service=0xFFF0, token=9, rkey=1, ring_addr=4096, ring_bytes=16384
    ).encode()


#: Each message, of the stream's token at the victim and the number of questions before. By name, of any end.
OF_BOTH: dict[str, Callable[[int, int], bytes]] = {
    "a sign of life": lambda token, number: llc.TestLink(user_data=bytes(16)).encode(),
    "offers a larger ring": _resize(stage=llcown.ResizeStage.OFFER, ring_bytes=512 << 20),
    "offers a ring": _resize(stage=llcown.ResizeStage.OFFER, ring_bytes=16384),
    "offers and names rings": _offer_and_name,
    "pauses": _resize(stage=llcown.ResizeStage.PAUSED, position=1),
    "refuses": _resize(stage=llcown.ResizeStage.PAUSED, refused=True),
    "confirms": lambda token, number: llc.ConfirmLink(gid=bytes(16), qpn=1, link_uid=1).encode(),
    "adds a link": lambda token, number: llc.AddLink(gid=bytes(16), qpn=1, psn=1, link_num=2).encode(),
    "names a key": lambda token, number: llc.ConfirmRKey(tokens=(llc.RToken(1, 2, 3),)).encode(),
    "takes a key back": lambda token, number: llc.DeleteRKey(rkeys=(7,)).encode(),
    "acknowledges": lambda token, number: llc.AnnounceAck().encode(),
}
OF_A_CLIENT = OF_BOTH | {
    "returns tickets": lambda token, number: llcown.TicketBack(number=number + 1, service=1).encode()
}
OF_A_SERVER = OF_BOTH | {
    "gives tickets": _ticket,
    "recalls tickets": lambda token, number: llcown.TicketBack(service=number % 0xFFFF + 1).encode(),
}


async def _ask(control: Control, link: Link, token: int, question: Callable[[int, int], bytes]) -> None:
    faults.install("delay dir=in op=llc,cdc ms=86400000")
    control.say("asks")
    number = said = 0
    qp = link.queue_pair
    while number < TIMES and not qp.failed:
        for _ in range(16):
            if qp.send_llc(question(token, number)):
                number += 1
        if number - said >= _SAID_EVERY:  # it takes long where much else runs
            said = number
            control.say([number, False])
        await anyio.lowlevel.checkpoint()
    control.say([number, True])


def _remember(contact: type[Any], method: str, seen: list[Any]) -> None:
    original = getattr(contact, method)

    async def remember(self: Any, answer: Any, *arguments: Any) -> Any:
        seen.append(answer)
        return await original(self, answer, *arguments)

    setattr(contact, method, remember)


async def asking_client(control: Control, port: int, question: str) -> None:
    """Says when it begins to ask; then from time to time how often it did, and whether that was all."""
    seen: list[Any] = []
    _remember(ClientContact, "accepted", seen)
    async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
        await stream.send(b"?")
        assert await stream.receive() == b"?"
        (group,) = (await engines.current()).all_groups
        await _ask(control, group.link, seen[-1].token, OF_A_CLIENT[question])
        await control.heard_all()
        stream.abort()


async def asking_server(control: Control, question: str) -> None:
    """The same for a server, which says its port first."""
    seen: list[Any] = []
    _remember(ServerContact, "confirmed", seen)
    async with await aiordma.listen(LOCAL, 0, config=Config()) as listener:
        control.say(listener.port)
        async with await listener.accept() as stream:
            assert await stream.receive() == b"?"
            (group,) = (await engines.current()).all_groups
            await _ask(control, group.link, seen[-1].token, OF_A_SERVER[question])
            with contextlib.suppress(EOFError):
                await control.heard_all()
            stream.abort()
