"""Closing: every reachable state of two ends, with data on the wire, by exhaustion."""

from __future__ import annotations

from collections import deque
from itertools import product
from typing import NamedTuple

import pytest

from aiordma.proto.cdc import StateFlag
from aiordma.proto.close import TABLE, Action, CloseState, Closing, Input, state_of
from aiordma.proto.errors import LocalProtocolError

PEER = (Input.PEER_DONE, Input.PEER_CLOSED, Input.PEER_ABORTED)
OVER = {CloseState.CLOSED}
APP_ENDED = {CloseState.CLOSED, CloseState.LOCAL_CLOSED, CloseState.ABORTING}


class End(NamedTuple):
    """One end: its state, the flags it told and knows, whether its ring was given back."""

    state: CloseState
    told: int
    known: int
    released: bool
    ended: bool
    """The application has closed or aborted."""


class World(NamedTuple):
    ends: tuple[End, End]
    # what is on the way to each end: flags, or -1 for a WRITE into its ring
    wires: tuple[tuple[int, ...], tuple[int, ...]]
    lost: bool


USED: set[tuple[CloseState, Input]] = set()
START = World((End(CloseState.ACTIVE, 0, 0, False, False),) * 2, ((), ()), False)


def stepped(end: End, what: Input) -> tuple[End, int | None]:
    """The end after an input, and the flags it sends (None: no message)."""
    machine = Closing()
    machine.state = end.state
    USED.add((end.state, what))
    action = machine.step(what)
    told = end.told
    if action & Action.TELL_DONE:
        told |= StateFlag.SENDING_DONE
    if action & Action.TELL_CLOSED:
        told |= StateFlag.SENDING_DONE | StateFlag.CLOSED
    if action & Action.TELL_ABORT:
        told |= StateFlag.SENDING_DONE | StateFlag.CLOSED | StateFlag.ABNORMAL_CLOSE
    released = bool(action & Action.RELEASE)
    assert not (released and end.released), "released twice"
    ended = end.ended or what in (Input.CLOSE, Input.ABORT)
    assert ended or not released, "the application may still read"
    if ended and end.state is not CloseState.ABORTED:
        assert end.released or told & StateFlag.CLOSED, "the peer is not told"
    after = End(machine.state, told, end.known, end.released or released, ended)
    assert after.released == (after.state is CloseState.CLOSED)
    return after, (told if told != end.told else None)


def put(world: World, who: int, end: End, sent: int | None) -> World:
    ends = list(world.ends)
    ends[who] = end
    wires = list(world.wires)
    if sent is not None and not world.lost:
        wires[1 - who] = (*wires[1 - who], sent)
    return World((ends[0], ends[1]), (wires[0], wires[1]), world.lost)


def delivered(world: World, who: int) -> World:
    """The first message on the way to ``who`` arrives."""
    message, rest = world.wires[who][0], world.wires[who][1:]
    wires = list(world.wires)
    wires[who] = rest
    world = world._replace(wires=(wires[0], wires[1]))
    end = world.ends[who]
    if message < 0:
        assert not end.released, "a WRITE into a ring that was given back"
        assert not end.known & StateFlag.SENDING_DONE, "a WRITE behind the end of data"
        return world
    fresh = message & ~end.known
    if end.known & StateFlag.ABNORMAL_CLOSE:
        return world  # as CdcConnection: stale
    end = end._replace(known=end.known | message)
    for flag, what in (
        (StateFlag.ABNORMAL_CLOSE, Input.PEER_ABORTED),
        (StateFlag.CLOSED, Input.PEER_CLOSED),
        (StateFlag.SENDING_DONE, Input.PEER_DONE),
    ):
        if fresh & flag:  # the strongest news says it all
            end, sent = stepped(end, what)
            return put(world, who, end, sent)
    return put(world, who, end, None)


def successors(world: World) -> list[World]:
    found = []
    for who in (0, 1):
        end = world.ends[who]
        for what in (Input.SEND_EOF, Input.CLOSE, Input.ABORT):
            if (end.state, what) in TABLE:
                after, sent = stepped(end, what)
                found.append(put(world, who, after, sent))
        if end.state in (CloseState.ACTIVE, CloseState.PEER_DONE) and not world.lost:
            if -1 not in world.wires[1 - who]:
                found.append(put(world, who, end, -1))
        if world.wires[who]:
            found.append(delivered(world, who))
    if not world.lost:
        ends = tuple(stepped(end, Input.LINK_LOST)[0] for end in world.ends)
        found.append(World((ends[0], ends[1]), ((), ()), True))
    return found


def settled(world: World) -> World:
    while any(world.wires):
        world = delivered(world, 0 if world.wires[0] else 1)
    return world


def test_every_reachable_state() -> None:
    seen = {START}
    queue = deque([START])
    while queue:
        world = queue.popleft()
        for after in successors(world):
            if after not in seen:
                seen.add(after)
                queue.append(after)
    assert len(seen) > 500
    assert {end.state for world in seen for end in world.ends} == set(CloseState)
    for world in seen:
        rest = settled(world)
        for who in (0, 1):
            # Who has closed comes to the end without the other application's help.
            if world.ends[who].state in APP_ENDED:
                assert rest.ends[who].state is CloseState.CLOSED, (world, rest)
    assert set(TABLE) == USED  # every row can happen


def test_mistakes_are_local_errors() -> None:
    machine = Closing()
    assert machine.may_send
    machine.step(Input.CLOSE)
    assert not machine.may_send
    with pytest.raises(LocalProtocolError, match=r"send_eof\(\) while we have closed"):
        machine.step(Input.SEND_EOF)


@pytest.mark.parametrize("state", list(CloseState))
def test_close_and_abort_are_always_possible_and_idempotent(state: CloseState) -> None:
    for what in (Input.CLOSE, Input.ABORT):
        machine = Closing()
        machine.state = state
        machine.step(what)
        assert machine.state in APP_ENDED
        assert machine.step(what) == Action.NOTHING


def test_state_of_flags_agrees_with_the_machine() -> None:
    done, closed, abnormal = StateFlag.SENDING_DONE, StateFlag.CLOSED, StateFlag.ABNORMAL_CLOSE
    told = {
        Input.SEND_EOF: done, Input.CLOSE: done | closed, Input.ABORT: done | closed | abnormal,
        Input.PEER_DONE: done, Input.PEER_CLOSED: done | closed, Input.PEER_ABORTED: done | closed | abnormal,
    }  # fmt: skip
    for first, second in product(told, told):
        machine = Closing()
        local = peer = 0
        legal = True
        for what in (first, second):
            if (machine.state, what) not in TABLE:
                legal = False
                break
            machine.step(what)
            if what in PEER:
                peer |= told[what]
            else:
                local |= told[what]
        if legal:
            assert state_of(local, peer) is machine.state, (first, second)
    assert state_of(0, 0, lost=True) is CloseState.ABORTED
    assert state_of(done | closed, 0, lost=True) is CloseState.CLOSED
    assert state_of(0, done | closed, lost=True) is CloseState.PEER_CLOSED
