"""The keys below ``distributed.comm.aiordma`` of Dask's configuration, and their defaults."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
from dask.utils import parse_bytes

if TYPE_CHECKING:
    from aiordma import Config

__all__ = ["DEFAULTS", "PREFIX", "Settings"]

PREFIX = "distributed.comm.aiordma"

DEFAULTS = {
    # Refuse comms that are not on RDMA, at either end, instead of warning once.
    "require-rdma": False,
    # Messages that write() accepts while the peer has not taken the earlier ones.
    "write-behind": "256 MiB",
    # rdmas://: send payload by RDMA, unencrypted, after a negotiation inside TLS.
    "rdma-outside-tls": False,
    # Largest receive ring of a comm, as AIORDMA_MAX_RING_BYTES, which goes first.
    "ring": "4 MiB",
    # Memory of received data that is kept for the next transfer when the program has dropped it; 0: none.
    "pool": "512 MiB",
}

# A process of Dask needs no pyverbs, which takes a fifth of the time until its first comm. aiordma reads this
# when it is imported; what the user or the program has chosen stays.
if not os.environ.get("AIORDMA_VERBS") and "aiordma" not in sys.modules:
    os.environ["AIORDMA_VERBS"] = "own"

dask.config.update_defaults({"distributed": {"comm": {"aiordma": DEFAULTS}}})


#: An address with our scheme is that of a server that speaks our protocol, and its clients do. So neither end
#: takes the other for a plain one because it is slow, as all are while a large cluster starts. (Dask has its
#: own timeouts for connecting.)
_PATIENCE = {
    "head_start_ms": 60_000,
    "server_first_wait_ms": 60_000,
    "negotiate_timeout_ms": 30_000,
    "plain_peer_memory_ms": 0,
}


#: The ring that a comm begins with. The first pass over a ring costs a page fault for every 4 KiB.
_FIRST_RING = 1 << 20


class Settings(NamedTuple):
    """What the keys say now."""

    require_rdma: bool
    #: bytes
    write_behind: int
    rdma_outside_tls: bool
    #: bytes
    ring: int
    #: bytes
    pool: int

    @classmethod
    def now(cls) -> Settings:
        """:raises ValueError: a key has no valid value."""

        def value(key: str) -> object:
            return dask.config.get(f"{PREFIX}.{key}", default=DEFAULTS[key])

        return cls(
            require_rdma=_flag("require-rdma", value("require-rdma")),
            write_behind=_size("write-behind", value("write-behind")),
            rdma_outside_tls=_flag("rdma-outside-tls", value("rdma-outside-tls")),
            ring=_size("ring", value("ring"), least=16384),
            pool=_size("pool", value("pool"), least=0),
        )

    def config(self) -> Config:
        """aiordma's settings for a comm. Variables of the environment go first."""
        from aiordma import Config

        wanted: dict[str, Any] = dict(_PATIENCE)
        if not os.environ.get("AIORDMA_RING_BYTES") and not os.environ.get("AIORDMA_MAX_RING_BYTES"):
            largest = 1 << (self.ring - 1).bit_length()
            wanted |= {"ring_bytes": min(_FIRST_RING, largest), "max_ring_bytes": largest}
        ours = {name: wanted[name] for name in wanted if not os.environ.get(f"AIORDMA_{name.upper()}")}
        return Config.from_env(**ours)


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{PREFIX}.{key}: {value!r} must be true or false")
    return value


def _size(key: str, value: object, *, least: int = 1) -> int:
    try:
        size = int(parse_bytes(value))
    except (ValueError, TypeError, AttributeError) as exc:
        raise ValueError(f'{PREFIX}.{key}: {value!r} is no size, such as "64 MiB"') from exc
    if size < least:
        raise ValueError(f"{PREFIX}.{key}: must be at least {least} bytes, not {value!r}")
    return size
