"""All names of the machine, for who drives the whole of it."""

from __future__ import annotations

from .base import Limits
from .leaving import Cursors
from .outputs import (
    Abandon,
    Announce,
    Broken,
    CloseTcp,
    Finished,
    FreeRing,
    LeftRdma,
    Negotiate,
    Output,
    PeerLostLink,
    Put,
    ReadAhead,
    ReceiveFrom,
    Rejoined,
    ReleaseTcp,
    Resend,
    ResetTcp,
    Resume,
    SendBy,
    StopSending,
    SuspectLink,
)
from .states import TRANSITIONS, Input, Leg, Receiving, RingStage, Sending, Tcp, Transport
from .stream import StreamLife

__all__ = [
    "TRANSITIONS",
    "Abandon",
    "Announce",
    "Broken",
    "CloseTcp",
    "Cursors",
    "Finished",
    "FreeRing",
    "Input",
    "LeftRdma",
    "Leg",
    "Limits",
    "Negotiate",
    "Output",
    "PeerLostLink",
    "Put",
    "ReadAhead",
    "ReceiveFrom",
    "Receiving",
    "Rejoined",
    "ReleaseTcp",
    "Resend",
    "ResetTcp",
    "Resume",
    "RingStage",
    "SendBy",
    "Sending",
    "StopSending",
    "StreamLife",
    "SuspectLink",
    "Tcp",
    "Transport",
]
