"""An engine without a device: its offers hand out memory pipes. Everything else of a negotiation is real."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.lowlevel

from aiordma.errors import Code, NegotiationError
from aiordma.proto.clc import Accept, Claim, Confirm, Proposal
from aiordma.proto.proof import accept_proof
from aiordma.testing.memory import MemoryPipe, memory_pipe_pair

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable


T = TypeVar("T", bound="Offer")


class RdmaPipe(MemoryPipe):
    path = "rdma"


class Trouble:
    """What goes wrong where: called at the step it is named for, raises or waits."""

    def __init__(self, **steps: Callable[[], Awaitable[None]]) -> None:
        self.steps = steps

    async def at(self, step: str) -> None:
        if step in self.steps:
            await self.steps[step]()


class Engine:
    """Both ends of a test share one, so that the two halves of a pipe find each other by token."""

    def __init__(self, trouble: Trouble | None = None, *, first_contact: bool = True) -> None:
        self.trouble = trouble or Trouble()
        self.first_contact = first_contact
        self.engine_id = secrets.token_bytes(16)
        self.halves: dict[int, MemoryPipe] = {}
        self.offers: list[Offer] = []
        self.proposals = 0

    async def propose(
        self, kind: int = 0, *, peer: str = "", unknown_qpn: int = 0, traffic_class: int | None = None
    ) -> ClientContact:
        await self.trouble.at("propose")
        self.proposals += 1
        return self._made(ClientContact(self, kind, unknown_qpn))

    #: No tickets: they need a link.
    early_servers: tuple[tuple[str, int], ...] = ()

    def grant_rings(self, has_room: Callable[[], bool]) -> None:
        return None

    def check_not_drained(self) -> None:
        """It is not."""

    def open_early(self, sock: socket.socket, peer: str, traffic_class: int) -> None:
        return None

    def claim(self, claim: Claim, service: object) -> MemoryPipe:
        raise NegotiationError(Code.TICKET_UNKNOWN)

    async def answer(
        self, proposal: Proposal, peer: str = "", service: object = None, local: object = None
    ) -> ServerContact:
        await self.trouble.at("answer")
        return self._made(ServerContact(self, proposal))

    def _made(self, offer: T) -> T:
        self.offers.append(offer)
        return offer

    @property
    def leaks(self) -> list[Offer]:
        """Offers that neither handed out a pipe nor were abandoned."""
        return [offer for offer in self.offers if not offer.done]


class Offer:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.done = False
        self.first_contact = engine.first_contact

    def shortage(self) -> None:
        return None

    def abandon(self) -> None:
        self.done = True

    def outlive(self, reason: Exception) -> None:
        """A memory pipe does not fail over."""

    def is_proved(self) -> bool:
        """There is no link, over which anything could have come."""
        return False

    def break_link(self, reason: str) -> None:
        pass

    def answer_fields(self, token: int) -> dict[str, object]:
        return {
            "first_contact": self.engine.first_contact,
            "gid": bytes(16),
            "qpn": 1,
            "psn": 2,
            "mtu": 5,
            "rkey": 3,
            "rmb_addr": 4096,
            "ring_bytes": 65536,
            "token": token,
            "engine_id": self.engine.engine_id,
            "host_id": bytes(16),
            "window": 64,
        }


class ClientContact(Offer):
    def __init__(self, engine: Engine, kind: int, unknown_qpn: int = 0) -> None:
        super().__init__(engine)
        self.proposal = Proposal(
            unknown_qpn=unknown_qpn,
            engine_id=engine.engine_id,
            nonce=secrets.token_bytes(16),
            host_id=bytes(16),
            gid=bytes(16),
            kind=kind,
        )
        self.token = 0

    async def accepted(self, accept: Accept, peer: str = "") -> Confirm:
        await self.engine.trouble.at("accepted")
        self.token = accept.token
        return Confirm(**self.answer_fields(accept.token))  # type: ignore[arg-type]

    async def established(self) -> MemoryPipe:
        await self.engine.trouble.at("established")
        while self.token not in self.engine.halves:  # the server's Confirm Link
            await anyio.lowlevel.checkpoint()
        self.done = True
        return self.engine.halves.pop(self.token)


class ServerContact(Offer):
    def __init__(self, engine: Engine, proposal: Proposal) -> None:
        super().__init__(engine)
        self.accept = Accept(
            **self.answer_fields(secrets.randbelow(2**31) + 1),  # type: ignore[arg-type]
            proof=accept_proof(proposal.nonce, engine.engine_id),
        )

    async def confirmed(self, confirm: Confirm) -> MemoryPipe:
        await self.engine.trouble.at("confirmed")
        if confirm.token != self.accept.token:
            raise NegotiationError(Code.OUT_OF_SYNC)
        one, other = memory_pipe_pair()
        one.__class__ = other.__class__ = RdmaPipe
        self.engine.halves[confirm.token] = other
        self.done = True
        return one
