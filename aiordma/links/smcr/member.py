"""What one connection with a kernel's SMC-R holds: ring, mirror, pipe, and its TCP connection.

It stays on its link: such a peer takes no stream from RDMA to TCP. Of the TCP connection only a reset counts
at once. Linux closes its half with its program's, while RDMA goes on, and sends nothing: such an end counts
when this end's program has closed the stream, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...errors import Code, NegotiationError
from ...pipes._ring import RingPipe
from ...proto.smcr import Ring
from ..failover.tcp_carrier import PEER_DIED
from ..member import Member, MemberOwner

if TYPE_CHECKING:
    from typing import Any

    from ...pipes.tls import Carrier
    from ...proto.clc import Accept, Confirm
    from .rings import RingPlaces

#: Larger rings are refused: each needs as much memory here.
_LARGEST_RING = 16 << 20


class KernelMemberOwner(MemberOwner, Protocol):
    """The group, as its members see it."""

    @property
    def places(self) -> RingPlaces: ...


class KernelMember(Member):
    """One connection."""

    whole = False
    group: KernelMemberOwner
    #: The peer has ended its half of the TCP connection.
    _tcp_is_half = False

    def _open(self) -> None:
        self.ring: Any = self.group.places.take()
        try:
            self.pipe = RingPipe(
                self._link.queue_pair,
                rx_addr=self.ring.address,
                rx_size=self.ring.length,
                fragment=self._engine.config.fragment_bytes,
                owner=self,
            )
        except BaseException:
            self.ring.free()
            raise

    def offer(self) -> Ring:
        """This end's half, as the messages name it."""
        ring = self.ring
        return Ring(
            rkey=ring.rkey,
            rmb_addr=ring.memory,
            ring_bytes=ring.length,
            token=self.pipe.token,
            rmbe_index=ring.index,
        )

    def connect_to(self, peer: Accept | Confirm) -> None:
        """Take the peer's half.

        :raises NegotiationError: its ring is too large.
        :raises MemoryLimitError: no memory for the copy of it.
        """
        if peer.ring_bytes > _LARGEST_RING:
            raise NegotiationError(Code.LIMIT_REACHED, f"a ring of {peer.ring_bytes} bytes")
        self.connect(
            peer_token=peer.token,
            ring_addr=peer.ring_addr,
            rkey=peer.rkey,
            ring_bytes=peer.ring_bytes,
            recv_bytes=0,
        )

    def give_up(self, peer: Accept | Confirm) -> None:
        """The peer has agreed and may use the connection: tell it that there is none."""
        if self.connection is None:
            self.pipe.connect(
                peer_token=peer.token, tx_addr=peer.ring_addr, tx_rkey=peer.rkey, tx_size=peer.ring_bytes
            )
        self.pipe.abort()

    def _tcp_ended(self, reason: str) -> None:
        if reason != PEER_DIED:
            self.lose_tcp(reason)  # a reset: no half of a connection is left
        elif self.carrier is not None:
            self._engine.waker.unwatch_fd(self.carrier.fileno())
            self._tcp_is_half = True

    def look(self, now: float) -> None:
        if self._tcp_is_half and self.pipe.is_closed:
            self._drop_tcp()  # both programs have ended it
        super().look(now)

    def _end_unanswered(self) -> None:
        """A program of the kernel's may close as late as it likes, and other streams of its host go on: this
        ring is kept from others as long as the link lasts, and the rest is released."""
        self.ring.lose()
        self.pipe.stand_alone()

    def _received(self, carrier: Carrier, data: bytes) -> None:
        self.lose_tcp(f"{len(data)} unexpected bytes on the TCP connection of an SMC-R stream")

    def _free(self) -> None:
        self.ring.free()
        if self.mirror is not None and not self.mirror.freed:
            self.mirror.free()

    def discard(self, *, used: bool = False) -> None:
        """:param used: the peer may write into the ring, now or later."""
        if used:
            self.ring.lose()
        super().discard()
