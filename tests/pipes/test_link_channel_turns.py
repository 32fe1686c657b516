"""What the user of a channel does in ``on_writable``, which is called in the channel's turn to send."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiordma.errors import LinkError
from tests.health import until

from .channel_ends import End
from .link_pairs import connect_channels
from .link_pairs import open_engine as open_an_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiordma.pipes._link_channel import MessageChannel

    from .link_pairs import Open

pytestmark = pytest.mark.anyio

#: More than a window of short messages, and less than a budget of them.
BURST = 100
SETTINGS = {"window": 4, "recv_reserve": 4, "channel_receive_bytes": 32768, "fragment_bytes": 4096}


class Planned:
    """A user that sends (a size), closes, aborts or polls by its plan, and goes on in ``on_writable``."""

    def __init__(self, channel: MessageChannel, plan: Sequence[int | str]) -> None:
        self.end = End(channel)
        self.channel, self._plan = channel, deque(plan)
        self.sent: list[bytes] = []
        self.is_over = self.has_aborted = False
        channel.on_writable = self.go_on

    def go_on(self) -> None:
        while self._plan and not self.is_over:
            what = self._plan[0]
            if isinstance(what, int):
                message = b"%d:" % len(self.sent) + bytes(what)
                try:
                    if not self.channel.try_send(b"", message):
                        return
                except anyio.BrokenResourceError:
                    self.is_over = True
                    return
                self.sent.append(message)
                self._plan.popleft()
            else:
                self._plan.popleft()
                self.is_over = what in ("close", "abort")
                self.has_aborted = what == "abort"
                getattr(self.channel, what)()

    @property
    def is_done(self) -> bool:
        return self.is_over or not self._plan or bool(self.end.closed)

    @property
    def got(self) -> list[bytes]:
        return [bytes(message) for message in self.end.messages]


async def test_a_close_reaches_the_peer(open_engine: Open) -> None:
    async with open_engine(window=8) as engine:
        a, b = await connect_channels(engine)
        end, user = End(b), Planned(a, [10] * BURST + ["close"])
        user.go_on()
        assert not user.is_over
        assert await end.ended() is None
        assert len(end.messages) == BURST
        b.close()
        await until(lambda: a.is_finished and b.is_finished)


async def test_an_abort_reaches_the_peer(open_engine: Open) -> None:
    async with open_engine(window=8) as engine:
        a, b = await connect_channels(engine)
        end, user = End(b), Planned(a, [10] * BURST + ["abort"])
        user.go_on()
        assert not user.is_over
        assert isinstance(await end.ended(), LinkError)
        b.close()
        await until(lambda: a.is_finished and b.is_finished)


async def test_the_peer_learns_that_credit_is_waited_for(open_engine: Open) -> None:
    """It keeps a quarter of the budget back, and the next message needs that."""
    async with open_engine(window=8, channel_receive_bytes=1 << 20) as engine:
        a, b = await connect_channels(engine)
        end, user = End(b), Planned(a, [10] * BURST + [1 << 20, 10])
        user.go_on()
        assert not user.is_done
        assert len(await end.received(BURST + 2)) == BURST + 2


async def test_a_callback_that_fails_there_breaks_its_channel_at_both_ends(open_engine: Open) -> None:
    async with open_engine(window=8) as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b)

        def fail() -> None:
            raise RuntimeError("on_writable")

        while a.try_send(b"", bytes(10)):
            pass
        a.on_writable = fail
        assert isinstance(await at_b.ended(), LinkError)
        assert isinstance(await at_a.ended(), RuntimeError)


async def test_credit_for_what_is_received_there_is_sent(open_engine: Open) -> None:
    """The user polls in its turn, and so gets what the peer has filled its credit with."""
    async with open_engine(window=8, channel_receive_bytes=32768) as engine:
        a, b = await connect_channels(engine)
        polled: list[int] = []
        at_a, other = End(a), Planned(b, [4000] * 40)

        def poll() -> None:
            a.spin()
            polled.append(len(at_a.messages))

        while a.try_send(b"", bytes(10)):
            pass
        a.on_writable = poll
        other.go_on()
        await until(lambda: len(at_a.messages) == 40, lambda: (polled, b.statistics()))


PLAN = st.lists(st.sampled_from([0, 5, 4000, 9000, 40_000, "spin"]), max_size=30)
END = st.sampled_from([[], ["close"], ["abort"]])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(first=PLAN, first_end=END, second=PLAN, second_end=END)
def test_model(
    first: list[int | str], first_end: list[str], second: list[int | str], second_end: list[str]
) -> None:
    """Both ends do everything in their turns. What was sent arrives, and each end hears of the other's."""

    async def play() -> None:
        async with open_an_engine(**SETTINGS) as engine:
            a, b = await connect_channels(engine)
            users = [Planned(a, [*first, *first_end]), Planned(b, [*second, *second_end])]
            for user in users:
                user.go_on()
            for one, other in (users, users[::-1]):
                await until(_done(one))
                await until(_arrived(one, other))
            for one, other in (users, users[::-1]):
                assert other.got == one.sent[: len(other.got)]
            for user in users:
                user.channel.close()
            await until(lambda: a.is_finished and b.is_finished)

    anyio.run(play)


def _done(user: Planned) -> Callable[[], bool]:
    return lambda: user.is_done


def _arrived(one: Planned, other: Planned) -> Callable[[], bool]:
    """What ``one`` has sent, and its end, unless the other one closes by its plan, perhaps meanwhile."""

    def arrived() -> bool:
        if other.is_over:
            return True
        if one.has_aborted:
            return len(other.end.closed) == 1
        return other.got == one.sent and (not one.is_over or other.end.closed == [None])

    return arrived
