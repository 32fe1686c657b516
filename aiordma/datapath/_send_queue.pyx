# cython: language_level=3, boundscheck=False, wraparound=False
"""The send queue of a link: how messages and WRITEs are built, posted and counted.

wr_id = tag of the completion owner (high 32 bits) | kind (4 bits) | number (28 bits): receive slot, or position in the
send queue.
"""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from .._cq cimport CompletionOwner
from ._fairness cimport SendQueueWaiter
from ._verbs cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    aio_chain,
    aio_chain_bytes,
    aio_chain_post,
    aio_chain_send,
    aio_chain_write,
)

from ..errors import LinkError, VerbsError

cdef extern from "<arpa/inet.h>" nogil:
    uint32_t htonl(uint32_t)

cdef enum:
    LONG_LEAD = 4               # in front of every long message, for iWARP
    LONG_POST_BYTES = 16384


cdef object no_memory():
    return LinkError("this end has no memory for what comes and goes on the link")


cdef class Hook:
    cdef int post(self, aio_chain *chain) except -1:
        raise NotImplementedError

    cdef int arrived(self, const unsigned char *message, uint32_t length, uint32_t seq) except -1:
        raise NotImplementedError

    cdef int end(self) except -1:
        raise NotImplementedError


cdef class SendQueue(CompletionOwner):
    """Base of :class:`QueuePair`, which has the flows that post here."""

    def __dealloc__(self):
        free(self.long_until)
        if self.long_slots == 0:
            free(self.long_memory)

    def prepare_long(self, uint32_t message_bytes, uint64_t addr=0, uint32_t lkey=0, uint32_t slots=0) -> None:
        """Have room to build messages of up to ``message_bytes``. Where the device does not take them inline:

        :param addr, lkey: registered memory for ``slots`` of them, of :meth:`long_slot_bytes` each.
        """
        if self.long_memory != NULL:
            return
        self.long_bytes = message_bytes + LONG_LEAD
        if addr:
            self.long_until = <uint32_t *>calloc(slots, sizeof(uint32_t))
            if self.long_until == NULL:
                raise MemoryError
            self.long_memory, self.long_lkey, self.long_slots = <unsigned char *><uintptr_t>addr, lkey, slots
        else:
            self.long_memory = <unsigned char *>malloc(self.long_bytes)
            if self.long_memory == NULL:
                raise MemoryError

    @staticmethod
    def long_slot_bytes(uint32_t message_bytes) -> int:
        return (message_bytes + LONG_LEAD + 63) & ~63

    def count_on(self, uint32_t requests) -> None:
        """For tests: go on as if so many more requests had been posted, and had completed. While others are under way, it
        must be a multiple of 2^28."""
        self.sq_posted += requests
        self.sq_retired += requests
        self.sq_completed += requests

    # ---- posting

    cdef unsigned int next_flags(self, bint signal):
        self.sq_unsignalled += 1
        if signal or self.sq_unsignalled >= self.sq_signal_every:
            self.sq_unsignalled = 0
            return IBV_SEND_SIGNALED
        return 0

    cdef unsigned char *message_room(self) noexcept:
        """Where to build the next message: the slot of its send WR, which is free until that WR completes. Valid for
        the chain that is posted next, with at most two WRITEs before the message."""
        cdef uint64_t slot = self.messages_sent % self.sq_depth
        return <unsigned char *><uintptr_t>(self.message_addr + slot * MESSAGE_BYTES) + (0 if self.with_imm else 4)

    cdef void add_message(self, aio_chain *chain, uint32_t length, bint signal):
        """Append the message built in message_room() to the chain. The caller has checked can_message()."""
        cdef uint32_t imm = <uint32_t>self.window.send()
        self._add_send(chain, length, signal, imm)

    cdef void _add_send(self, aio_chain *chain, uint32_t length, bint signal, uint32_t imm):
        cdef unsigned char *room = self.message_room()
        cdef unsigned int flags = self.next_flags(signal)
        if not self.with_imm:
            room -= 4
            room[0], room[1], room[2], room[3] = imm >> 24, (imm >> 16) & 0xff, (imm >> 8) & 0xff, imm & 0xff
            length += 4
        if length <= self.max_inline:
            flags |= IBV_SEND_INLINE
        aio_chain_send(chain, self._send_id(chain), <uint64_t><uintptr_t>room, length, self.message_lkey, flags,
                       self.with_imm, imm)
        self.messages_sent += 1

    cdef unsigned char *long_room(self) noexcept:
        """Where to build the next long message; NULL: no free slot until sends complete."""
        cdef uint32_t slot
        if self.long_slots == 0:
            return self.long_memory + LONG_LEAD
        slot = self.longs_sent % self.long_slots
        if not self.is_done(self.long_until[slot]):
            return NULL
        return self.long_memory + <uint64_t>slot * ((self.long_bytes + 63) & ~63) + LONG_LEAD

    cdef int send_long(self, unsigned char *room, uint32_t length) except -1:
        """Send the message built in long_room(). The caller has checked the credit."""
        cdef aio_chain chain
        cdef uint32_t slot, imm = <uint32_t>self.window.send()
        cdef unsigned int flags
        cdef bint signal = False
        if self.long_slots:
            slot = self.longs_sent % self.long_slots
            # Twice a round: rare, and often enough that slots always become free again.
            signal = slot == self.long_slots - 1 or slot == self.long_slots >> 1
            self.long_until[slot] = self.sq_posted + 1
            self.longs_sent += 1
        flags = self.next_flags(signal)
        if not self.with_imm:
            room -= 4
            room[0], room[1], room[2], room[3] = imm >> 24, (imm >> 16) & 0xff, (imm >> 8) & 0xff, imm & 0xff
            length += 4
        if length <= self.max_inline:
            flags |= IBV_SEND_INLINE
        chain.length = 0
        aio_chain_send(&chain, self._send_id(&chain), <uint64_t><uintptr_t>room, length, self.long_lkey, flags,
                       self.with_imm, imm)
        self.messages_sent += 1
        return self.post(&chain)

    cdef uint64_t _send_id(self, aio_chain *chain) noexcept:
        # The position after this WR: its completion retires everything up to here.
        return self.tag | (<uint64_t>KIND_SEND << 28) | ((self.sq_posted + chain.length + 1) & 0xfffffff)

    cdef void add_write(self, aio_chain *chain, uint64_t addr, uint32_t length, uint32_t lkey, uint64_t remote_addr,
                        uint32_t rkey):
        cdef unsigned int flags = self.next_flags(False)
        if length <= self.max_inline:
            flags |= IBV_SEND_INLINE
        aio_chain_write(chain, self._send_id(chain), addr, length, lkey, flags, remote_addr, rkey)
        self.writes_posted += 1
        self.bytes_written += length

    cdef int post(self, aio_chain *chain) except -1:
        cdef int posted = 0
        cdef int rc
        if self.diverted:
            # What is posted behind a request that was refused would announce it, and follow upon its number.
            return self.hook.post(chain) if self.hook is not None and not self.refused else 0
        if aio_chain_bytes(chain) < LONG_POST_BYTES:
            rc = aio_chain_post(self.qp, chain, &posted)
        else:
            # The device may copy all of it here (inline): let other threads run meanwhile.
            self.cq.outside += 1
            with nogil:
                rc = aio_chain_post(self.qp, chain, &posted)
            self.cq.outside -= 1
        self.sq_posted += posted
        if rc:
            # The window and the cursors have moved already, so the link must fail. Its flows learn of it as of any
            # other failure.
            self.lose_count(VerbsError(rc, "ibv_post_send"))
        return 0

    cdef int lose_count(self, object reason) except -1:
        """What was posted and what is counted differ from here on. It must not be posted again: the link fails,
        and its flows learn of it as of any other failure.

        :param reason: None: there was no memory in between.
        """
        self.refused = self.diverted = True
        return self.cq.fail_owner(self, no_memory() if reason is None else reason)

    cdef int end_hook(self) except -1:
        """The link has failed, which nothing that fails here may hide."""
        if self.hook is not None:
            try:
                self.hook.end()
            except BaseException as error:
                self.cq.report(error)
        return 0

    cdef int ran_out(self) except -1:
        return self.post_failed(no_memory())

    @property
    def counts_astray(self) -> bool:
        """Whether the device counts the WRITEs that it did not execute when they were posted."""
        return self.astray != &self.no_count

    cdef int ack_if_due(self) except -1:
        """Send a NOP when the peer has used half of its window and no message has acknowledged that. It is outside the
        window and uses the reserve of send WRs, else two full windows would wait for each other."""
        cdef aio_chain chain
        if self.failed or not self.window.nop_due() or self.sq_free() == 0:
            return 0
        chain.length = 0
        self._add_send(&chain, 0, False, self.window.nop())
        self.nops_sent += 1
        return self.post(&chain)

    @property
    def ack_owed(self) -> bool:
        """Whether something was received that no message has acknowledged yet."""
        return self.window.ack_owed() != 0

    def watch_ack(self) -> None:
        """Call ``owner.on_ack_owed()`` for the next message that is received and not acknowledged at once."""
        self.ack_watched = False

    def send_llc(self, bytes message) -> bool:
        """Send a link control message (<= 60 bytes); False when there is no credit now."""
        cdef aio_chain chain
        cdef unsigned char *room
        cdef Py_ssize_t i, n = len(message)
        if n > MESSAGE_BYTES - 4:
            raise ValueError(f"LLC message of {n} bytes, at most {MESSAGE_BYTES - 4}")
        if self.failed or not self.can_message():
            return False
        room = self.message_room()
        for i in range(n):
            room[i] = <unsigned char>message[i]
        chain.length = 0
        self.add_message(&chain, <uint32_t>n, False)
        self.post(&chain)
        return not self.failed

    def probe(self, uint64_t remote_addr, uint32_t rkey) -> bool:
        """Keepalive: a signalled zero-byte WRITE, which the peer's device answers without its CPU. False: no send WR is
        free."""
        cdef aio_chain chain
        if self.failed or self.sq_free() == 0:
            return False
        chain.length = 0
        aio_chain_write(&chain, self.tag | (<uint64_t>KIND_KEEPALIVE << 28) | ((self.sq_posted + 1) & 0xfffffff),
                        0, 0, 0, IBV_SEND_SIGNALED, remote_addr, rkey)
        self.sq_unsignalled = 0
        self.keepalives_sent += 1
        self.post(&chain)
        return not self.failed

    # ---- what the peer learns, should this process be killed

    cdef void say_held(self, bint some) noexcept:
        if self.says_held != NULL and not self.failed:
            self.held = some or self.staged > 0 or self.hook is not None
            self.willed = False
            self.says_held(self.qp, self.held)

    cdef void say_last(self, bint queued) noexcept:
        """The message that a flow posts next is its last one. Where no other flow holds something back, the peer's
        device is to see that together with the message: a process may be killed as soon as that is there."""
        if (self.held and self.staged == 0 and self.hook is None and not self.failed
                and len(self.waiting_flows) == (1 if queued else 0)):
            self.says_held(self.qp, SAYS_LAST)

    cdef bint may_will(self, bint queued) noexcept:
        """Whether one message of a flow, which it could send now, would say all that the link holds back."""
        return (self.held and self.wills != NULL and self.with_imm and self.staged == 0 and self.hook is None
                and not self.failed and len(self.waiting_flows) == 1 and queued and self.can_message())

    cdef void will(self, const unsigned char *message, uint32_t length) noexcept:
        """Leave the peer the message, in case this process ends before it posts anything."""
        self.willed = True
        self.wills(self.qp, message, length, htonl(self.window.foretell()))

    cdef void expect(self, uint32_t rkey) noexcept:
        """WRITEs with this key of the peer's will follow: a large one should not have to wait in this process."""
        if self.expects != NULL and self.hook is None and not self.failed:
            self.expects(self.qp, rkey)

    cdef void note_read(self) noexcept:
        """Every flow has read what has come so far. The peer may not be told for long; but if this process ends, it
        finds that this end left nothing unread, and how many of its messages that covers."""
        if self.notes != NULL and self.hook is None and not self.failed:
            self.notes(self.qp, self.messages_received + self.nops_received)

    cdef void wait_for_room(self, SendQueueWaiter flow):
        """The flow found no free send WR: call its on_room() when some have completed."""
        self.wr_waits += 1
        self.cq.fair_queue.add(flow)

    # ---- completions

    cdef uint32_t _done_up_to(self, uint32_t position, bint is_read) noexcept:
        """The position up to which everything has completed. On iWARP a SEND may complete while a READ that was posted
        before it is still under way (siw; RFC 5040, 5.5, lets the messages overtake)."""
        cdef uint32_t ahead = (position - self.sq_retired) & 0xfffffff, done
        if is_read and self.reads_out:
            self.reads_out.popleft()
        if ahead > self.sq_completed - self.sq_retired:
            self.sq_completed = self.sq_retired + ahead
        if self.reads_out:
            done = min(self.sq_completed - self.sq_retired, <uint32_t>self.reads_out[0] - 1 - self.sq_retired)
            return self.sq_retired + done
        return self.sq_completed
