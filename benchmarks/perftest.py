"""UCX without Python: its `ucx_perftest`, in C, sends 1 MiB again and again between two processes.

The program comes with the wheel `libucx-cu12`, which ucxx needs. "posix" copies through shared memory; with
"cma" the receiver reads large messages out of the sender's memory (`process_vm_readv`): one copy, not two.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

SIZE, MESSAGES = 1 << 20, 3000
TRANSPORTS = {"posix": "posix,self", "cma": "posix,cma,self"}
LIMIT = 60.0
COLUMNS = 8


def program() -> Path | None:
    """The wheel's, or the system's. None: there is none."""
    if (wheel := importlib.util.find_spec("libucx")) and wheel.origin:
        found = Path(wheel.origin).parent / "bin" / "ucx_perftest"
        if found.exists():
            return found
    there = shutil.which("ucx_perftest")
    return Path(there) if there else None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def rate(transport: str) -> float | None:
    """Gigabytes per second of its streams. None: it cannot be run, or has failed."""
    if (found := program()) is None:
        return None
    port = str(_free_port())
    libraries = f"{found.parents[1] / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = {
        **os.environ,
        "UCX_TLS": TRANSPORTS[transport],
        "UCX_WARN_UNUSED_ENV_VARS": "n",
        "LD_LIBRARY_PATH": libraries,
    }
    command = [str(found), "-p", port, "-f"]
    test = ["-t", "stream_bw", "-s", str(SIZE), "-n", str(MESSAGES), "-w", "100"]
    cpus = sorted(os.sched_getaffinity(0))
    pins = [["-c", str(cpu)] for cpu in (cpus[0], cpus[-1])]
    with subprocess.Popen(
        [*command, *pins[0]], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            while server.poll() is None:  # once it listens, the first client ends it
                client = subprocess.run(
                    [*command, *pins[1], *test, "127.0.0.1"],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=LIMIT,
                    check=False,
                )
                if client.returncode == 0:
                    return _bandwidth(client.stdout)
                time.sleep(0.05)
        except subprocess.TimeoutExpired:
            return None
        finally:
            server.kill()
    return None


def _bandwidth(text: str) -> float | None:
    """Its one row of numbers: messages, three latencies, MB/s (average, overall), messages a second."""
    for line in text.splitlines():
        try:
            *_, overall, _, _ = numbers = [float(word) for word in line.removeprefix("Final:").split()]
        except ValueError:
            continue
        if len(numbers) == COLUMNS:
            return overall * (1 << 20) / 1e9
    return None
