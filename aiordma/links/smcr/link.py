"""A link to a kernel's SMC-R: the queue pair that such a peer expects, directed by ``proto/smcr_link.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...datapath._smcr import ANSWERS, SmcrQueuePair
from ...errors import Code, LinkError, RemoteProtocolError
from ...proto.seqack import SeqAckWindow
from ...proto.smcr_link import LinkActive, LinkEnded
from ...verbs.abi import Access, Mtu
from ...verbs.qp import QpAddress, QpPath
from ..contracts import LinkState
from ..link import Link, LinkParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...config import Config
    from ...proto.clc import Accept, Confirm
    from ...proto.smcr_link import LinkEvent, SmcrLink
    from .absence import Absence

#: Receives are as large as the longest message of version 2.
_RECEIVES, _RECEIVE_BYTES, _SENDS = 64, 8192, 256
#: Messages under way: Linux has 48 receives.
_WINDOW = 16
RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_WRITE
"""What such a peer may do: write."""


class KernelParts(LinkParts):
    """Queue pair, receives and message slots of a link to a kernel. They are not used again for others."""

    COMPLETIONS: ClassVar[int] = _RECEIVES + _SENDS

    @staticmethod
    def _sizes(config: Config) -> tuple[int, int, int]:
        return _RECEIVES, _RECEIVE_BYTES, _SENDS

    def silence(self) -> bool:
        self.qp.close()
        return False


class KernelLink(Link):
    """One queue pair, and the state machine that speaks for it.

    The machine's time limits are looked at by the engine's timer, so they are kept within a second.
    """

    _PATH = QpPath(timeout=15, rnr_retry=7, min_rnr_timer=5, traffic_class=0, access=RIGHTS)
    _machine: SmcrLink | None = None
    _on_active: Callable[[], None] | None = None
    #: What answers while the event loop does not poll; None: not yet.
    _absence: Absence | None = None
    #: Messages that had come when the timer looked.
    _heard = 0
    queue_pair: SmcrQueuePair

    def _new_queue_pair(self) -> SmcrQueuePair:
        places = self._places()
        places["sq_depth"] -= ANSWERS
        return SmcrQueuePair(
            self.engine.poller,
            self.parts.qp.pointer,
            self.parts.qp.number,
            SeqAckWindow(_WINDOW),
            **places,
            with_imm=True,
        )

    def connect_to(self, peer: Accept | Confirm, *, proved: bool) -> None:
        """Connect to the queue pair of an answer. :raises VerbsError:"""
        mtu = Mtu(min(peer.mtu, int(self.engine.backend.mtu)))
        self.bring_up(QpAddress(peer.gid, 0, peer.qpn, peer.psn, mtu, 1), proved=proved)
        self.queue_pair.max_reads = 0

    def begin(self, machine: SmcrLink, absence: Absence, on_active: Callable[[], None]) -> None:
        """The two ends have agreed on the link.

        :param absence: what answers while the event loop does not poll.
        :param on_active: called when it works in both directions. If it fails before, ``on_failed`` is.
        """
        self._machine, self._absence, self._on_active = machine, absence, on_active
        self._send_all()

    def _send_all(self) -> None:
        assert self._machine is not None
        while (message := self._machine.next_message()) is not None:
            self.queue_pair.queue_llc(message)

    def _take(self, events: Iterable[LinkEvent]) -> None:
        for event in events:
            if isinstance(event, LinkActive):
                self._activate_now()
            elif isinstance(event, LinkEnded):
                self._send_all()
                self._end(event)
                return
        self._send_all()

    def _activate_now(self) -> None:
        self.state = LinkState.ACTIVE
        if self._absence is not None:
            self._absence.cover(self.queue_pair)
        tell, self._on_active = self._on_active, None
        if tell is not None:
            tell()

    def _end(self, event: LinkEnded) -> None:
        self.orderly = event.orderly
        if event.code == Code.PROTOCOL_VIOLATION:
            self.queue_pair.break_link(RemoteProtocolError(event.text))
        else:
            self.queue_pair.break_link(LinkError(event.text, self.peer))

    # ---- called by the queue pair

    def on_llc(self, data: bytes) -> None:
        if self._machine is None:
            self.queue_pair.break_link(RemoteProtocolError("a message came before the link was agreed on"))
        else:
            self._take(self._machine.receive(data, self.engine.waker.now()))

    def on_answered(self, data: bytes) -> None:
        """A request that was answered while the event loop did not poll."""
        if self._machine is not None:
            self._take(self._machine.receive_answered(data, self.engine.waker.now()))

    def on_failed(self, reason: BaseException) -> None:
        self._leave_absence()
        super().on_failed(reason)

    def _leave_absence(self) -> None:
        absence, self._absence = self._absence, None
        if absence is not None:
            absence.leave(self.queue_pair)

    def on_ack_owed(self) -> None:
        """There is nothing to acknowledge."""

    def acknowledge(self) -> bool:
        return True

    def _left_whole(self) -> bool | None:
        return False

    # ---- called by the engine and the group

    def look(self, now: float) -> None:
        if self._is_due(now):
            # The loop may be late, and the peer's answer here.
            self.engine.poller.drain()
        if self._machine is None or self.state not in (LinkState.SETTING_UP, LinkState.ACTIVE):
            return
        if self._heard != self.queue_pair.messages_received:
            self._heard = self.queue_pair.messages_received
            self._machine.heard(now)
        self._take(self._machine.on_timer(now))

    def _is_due(self, now: float) -> bool:
        deadline = None if self._machine is None else self._machine.next_deadline()
        return deadline is not None and now >= deadline

    def close(self) -> LinkParts:
        self._leave_absence()
        return super().close()

    def suspect(self) -> None:
        """The machine asks the peer by itself when nothing is heard."""

    def announce_end(self) -> None:
        if self._machine is not None and not self.queue_pair.failed:
            self._machine.close()
            self._send_all()
