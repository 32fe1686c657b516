# cython: language_level=3, boundscheck=False, wraparound=False
"""A link to another implementation of SMC-R, the Linux kernel's: its messages without a sequence and acknowledgement.

SENDs carry no immediate data. They are solicited, because Linux arms its receive queue for nothing else, and all are
signalled: what counts as under way is what has not completed. Linux has 48 receives posted, and posts each again before
its program reads, so a window of 16 leaves it room, and its device repeats what finds none (RNR).
"""
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t

from ._qp cimport QueuePair
from ._verbs cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_RECV,
    IBV_WC_SEND,
    IBV_WC_WITH_IMM,
    aio_chain,
    aio_chain_send,
    ibv_wc,
)

from ..errors import RemoteProtocolError

cdef enum:
    LEAST_BYTES = 44            # of CDC, and of LLC in both versions
    CHANNEL_FIRST = 0xC0        # messages of channels (_qp.pyx), which only ends of aiordma have
    CHANNEL_LAST = 0xCF


cdef class SmcrQueuePair(QueuePair):
    """Parameters as of :class:`QueuePair`, with ``with_imm``. Of the window only the sending half is used, for credit.

    Rings run on it as they are. Channels, READs and what moves a stream to another place do not: the owner must leave
    them off.
    """

    def __init__(self, *args, **named):
        QueuePair.__init__(self, *args, **named)
        self.check_words = False

    cdef void _add_send(self, aio_chain *chain, uint32_t length, bint signal, uint32_t imm):
        cdef unsigned int flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED
        self.sq_unsignalled = 0
        if length <= self.max_inline:
            flags |= IBV_SEND_INLINE
        aio_chain_send(chain, self._send_id(chain), <uint64_t><uintptr_t>self.message_room(), length, self.message_lkey,
                       flags, False, 0)
        self.messages_sent += 1

    cdef int on_sent(self, ibv_wc *wc) except -1:
        if wc.opcode == IBV_WC_SEND:
            self.window.acked = <uint16_t>(self.window.acked + 1)
        return QueuePair.on_sent(self, wc)

    cdef int on_receive(self, ibv_wc *wc) except -1:
        cdef uint32_t slot = wc.wr_id & 0xfffffff
        cdef uint32_t length = wc.byte_len
        cdef const unsigned char *message
        if self.failed:
            return self.receive_late(wc, slot)
        self.last_received += 1
        if slot >= self.recv_count or length > self.recv_bytes or length < LEAST_BYTES:
            return self.fail(RemoteProtocolError(f"the peer broke the protocol: a message of {length} bytes"))
        if wc.opcode != IBV_WC_RECV or wc.wc_flags & IBV_WC_WITH_IMM:
            return self.fail(RemoteProtocolError(
                "the peer broke the protocol: a message by another operation than SEND without immediate data "
                f"(opcode {wc.opcode}, flags 0x{wc.wc_flags:x})"))
        message = <const unsigned char *><uintptr_t>(self.recv_addr + <uint64_t>slot * self.recv_bytes)
        if CHANNEL_FIRST <= message[0] <= CHANNEL_LAST:
            return self.fail(RemoteProtocolError(
                f"the peer broke the protocol: a message of type 0x{message[0]:02x}"))
        self.messages_received += 1
        if self.hook is not None:
            return self._give_to_hook(message, length, slot, 0)
        self.dispatch(message, length)
        if self.failed:
            return 0
        self._post_receive(slot)
        return self.after_receive()

    cdef int finish(self, bint announced, uint32_t seq) except -1:
        return 0
