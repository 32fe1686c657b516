"""Retries: which failed calls are made again, when, and when not any more.

A call is repeated only where that is safe: its method is idempotent (by the caller's word or the policy's
list), or it is certain that the handler never ran (``RpcError.not_started``: no connection, or a server that
was draining). The pauses grow exponentially and are jittered, so that clients that failed together do not
come back together; a deadline is never passed by waiting. A budget for the whole client keeps retries from
multiplying the load of servers that are failing anyway: retries are paid for by calls that succeed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from ..wake import current
from .errors import Code, RpcError, RpcTimeout
from .interceptor import ClientCall, ClientInterceptor, UnaryProceed

#: Key of trailing metadata with which a server sets the time of the next attempt: milliseconds, or a negative
#: number for "not at all".
RETRY_AFTER: Final = "retry-after-ms"
#: Longest pause, in seconds, that a server can ask for; after a longer one no caller is waiting any more.
MAX_TOLD_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow from ``first_s`` by ``factor`` up to ``most_s`` seconds.

    Each is drawn evenly from ``1 - jitter`` to ``1 + jitter`` times that.
    """

    first_s: float = 0.02
    factor: float = 2.0
    most_s: float = 5.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s:
            raise ValueError(f"first_s={self.first_s}: must be above 0 and at most most_s={self.most_s}")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor}: must be at least 1")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter={self.jitter}: must be at least 0 and below 1")

    def pause(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after so many ``failures`` in a row (at least 1).

        :param draw: gives numbers from 0 to 1.
        """
        # The exponent is bounded: a float's range is not.
        pause = min(self.most_s, self.first_s * self.factor ** min(failures - 1, 64))
        return pause * (1 - self.jitter + 2 * self.jitter * draw())


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which calls are made again."""

    #: How often a call is made at most, the first time included.
    attempts: int = 4
    backoff: Backoff = field(default_factory=Backoff)
    #: Errors that may be gone the next time.
    codes: frozenset[Code] = frozenset({Code.UNAVAILABLE})
    #: Methods that may be repeated, as patterns: ``{"kv.get", "search.*"}``. A call's own ``idempotent=``
    #: counts more.
    idempotent: Collection[str] = frozenset()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: must be at least 1 (1: no retries)")

    def may_repeat(self, method: str, idempotent: bool | None) -> bool:
        """Whether a call of ``method`` may be made again although it may have been done already."""
        if idempotent is not None:
            return idempotent
        return any(fnmatchcase(method, pattern) for pattern in self.idempotent)


class RetryBudget:
    """Retries that may be made: one costs a token, each success gives ``per_success`` of one back.

    While less than half of the tokens are left there are no retries, so that a server which fails most calls
    gets at most ``1 + per_success`` times its load.
    """

    __slots__ = ("_most", "_per_success", "_tokens")

    def __init__(self, tokens: float = 100.0, per_success: float = 0.1) -> None:
        if tokens < 1 or per_success <= 0:
            raise ValueError(f"tokens={tokens}, per_success={per_success}: must be at least 1, and above 0")
        self._most = self._tokens = tokens
        self._per_success = per_success

    @property
    def tokens(self) -> float:
        """Tokens that are left."""
        return self._tokens

    def succeeded(self) -> None:
        """A call went well."""
        if self._tokens < self._most:
            self._tokens = min(self._most, self._tokens + self._per_success)

    def failed(self) -> bool:
        """A call failed for a reason that a retry may cure; whether there is a retry in the budget."""
        self._tokens = max(0.0, self._tokens - 1.0)
        return self._tokens > self._most / 2


class Attempts:
    """The attempts of one call. No clock, no waiting: times come in, pauses go out.

    :param deadline: when the caller's patience ends, in seconds of the clock whose time ``failed`` gets.
    """

    __slots__ = ("_budget", "_deadline", "_may_repeat", "_policy", "made")

    def __init__(
        self,
        policy: RetryPolicy,
        budget: RetryBudget,
        may_repeat: bool,
        deadline: float | None,
    ) -> None:
        self._policy = policy
        self._budget = budget
        self._may_repeat = may_repeat
        self._deadline = deadline
        #: How many have been made.
        self.made = 0

    def failed(self, error: RpcError, now: float) -> float | None:
        """One more was made and failed: seconds to wait before the next, None to give up."""
        self.made += 1
        if not (error.not_started or (self._may_repeat and error.code in self._policy.codes)):
            return None
        within_budget = self._budget.failed()
        if self.made >= self._policy.attempts or not within_budget:
            return None
        pause = self._policy.backoff.pause(self.made)
        if (told := _told(error)) is not None:
            if not 0 <= told <= MAX_TOLD_S:
                return None
            pause = max(pause, told)
        if self._deadline is not None and now + pause >= self._deadline:
            return None
        return pause


def _told(error: RpcError) -> float | None:
    """What the server requested for the next attempt, in seconds; nonsense counts as nothing."""
    try:
        return int(error.metadata[RETRY_AFTER]) / 1000
    except (KeyError, ValueError, OverflowError):
        return None


@dataclass(slots=True)
class RetryStatistics:
    """Counters of one :class:`Retry`."""

    #: Calls that were made again, each time counted.
    retries: int = 0
    #: Calls that went well after all.
    healed: int = 0
    #: Calls that failed in the end although they might have been repeated.
    given_up: int = 0


class Retry(ClientInterceptor):
    """Makes failed unary calls again. Streams are not repeated: their items may have been used already.

    :param policy: which calls, how often.
    :param budget: shared by all calls of the client; one may be shared by several clients.
    """

    def __init__(self, policy: RetryPolicy | None = None, budget: RetryBudget | None = None) -> None:
        self.policy = policy if policy is not None else RetryPolicy()
        self.budget = budget if budget is not None else RetryBudget()
        self.statistics = RetryStatistics()

    async def unary(self, call: ClientCall, proceed: UnaryProceed[ClientCall]) -> Any:
        waker = current()
        deadline = None if call.timeout is None else waker.now() + call.timeout
        try:
            result = await proceed(call)
        except RpcError as exc:
            error = exc
        else:
            self.budget.succeeded()
            return result
        attempts = Attempts(
            self.policy, self.budget, self.policy.may_repeat(call.method, call.idempotent), deadline
        )
        while True:
            pause = attempts.failed(error, waker.now())
            if pause is None:
                self.statistics.given_up += attempts.made > 1
                raise error
            # Without a waker's timer this would be a dependency on one event loop.
            await waker.new_waiter().wait_until(waker.now() + pause)
            if deadline is not None:
                call.timeout = deadline - waker.now()
                if call.timeout <= 0:
                    raise RpcTimeout(
                        Code.DEADLINE_EXCEEDED, f"{call.method}: no time left for another attempt"
                    ) from error
            self.statistics.retries += 1
            try:
                result = await proceed(call)
            except RpcError as exc:
                error = exc
            else:
                self.statistics.healed += 1
                self.budget.succeeded()
                return result
