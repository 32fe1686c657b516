"""Retries: only what is safe, with growing pauses, within deadline and budget. The rules in virtual time."""

from __future__ import annotations

import math
from typing import Any

import anyio
import hypothesis
import pytest
import trio
import trio.testing
from hypothesis import strategies as st

from aiordma.rpc.errors import Code, RpcError, RpcTimeout
from aiordma.rpc.interceptor import ClientCall
from aiordma.rpc.retry import RETRY_AFTER, Attempts, Backoff, Retry, RetryBudget, RetryPolicy

GONE = RpcError(Code.UNAVAILABLE, "gone")
STEADY = Backoff(first_s=1.0, factor=2.0, most_s=5.0, jitter=0.0)


def unstarted() -> RpcError:
    error = RpcError(Code.UNAVAILABLE, "draining")
    error.not_started = True
    return error


def attempts(
    may_repeat: bool = True,
    deadline: float | None = None,
    policy: RetryPolicy | None = None,
    budget: RetryBudget | None = None,
) -> Attempts:
    return Attempts(
        policy or RetryPolicy(attempts=5, backoff=STEADY), budget or RetryBudget(), may_repeat, deadline
    )


# ---- the rules ---------------------------------------------------------------------------------------------


def test_pauses_grow_to_a_limit_and_attempts_end() -> None:
    tries = attempts()
    assert [tries.failed(GONE, 0.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, None]
    assert tries.made == 5


@hypothesis.given(
    st.floats(0.001, 10), st.floats(1, 10), st.floats(0.001, 100), st.floats(0, 0.99),
    st.integers(1, 10**9), st.floats(0, 1),
)  # fmt: skip
def test_a_pause_is_within_its_bounds(
    first: float, factor: float, more: float, jitter: float, failures: int, drawn: float
) -> None:
    backoff = Backoff(first, factor, first + more, jitter)
    pause = backoff.pause(failures, lambda: drawn)
    assert math.isfinite(pause)
    assert first * (1 - jitter) * 0.999 <= pause <= (first + more) * (1 + jitter) * 1.001


def test_only_what_is_safe_is_repeated() -> None:
    assert attempts(may_repeat=False).failed(GONE, 0.0) is None
    assert attempts(may_repeat=False).failed(unstarted(), 0.0) == 1.0
    assert attempts().failed(RpcError(Code.INTERNAL), 0.0) is None
    assert attempts().failed(RpcError(Code.DEADLINE_EXCEEDED), 0.0) is None
    policy = RetryPolicy(codes=frozenset({Code.ABORTED}), backoff=STEADY)
    assert attempts(policy=policy).failed(RpcError(Code.ABORTED), 0.0) == 1.0
    assert attempts(policy=policy).failed(GONE, 0.0) is None


def test_who_says_that_a_method_is_idempotent() -> None:
    policy = RetryPolicy(idempotent={"kv.get", "search.*"})
    assert policy.may_repeat("kv.get", None)
    assert policy.may_repeat("search.by_name", None)
    assert not policy.may_repeat("kv.put", None)
    assert not policy.may_repeat("KV.GET", None)
    assert policy.may_repeat("kv.put", True)
    assert not policy.may_repeat("kv.get", False)


def test_no_pause_passes_the_deadline() -> None:
    tries = attempts(deadline=10.0)
    assert tries.failed(GONE, 8.9) == 1.0
    assert tries.failed(GONE, 8.0) is None


@pytest.mark.parametrize(
    ("told", "pause"),
    [
        ("3000", 3.0),
        (b"3000", 3.0),
        ("500", 1.0),
        ("-1", None),
        ("300001", None),
        ("soon", 1.0),
        ("9" * 400, 1.0),
    ],
)
def test_the_server_may_say_when(told: str | bytes, pause: float | None) -> None:
    error = RpcError(Code.UNAVAILABLE, "busy", metadata={RETRY_AFTER: told})
    assert attempts().failed(error, 0.0) == pause


def test_a_budget_is_paid_for_by_successes() -> None:
    budget = RetryBudget(tokens=10, per_success=0.5)
    assert [budget.failed() for _ in range(6)] == [True] * 4 + [False] * 2
    assert budget.tokens == 4
    assert attempts(budget=budget).failed(GONE, 0.0) is None
    for _ in range(8):
        budget.succeeded()
    assert attempts(budget=budget).failed(GONE, 0.0) == 1.0
    for _ in range(100):
        budget.succeeded()
    assert budget.tokens == 10


@hypothesis.given(st.lists(st.booleans(), max_size=300), st.floats(1, 20), st.floats(0.01, 1))
def test_retries_never_exceed_what_the_budget_allows(ends: list[bool], tokens: float, per: float) -> None:
    budget = RetryBudget(tokens, per)
    retries = good = 0
    for ok in ends:
        if ok:
            budget.succeeded()
            good += 1
        else:
            retries += budget.failed()
        assert 0 <= budget.tokens <= tokens
    assert retries <= tokens / 2 + good * per + 1e-6


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Backoff(first_s=0), "first_s=0"),
        (lambda: Backoff(first_s=2, most_s=1), "first_s=2"),
        (lambda: Backoff(factor=0.5), "factor=0.5"),
        (lambda: Backoff(jitter=1), "jitter=1"),
        (lambda: RetryPolicy(attempts=0), "attempts=0"),
        (lambda: RetryBudget(0), "tokens=0"),
    ],
)
def test_settings_are_checked(make: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        make()


# ---- on an event loop --------------------------------------------------------------------------------------


class Server:
    """Fails with the given errors, one call each, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.timeouts: list[float | None] = []

    async def proceed(self, call: ClientCall) -> str:
        self.timeouts.append(call.timeout)
        await anyio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        return "value"


def quick(n: int = 4) -> RetryPolicy:
    return RetryPolicy(attempts=n, backoff=Backoff(first_s=0.0001, most_s=0.001), idempotent={"kv.get"})


@pytest.mark.anyio
async def test_a_call_is_repeated_until_it_goes_well() -> None:
    retry, server = Retry(quick()), Server(GONE, GONE)
    assert await retry.unary(ClientCall("kv.get", ()), server.proceed) == "value"
    assert len(server.timeouts) == 3
    assert (retry.statistics.retries, retry.statistics.healed, retry.statistics.given_up) == (2, 1, 0)


@pytest.mark.anyio
async def test_the_last_error_is_raised() -> None:
    last = RpcError(Code.UNAVAILABLE, "still gone")
    retry, server = Retry(quick(2)), Server(GONE, last)
    with pytest.raises(RpcError) as caught:
        await retry.unary(ClientCall("kv.get", ()), server.proceed)
    assert caught.value is last
    assert retry.statistics.given_up == 1


@pytest.mark.anyio
async def test_what_may_have_been_done_is_not_done_again() -> None:
    retry, server = Retry(quick()), Server(GONE)
    with pytest.raises(RpcError, match="gone"):
        await retry.unary(ClientCall("kv.put", ()), server.proceed)
    assert len(server.timeouts) == 1
    server = Server(unstarted())
    assert await retry.unary(ClientCall("kv.put", ()), server.proceed) == "value"


@pytest.mark.anyio
async def test_a_cancelled_pause_ends_the_call() -> None:
    retry = Retry(RetryPolicy(backoff=Backoff(first_s=1000, most_s=1000), idempotent={"*"}))
    server = Server(GONE)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await retry.unary(ClientCall("kv.get", ()), server.proceed)

            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert len(server.timeouts) == 1


def test_deadlines_in_virtual_time() -> None:
    policy = RetryPolicy(attempts=10, backoff=Backoff(1.0, 2.0, 8.0, 0.0), idempotent={"*"})

    async def main() -> None:
        retry, server = Retry(policy), Server(*[GONE] * 10)
        begin = trio.current_time()
        with pytest.raises(RpcError, match="gone"):
            await retry.unary(ClientCall("kv.get", (), timeout=10.0), server.proceed)
        # Attempts at 0, 1, 3 and 7 seconds; the next pause would end at 15.
        assert server.timeouts == [10.0, 9.0, 7.0, 3.0]
        assert trio.current_time() - begin == 7.0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_pause_that_takes_too_long_is_a_timeout() -> None:
    """The event loop may be late: what is then left of the time is checked again."""

    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        retry = Retry(RetryPolicy(backoff=Backoff(1.0, 2.0, 8.0, 0.0), idempotent={"*"}))
        server = Server(GONE)

        async def late() -> None:
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(30.0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(late)
            with pytest.raises(RpcTimeout, match="no time left") as caught:
                await retry.unary(ClientCall("kv.get", (), timeout=10.0), server.proceed)
        assert caught.value.__cause__ is GONE

    trio.run(main, clock=trio.testing.MockClock())
