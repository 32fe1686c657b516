"""Runs both ends of the well-known verbs programs: pingpongs and perftest."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import NamedTuple

LIMIT = 100  # seconds, to end a hang
PORT = 18500


class Place(NamedTuple):
    """Where an end runs."""

    device: str
    address: str
    #: What runs a program there.
    prefix: tuple[str, ...] = ()

    def gid_index(self) -> str:
        """Of its address: what ``-g`` and ``-x`` want."""
        command = [*self.prefix, "ibv_devinfo", "-v", "-d", self.device]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            name, _, value = line.strip().partition(":")
            address = value.split(",")[0].strip().removeprefix("::ffff:")
            if name.startswith("GID[") and address == self.address:
                return name[4:].rstrip("]").strip()
        raise LookupError(f"{self.device} has no GID for {self.address}")


def listening(pid: int) -> bool:
    """Whether a socket of that process's network namespace listens at the tools' port."""
    return any(
        line.split()[1].endswith(f":{PORT:04X}") and line.split()[3] == "0A"
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    )


def between(client: Place, server: Place, to: str, tool: str, *options: str) -> tuple[str, str]:
    """Run both ends of a tool, which first talk by TCP to address ``to``. What client and server printed."""
    chooser = "-g" if tool.startswith("ibv_") else "-x"
    there, here = (
        [*place.prefix, tool, "-p", str(PORT), "-d", place.device, chooser, place.gid_index(), *options]
        for place in (server, client)
    )
    process = subprocess.Popen(there, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with process:
        try:
            end = time.monotonic() + LIMIT
            while not listening(process.pid):
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < end, f"{tool} does not listen"
                time.sleep(0.05)
            done = subprocess.run(
                [*here, to],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            said = process.communicate(timeout=LIMIT)[0]
        finally:
            process.kill()
    assert done.returncode == 0, f"client on {client}:\n{done.stdout}\nserver:\n{said}"
    assert process.returncode == 0, f"client on {client}:\n{done.stdout}\nserver:\n{said}"
    return done.stdout, said
