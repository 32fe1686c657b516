"""What two processes in C need at least to move bytes from host to host (for `benchmarks.hosts`).

One TCP stream; datagrams of the size of RoCEv2 packets, which the kernel splits and joins; and the same as
packets that are filled, get an ICRC, are checked, and copied into a ring and out of it. A device in user
space that works with sockets and rings, as the software device does, is not faster than the last.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cable import Host

SOURCE = Path(__file__).with_suffix(".c")
DEVICE = Path(__file__).parents[1] / "softdev"

TITLES = {
    "tcp": "one TCP stream",
    "runs": "runs of datagrams of 1 KiB, with nothing in them",
    "packets": "the same, filled, with an ICRC, checked and copied",
}


def compiled(folder: str) -> Path:
    """The program. Raises OSError or CalledProcessError: there is no compiler, or it refuses."""
    program = Path(folder) / "floor_wire"
    sources = [SOURCE, DEVICE / "src" / "roce" / "icrc.c"]
    includes = [f"-I{DEVICE / 'src'}", f"-I{DEVICE / 'include'}"]
    command = [os.environ.get("CC", "cc"), "-O3", "-D_GNU_SOURCE", *includes, "-o", str(program)]
    subprocess.run([*command, *map(str, sources), "-pthread"], check=True)
    return program


def once(program: Path, server: Host, client: Host, kind: str, seconds: float) -> float:
    """MB/s from ``client`` to ``server``, a CPU for each. Raises CalledProcessError, TimeoutExpired."""
    cpus = sorted(os.sched_getaffinity(0))

    def command(host: Host, cpu: int, role: str) -> list[str]:
        pinned = ["taskset", "-c", str(cpu)]
        return host.command(*pinned, str(program), role, kind, server.address, str(seconds))

    with subprocess.Popen(command(server, cpus[0], "receive")) as receiver:
        try:
            time.sleep(0.2)  # it prints nothing, and TCP's sender would be refused before it listens
            sender = command(client, cpus[-1], "send")
            out = subprocess.run(
                sender, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 10
            ).stdout
        finally:
            receiver.kill()
    return float(out)
