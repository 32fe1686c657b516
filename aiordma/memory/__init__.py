"""One-sided memory: regions that peers read and write without this end's program, over RDMA or TCP."""

from __future__ import annotations

from ..proto.memory import Rights
from .connect import Server, connect, serve
from .errors import Fault, MemoryAccessError
from .peer import Peer
from .region import Piece, Region, alloc, register, statistics
from .remote import RemoteMemory
from .storage import MemoryStatistics

__all__ = [
    "Fault",
    "MemoryAccessError",
    "MemoryStatistics",
    "Peer",
    "Piece",
    "Region",
    "RemoteMemory",
    "Rights",
    "Server",
    "alloc",
    "connect",
    "register",
    "serve",
    "statistics",
]
