"""The filter of a link (after X-RDMA's): rules that spoil messages and work requests on purpose, so that
programs and tests meet the failures of a network before their users do.

A :class:`Rule` matches and names an act; a :class:`Filter` is an ordered list of them, and the first one
that matches and fires decides. All randomness comes from the filter's seed and the rule's own text, so the
same rules meet the same traffic with the same effect. What an act does to a link is the business of
``_faults.pyx``; what it means is in ``docs/howto/testing.md``.

Text form, for ``AIORDMA_FILTER`` and tools: rules separated by ``;``, each an act and ``key=value`` pairs
separated by blanks, and ``seed=NUMBER`` as an item of its own::

    seed=7; delay op=cdc,message p=0.1 ms=5; drop op=write size=4096.. nth=20 peer=10.0.0.*
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Act(enum.Enum):
    """What happens to the first request or message that a rule catches."""

    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    RNR = "rnr"
    ERROR = "error"
    DISCONNECT = "disconnect"


class Direction(enum.Enum):
    """``OUT``: work requests, before they reach the device. ``IN``: messages that have arrived and been
    acknowledged, before the one they are for sees them."""

    OUT = "out"
    IN = "in"


class Op(enum.Flag):
    """What travels on a link."""

    CDC = enum.auto()
    """Cursor message of a stream (SEND)."""
    LLC = enum.auto()
    """Link control message (SEND)."""
    MESSAGE = enum.auto()
    """Message of a channel: calls, datagrams (SEND)."""
    NOP = enum.auto()
    """Acknowledgement of the link's window without a message (zero-length SEND)."""
    WRITE = enum.auto()
    """Payload of a stream (RDMA WRITE)."""
    READ = enum.auto()
    """Payload of a large message, pulled by its receiver (RDMA READ)."""
    KEEPALIVE = enum.auto()
    """Probe of a silent link (zero-byte RDMA WRITE)."""
    SEND = CDC | LLC | MESSAGE | NOP
    ANY = CDC | LLC | MESSAGE | NOP | WRITE | READ | KEEPALIVE


_ARRIVING = Op.CDC | Op.LLC | Op.MESSAGE

#: Error statuses of a completion (``enum ibv_wc_status``) by name.
STATUS_NAMES = {
    "LOC_LEN_ERR": 1,
    "LOC_QP_OP_ERR": 2,
    "LOC_PROT_ERR": 4,
    "WR_FLUSH_ERR": 5,
    "MW_BIND_ERR": 6,
    "BAD_RESP_ERR": 7,
    "LOC_ACCESS_ERR": 8,
    "REM_INV_REQ_ERR": 9,
    "REM_ACCESS_ERR": 10,
    "REM_OP_ERR": 11,
    "RETRY_EXC_ERR": 12,
    "RNR_RETRY_EXC_ERR": 13,
    "REM_ABORT_ERR": 16,
    "FATAL_ERR": 19,
    "RESP_TIMEOUT_ERR": 20,
    "GENERAL_ERR": 21,
}

