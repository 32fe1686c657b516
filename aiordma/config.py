# ruff: noqa: RUF009  (the helpers called for defaults return dataclasses.field())
"""Settings: one frozen dataclass, units in the names.

Every field is also an environment variable: ``AIORDMA_`` and the field's name in capitals, or for those of
the software device the name by which it reads them (:func:`variable_of`). *Online* fields may be changed
while an engine runs (:meth:`Config.changed`), *offline* ones are read when it starts.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from .borrowed import ENABLED, shapes
from .cgroup import memory_limit
from .constants import Constants
from .proto.filter import parse as parse_filter
from .proto.objects import LARGEST_LIMIT, MAX_OBJECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

logger = logging.getLogger("aiordma.config")

Mode = Literal["auto", "rdma", "tcp"]
Check: TypeAlias = "Callable[[Any], bool]"

#: Variables that are no settings: the software device reads them (softdev), the import of the package, and
#: `aiordma run`.
OTHER_VARIABLES = (
    "AIORDMA_PRIVATE_APIS",
    "AIORDMA_RUN",
    "AIORDMA_RUN_RULES",
    "AIORDMA_VERBS",
    "SOFTDEV_CAPTURE",
    "SOFTDEV_CNP_DSCP",
    "SOFTDEV_CONGESTION",
    "SOFTDEV_DEVICE",
    "SOFTDEV_DSCP",
    "SOFTDEV_FAULTS",
    "SOFTDEV_PERSONALITY",
)
#: How the names of variables begin: aiordma's own, and those of the software device.
PREFIXES = ("AIORDMA_", "SOFTDEV_")
_VERBS = "AIORDMA_VERBS"
#: What it may be.
VERBS_BINDINGS = ("auto", "pyverbs", "own")
#: What tests and their virtual machines read.
_OTHERS_BEGIN_WITH = ("AIORDMA_TEST_", "AIORDMA_VM")

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB

_FIRST_RING, _LARGEST_RING = 512 * _KIB, 8 * _MIB
#: In a cgroup that has hardly any: what a few connections with small rings need.
_LEAST_MEMORY = 16 * _MIB


class Setting(NamedTuple):
    """One row of the table of settings."""

    name: str
    variable: str
    default: Any
    allowed: str
    online: bool
    help: str


def _setting(default: Any, check: Check, allowed: str, text: str, online: bool = False) -> Any:
    metadata = {"default": default, "check": check, "allowed": allowed, "help": text, "online": online}
    return dataclasses.field(default=default, metadata=metadata)


def _bytes_of_this_process(default: int, bounds: tuple[int, int], text: str) -> Any:
    """An online number whose default is at most half of what the process's cgroup allows.

    Without that, a container with less memory than the default ends by a signal when its rings are used,
    where it could have had smaller rings, or TCP.
    """
    ours = functools.cache(lambda: _at_most_half(default, memory_limit()))
    return dataclasses.field(
        default_factory=ours, metadata=_number(default, bounds, text, online=True).metadata
    )


def _at_most_half(default: int, limit: int | None) -> int:
    return default if limit is None else min(default, max(limit // 2, _LEAST_MEMORY))


def _is_int(value: Any, bounds: tuple[int, int]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and bounds[0] <= value <= bounds[1]


def _number(default: int | None, bounds: tuple[int, int], text: str, *, online: bool) -> Any:
    allowed = f"a whole number from {bounds[0]} to {bounds[1]}"
    if default is None:
        allowed += ", or unset"

    def check(value: Any) -> bool:
        return _is_int(value, bounds) or (value is None and default is None)

    return _setting(default, check, allowed, text, online)


def _power(default: int | None, bounds: tuple[int, int], text: str) -> Any:
    allowed = f"a power of two from {bounds[0]} to {bounds[1]}"
    if default is None:
        allowed += ", or unset"

    def check(value: Any) -> bool:
        return (_is_int(value, bounds) and value & (value - 1) == 0) or (value is None and default is None)

    return _setting(default, check, allowed, text)


def _is_device_list(value: str) -> bool:
    names = value.split(",")
    alone = {"auto", "soft", "none"}
    return all(0 < len(name.strip()) < 64 for name in names) and (
        len(names) == 1 or not alone & {name.strip() for name in names}
    )


def _is_filter(value: Any) -> bool:
    """:raises ValueError: naming the word of the rules that is wrong."""
    if isinstance(value, str):
        parse_filter(value)
    return value is None or isinstance(value, str)


def _is_smcr(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return value in ("auto", "off") or value.startswith("/") or value.removeprefix("fd:").isdecimal()


def _require(field: dataclasses.Field[Any], name: str, value: Any) -> None:
    try:
        fine = field.metadata["check"](value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r} is not valid: {error}") from None
    if not fine:
        raise ValueError(f"{name}={value!r} is not valid: it must be {field.metadata['allowed']}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Constants):
    """Settings of an engine and of the streams made with it.

    :raises ValueError: a value that is not allowed; the message names the field (or the environment
        variable), the value, and what is allowed.
    """

    mode: Mode = _setting(
        "auto",
        lambda v: v in ("auto", "rdma", "tcp"),
        "auto, rdma or tcp",
        "auto: RDMA with fallback to TCP; rdma: fail with the reason instead; tcp: never RDMA",
    )
    device: str | None = _setting(
        None,
        lambda v: v is None or (isinstance(v, str) and v.isprintable() and _is_device_list(v)),
        "names of RDMA devices (`name` or `name:port`, separated by commas), auto, soft, none, or unset",
        "the RDMA device; with several, connections move to another one when a link fails; auto: every "
        "usable device; soft: the software device; none: no RDMA; unset: the first active one, else soft",
    )
    soft_devices: int = _number(
        1,
        (1, 4),
        "number of devices that the software device provides (soft0, soft1 ...); `soft` uses all of them",
        online=False,
    )
    traffic_class: int = _number(
        184 + 2,
        (0, 255),
        "traffic class of RDMA packets, in both directions, for connections that this end opens and for its "
        "datagrams: 4 * DSCP + ECN bits (186: DSCP 46, ECN-capable). Each class has its own link",
        online=True,
    )
    soft_wire: Literal["off", "auto", "only"] = _setting(
        "off",
        lambda v: v in ("off", "auto", "only"),
        "off, auto or only",
        "whether the software device may reach other hosts (RoCEv2, UDP port 4791); only: also this host, "
        "over the network, for tests. Other programs on the device read it, too; unset, they use auto",
    )
    smcr: str = _setting(
        "auto",
        _is_smcr,
        "auto, off, fd:NUMBER, or the path of a pinned map",
        "streams with Linux' own SMC-R (AF_SMC sockets): the map of the program that puts SMC's TCP option "
        "into SYNs, as a descriptor or a path; auto: that of `aiordma smcr enable`, if there is one",
    )
    smcr_eids: str = _setting(
        "AIORDMA",
        lambda v: isinstance(v, str) and bool(v.strip(" ,*")),
        "up to 8 enterprise ids, separated by commas",
        "enterprise ids that are offered to kernels, and accepted from them (smcr ueid add); "
        "*: servers accept others, too",
    )
    smcr_strict: int = _number(
        0,
        (0, 1),
        "1: where the TCP option is set up, a peer that does not send it counts as plain TCP, before the "
        "first byte: for networks in which every host of aiordma's is set up",
        online=False,
    )
    busy_poll_us: int | None = _number(
        None,
        (0, 1_000_000),
        "microseconds that an operation, or the loop for its transports, polls before it sleeps; "
        "0: events only; unset: adaptive",
        online=True,
    )
    ring_bytes: int = _power(
        _FIRST_RING,
        (16 * _KIB, 512 * _MIB),
        "receive ring that a stream begins with; it follows the traffic. The ring of a datagram connection",
    )
    max_ring_bytes: int | None = _power(
        None,
        (16 * _KIB, 512 * _MIB),
        "largest receive ring, for streams whose writers sleep for room; unset: 8 MiB, or ring_bytes if that "
        "is not its default",
    )
    window: int = _power(64, (1, 16384), "messages in flight on a link in one direction")
    memory_limit_bytes: int = _bytes_of_this_process(
        2 * _GIB,
        (_MIB, 1 << 50),
        "limit of registered memory of an engine. The default is less where the process's cgroup (its "
        "container) may have less than twice that: half of it, at least 16 MiB",
    )
    max_message_bytes: int = _number(
        64 * _MIB,
        (4 * _KIB, _GIB),
        "longest message of a channel (a call's argument or result)",
        online=False,
    )
    max_message_objects: int = _number(
        MAX_OBJECTS,
        (1024, LARGEST_LIMIT),
        "most objects in the arguments of a call, in a result, or in an item of a stream: each value, list, "
        "map, and key of a map; bytes and arrays count as one. All calls of one client in flight may have "
        "four times as many, and a message a 32nd of that in keys whose hashes could be chosen to collide",
        online=False,
    )
    keepalive_ms: int = _number(
        10_000,
        (0, 86_400_000),
        "silence after which a link is probed with a zero-byte WRITE; 0: never. The probe has half of that "
        "time, and at least 5 s; after that the link counts as lost",
        online=True,
    )
    negotiate_timeout_ms: int = _number(
        6_000, (1, 600_000), "time for one message of the negotiation, on TCP or a new link", online=True
    )
    server_first_wait_ms: int = _number(
        500,
        (0, 600_000),
        "time that a listener waits for the first bytes of a silent client, before it uses plain TCP",
        online=True,
    )
    head_start_ms: int = _number(
        1_000,
        (0, 600_000),
        "unknown peer: head start of the negotiation before a plain connection is opened in parallel; "
        "four round trips to the peer are added",
        online=True,
    )
    plain_peer_memory_ms: int = _number(
        60_000,
        (0, 86_400_000),
        "time for which a peer that speaks plain TCP gets no further proposal",
        online=True,
    )
    failover_timeout_ms: int = _number(
        10_000,
        (0, 600_000),
        "time for both ends of a stream to agree on TCP failover when the link is lost; 0: no failover, a "
        "lost link breaks its streams",
        online=True,
    )
    stopped_peer_ms: int = _number(
        300_000,
        (0, 86_400_000),
        "time for which a stream that leaves RDMA waits for a peer whose process does not run (a debugger, a "
        "paused machine) while its host answers on TCP; 0: no longer than failover_timeout_ms",
        online=True,
    )
    tickets: int = _number(
        8,
        (0, 255),
        "tickets, by which a connection opens without waiting for an answer (0-RTT): how many a client "
        "accepts, and how many a listener gives to each client; 0: none",
        online=False,
    )

    admin: Literal["on", "off"] = _setting(
        "on",
        lambda v: v in ("on", "off"),
        "on or off",
        "whether `aiordma stat` and `aiordma adm` of the same user (and of root) see this process, and can "
        "change its online settings; decided by the first connection of each event loop",
    )
    trace_sample: int = _number(
        0,
        (0, 1_000_000),
        "req-res mode: one call in this many (1: every call) carries a trace block, and the client learns "
        "the time of each stage; 0: none, bare mode",
        online=True,
    )
    slow_request_us: int = _number(
        0, (0, 1 << 40), "calls that take longer are logged (microseconds); 0: none", online=True
    )
    slow_handler_us: int = _number(
        0, (0, 1 << 40), "handlers that take longer are logged (microseconds); 0: none", online=True
    )
    slow_poll_us: int = _number(
        0,
        (0, 1 << 40),
        "pauses of an event loop that are longer than this are logged (microseconds); 0: none",
        online=True,
    )
    leak_after_ms: int = _number(
        300_000,
        (0, 86_400_000),
        "time after which something counts as leaked: an open stream that moves no byte and that no task "
        "waits for, a loan or a received view that is kept, memory for a peer that is gone; 0: never",
        online=True,
    )
    leak_frames: int = _number(
        0,
        (0, 64),
        "frames of the stack that are recorded where a connection, a listener or a loan is created, so that "
        "reports of leaks name the place; 0: none",
        online=True,
    )
    filter: str | None = _setting(
        None,
        _is_filter,
        "fault rules, or unset",
        "fault injection on all links of the process: `drop op=cdc nth=3; delay op=message p=0.1 ms=5`",
        online=True,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _require(field, field.name, getattr(self, field.name))
        if self.ring_bytes > self.memory_limit_bytes:
            raise ValueError(
                f"ring_bytes={self.ring_bytes} is not valid: it must not exceed "
                f"memory_limit_bytes={self.memory_limit_bytes}"
            )
        if self.max_ring_bytes is not None and self.max_ring_bytes < self.ring_bytes:
            raise ValueError(
                f"max_ring_bytes={self.max_ring_bytes} is not valid: it must be at least "
                f"ring_bytes={self.ring_bytes}"
            )

    @property
    def largest_ring_bytes(self) -> int:
        """To what the receive ring of a stream grows: ``max_ring_bytes``, or what stands for it."""
        if self.max_ring_bytes is not None:
            return self.max_ring_bytes
        return _LARGEST_RING if self.ring_bytes == _FIRST_RING else self.ring_bytes

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
        """Settings from the environment (``AIORDMA_*``, and two of ``SOFTDEV_*``); ``overrides`` win. An
        empty variable counts as unset.

        :raises ValueError: naming the variable, its value, and what is allowed.
        """
        if environ is None:
            _warn_of_unknown_variables()
        if environ is None and not overrides and _raw_environ is not None:
            given = _raw_names().intersection(_raw_environ)
            if not given:
                return _defaults()
            found = [(variable, _raw_environ.get(variable)) for variable in given]
            # Another thread may have taken one away since.
            return _parsed_raw(frozenset([(variable, text) for variable, text in found if text is not None]))
        if environ is None:
            _check_verbs(os.environ.get(_VERBS, ""))
        environ = os.environ if environ is None else environ
        return _parse_all(tuple([environ.get(variable, "") for variable in _variables()]), overrides)

    def changed(self, **changes: Any) -> Config:
        """A copy with *online* settings changed.

        :raises ValueError: an unknown or offline setting, or a value that is not allowed.
        """
        rows = {row.name: row for row in _rows()}
        for name in changes:
            if name not in rows:
                raise ValueError(f"unknown setting {name!r}: known are {', '.join(rows)}")
            if not rows[name].online:
                online = ", ".join(row.name for row in rows.values() if row.online)
                raise ValueError(f"{name} is read when the engine starts; changeable while it runs: {online}")
        return dataclasses.replace(self, **changes)


def settings() -> list[Setting]:
    """Every setting, for the documentation and the tools."""
    return [*_rows()]


def work_ahead() -> None:
    """What settings of any environment need, so that the first connection does not do it."""
    _raw_names()
    _defaults()


def variable_of(field: str) -> str:
    """The environment variable of a field: those of the software device have the names that it reads."""
    if field.startswith("soft_"):
        return f"SOFTDEV_{field.removeprefix('soft_').upper()}"
    return f"AIORDMA_{field.upper()}"


@functools.cache
def _rows() -> tuple[Setting, ...]:
    return tuple(
        Setting(
            name=field.name,
            variable=variable_of(field.name),
            default=field.metadata["default"],
            allowed=field.metadata["allowed"],
            online=field.metadata["online"],
            help=field.metadata["help"],
        )
        for field in dataclasses.fields(Config)
    )


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """Variables among ``names`` that begin with one of :data:`PREFIXES`, and that nothing reads.

    Each with the known one most alike.
    """
    ours = sorted([name for name in names if name.startswith(PREFIXES)])
    known = (*_variables(), *OTHER_VARIABLES)
    return {
        name: _nearest(name, known)
        for name in ours
        if name not in known and not name.startswith(_OTHERS_BEGIN_WITH)
    }


def _nearest(name: str, known: Iterable[str]) -> str | None:
    import difflib  # for the few processes that need it

    before, _, rest = name.partition("AIORDMA_SOFT_")
    if rest and not before:
        return f"SOFTDEV_{rest}"  # so they were called before the device was a project of its own
    return next(iter(difflib.get_close_matches(name, list(known), 1, 0.8)), None)


@functools.cache
def _warn_of_unknown_variables() -> None:
    """Once per process: what the user meant to set has no effect."""
    for name, nearest in unknown_variables(os.environ).items():
        hint = f"did you mean {nearest}?" if nearest else "`aiordma doctor` lists those that are set"
        logger.warning("the environment variable %s is unknown and has no effect: %s", name, hint)


@functools.cache
def _variables() -> tuple[str, ...]:
    return tuple(row.variable for row in _rows())


# A look-up in the dictionary behind os.environ takes a tenth of the time of os.environ.get(). The dictionary
# is private: where it has another shape, the public API is used.
_raw_environ: dict[bytes, bytes] | None = None
if ENABLED and not shapes.environment():
    _raw_environ = os.environ._data  # type: ignore[attr-defined]


@functools.cache
def _raw_names() -> frozenset[bytes]:
    """The variables that may change what is returned, or be wrong."""
    return frozenset(map(os.fsencode, (_VERBS, *_variables())))


@functools.cache
def _defaults() -> Config:
    return Config()


@functools.lru_cache(maxsize=8)
def _parsed_raw(given: frozenset[tuple[bytes, bytes]]) -> Config:
    """Connections without settings read the environment; it is parsed only when it has changed.

    :param given: the variables that are set, so that those that are not cost nothing.
    """
    texts = {os.fsdecode(variable): os.fsdecode(value) for variable, value in given}
    _check_verbs(texts.get(_VERBS, ""))
    return _parse_all(tuple([texts.get(variable, "") for variable in _variables()]), {})


def _check_verbs(given: str) -> None:
    """It is no setting of an engine, but a wrong value must be told all the same."""
    if (verbs := given or "auto") not in VERBS_BINDINGS:
        raise ValueError(f"{_VERBS}={verbs!r} is not valid: it must be one of {', '.join(VERBS_BINDINGS)}")


def _parse_all(texts: tuple[str, ...], overrides: dict[str, Any]) -> Config:
    values: dict[str, Any] = {}
    for row, text in zip(_rows(), texts, strict=True):
        if text.strip() and row.name not in overrides:
            values[row.name] = _parse(row, text.strip())
    return Config(**{**values, **overrides})


def _parse(row: Setting, text: str) -> Any:
    field = next(f for f in dataclasses.fields(Config) if f.name == row.name)
    value: Any = text
    if row.name not in ("mode", "device", "soft_wire", "admin", "filter", "smcr", "smcr_eids"):
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{row.variable}={text!r} is not valid: it must be {row.allowed}") from None
    _require(field, row.variable, value)
    return value
