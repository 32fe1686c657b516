"""The life of one stream as one state machine: opening, end, close, abort, leaving RDMA, and coming back.

This is the specification of what the objects of ``pipes`` and ``links`` do together, as
``docs/explanation/life-of-a-stream.md`` explains. :class:`~.stream.StreamLife` does no I/O and reads no
clock. Its owner reports what happens and carries out the outputs that each report returns, in their order
and without a turn of the loop in between. ``states.py`` has the states and the table of transitions. The
parts that the product drives as well are in ``aiordma/proto/life``.
"""

from __future__ import annotations

from aiordma.proto.life.outputs import Broken, CloseTcp, Negotiate, Output, Put, ResetTcp

from .base import Limits
from .leaving import Cursors
from .outputs import (
    Abandon,
    Announce,
    Finished,
    FreeRing,
    LeftRdma,
    PeerLostLink,
    ReadAhead,
    ReceiveFrom,
    Rejoined,
    ReleaseTcp,
    Resend,
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
