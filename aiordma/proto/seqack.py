# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The message window of a link: sequence and acknowledgement in 32 bits of immediate data (after X-RDMA,
CLUSTER 2019).

Each direction numbers its messages modulo 65536, from 1. ``imm = seq << 16 | ack``, where ``ack`` is the
highest sequence of the other direction that is finished with no gap below. A message is finished when its
receive has been posted again, so at most ``window`` messages beyond the last acknowledgement can never find
the receive queue empty.

* A **NOP** (zero-length SEND) carries only an acknowledgement; its upper 16 bits are no sequence. It is sent
  when half a window is finished and not acknowledged (:meth:`SeqAckWindow.nop_due`), and takes no place in
  the window: two windows that are both full would otherwise wait for each other. At most two NOPs can be
  unread at the peer, because what they acknowledge adds up to no more than one window; they use the reserve
  of receives.
* What is finished without reaching half a window is acknowledged by the ack timer
  (:meth:`SeqAckWindow.ack_owed`), and that by a message *in* the window (``llc.AnnounceAck``), finished by
  :meth:`SeqAckWindow.complete_quiet`: slow traffic in one direction cannot then send more NOPs than there are
  receives, and two idle ends do not acknowledge each other's acknowledgements for ever.

Compiled as well (``seqack.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

MAX_WINDOW = 16384
"""The distance of any two live sequence numbers stays below half of the number space."""
NOP_RESERVE = 2
"""Receives that must be posted beyond the window for NOPs."""

SEQ_BAD_SEQUENCE = -1
SEQ_BAD_ACK = -2
SEQ_OVERRUN = -3
_FAULTS = {
    -1: "a message is missing or came twice (sequence gap)",
    -2: "it acknowledged messages that were never sent, or took an acknowledgement back",
    -3: "it sent more messages than the window allows",
}


class SeqAckWindow:
    """Both directions of one link.

    :param window: messages that may be in flight in each direction, a power of two up to 16384 (a window that
        does not divide 65536 would let two live sequences share a slot at the wrap).
    :param tx_start, rx_start: the last sequence before the first one, for links that are resumed.
    :raises ValueError: another window or start.
    """

    def __init__(self, window: int, tx_start: int = 0, rx_start: int = 0) -> None:
        if window < 1 or window > MAX_WINDOW or window & (window - 1):
            raise ValueError(f"window={window}: must be a power of two from 1 to {MAX_WINDOW}")
        if not (0 <= tx_start < 65536 and 0 <= rx_start < 65536):
            raise ValueError(f"tx_start={tx_start}, rx_start={rx_start}: must be sequences (0 to 65535)")
        self.window = window
        self.mask = window - 1
        self.half = max(1, window >> 1)
        self.seq = tx_start
        self.acked = tx_start
        self.wta = rx_start
        self.rta = rx_start
        self.sent_ack = rx_start
        self.early = 0
        self.owed = 0
        self._done_bytes = bytearray(window)
        self.done = self._done_bytes

    # ---- sending

    def credit(self) -> int:
        """Messages that may be sent now."""
        return self.window - ((self.seq - self.acked) & 0xFFFF)

    def send(self) -> int:
        """Take the next sequence. Returns the immediate data to post with the message, or -1 when the window
        is full."""
        if ((self.seq - self.acked) & 0xFFFF) >= self.window:
            return -1
        seq = (self.seq + 1) & 0xFFFF
        self.seq = seq
        self.sent_ack = self.rta
        self.owed = 0
        return seq << 16 | self.rta

    def foretell(self) -> int:
        """The immediate data of the message that :meth:`send` would be for now. Nothing counts as sent."""
        return ((self.seq + 1) & 0xFFFF) << 16 | self.rta

    def nop_due(self) -> int:
        """1 when a NOP must be sent now: half a window is finished and the peer does not know."""
        return 1 if ((self.rta - self.sent_ack) & 0xFFFF) >= self.half else 0

    def nop(self) -> int:
        """The immediate data of a NOP; the acknowledgement counts as sent."""
        self.sent_ack = self.rta
        self.owed = 0
        return self.rta

    def ack_owed(self) -> int:
        """1 when a message is finished and untold: the ack timer should run, and when it fires an
        ``AnnounceAck`` go out (if there is credit: without it the peer's own acknowledgement is on its
        way)."""
        return self.owed

    # ---- receiving

    def receive(self, imm: int) -> int:
        """A message arrived. Returns how many of our messages it acknowledges, or a negative ``SEQ_*`` when
        the peer broke the protocol (nothing changes then)."""
        seq = (imm >> 16) & 0xFFFF
        if seq != ((self.wta + 1) & 0xFFFF):
            return SEQ_BAD_SEQUENCE
        if ((seq - self.sent_ack) & 0xFFFF) > self.window:
            return SEQ_OVERRUN
        acked = self.receive_nop(imm)
        if acked >= 0:
            self.wta = seq
        return acked

    def receive_nop(self, imm: int) -> int:
        """A NOP arrived. Returns as :meth:`receive`."""
        ack = imm & 0xFFFF
        acked = (ack - self.acked) & 0xFFFF
        if acked > ((self.seq - self.acked) & 0xFFFF):
            return SEQ_BAD_ACK
        self.acked = ack
        return acked

    def complete(self, seq: int) -> int:
        """Message ``seq`` is finished and its receive is posted again; any order. Returns how many sequences
        became acknowledgeable (0 while there is a gap below), or -1 for one that is not open."""
        if seq == ((self.rta + 1) & 0xFFFF) and self.early == 0 and self.rta != self.wta:
            self.rta = seq
            self.owed = 1
            return 1
        return self._complete_slot(seq, 1)

    def complete_quiet(self, seq: int) -> int:
        """As :meth:`complete` for a message that is itself only an acknowledgement: it starts no ack
        timer."""
        return self._complete_slot(seq, 0)

    def _complete_slot(self, seq: int, loud: int) -> int:
        ahead = (seq - self.rta) & 0xFFFF
        if ahead == 0 or ahead > ((self.wta - self.rta) & 0xFFFF) or self.done[seq & self.mask]:
            return -1
        self.done[seq & self.mask] = 1 + loud
        self.early += 1
        advanced = 0
        while self.early:
            slot = (self.rta + 1) & self.mask
            if self.done[slot] == 0:
                break
            if self.done[slot] == 2:
                self.owed = 1
            self.done[slot] = 0
            self.early -= 1
            self.rta = (self.rta + 1) & 0xFFFF
            advanced += 1
        return advanced

    @staticmethod
    def fault_text(result: int) -> str:
        """What the peer did wrong, for a negative result."""
        return _FAULTS.get(result, "no fault")
