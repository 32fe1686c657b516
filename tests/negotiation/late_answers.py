"""A program that tells what connections learn of their SYN-ACKs when another processor takes them in, slowly.

It is to run in a network namespace and with mounts of its own. Packets of its loopback go to the second
processor. There, when a socket has become a connected one, and before the program of the option reads the
SYN-ACK, another program of that kind counts to a large number.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import select
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

from aiordma.negotiation import question, sockops
from aiordma.negotiation.question import Answer
from aiordma.negotiation.smc_option import Question
from aiordma.negotiation.sockops import SynOptions, SynProgram
from aiordma.negotiation.tcp_connect import connect_tcp

CONNECTIONS = 100
#: The verifier walks through all of them. It gives up after a million instructions.
_TURNS = 100_000
#: Something else comes between SYN and poll(), up to some 200 us long.
_INTERRUPTED = 10_000
_LEARNT = {Answer.NO_OPTION: "no option", Answer.NEGOTIATES: "option"}
_PROCESSORS = "class/net/lo/queues/rx-0/rps_cpus"


def counting(map_fd: int) -> bytes:
    """Instructions: where a client's SYN-ACK has come, take time."""
    made = sockops._Assembler()
    made.load(1, 1, sockops._OP)
    made.add(0x55, 1, 0, 3, sockops._ACTIVE_ESTABLISHED)  # not this event: to the end
    made.set(1, _TURNS)
    made.add(0x17, 1, value=1)
    made.add(0x55, 1, 0, -2)  # not 0: back to the subtraction
    made.set(0, 1)
    made.add(0x95)
    return made.code()


def loaded(cgroup: str) -> tuple[SynProgram, SynProgram]:
    """The slow one, which runs first, and the option's."""
    assemble = sockops.assemble
    sockops.assemble = counting
    try:
        slow = SynProgram(cgroup)
    finally:
        sockops.assemble = assemble
    return slow, SynProgram(cgroup)


def use_both_processors(own: int, other: int) -> None:
    os.sched_setaffinity(0, {own})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "sysfs", "none", "/sys"], check=True)
    Path("/sys", _PROCESSORS).write_text(f"{1 << other:x}")


def listening(options: SynOptions) -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    entry = options.want(made)
    made.listen(2 * CONNECTIONS)
    options.forget(entry)
    return made


async def of_tasks(options: SynOptions, address: Any) -> Counter[str]:
    learnt: Counter[str] = Counter()
    for _ in range(CONNECTIONS):
        asked = Question(options)
        with await connect_tcp([(socket.AF_INET, address)], question=asked) as sock:
            learnt["no option" if asked.answer(sock) is None else "option"] += 1
    return learnt


class Delayed(socket.socket):
    """Its connect() does with a time limit what Python's does, and is interrupted behind the SYN."""

    def connect(self, address: Any) -> None:
        limit = self.gettimeout()
        self.settimeout(0)
        assert self.connect_ex(address) == errno.EINPROGRESS
        for _ in range(random.randrange(_INTERRUPTED)):
            pass
        select.select([], [self], [])
        assert self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        self.settimeout(limit)


def of_threads(options: SynOptions, address: Any) -> Counter[str]:
    """What asks before there is a loop."""
    os.environ |= {"AIORDMA_SMCR": f"fd:{options.map_fd}", "AIORDMA_SMCR_STRICT": "1"}
    with patch.object(socket, "socket", Delayed):
        answers = [question.ask([(socket.AF_INET, address)], 1) for _ in range(CONNECTIONS)]
    return Counter(_LEARNT.get(answer, str(answer)) for answer in answers)


def main(cgroup: str) -> None:
    programs = loaded(cgroup)
    use_both_processors(*sorted(os.sched_getaffinity(0))[:2])
    options = programs[1].options
    with listening(options) as listener:
        address = listener.getsockname()
        print(json.dumps([asyncio.run(of_tasks(options, address)), of_threads(options, address)]))
    for each in programs:
        each.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
