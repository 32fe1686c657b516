"""A peer that asks for a way back that there is not, and faults of this end on its way: the stream stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.errors import Code, NegotiationError
from aiordma.links.failover.leave import switch_back
from aiordma.links.failover.rejoin import Rejoin
from aiordma.proto.clc import Kind
from aiordma.proto.frames import negotiation_frame
from tests.health import nothing_left, until
from tests.processes import PATIENCE

from .test_rejoin import finished, taken_off

if TYPE_CHECKING:
    import aiordma
    from aiordma.links.failover.framed_pipe import FramedPipe

pytestmark = pytest.mark.anyio


def framed(stream: aiordma.RdmaStream) -> FramedPipe:
    found: Any = stream._pipe
    return found.fallback  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        *(({"kind": kind}, Code.WRONG_KIND) for kind in (*Kind, 7) if kind != Kind.STREAM),
        ({"needs": 1}, Code.VERSION_MISMATCH),
    ],
    ids=str,
)
async def test_a_proposal_of_something_else_is_declined(
    changes: dict[str, int], code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the job that was to answer, or left a channel's place on the link."""
    ask = Rejoin._new_contact

    async def ask_for_another(self: Rejoin) -> Any:
        contact = await ask(self)
        contact.proposal = contact.proposal.changed(**changes)
        return contact

    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        with monkeypatch.context() as patched, anyio.fail_after(PATIENCE):
            patched.setattr(Rejoin, "_new_contact", ask_for_another)
            with pytest.raises(NegotiationError) as refused:
                await switch_back(one._pipe)  # type: ignore[arg-type]
            assert refused.value.code == code
        await until(lambda: framed(other).life.attempt is None)
        assert not any(group.members for group in engine.all_groups)
        await switch_back(one._pipe)  # type: ignore[arg-type]
        await one.send(b"back")
        assert await other.receive() == b"back"
        assert (one.path, other.path) == ("rdma", "rdma")
        await finished(one, other)


@pytest.mark.parametrize("step", ["_propose", "_prepare_accept", "_prepare_confirm", "_bring_up_server"])
async def test_a_fault_of_a_step_ends_the_attempt_at_both_ends(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*_: object) -> None:
        raise ZeroDivisionError("a test")

    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        with monkeypatch.context() as patched, anyio.fail_after(PATIENCE):
            patched.setattr(Rejoin, step, fault)
            with pytest.raises(NegotiationError) as refused:
                await switch_back(one._pipe)  # type: ignore[arg-type]
            assert refused.value.code == Code.INTERNAL
        await until(lambda: framed(one).life.attempt is framed(other).life.attempt is None)
        await one.send(b"on")
        assert await other.receive() == b"on"
        await switch_back(one._pipe)  # type: ignore[arg-type]
        await finished(one, other)


async def test_garbage_while_the_proposal_is_made() -> None:
    """It is no less a fault of the peer's than a moment later."""
    async with nothing_left() as engine:
        one, other = await taken_off(engine)
        framed(other).put_frame(negotiation_frame(b"garbage"))
        framed(one).rejoin()
        framed(one).look()
        with anyio.fail_after(PATIENCE), pytest.raises(anyio.BrokenResourceError, match="CLC"):
            await one.receive()
        one.abort()
        other.abort()
