# cython: language_level=3, boundscheck=False, wraparound=False
"""The large messages of a channel (``_channel.pyx``): kept by their sender, pulled by their receiver.

The sender's copy stays where the peer may READ it until the peer has said that it has handed the message over, or that
it READs no more. The receiver pulls a message into one block with READs of a fragment each. The channels of a link take
turns, fragment by fragment; how many READs may be under way is bounded by the queue pair, by its send queue, and by what
all links of the engine have under way together.
"""
from collections import deque

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from ..datapath._qp cimport SQ_RESERVE, Flow, QueuePair
from ..datapath._fairness cimport NEEDS_CALL, NEEDS_MORE_ROOM, SendQueueWaiter
from ..datapath._verbs cimport IBV_SEND_SIGNALED, aio_chain, aio_chain_read

cdef enum:
    LONG_COPY_BYTES = 16384 # copied without the GIL


cdef class Announced:
    """Large messages that the peer has been told of, oldest first.

    :param memory: ``messagememory.MessageMemory`` of the link group.
    """

    def __cinit__(self, memory):
        self.memory = memory
        self.blocks = deque()

    cdef object place(self, const unsigned char *body, uint32_t length):
        """A block with a copy of ``body``, for ``add()``; None: no memory now.

        :raises MemoryError: there will never be enough.
        """
        cdef object block = self.memory.take_source(length)
        cdef uint64_t address
        if block is None:
            self.memory.check(length)
            return None
        address = block.address
        if length < LONG_COPY_BYTES:
            memcpy(<void *><uintptr_t>address, body, length)
        else:
            with nogil:
                memcpy(<void *><uintptr_t>address, body, length)
        return block

    cdef int add(self, object block, uint32_t total) except -1:
        """It is announced; ``total``: what the peer will have handed over when it is done with it."""
        self.blocks.append((total, block))
        return 0

    cdef int release(self, uint32_t told) except -1:
        """Free what the peer has handed over."""
        cdef uint32_t until
        while self.blocks:
            until, block = self.blocks[0]
            if <int>(told - until) < 0:
                break
            self.blocks.popleft()
            self.memory.give_source(block)
        return 0

    cdef int drop(self) except -1:
        """Free everything: the peer has said, or cannot but, that it READs no more."""
        while self.blocks:
            self.memory.give_source(self.blocks.popleft()[1])
        return 0


@cython.no_gc
cdef class ReceivedBlock:
    """A large message in the block it was pulled into, lent to whoever has a view of it."""
    cdef object block, memory
    cdef unsigned char *start
    cdef Py_ssize_t length

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.length, 1, flags)

    def __dealloc__(self):
        self.memory.give_sink(self.block)


cdef class Puller(SendQueueWaiter):
    """The READs of one link."""

    def __cinit__(self, QueuePair qp):
        self.qp = qp
        self.turns = deque()
        self.ready = []

    cdef int add(self, PullingConnection connection) except -1:
        if not connection.in_turns:
            connection.in_turns = True
            self.turns.append(connection)
        return 0

    cdef int need(self) except -1:
        return NEEDS_CALL if self.qp.cq.may_post_fragment(False) else NEEDS_MORE_ROOM

    cdef int on_room(self) except -1:
        """READs or sends have completed, here or elsewhere."""
        cdef list ready
        cdef PullingConnection connection
        if self.ready:
            ready, self.ready = self.ready, []
            for connection in ready:
                connection.noted = False
                connection.after_reads()
        return self.pump()

    cdef int pump(self) except -1:
        """Post what the limits allow: READs of the QP, its send queue, and what the engine has under way."""
        cdef PullingConnection connection
        cdef int more
        cdef QueuePair qp = self.qp
        while self.turns and self.reads < qp.max_reads and not qp.failed:
            if not qp.cq.may_post_fragment(False) or qp.sq_free() <= SQ_RESERVE + 1:
                qp.cq.fair_queue.add(self)
                return 0
            connection = self.turns.popleft()
            connection.in_turns = False
            if not connection.wants_to_pull():
                continue
            more = connection.post_read()
            if more > 0:
                self.add(connection)
            elif more < 0:
                connection.memory.wait(connection)
            if self.turns and qp.cq.fair_queue.waiting:
                # Others of this engine wait for the same limit: one each.
                qp.cq.fair_queue.add(self)
                return 0
        return 0


