"""The path of a comm: says so once when it is not RDMA, or refuses it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from distributed.comm.core import Comm

from .settings import PREFIX

if TYPE_CHECKING:
    from aiordma import RdmaStream

__all__ = ["check_path", "comm_paths", "why_not_rdma"]

logger = logging.getLogger("distributed.comm.aiordma")

_warned: set[str] = set()


def why_not_rdma(stream: RdmaStream) -> str | None:
    """Why this stream is on TCP; None: it is on RDMA."""
    if stream.path == "rdma":
        return None
    return str(stream.fallback_reason or "no reason is known")


def check_path(stream: RdmaStream, peer: str, *, refuse: bool) -> str | None:
    """Warn, once for each reason, that a comm is not on RDMA.

    :return: the reason, if ``refuse`` says that the comm must not be used.
    """
    reason = why_not_rdma(stream)
    if reason is None:
        return None
    if refuse:
        return f"the comm with {peer} would not be on RDMA, and {PREFIX}.require-rdma is set: {reason}"
    if reason not in _warned:
        _warned.add(reason)
        logger.warning(
            "The comm with %s is on TCP, not on RDMA: %s. (Said once for each reason. `aiordma doctor` looks "
            "for the cause; set %s.require-rdma to refuse such comms.)",
            peer,
            reason,
            PREFIX,
        )
    return None


def comm_paths() -> dict[str, int]:
    """How many comms of this process are open, by scheme and path, such as ``{"rdma:// rdma": 7}``.

    For a look at a whole cluster: ``client.run(comm_paths)`` and ``client.run_on_scheduler(comm_paths)``.
    """
    return dict(Counter(_path_of(comm) for comm in list(Comm._instances) if not comm.closed()))


def _path_of(comm: Comm) -> str:
    address = comm.local_address or comm.peer_address  # comms of other packages do not always know their own
    return f"{address.partition('://')[0]}:// {getattr(comm, 'path', '')}".strip()
