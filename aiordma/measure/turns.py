"""One measurement of ``aiordma perf``: what is measured, and what came out."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from ..config import Config
from .diagnostics import Services
from .samples import Samples

Mode = Literal["stream", "both-ways", "round-trip", "datagram", "call", "read", "write", "connect"]
MODES: tuple[Mode, ...] = get_args(Mode)
Against = Literal["fallback", "tcp", "uvloop", "unix"]
Subject = Literal["aiordma", "fallback", "tcp", "uvloop", "unix"]
AGAINST: tuple[Against, ...] = get_args(Against)
#: Modes without times of single operations.
ONE_WAY = ("stream", "datagram")


class Turn(Struct, frozen=True):
    """One measurement of one subject."""

    mode: Mode
    subject: Subject
    size: int
    host: str
    port: int
    services: Services
    config: Config
    connections: int
    in_flight: int
    seconds: float
    warm_up_s: float
    only_rdma: bool

    @property
    def path_mode(self) -> Literal["auto", "rdma", "tcp"]:
        """As of :func:`aiordma.connect`."""
        if self.subject == "fallback":
            return "tcp"
        return "rdma" if self.only_rdma else "auto"


class Outcome:
    """Of one turn, or of one of its connections."""

    def __init__(self) -> None:
        self.path, self.reason = "", ""
        self.messages = self.lost = 0
        #: messages a second
        self.rate = 0.0
        #: CPU time of the process meanwhile
        self.cpu_s = 0.0
        self.samples = Samples()

    def merge(self, other: Outcome) -> None:
        """Another connection of the same turn."""
        self.path, self.reason = other.path, other.reason
        self.messages += other.messages
        self.lost += other.lost
        self.rate += other.rate
        self.cpu_s = max(self.cpu_s, other.cpu_s)  # at the same time, in one process
        self.samples.merge(other.samples)
