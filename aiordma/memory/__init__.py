"""One-sided memory: regions that peers read and write without this end's program, over RDMA or TCP."""

from __future__ import annotations

from ..proto.memory import Fault, Rights
from .connect import Server, connect, serve
from .errors import MemoryAccessError
from .making import alloc, register
from .operation import Operation, gather
from .peer import Peer
from .region import Piece, Pieces, Region, statistics
from .remote import RemoteMemory, RemotePieces
from .storage import MemoryStatistics

__all__ = [
    "Fault",
    "MemoryAccessError",
    "MemoryStatistics",
    "Operation",
    "Peer",
    "Piece",
    "Pieces",
    "Region",
    "RemoteMemory",
    "RemotePieces",
    "Rights",
    "Server",
    "alloc",
    "connect",
    "gather",
    "register",
    "serve",
    "statistics",
]
