# cython: language_level=3, boundscheck=False, wraparound=False
"""A link to another implementation of SMC-R, the Linux kernel's: its messages without a sequence and acknowledgement.

SENDs carry no immediate data. They are solicited, because Linux arms its receive queue for nothing else, and all are
signalled: what counts as under way is what has not completed. Linux has 48 receives posted, and posts each again before
its program reads, so a window of 16 leaves it room, and its device repeats what finds none (RNR).
"""
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t

from ._qp cimport QueuePair
from ._send_queue cimport KIND_SEND, MESSAGE_BYTES
from ._stand_in cimport (
    AIO_KIND_ANSWER,
    AIO_KIND_COPY,
    AIO_KIND_RECEIVE_ANSWERED,
    AIO_STAND_IN_ANSWERS,
    AIO_STAND_IN_BYTES,
    StandIn,
    aio_stand_in_answer_sent,
    aio_stand_in_handed,
    aio_stood_for,
)
from ._verbs cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_RECV,
    IBV_WC_SEND,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    aio_chain,
    aio_chain_send,
    ibv_wc,
)

from ..errors import RemoteProtocolError

ANSWERS = AIO_STAND_IN_ANSWERS
"""Send requests and message slots that :meth:`SmcrQueuePair.stand_in_by` takes, behind those of ``sq_depth``."""

cdef enum:
    LEAST_BYTES = 44            # of CDC, and of LLC in both versions
    CHANNEL_FIRST = 0xC0        # messages of channels (_qp.pyx), which only ends of aiordma have
    CHANNEL_LAST = 0xCF


cdef class SmcrQueuePair(QueuePair):
    """Parameters as of :class:`QueuePair`, with ``with_imm``. Of the window only the sending half is used, for credit.

    Rings run on it as they are. Channels, READs and what moves a stream to another place do not: the owner must leave
    them off.
    """

    cdef aio_stood_for stood_for
    cdef StandIn stand_in               # None: what comes while the loop does not poll waits for it

    def __init__(self, *args, **named):
        QueuePair.__init__(self, *args, **named)
        self.check_words = False

    # ---- the thread that answers while the loop does not poll

    def stand_in_by(self, StandIn stand_in not None) -> None:
        """Have the peer's requests answered while the loop does not poll. The device has room for :data:`ANSWERS` sends
        beside this end's own, and their slots are behind its own."""
        cdef aio_stood_for *link = &self.stood_for
        if self.stand_in is not None or self.failed:
            return
        link.tag, link.qp, link.lkey, link.max_inline = self.tag, self.qp, self.recv_lkey, self.max_inline
        link.receives, link.receive_count, link.receive_bytes = self.recv_addr, self.recv_count, self.recv_bytes
        link.answers = self.message_addr + <uint64_t>self.sq_depth * MESSAGE_BYTES
        stand_in.add(self, link)
        self.stand_in = stand_in

    def stand_alone(self) -> None:
        """The end of that: what the queue pair uses may go. Idempotent."""
        if self.stand_in is not None:
            self.stand_in.remove(self, &self.stood_for)

    cdef int on_completion(self, ibv_wc *wc) except -1:
        cdef uint32_t kind = (wc.wr_id >> 28) & 0xf
        if kind < AIO_KIND_ANSWER or self.stand_in is None:
            return QueuePair.on_completion(self, wc)
        if kind == AIO_KIND_ANSWER:
            aio_stand_in_answer_sent(&self.stand_in.state, wc)
            return 0 if wc.status == IBV_WC_SUCCESS else self._on_error(wc, KIND_SEND)
        if kind == AIO_KIND_RECEIVE_ANSWERED:
            return self._on_answered_receive(wc)
        return self._on_copy(aio_stand_in_handed(&self.stand_in.state, wc.wr_id & 0xfffffff), kind != AIO_KIND_COPY)

    cdef int _on_copy(self, const unsigned char *message, bint answered) except -1:
        """A message whose receive is posted again already."""
        if self.failed:
            return self.dispatch_late(message, AIO_STAND_IN_BYTES)
        self.last_received += 1
        self.messages_received += 1
        if answered:
            self.owner.on_answered(message[:AIO_STAND_IN_BYTES])
        elif self.hook is not None:
            return self.hook.arrived(message, AIO_STAND_IN_BYTES, 0)
        else:
            self.dispatch(message, AIO_STAND_IN_BYTES)
        return 0 if self.failed else self.after_receive()

    cdef int _on_answered_receive(self, ibv_wc *wc) except -1:
        cdef uint32_t slot = wc.wr_id & 0xfffffff
        cdef const unsigned char *message
        if self.failed:
            return 0
        message = <const unsigned char *><uintptr_t>(self.recv_addr + <uint64_t>slot * self.recv_bytes)
        self.last_received += 1
        self.messages_received += 1
        self.owner.on_answered(message[:wc.byte_len])
        if self.failed:
            return 0
        self._post_receive(slot)
        return self.after_receive()

    # ---- the path of messages

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