_DEFAULT_MS = {Act.DROP: 500.0, Act.RNR: 500.0, Act.DELAY: 10.0, Act.REORDER: 10.0}
_DEFAULT_OPS = {Act.RNR: Op.SEND, Act.CORRUPT: Op.SEND | Op.WRITE}
_MS_LIMIT = 86_400_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule. Every condition that is given must hold.

    :param act: what to do.
    :param direction: where to look.
    :param ops: what it concerns; by default all that the act can be done to.
    :param min_bytes, max_bytes: size of the message or payload.
    :param nth: only the n-th (from 1) of those that match all the conditions above.
    :param probability: of the rest, this share.
    :param times: fire at most so often; None: no limit.
    :param ms: milliseconds, for drop and rnr (until the device reports that the retries have run out; inf:
        never), delay, and reorder (until the message goes on although nothing came behind it).
    :param status: completion status of ``error``, from :data:`STATUS_NAMES`.
    :param at: the byte to corrupt; None: a random one.
    :param peer: glob for the peer as it is named in logs and statistics.
    :param side: ``"client"`` or ``"server"``: this end's role on the link.
    :param connection: this end's alert token (``stream.token``) of one connection.
    :raises ValueError: a value, or a combination, that means nothing; it names the field.
    """

    act: Act
    direction: Direction = Direction.OUT
    ops: Op | None = None
    min_bytes: int = 0
    max_bytes: int | None = None
    nth: int | None = None
    probability: float = 1.0
    times: int | None = None
    ms: float | None = None
    status: str | None = None
    at: int | None = None
    peer: str | None = None
    side: str | None = None
    connection: int | None = None

    def __post_init__(self) -> None:
        self._check_values()
        self._check_meaning()
        if self.ops is None:
            ops = _DEFAULT_OPS.get(self.act, Op.ANY)
            object.__setattr__(self, "ops", ops & _ARRIVING if self.direction is Direction.IN else ops)
        if self.ms is None and self._takes_time():
            object.__setattr__(self, "ms", _DEFAULT_MS[self.act])
        if self.status is None and self.act is Act.ERROR:
            default = "REM_OP_ERR" if self.direction is Direction.OUT else "LOC_PROT_ERR"
            object.__setattr__(self, "status", default)

    def _check_values(self) -> None:
        def need(holds: bool, field: str, text: str) -> None:
            if not holds:
                raise ValueError(f"{field}={getattr(self, field)!r}: must be {text}")

        need(self.min_bytes >= 0, "min_bytes", "0 or more")
        need(
            self.max_bytes is None or self.max_bytes >= self.min_bytes, "max_bytes", "no less than min_bytes"
        )
        need(self.nth is None or self.nth >= 1, "nth", "1 or more")
        need(0.0 < self.probability <= 1.0, "probability", "more than 0 and at most 1")
        need(self.times is None or self.times >= 1, "times", "1 or more")
        infinite = self.ms == float("inf") and self.act in (Act.DROP, Act.RNR)
        need(
            self.ms is None or infinite or 0.0 <= self.ms <= _MS_LIMIT,
            "ms",
            f"0 to {_MS_LIMIT:.0f} (drop and rnr: or never)",
        )
        need(
            self.status is None or self.status in STATUS_NAMES, "status", f"one of {', '.join(STATUS_NAMES)}"
        )
        need(self.at is None or self.at >= 0, "at", "0 or more")
        need(
            self.peer is None or (self.peer != "" and not any(c.isspace() or c == ";" for c in self.peer)),
            "peer",
            "a glob without blanks and semicolons",
        )
        need(self.side in (None, "client", "server"), "side", "client or server")

    def _takes_time(self) -> bool:
        # A message dropped after it has arrived is gone at once.
        return self.act in _DEFAULT_MS and not (self.act is Act.DROP and self.direction is Direction.IN)

    def _check_meaning(self) -> None:
        """What no link can do is refused, rather than accepted and never done."""
        act, out = self.act, self.direction is Direction.OUT
        if self.ms is not None and not self._takes_time():
            raise ValueError(f"ms={self.ms!r}: {act.value} dir={self.direction.value} takes no time")
        if self.status is not None and act is not Act.ERROR:
            raise ValueError(f"status={self.status!r}: only error has a completion status, not {act.value}")
        if self.at is not None and act is not Act.CORRUPT:
            raise ValueError(f"at={self.at!r}: only corrupt changes a byte, not {act.value}")
        if act is Act.REORDER and out:
            raise ValueError("reorder: an RC queue pair keeps the order of requests; use dir=in")
        if act is Act.RNR and not out:
            raise ValueError("rnr: 'receiver not ready' is told to the sender; use dir=out")
        if self.ops is None:
            return
        if not self.ops:
            raise ValueError("ops: must not be empty")
        if not out and self.ops & ~_ARRIVING:
            raise ValueError("ops: dir=in sees messages only (cdc, llc, message)")
        if act is Act.RNR and self.ops & ~Op.SEND:
            raise ValueError("ops: rnr concerns requests that use up a receive: send, cdc, llc, message, nop")
        if act is Act.CORRUPT and self.ops & ~(Op.SEND | Op.WRITE):
            raise ValueError("ops: corrupt concerns what has bytes of ours: send, cdc, llc, message, write")

    def __str__(self) -> str:
        """The rule in text form; :func:`parse_rule` reads it."""
        words = [self.act.value]
        if self.direction is Direction.IN:
            words.append("dir=in")
        assert self.ops is not None
        if self.ops != Op.ANY:
            names = [op.name.lower() for op in Op if op.name and self.ops & op]
            words.append("op=" + ",".join(names))
        if self.min_bytes or self.max_bytes is not None:
            words.append(f"size={self.min_bytes}..{'' if self.max_bytes is None else self.max_bytes}")
        if self.nth is not None:
            words.append(f"nth={self.nth}")
        if self.probability != 1.0:
            words.append(f"p={self.probability!r}")
        if self.times is not None:
            words.append(f"times={self.times}")
        if self.ms is not None:
            words.append("ms=never" if self.ms == float("inf") else f"ms={self.ms!r}")
        words += [
            f"{name}={value}"
            for name in ("status", "at", "peer", "side", "connection")
            if (value := getattr(self, name)) is not None
        ]
        return " ".join(words)


# ---- text form


def _whole(text: str) -> int:
    return int(text, 0)


def _milliseconds(text: str) -> float:
    return float("inf") if text == "never" else _real(text)


def _real(text: str) -> float:
    value = float(text)
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError
    return value


def _ops(text: str) -> Op:
    found = Op(0)
    for name in text.split(","):
        if name.upper() not in Op.__members__:
            raise ValueError
        found |= Op[name.upper()]
    return found


def _sizes(text: str) -> dict[str, Any]:
    low, dots, high = text.partition("..")
    if not dots:
        return {"min_bytes": _whole(low), "max_bytes": _whole(low)}
    return {
        "min_bytes": _whole(low) if low else 0,
        "max_bytes": _whole(high) if high else None,
    }


_OP_NAMES = "cdc, llc, message, nop, write, read, keepalive, send, any"
_KEYS: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "dir": (lambda v: {"direction": Direction(v)}, "in or out"),
    "op": (lambda v: {"ops": _ops(v)}, f"one or more of {_OP_NAMES}, separated by commas"),
    "size": (_sizes, "bytes: N, N..M, N.. or ..M"),
    "nth": (lambda v: {"nth": _whole(v)}, "a whole number"),
    "p": (lambda v: {"probability": _real(v)}, "a number above 0, up to 1"),
    "times": (lambda v: {"times": _whole(v)}, "a whole number"),
    "ms": (lambda v: {"ms": _milliseconds(v)}, "milliseconds, or never"),
    "status": (lambda v: {"status": v.upper()}, "the name of a completion status"),
    "at": (lambda v: {"at": _whole(v)}, "a whole number"),
    "peer": (lambda v: {"peer": v}, "a glob"),
    "side": (lambda v: {"side": v}, "client or server"),
    "connection": (lambda v: {"connection": _whole(v)}, "a whole number"),
}


def parse_rule(text: str) -> Rule:
    """One rule from its text.

    :raises ValueError: naming the word that is wrong, and what is allowed in its place.
    """
    words = text.split()
    if not words:
        raise ValueError("an empty rule")
    try:
        act = Act(words[0])
    except ValueError:
        acts = ", ".join(act.value for act in Act)
        raise ValueError(f"{words[0]!r} in {text!r}: a rule begins with its act, one of {acts}") from None
    fields: dict[str, Any] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or not value or key not in _KEYS:
            raise ValueError(f"{word!r} in {text!r}: must be key=value with a key of {', '.join(_KEYS)}")
        read, allowed = _KEYS[key]
        try:
            found = read(value)
        except ValueError:
            raise ValueError(f"{word!r} in {text!r}: {key} takes {allowed}") from None
        if found.keys() & fields.keys():
            raise ValueError(f"{word!r} in {text!r}: {key} is given twice")
        fields |= found
    try:
        return Rule(act=act, **fields)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def parse(text: str) -> tuple[int, list[Rule]]:
    """Seed (0 when none is given) and rules of a whole text.

    :raises ValueError: naming the word that is wrong.
    """
    seed = 0
    rules = []
    for item in text.replace("\n", ";").split(";"):
        item = item.strip()
        if item.startswith("seed="):
            try:
                seed = _whole(item.removeprefix("seed=").strip())
            except ValueError:
                raise ValueError(f"{item!r}: seed takes a whole number") from None
        elif item:
            rules.append(parse_rule(item))
    return seed, rules


# ---- deciding


@dataclass(slots=True)
class Counters:
    """Of one rule."""

    matched: int = 0
    """Requests and messages to which all its conditions before ``nth`` applied."""
    fired: int = 0
    """Those on which it acted."""


class _Installed:
    """A rule at work: its counters and its random numbers."""

    __slots__ = ("counters", "number", "random", "rule")

    def __init__(self, number: int, rule: Rule, seed: int) -> None:
        self.number = number
        self.rule = rule
        self.counters = Counters()
        self.random = random.Random(f"{seed}/{number}/{rule}")

    def fires(  # noqa: PLR0911  # one return for each condition
        self, op: Op, size: int, peer: str, side: str, connection: int | None
    ) -> bool:
        rule, counters = self.rule, self.counters
        assert rule.ops is not None
        if op not in rule.ops or size < rule.min_bytes:
            return False
        if rule.max_bytes is not None and size > rule.max_bytes:
            return False
        if rule.connection is not None and rule.connection != connection:
            return False
        if rule.side is not None and rule.side != side:
            return False
        if rule.peer is not None and not fnmatch.fnmatchcase(peer, rule.peer):
            return False
        counters.matched += 1
        if rule.nth is not None and counters.matched != rule.nth:
            return False
        if rule.times is not None and counters.fired >= rule.times:
            return False
        if rule.probability < 1.0 and self.random.random() >= rule.probability:
            return False
        counters.fired += 1
        return True


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one request or message.

    :param rule: the rule that fired.
    :param draw: a random number from 0 up to 2^32, for what the act leaves to chance.
    """

    rule: Rule
    draw: int

    def corrupted(self, data: bytes) -> bytes:
        """``data`` with one bit flipped; the same when it is empty."""
        if not data:
            return data
        at = self.draw >> 3 if self.rule.at is None else self.rule.at
        out = bytearray(data)
        out[at % len(data)] ^= 1 << (self.draw & 7)
        return bytes(out)


