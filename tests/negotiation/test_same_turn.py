"""An end's last step is over and the peer has spoken, in one turn of the loop: one of the two decides."""

from __future__ import annotations

from functools import partial
from socket import SHUT_WR
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aiordma.errors import Code, LinkError, NegotiationError
from aiordma.negotiation.clc_io import ClcIO
from aiordma.negotiation.last_step import LastStep
from aiordma.proto.clc import Decline
from aiordma.proto.events import Failed, UseRdma, UseTcp
from aiordma.proto.handshake import ClientHandshake, ServerHandshake, State, Timeouts
from aiordma.testing.memory import memory_pipe_pair

from .fake import ClientContact, Engine, ServerContact
from .serving import tcp_pair

if TYPE_CHECKING:
    import socket

    from aiordma.testing.memory import MemoryPipe

pytestmark = pytest.mark.anyio

STREAM = b"bytes of the peer's stream, long enough to be no message of the negotiation"
DECLINE = Decline(diagnosis=Code.TIMEOUT_CONFIRM_LINK).encode()
#: In one of the first turns behind its bytes the waiting end notices them.
TURNS = 8
REFUSED = None


async def at_last_step(side: str, now: float) -> ClientHandshake | ServerHandshake:
    """Both ends have said what they had to say over TCP; the link is awaited."""
    offer = ClientContact(Engine(), 0)
    accept = ServerContact(offer.engine, offer.proposal).accept
    confirm = await offer.accepted(accept)
    if side == "client":
        client = ClientHandshake(offer.proposal, Timeouts(), now)
        client.start()
        client.receive(accept.encode(), now)
        client.ready(confirm, now)
        return client
    server = ServerHandshake(Timeouts(), now)
    server.receive(offer.proposal.encode(), now)
    server.ready(accept, now)
    server.receive(confirm.encode(), now)
    return server


@pytest.mark.parametrize("outcome", ["up", "lost", "refused"])
@pytest.mark.parametrize("sent", [STREAM, DECLINE, b""], ids=["stream", "decline", "end"])
@pytest.mark.parametrize("side", ["client", "server"])
async def test_one_decides(side: str, sent: bytes, outcome: str) -> None:
    made: list[MemoryPipe] = []

    async def last_step(peer: socket.socket, turns: int) -> MemoryPipe:
        if sent:
            peer.send(sent)
        else:
            peer.shutdown(SHUT_WR)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        if outcome == "lost":
            raise LinkError("it broke", "the peer")
        if outcome == "refused":
            raise NegotiationError(Code.OUT_OF_SYNC, "it does not fit")
        made.append(memory_pipe_pair()[0])
        return made[-1]

    finals: list[State | None] = []
    for turns in range(TURNS):
        with tcp_pair() as (peer, sock), ClcIO(sock) as io:
            peer.setblocking(False)
            handshake = await at_last_step(side, io.now())
            made.clear()
            try:
                step = partial(last_step, peer, turns)
                pipe, events = await LastStep(step, handshake, io).run(watch=True)
            except NegotiationError:
                assert (side, outcome) == ("server", "refused")
                assert not handshake.done  # it can still decline
                finals.append(REFUSED)
                continue
            finals.append(handshake.state)
            [event] = events
            if handshake.state is State.RDMA:
                assert isinstance(event, UseRdma)
                assert [pipe] == made
                # The pipe gets the TCP connection with all that is the stream's.
                assert io.has_data() == bool(sent)
                assert not sent or sock.recv(1000) == sent
            else:
                assert isinstance(event, UseTcp if handshake.state is State.TCP else Failed)
                assert (handshake.state is State.TCP) <= (sent == DECLINE)
                assert pipe is None
                for unused in made:
                    with pytest.raises(anyio.ClosedResourceError):
                        unused.try_send(b"x")
    own = {"up": State.RDMA, "lost": State.FAILED}.get(outcome)
    refused = REFUSED if side == "server" else State.FAILED
    if sent and side == "server":
        # The client has said its last word before: what it sends is the stream's, and decides nothing.
        assert set(finals) == {own or refused}
    else:
        # The last step decides if it is over at once, the peer if that takes some turns. Behind a
        # refusal it is the peer in any case.
        peers = State.TCP if sent == DECLINE else State.FAILED
        assert finals[0] is own or outcome == "refused"
        assert finals[-1] is peers
        assert set(finals) <= {own, peers, refused}


@pytest.mark.parametrize("side", ["client", "server"])
async def test_the_end_overtakes_what_came_over_the_link(side: str) -> None:
    """A process that has connected, sent and been killed: its TCP connection ends in sight of everybody, and
    what it had sent before is found by who looks."""
    there = anyio.Event()

    def looks() -> bool:
        there.set()
        return True

    async def last_step() -> MemoryPipe:
        await there.wait()
        return memory_pipe_pair()[0]

    with tcp_pair() as (peer, sock), ClcIO(sock) as io:
        handshake = await at_last_step(side, io.now())
        peer.shutdown(SHUT_WR)
        pipe, events = await LastStep(last_step, handshake, io, proved=looks).run(watch=True)
        assert handshake.state is State.RDMA
        assert isinstance(events[0], UseRdma)
        assert pipe is not None


async def test_a_client_whose_link_fails_behind_the_end_that_it_overlooked() -> None:
    """It would wait for the server's word, and that was the end: in either order."""
    for turns in range(TURNS):

        async def last_step(peer: socket.socket, turns: int) -> MemoryPipe:
            peer.shutdown(SHUT_WR)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            raise LinkError("it broke", "the peer")

        with tcp_pair() as (peer, sock), ClcIO(sock) as io:
            handshake = await at_last_step("client", io.now())
            step = partial(last_step, peer, turns)
            last = LastStep(step, handshake, io, outlive=lambda _: None, proved=lambda: True)
            with anyio.fail_after(30):
                pipe, [event] = await last.run(watch=True)
            assert pipe is None
            assert isinstance(event, Failed)
            assert "it broke" in event.text
            assert handshake.state is State.FAILED
