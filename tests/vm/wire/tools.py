"""Runs both ends of the well-known verbs programs: pingpongs and perftest."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

from tests.tools import listening, run_pair

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


def between(client: Place, server: Place, to: str, tool: str, *options: str) -> tuple[str, str]:
    """Run both ends of a tool, which first talk by TCP to address ``to``. What client and server printed."""
    chooser = "-g" if tool.startswith("ibv_") else "-x"
    there, here = (
        [*place.prefix, tool, "-p", str(PORT), "-d", place.device, chooser, place.gid_index(), *options]
        for place in (server, client)
    )
    said, done = run_pair(there, [*here, to], ready=lambda pid: listening(pid, PORT), limit=LIMIT)
    return done, said