class Filter:
    """Rules in the order in which they were added, each with a number that is never used again.

    :param seed: of all random decisions.
    """

    def __init__(self, seed: int = 0, rules: Iterable[Rule] = ()) -> None:
        self.seed = seed
        self._next = 1
        self._rules: dict[Direction, list[_Installed]] = {Direction.OUT: [], Direction.IN: []}
        for rule in rules:
            self.add(rule)

    def __bool__(self) -> bool:
        return any(self._rules.values())

    def add(self, rule: Rule) -> int:
        """Append a rule; its number."""
        number = self._next
        self._next += 1
        self._rules[rule.direction].append(_Installed(number, rule, self.seed))
        return number

    def remove(self, number: int) -> Rule:
        """Take a rule out. :raises KeyError: there is none of this number."""
        for rules in self._rules.values():
            for installed in rules:
                if installed.number == number:
                    rules.remove(installed)
                    return installed.rule
        raise KeyError(number)

    def rules(self) -> dict[int, tuple[Rule, Counters]]:
        """All rules with copies of their counters, by number."""
        every = [installed for rules in self._rules.values() for installed in rules]
        every.sort(key=lambda installed: installed.number)
        return {each.number: (each.rule, dataclasses.replace(each.counters)) for each in every}

    def decide(
        self,
        direction: Direction,
        op: Op,
        size: int,
        *,
        peer: str = "",
        side: str = "",
        connection: int | None = None,
    ) -> Decision | None:
        """Which rule acts on this one: the first that matches and fires. Rules behind it do not see it.

        :param op: exactly one kind.
        :param size: bytes of the message or payload.
        """
        for installed in self._rules[direction]:
            if installed.fires(op, size, peer, side, connection):
                return Decision(installed.rule, installed.random.getrandbits(32))
        return None
