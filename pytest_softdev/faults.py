"""Faults of the software device, for programs that start, and by hand in those that run."""

from __future__ import annotations

import os
import socket
import struct
from typing import Protocol

#: Most bytes of a request, and of its answer (softdev/src/core/faults.h).
_REQUEST = 1023
_ANSWER = 1 << 14
#: Seconds that a program has for its answer. A thread of the device gives it, whatever the program does.
_PATIENCE = 10.0
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group


class _Running(Protocol):
    @property
    def pid(self) -> int: ...


class FaultError(Exception):
    """The device does not know the fault, or there is no such process. The text says which."""


class Faults:
    """The faults of programs that are started from now on, in the words of ``SOFTDEV_FAULTS``.

    ``man softdev`` has the words: ``"seed=7,wire_drop=0.01,delay=0.1"``, ``"at=1s port=down for=2s"``.
    """

    def __init__(self, spec: str = "") -> None:
        self.spec = spec

    def set(self, spec: str) -> None:
        """Replace them; "" ends all. A program says on standard error what it does not understand."""
        self.spec = spec

    def now(self, program: _Running | int, request: str) -> str:
        """Make a fault in a program that runs, by its object or its process id.

        :param request: a fault, ``"list"``, ``"clear"`` or ``"clear N"``.
        :returns: the fault's number, or the list.
        :raises FaultError: with the reason.
        """
        return ask(program if isinstance(program, int) else program.pid, request)


def ask(pid: int, request: str) -> str:
    """Ask the device of that process for a fault, as ``softdev fault PID`` does."""
    data = request.encode()
    if len(data) > _REQUEST:
        raise FaultError(f"a request has at most {_REQUEST} bytes")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        asker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        asker.bind("")  # a name that the kernel chooses, for the answer
        asker.settimeout(_PATIENCE)
        try:
            asker.sendto(data, f"\0softdev-control-{os.getuid()}-{pid}")
            answer = _answer_of(asker, pid)
        except TimeoutError:
            raise FaultError(f"process {pid} does not answer") from None
        except OSError:
            raise FaultError(f"process {pid} has not opened the device, or has ended") from None
    code, _, text = answer.decode("utf-8", "replace").lstrip().partition(" ")
    if code != "0":
        raise FaultError(text.strip())
    return text.strip()


def _answer_of(asker: socket.socket, pid: int) -> bytes:
    """The next datagram of that process. Anybody could have taken its name, or send one."""
    while True:
        data, ancillary, _, _ = asker.recvmsg(_ANSWER, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                sender, user, _ = _CREDENTIALS.unpack(value[: _CREDENTIALS.size])
                if sender == pid and user == os.getuid():
                    return data
