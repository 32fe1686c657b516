"""A valkey-server's end of one connection, in single steps: an honest one, and one that breaks every rule.

It has a queue pair, a completion queue and memory of its own, and posts by pyverbs, past the library's data
path.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from aiordma.links.engine import current
from aiordma.verbs.abi import QpState
from aiordma.verbs.cq import CompletionQueue
from aiordma.verbs.qp import QpSize, RcQp
from aiordma.verbs.rdmacm import CmEvent, ConnectionId, Event, EventChannel, sockaddr
from aiordma.verbs.registrar import DeviceRegistrar
from tests.roles import LOCAL

if TYPE_CHECKING:
    from aiordma.links.engine import Engine

KEEPALIVE = b"\0\2" + bytes(30)
FEATURES = bytes(32)
_SLOT = 64
_RECV, _RECV_IMM = 128, 129
#: A send has completed.
_SENT = ("sent", None)


class Gone(Exception):
    """The client has ended the connection."""


class ModelServer:
    """Listens for one client at a time.

    :param size: of its transfer buffer.
    :param receives: that it posts.
    """

    def __init__(self, engine: Engine, size: int, receives: int) -> None:
        self.size, self._receives = size, receives
        backend = engine.backend
        self._pd = backend.alloc_pd()
        self._cq = CompletionQueue(backend, 4096)
        self._own = DeviceRegistrar(backend, self._pd, remote=True)
        self._memory = self._own.register((receives + 1) * _SLOT + 2 * max(size, 1 << 21))
        self._rx = self._memory.address + (receives + 1) * _SLOT
        self._tx = self._rx + max(size, 1 << 21)
        self._engine = engine
        self._channel = EventChannel(backend.rdma_cm())
        self._listener = ConnectionId(self._channel)
        self.port = self._listener.listen(sockaddr(LOCAL, 0))
        self._arrived: deque[tuple[str, Any]] = deque()
        self._id: ConnectionId | None = None
        self._gone = False
        #: the client's buffer, and how much of it is written
        self.peer = (0, 0, 0)
        self.written = 0
        #: how much of the own buffer the client has written
        self.filled = 0

    @classmethod
    async def make(cls, size: int = 4096, receives: int = 1024) -> Self:
        return cls(await current(), size, receives)

    # ---- connecting

    async def _event(self, wanted: CmEvent) -> Event:
        while True:
            event = self._channel.next_event()
            if event is not None:
                assert event.type == wanted, event
                return event
            await anyio.lowlevel.checkpoint()

    async def accept(self, *, registers: bool = True) -> None:
        """The next client."""
        event = await self._event(CmEvent.CONNECT_REQUEST)
        self._id = ConnectionId(self._channel, event.id)
        size = QpSize(send_wr=512, recv_wr=self._receives, send_sge=1, inline_bytes=0)
        self.qp = RcQp(self._engine.backend, self._pd, self._cq, size)
        self.qp.modify_raw(*self._id.attributes(QpState.INIT), QpState.INIT)
        for slot in range(self._receives):
            self._post_receive(slot)
        for state in (QpState.RTR, QpState.RTS):
            self.qp.modify_raw(*self._id.attributes(state), state)
        self._id.accept(self.qp.number, 1, 1)
        await self._event(CmEvent.ESTABLISHED)
        if registers:
            self.register()

    async def refuse(self) -> None:
        event = await self._event(CmEvent.CONNECT_REQUEST)
        stranger = ConnectionId(self._channel, event.id)
        stranger.reject()
        stranger.close()

    def hang_up(self) -> None:
        """As valkey-server ends a connection."""
        if self._id is not None:
            self.qp.to_error()
            self._id.disconnect()

    def forget(self) -> None:
        """Let go of the client."""
        if self._id is not None:
            self._id.close()
            self.qp.close()
            self._id = None

    def close(self) -> None:
        self.forget()
        self._listener.close()
        self._channel.close()
        self._cq.close()
        self._own.release(self._memory)
        self._pd.close()

    # ---- posting

    def _post_receive(self, slot: int) -> None:
        from pyverbs.wr import SGE, RecvWR

        sge = SGE(self._memory.address + slot * _SLOT, 32, self._memory.lkey)
        self.qp.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def _post(self, opcode: str, address: int, size: int, imm: int | None, remote: int, rkey: int) -> None:
        from pyverbs import enums
        from pyverbs.pyverbs_error import PyverbsRDMAError
        from pyverbs.wr import SGE, SendWR

        request = SendWR(
            wr_id=1 << 20,
            opcode=getattr(enums, f"IBV_WR_{opcode}"),
            num_sge=1,
            sg=[SGE(address, size, self._memory.lkey)],
            imm_data=0 if imm is None else int.from_bytes(imm.to_bytes(4, "big"), "little"),
            send_flags=enums.IBV_SEND_SIGNALED,
        )
        if rkey:
            request.set_wr_rdma(rkey, remote)
        try:
            self.qp.qp.post_send(request)
        except PyverbsRDMAError as error:
            if error.error_code != errno.ENOMEM:
                raise
            self._take_completions()
            self.qp.qp.post_send(request)

    def _take_completions(self) -> None:
        """Of sends, whose places are free by that; what has arrived meanwhile is kept for :meth:`look`."""
        while (found := self._polled()) is not None:
            if found is not _SENT:
                self._arrived.append(found)

    def command(self, data: bytes) -> None:
        """SEND of any bytes."""
        at = self._memory.address + self._receives * _SLOT
        ctypes.memmove(at, data, len(data))
        self._post("SEND", at, len(data), None, 0, 0)

    def register(self, length: int | None = None) -> None:
        """Register the own buffer (again)."""
        self.filled = 0
        length = self.size if length is None else length
        self.command(struct.pack(">H14xQII", 3, self._rx, length, self._memory.rkey))

    def write(self, data: bytes, says: int | None = None) -> None:
        """WRITE with immediate data to where the client's buffer goes on; ``says``: something else."""
        address, _, rkey = self.peer
        ctypes.memmove(self._tx, data, len(data))
        said = len(data) if says is None else says
        self._post("RDMA_WRITE_WITH_IMM", self._tx, len(data), said, address + self.written, rkey)
        self.written += len(data)

    @property
    def room(self) -> int:
        return self.peer[1] - self.written

    # ---- what the client does

    def look(self) -> tuple[str, Any] | None:
        """What has come next: ("command", bytes) or ("data", bytes). :raises Gone:"""
        if self._arrived:
            return self._arrived.popleft()
        found = self._polled()
        if found is None:
            if not self._gone and (event := self._channel.next_event()) is not None:
                self._gone = event.type == CmEvent.DISCONNECTED
            elif self._gone:
                raise Gone
        return None if found is _SENT else found

    def _polled(self) -> tuple[str, Any] | None:
        """Of one completion; None: there is none. :raises Gone:"""
        count, found = self._cq.cq.poll(1)
        if not count:
            return None
        done = found[0]
        if done.status:
            raise Gone
        if done.wr_id >= self._receives:
            return _SENT
        slot = int(done.wr_id)
        if done.opcode == _RECV_IMM:
            size = struct.unpack(">I", struct.pack("=I", done.imm_data & 0xFFFFFFFF))[0]
            data = ctypes.string_at(self._rx + self.filled, size)
            self.filled += size
            self._post_receive(slot)
            return "data", data
        assert done.opcode == _RECV
        data = ctypes.string_at(self._memory.address + slot * _SLOT, done.byte_len)
        self._post_receive(slot)
        if data[:2] == b"\0\3":
            _, *where = struct.unpack(">H14xQII", data)
            self.peer, self.written = (where[0], where[1], where[2]), 0
        return "command", data

    async def next(self) -> tuple[str, Any]:
        """The next thing that comes. :raises Gone:"""
        while (found := self.look()) is None:
            await anyio.lowlevel.checkpoint()
        return found

    async def expect(self, opcode: int) -> bytes:
        """The next command, which must be this one."""
        what, data = await self.next()
        assert what == "command", (what, data)
        assert int.from_bytes(data[:2], "big") == opcode
        return bytes(data)

    async def receive(self) -> bytes:
        """Data, as valkey-server takes it: commands are answered, and a full buffer is registered again."""
        while True:
            what, data = await self.next()
            if what == "data":
                if self.filled == self.size:
                    self.register()
                return bytes(data)
            if data[:2] == b"\0\0":
                self.command(FEATURES)

    async def send(self, data: bytes, most: int = 1 << 30) -> None:
        """Data, as valkey-server sends it: it waits at the end of each of the client's buffers."""
        while data:
            while not self.room:
                what, _ = await self.next()
                assert what == "command"
            step = min(self.room, most, len(data), 1 << 20)
            self.write(data[:step])
            data = data[step:]
            await anyio.lowlevel.checkpoint()