cdef class PullingConnection(Flow):
    """A connection whose large messages are pulled, in the order in which they were announced."""

    cdef int prepare(self, QueuePair qp, object memory, uint32_t fragment) except -1:
        """:param qp: prepared for long messages. :param fragment: most bytes of one READ."""
        self.memory = memory
        self.fragment = fragment
        self.pulls, self.pulling = deque(), deque()
        if qp.puller is None:
            qp.puller = Puller(qp)
        self.puller = <Puller>qp.puller
        return 0

    # ---- what a subclass has

    cdef bint takes_messages(self):
        """Whether somebody takes messages now."""
        raise NotImplementedError

    cdef int after_reads(self) except -1:
        """A pull has ended: it is complete, or was cancelled and the device is done with its memory."""
        raise NotImplementedError

    # ---- for the subclass

    cdef int pull(self, Pull pull) except -1:
        """Pull a message whose announcement has been checked."""
        self.pulls.append(pull)
        self.puller.add(self)
        return self.puller.pump()

    cdef int pull_on(self) except -1:
        """What pulling had to wait for may have come."""
        if self.pulls and not self.qp.failed:
            self.puller.add(self)
            self.puller.pump()
        return 0

    cdef object take_up(self, Pull pull):
        """A message that is complete, as its user gets it."""
        cdef ReceivedBlock lent
        cdef Py_ssize_t size = PyBytes_GET_SIZE(pull.head) + pull.remote_bytes
        block, pull.block = pull.block, None
        if not self.memory.may_lend():
            # Its users hold so much already that others could find none: their further messages are memory of their own.
            message = PyBytes_FromStringAndSize(<char *>pull.start, size)
            self.memory.give_sink(block)
            return memoryview(message)
        lent = ReceivedBlock.__new__(ReceivedBlock)
        lent.block, lent.memory, lent.start, lent.length = block, self.memory, pull.start, size
        return memoryview(lent)

    cdef int cancel(self, Pull pull) except -1:
        """Nobody wants this message any more. What the device may still write stays until its READs are done."""
        if pull.under_way:
            pull.cancelled = True
        elif pull.block is not None:
            if pull in self.pulling:
                self.pulling.remove(pull)       # begun, and at this moment nothing of it is under way
            self.memory.give_sink(pull.block)
            pull.block = None
        return 0

    cdef int forget_reads(self) except -1:
        """The QP has failed: the device touches this memory no more, or only until the QP is in ERROR; it stays this
        link's."""
        cdef Pull pull
        for pull in self.pulling:
            if pull.cancelled:
                self.memory.give_sink(pull.block)
            pull.under_way = 0
        self.pulling.clear()
        self.reads = 0
        self.puller.turns.clear()
        return 0

    cdef bint pulls_from(self, uint64_t remote_addr) noexcept:
        """Whether this address is in a message that is being pulled, or about to be."""
        cdef object pulls
        for pulls in (self.pulling, self.pulls):
            for pull in pulls:
                if (<Pull>pull).remote_addr <= remote_addr < (<Pull>pull).remote_addr + (<Pull>pull).remote_bytes:
                    return True
        return False

    # ---- READs

    cdef bint wants_to_pull(self):
        """Nothing is begun while nobody takes messages: it would keep memory that others need."""
        return bool(self.pulls) and (self.takes_messages() or (<Pull>self.pulls[0]).block is not None)

    cdef int post_read(self) except -2:
        """Post one READ. 1: there are more to post; 0: not now; -1: no memory."""
        cdef Pull pull = self.pulls[0]
        cdef QueuePair qp = self.qp
        cdef aio_chain chain
        cdef uint32_t head_bytes = <uint32_t>PyBytes_GET_SIZE(pull.head), n
        if pull.block is None:
            block = self.memory.take_sink(pull.room())
            if block is None:
                return -1
            pull.block = block
            pull.start = <unsigned char *><uintptr_t><uint64_t>block.address + pull.pad()
            memcpy(pull.start, PyBytes_AS_STRING(pull.head), head_bytes)
            self.pulling.append(pull)
        n = pull.remote_bytes - pull.posted
        if n > self.fragment:
            n = self.fragment
        chain.length = 0
        aio_chain_read(&chain, qp._send_id(&chain), <uint64_t><uintptr_t>pull.start + head_bytes + pull.posted, n,
                       pull.block.lkey, IBV_SEND_SIGNALED, pull.remote_addr + pull.posted, pull.rkey)
        pull.posted += n
        pull.under_way += 1
        self.reads += 1
        self.puller.reads += 1
        if pull.posted == pull.remote_bytes:
            self.pulls.popleft()
        qp.post_fragment(self, &chain, 0)
        return 1 if self.wants_to_pull() else 0

    cdef void on_fragment_done(self, uint64_t until) noexcept:
        cdef Pull pull
        if self.qp.failed or not self.pulling:
            return
        # READs of a queue pair complete in the order in which they were posted, and so do the pulls of a channel.
        pull = self.pulling[0]
        pull.under_way -= 1
        self.reads -= 1
        self.puller.reads -= 1
        if pull.under_way == 0 and (pull.cancelled or pull.posted == pull.remote_bytes):
            self.pulling.popleft()
            if pull.cancelled:
                self.memory.give_sink(pull.block)
            if not self.noted:
                self.noted = True
                self.puller.ready.append(self)
