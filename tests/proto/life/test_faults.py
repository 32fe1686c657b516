"""The model finds what it is there for: each of these takes one mend out of the machine, and the model
fails with the words that are expected for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from aiordma.proto.codes import Code
from aiordma.proto.failover import CursorExchange
from aiordma.proto.life import RingStage, StreamLife, Transport
from aiordma.proto.life.frames import FramesLife
from aiordma.proto.life.rings import RingsLife

from .test_model import Leaving, Returning, Streams
from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.stateful import RuleBasedStateMachine

    from aiordma.proto.life import Output

_quiesced = CursorExchange.quiesced


def do_not_look_ahead(life: StreamLife) -> None:
    """The deadlock that a stream found in the 4,600th change of its device: a user that waits to send does
    not read, and what its sends wait for is behind what it does not read."""


def keep_the_failure_secret(exchange: CursorExchange, ledger: Any, **_: object) -> Any:
    """An end that leaves by request does not say that its link has failed meanwhile."""
    return _quiesced(exchange, ledger)


def do_not_wait_for_the_peer(ring: RingsLife) -> None:
    """A closed ring goes when the peer has this end's last word, and may still write."""
    if ring.closed and ring.stage is RingStage.ON_RDMA and (ring.link_failed or ring.delivered):
        ring.free()


def forget_the_end(frames: FramesLife) -> None:
    """A half-close on TCP is not told."""
    frames.eof_sent = True


def swap_the_legs(life: StreamLife, leg: Any) -> list[Output]:
    """Reading goes on with the next transport, and nothing of the last is dropped from the list."""
    life.legs = life.legs[-1:]
    return life._take()


FAULTS: list[tuple[type, str, Callable[..., Any], type[RuleBasedStateMachine], str]] = [
    (StreamLife, "_look_ahead", do_not_look_ahead, Returning, "they wait for each other"),
    (RingsLife, "free_if_done", do_not_wait_for_the_peer, Leaving, "a WRITE|not in the table: OVER"),
    (FramesLife, "send_eof", forget_the_end, Streams, "they wait for each other"),
    (StreamLife, "drained", swap_the_legs, Streams, "."),
]


@pytest.mark.parametrize(
    ("owner", "name", "fault", "model", "words"), FAULTS, ids=[fault.__name__ for _, _, fault, _, _ in FAULTS]
)
def test_a_fault_is_found(
    owner: type,
    name: str,
    fault: Callable[..., Any],
    model: type[RuleBasedStateMachine],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError, match=words):
        run_state_machine_as_test(
            model,
            settings=settings(
                model.TestCase.settings,
                max_examples=2000,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )


def a_link_fails_while_its_stream_leaves() -> None:
    """An order of events that is too rare for the model: one end leaves by request, and the other's link
    fails before its last WRITE has landed."""
    world = World()
    first, second = world.ends
    link = world.links[0]
    for who in (0, 1):
        world.attach(who)
    first.wants = 50
    assert first.send()
    second.do("leave", Code.SWITCHED, "asked for", world.now)
    assert world.lands(link, 0)
    assert second.poll()
    assert second.flush()
    assert first.input_on_tcp()
    world.break_link(0)
    assert first.flush()
    assert second.input_on_tcp()  # both ends are on TCP
    assert first.life.transport is second.life.transport is Transport.TCP
    while world.lands(link, 1):
        pass
    world.finish()


def test_a_peer_that_leaves_hears_that_the_link_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    a_link_fails_while_its_stream_leaves()
    monkeypatch.setattr(CursorExchange, "quiesced", keep_the_failure_secret)
    with pytest.raises(AssertionError, match="a WRITE"):
        a_link_fails_while_its_stream_leaves()


def test_a_link_that_fails_within_the_peers_message_costs_nothing() -> None:
    world = World()
    first, second = world.ends
    for who in (0, 1):
        world.attach(who)
        world.ends[who].wants = 100
    first.do("leave", Code.SWITCHED, "asked for", world.now)
    while world.lands(world.links[0], 1):
        pass
    assert first.poll()
    assert first.flush()
    assert second.input_on_tcp(7)
    states = [second.life.transport]
    world.break_link(1)
    states.append(second.life.transport)
    assert states == [Transport.RING, Transport.EXCHANGING]
    world.finish()
    assert [end.broken for end in world.ends] == [None, None]
    assert [end.received for end in world.ends] == [100, 100]
