"""valkey-server with RDMA, on free ports of this machine: on the software device, if there is no other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from aiordma.verbs import softlib

from .processes import Program, ProgramError, free_port

_DEVICE = softlib.locate()
#: Where `make demo-valkey` builds it.
BUILT = Path(__file__).parents[2] / "build" / "valkey" / "valkey-server"


class Valkey(NamedTuple):
    """A running server."""

    program: Program
    tcp_port: int
    rdma_port: int


def start_valkey(
    directory: str, *more: str, ports: tuple[int, int] | None = None, cpu: int | None = None
) -> Valkey:
    """Without persistence, on free ports or on these; `cpu`: only there. Raises ProgramError, OSError."""
    for attempt in range(5):
        tcp_port, rdma_port = ports or (free_port(), free_port())
        try:
            return Valkey(_server(directory, tcp_port, rdma_port, more, cpu), tcp_port, rdma_port)
        except ProgramError:  # another process may have taken a port
            if attempt == 4:
                raise
    raise AssertionError


def _server(directory: str, tcp_port: int, rdma_port: int, more: tuple[str, ...], cpu: int | None) -> Program:
    binary = os.environ.get("AIORDMA_VALKEY_SERVER") or str(BUILT)
    listen: tuple[str, ...] = ("--bind", "127.0.0.1", "--port", str(tcp_port))
    listen += ("--rdma-bind", "127.0.0.1", "--rdma-port", str(rdma_port))
    options = ("--save", "", "--appendonly", "no", "--dir", directory)
    # The server knows libibverbs and librdmacm only. Preloaded, the software device takes their part.
    preload = () if os.environ.get("AIORDMA_DEVICE", "soft") != "soft" else (f"LD_PRELOAD={_DEVICE}",)
    pinned = () if cpu is None else ("taskset", "-c", str(cpu))
    command = (
        *pinned,
        "env",
        "SOFTDEV_DEVICE=soft",
        "SOFTDEV_WIRE=off",
        *preload,
        binary,
        *listen,
        *options,
        *more,
    )
    return Program(*command, ready="Ready to accept connections rdma")
