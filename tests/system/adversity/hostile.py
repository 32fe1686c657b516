"""Clients that break the rules: connected properly, with the project's own parts, and then one attack each.

Raw work requests are posted with pyverbs, past the library's window and checks.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio

import aiordma
from aiordma.links import engine as engines
from aiordma.links.contact import ClientContact
from aiordma.proto import llc
from aiordma.proto.cdc import CdcMessage
from tests.roles import LOCAL

if TYPE_CHECKING:
    from aiordma.proto.clc import Accept, Confirm
    from tests.program import Control


class Hostile:
    """A connection and everything behind it."""

    def __init__(self, stream: aiordma.RdmaStream, engine: engines.Engine) -> None:
        self.stream = stream
        (self.group,) = engine.all_groups
        (self.member,) = self.group.members
        self.link = self.group.link
        self.pipe = stream._pipe
        self.seq = self.link.queue_pair.messages_sent
        local = self.link.parts.local
        assert local is not None
        self.memory = local.allocate(8192)

    @property
    def tcp(self) -> socket.socket:
        """The TCP connection beside the link."""
        assert isinstance(self.member.carrier, socket.socket)
        return self.member.carrier

    # ---- messages inside the window

    def say(self, message: bytes) -> None:
        assert self.link.queue_pair.send_llc(message)

    def cdc(self, **fields: int) -> None:
        """A cursor message, newer than any before; cursors stay as they are told unless given."""
        message = CdcMessage()
        message.seq, message.token, message.prod_count = 100, self.peer_token, 1
        for name, value in fields.items():
            assert hasattr(message, name)
            setattr(message, name, value)
        self.say(message.encode())

    # ---- raw work requests

    def post(
        self,
        opcode: str,
        data: bytes = b"",
        *,
        imm: int | None = None,
        addr: int = 0,
        rkey: int = 0,
        length: int | None = None,
    ) -> None:
        from pyverbs import enums
        from pyverbs.wr import SGE, SendWR

        ctypes.memmove(self.memory.address, data, len(data))
        size = len(data) if length is None else length
        request = SendWR(
            wr_id=0xFFFF << 48,
            opcode=getattr(enums, f"IBV_WR_{opcode}"),
            num_sge=1,
            sg=[SGE(self.memory.address, size, self.memory.lkey)],
            imm_data=0 if imm is None else int.from_bytes(imm.to_bytes(4, "big"), "little"),
            send_flags=enums.IBV_SEND_SIGNALED,
        )
        if addr:
            request.set_wr_rdma(rkey, addr)
        self.link.parts.qp.qp.post_send(request)

    peer_token = peer_ring = peer_rkey = peer_ring_bytes = 0


Attack = Callable[[Hostile], object]


def again(data: bytes, *, ahead: int, ack: int = 0, opcode: str = "SEND_WITH_IMM") -> Attack:
    """A message whose sequence is so far ahead of the last one."""

    def attack(hostile: Hostile) -> None:
        imm = (hostile.seq + ahead) << 16 | ack
        hostile.post(opcode, data, imm=imm, addr=hostile.peer_ring, rkey=hostile.peer_rkey)

    return attack


def first(message: dict[str, int], **then: int) -> Attack:
    def attack(hostile: Hostile) -> None:
        hostile.cdc(**message)
        hostile.cdc(seq=101, **then)

    return attack


def onesided(opcode: str, *, offset: int = 0, wrong_key: int = 0, addr: int | None = None) -> Attack:
    def attack(hostile: Hostile) -> None:
        target = hostile.peer_ring + offset if addr is None else addr
        hostile.post(opcode, addr=target, rkey=hostile.peer_rkey ^ wrong_key, length=64)

    return attack


def ask_without_end(hostile: Hostile) -> None:
    message = llc.TestLink(user_data=bytes(16)).encode()
    while hostile.link.queue_pair.send_llc(message):
        pass


def ignore_the_window(hostile: Hostile) -> None:
    for ahead in range(1, 301):
        again(b"\xfe\x2c" + bytes(42), ahead=ahead)(hostile)


def add_to_its_memory(hostile: Hostile) -> None:
    """The rings allow WRITE and READ, no atomics."""
    from pyverbs import enums
    from pyverbs.wr import SGE, SendWR

    request = SendWR(
        wr_id=0xFFFF << 48,
        opcode=enums.IBV_WR_ATOMIC_FETCH_AND_ADD,
        num_sge=1,
        sg=[SGE(hostile.memory.address, 8, hostile.memory.lkey)],
        send_flags=enums.IBV_SEND_SIGNALED,
    )
    request.set_wr_atomic(hostile.peer_rkey, hostile.peer_ring, 1, 0)
    hostile.link.parts.qp.qp.post_send(request)


CDC = b"\xfe\x2c" + bytes(42)
PRODUCER, CONSUMER = "its producer cursor", "its consumer cursor"
GAP, NEVER_SENT = "sequence gap", "acknowledged messages that were never sent"
# What the device stops by itself, and tells in an event. Without such events (rxe) the QP looks like one
# whose peer is gone, and the stream goes on over TCP.
DEVICE = "the device stopped QP|QP .* failed|QP_(ACCESS|REQ)_ERR|QP_FATAL"

# What each does, by kind, and the reason in its victim's error; None where nothing may happen to the victim.
ATTACKS: dict[str, dict[str, tuple[Attack, str | None]]] = {
    "cursors": {
        "producer outside the ring": (lambda h: h.cdc(prod_count=h.peer_ring_bytes), PRODUCER),
        "producer beyond the room": (lambda h: h.cdc(prod_wrap=1, prod_count=2), PRODUCER),
        "producer far ahead": (lambda h: h.cdc(prod_wrap=7), PRODUCER),
        "producer goes back": (first({"prod_count": 100}, prod_count=50), PRODUCER),
        "consumer ahead of what was sent": (lambda h: h.cdc(cons_count=5000), CONSUMER),
        "consumer outside the ring": (lambda h: h.cdc(cons_count=0xFFFFFFFF), CONSUMER),
        # The victim may have seen the end and closed before the second message comes.
        "data after the end": (first({"state_flags": 0x80}, prod_count=10), None),
        "malformed cursor message to nobody": (lambda h: h.say(b"\xfe\x10" + bytes(42)), None),
        "malformed cursor message": (
            lambda h: h.say(b"\xfe\x10\0\1" + h.peer_token.to_bytes(4, "big") + bytes(36)),
            "malformed",
        ),
        "truncated cursor message": (lambda h: h.say(b"\xfe" * 43), "CDC message of 43 bytes"),
        "long cursor message": (lambda h: h.say(b"\xfe" * 60), "CDC message of 60 bytes"),
        "wrong token": (lambda h: h.cdc(token=h.peer_token ^ 0x10000, prod_count=9), None),
        "token of nobody": (lambda h: h.cdc(token=0xFFFFFFFF), None),
    },
    "control": {
        "truncated control message": (lambda h: h.say(b"\x01\x2c\x00"), "LLC: message of 3 bytes"),
        "unknown control message": (lambda h: h.say(b"\x77" + bytes(43)), "LLC"),
        "confirms the link again": (
            lambda h: h.say(h.link._confirm(response=True).encode()),
            "not being set up",
        ),
        # Nothing but a link is lost by this: the stream goes on over TCP, until the attacker dies.
        "deletes the link": (
            lambda h: h.say(llc.DeleteLink(reason=0x10000, all_links=True, orderly=False).encode()),
            None,
        ),
        "asks for answers without end": (ask_without_end, None),
    },
    "window": {
        "skips a sequence": (again(CDC, ahead=9), GAP),
        "repeats a sequence": (again(CDC, ahead=0), GAP),
        "acknowledges what was never sent": (again(CDC, ahead=1, ack=0x7777), NEVER_SENT),
        "empty message acknowledges nonsense": (again(b"", ahead=1, ack=0x4444), NEVER_SENT),
        "message without immediate data": (
            again(CDC, ahead=1, opcode="SEND"),
            "another operation than SEND with",
        ),
        "write with immediate data": (
            again(CDC, ahead=1, opcode="RDMA_WRITE_WITH_IMM"),
            "another operation than SEND with",
        ),
        "message larger than a receive": (
            again(bytes(8192), ahead=1),
            # The second is what rxe calls it.
            "LOC_LEN_ERR|LOC_QP_OP_ERR|the device stopped QP",
        ),
        "ignores the window": (ignore_the_window, None),
    },
    "access": {
        "writes outside its memory": (onesided("RDMA_WRITE", addr=0x1000), DEVICE),
        "writes far behind its ring": (onesided("RDMA_WRITE", offset=1 << 40), DEVICE),
        "writes with a wrong key": (onesided("RDMA_WRITE", wrong_key=0x55), DEVICE),
        "reads outside its memory": (onesided("RDMA_READ", addr=0x1000), DEVICE),
        "reads with a wrong key": (onesided("RDMA_READ", wrong_key=0x55), DEVICE),
        "fetches and adds": (add_to_its_memory, DEVICE),
    },
    "connection": {
        "speaks on the TCP connection": (lambda h: h.tcp.send(b"hello"), "unexpected bytes"),
        "closes the TCP connection first": (
            lambda h: h.tcp.shutdown(socket.SHUT_RDWR),
            "closed the TCP connection",
        ),
        # Without traffic only the keepalive finds these, later than this test waits.
        "resets its QP": (lambda h: h.link.parts.qp.to_reset(), None),
        "stops its QP": (lambda h: h.link.parts.qp.to_error(), None),
    },
}


async def attacker(control: Control, port: int, kind: str, attack: str) -> None:
    """Connects, sends a byte and gets it back, attacks once, and stays until the test is over."""
    accepted: list[Any] = []
    original = ClientContact.accepted

    async def remember(contact: ClientContact, accept: Accept, peer: str = "") -> Confirm:
        accepted.append(accept)
        return await original(contact, accept, peer)

    ClientContact.accepted = remember  # type: ignore[assignment, method-assign]
    stream = await aiordma.connect(LOCAL, port, mode="rdma")
    await stream.send(b"?")
    assert await stream.receive() == b"?"
    hostile = Hostile(stream, await engines.current())
    (accept,) = accepted
    hostile.peer_token, hostile.peer_ring = accept.token, accept.ring_addr
    hostile.peer_rkey, hostile.peer_ring_bytes = accept.rkey, accept.ring_bytes
    hostile.seq = hostile.link.queue_pair.messages_sent
    ATTACKS[kind][attack][0](hostile)
    control.say("attacked")
    # What it gets for it is its own affair, but it must not hang on it.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_endure, stream)
        await control.heard_all()
        tasks.cancel_scope.cancel()


async def _endure(stream: aiordma.RdmaStream) -> None:
    try:
        async for _ in stream:
            pass
    except anyio.BrokenResourceError:
        pass
