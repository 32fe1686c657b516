"""Tickets in the wrong hands: a claim that was seen, guessed or made for something else takes no ring."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.proto import clc, clcstream
from aiordma.proto.proof import claim_proof
from tests.health import check_echo, check_end, until
from tests.negotiation.serving import serving
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, echo
from tests.world import DEVICE

from .known import Known, known_peer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio
SOFT = Config(device=DEVICE)


async def seen_claim(known: Known) -> clc.Claim:
    """What a connection has said to use a ticket: everything that TCP shows of one, its proof included."""
    seen: list[clc.Claim] = []
    encode = clc.Claim.encode

    def record(claim: clc.Claim) -> bytes:
        seen.append(claim)
        return encode(claim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clc.Claim, "encode", record)
        async with await known.connect() as stream:
            await check_echo(stream, b"seen")
            await check_end(stream)
    (claim,) = seen
    await known.has_grant()
    return claim


async def present(claim: clc.Claim, port: int, local: str = LOCAL) -> int:
    """Its answer to another client, whose TCP connection is closed after it."""
    with anyio.fail_after(PATIENCE):
        async with await anyio.connect_tcp(LOCAL, port, local_host=local) as thief:
            await thief.send(claim.encode())
            (answer,) = clcstream.Splitter().feed(await thief.receive())
            assert isinstance(answer, clc.Decline)
            with pytest.raises(anyio.EndOfStream):
                await thief.receive()
    return answer.diagnosis


def ticket(known: Known) -> int:
    """Number of one that the client has, and has not used."""
    (unused,) = (grants for grants in known.holder._unused.values() if grants)
    return unused[0].number


def guessed(known: Known, claim: clc.Claim) -> clc.Claim:
    made = dataclasses.replace(claim, ticket=ticket(known))
    return dataclasses.replace(made, proof=claim_proof(made.fields, made.engine_id, bytes(16)))


def of_another_engine(known: Known, claim: clc.Claim) -> clc.Claim:
    """One that knows the secret of a link of its own."""
    made = dataclasses.replace(claim, ticket=ticket(known), engine_id=bytes(range(16)))
    return dataclasses.replace(made, proof=claim_proof(made.fields, made.engine_id, b"of its own link."))


UNKNOWN, FORGED = aiordma.Code.TICKET_UNKNOWN, aiordma.Code.PROTOCOL_VIOLATION
WAYS: dict[str, tuple[Callable[[Known, clc.Claim], clc.Claim], aiordma.Code]] = {
    "again": (lambda known, claim: claim, UNKNOWN),
    "the proof of another ticket": (
        lambda known, claim: dataclasses.replace(claim, ticket=ticket(known)),
        FORGED,
    ),
    "with another ring": (
        lambda known, claim: dataclasses.replace(claim, ticket=ticket(known), ring_addr=1 << 30),
        FORGED,
    ),
    "a guessed secret": (guessed, FORGED),
    "the secret of another link": (of_another_engine, UNKNOWN),
    "for another listener": (
        lambda known, claim: dataclasses.replace(claim, ticket=ticket(known), service=claim.service + 1),
        UNKNOWN,
    ),
    "on a link of another class": (
        lambda known, claim: dataclasses.replace(
            claim, ticket=ticket(known), traffic_class=claim.traffic_class ^ 4
        ),
        UNKNOWN,
    ),
    "the largest number": (lambda known, claim: dataclasses.replace(claim, ticket=0xFFFF), UNKNOWN),
}


@pytest.mark.parametrize("local", [LOCAL, "127.0.0.2"], ids=["the same address", "another address"])
@pytest.mark.parametrize("way", WAYS)
async def test_who_presents_it_gets_nothing(way: str, local: str) -> None:
    """The ring stays with its owner, whose next connection begins on it."""
    make, code = WAYS[way]
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        claim = await seen_claim(known)
        bystander = await known.connect()
        async with bystander:
            await known.has_grant()
            number = ticket(known)
            assert await present(make(known, claim), listener.port, local) == code
            await check_echo(bystander, b"still here" * 100)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(known.engine, "propose", None)  # nothing else than the ticket
                async with await known.connect() as stream:
                    await check_echo(stream, b"mine" * 1000)
                    await check_end(stream)
            assert number not in known.granter._out
            await check_end(bystander)
        await until(lambda: not any(group.members for group in known.engine.all_groups), known.counts)


async def test_another_server() -> None:
    """It knows neither the link nor the ticket, and serves on."""
    async with serving(echo, config=SOFT) as listener, known_peer(listener.port) as known:
        claim = await seen_claim(known)
        made = dataclasses.replace(claim, ticket=ticket(known))
        proof = claim_proof(made.fields, made.engine_id, known.client.secret)
        with process("tests.roles:echo_server") as other:
            port = await other.heard()
            assert await present(dataclasses.replace(made, proof=proof), port) == UNKNOWN
            async with await anyio.connect_tcp(LOCAL, port) as plain:
                await plain.send(b"plain")
                assert await plain.receive() == b"plain"
        async with await known.connect() as stream:
            await check_echo(stream, b"mine" * 1000)
            await check_end(stream)
