# cython: language_level=3, boundscheck=False, wraparound=False
"""The large messages of a channel (``_link_channel.pyx``): its sender announces them, its receiver pulls them.

The *source* is a copy in memory that the peer may READ. It stays until the peer has reported that it has handed the
message over, or that it READs no more. The receiver pulls a message into one block, the *sink*, with READs of a
fragment each. The channels of a link take turns, fragment by fragment. The queue pair, its send queue and the
fragments of all links of the engine bound how many READs are under way. A message for which there may never be room
is pulled through a sink for one READ at a time, and put together outside. The receiver's user may name the memory that
the body of a message goes to (``placement.py``): then there is no sink, unless the device is better not told of that
memory.

A channel has one :class:`Sources` and one :class:`Pulls`. Neither knows what a channel is. :class:`Pulls` reports to
the flow that it was made for: ``on_room()`` when a pull has ended, ``on_memory()`` when it may go on.
"""
from collections import deque

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from anyio import ClosedResourceError

from ..wake.escaping import contain

from ..datapath._fairness cimport NEEDS_CALL, NEEDS_MORE_ROOM, SendQueueWaiter
from ..datapath._qp cimport Flow, QueuePair
from ..datapath._send_queue cimport SQ_RESERVE
from ..datapath._verbs cimport IBV_SEND_SIGNALED, aio_chain, aio_chain_read
from ..verbs._copy cimport aio_copy, bytes_of

cdef enum:
    LONG_COPY_BYTES = 16384 # copied without the GIL


@cython.final
cdef class Sources:
    """Large messages that were announced to the peer, oldest first.

    :param memory: ``contracts.RendezvousMemory`` of the link group.
    """

    def __cinit__(self, memory):
        self.memory = memory
        self.announced = deque()

    cdef object fill(self, const unsigned char *body, uint32_t length):
        """A block with a copy of ``body``, for ``add()``; None: no memory now.

        :raises MemoryError: there will never be enough.
        """
        cdef object block = self.memory.take_source(length)
        cdef uint64_t address
        if block is None:
            return None
        address = block.address
        if length < LONG_COPY_BYTES:
            aio_copy(<void *><uintptr_t>address, body, length)
        else:
            with nogil:
                aio_copy(<void *><uintptr_t>address, body, length)
        return block

    cdef int add(self, object block, uint32_t total) except -1:
        """It is announced; ``total``: what the peer will have handed over when it is done with it."""
        self.announced.append((total, block))
        return 0

    cdef int release(self, uint32_t reported) except -1:
        """Free what the peer has handed over."""
        cdef uint32_t until
        while self.announced:
            until, block = self.announced[0]
            if <int>(reported - until) < 0:
                break
            self.announced.popleft()
            self.memory.release_source(block)
        return 0

    cdef int release_all(self) except -1:
        """Free everything: the peer READs no more, or cannot any more."""
        while self.announced:
            self.memory.release_source(self.announced.popleft()[1])
        return 0


@cython.no_gc
cdef class LentSink:
    """A large message in the block it was pulled into, lent to the views of it."""
    cdef object block, memory
    cdef unsigned char *start
    cdef Py_ssize_t length

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.length, 1, flags)

    def __dealloc__(self):
        self.memory.release_sink(self.block)


@cython.final
cdef class Puller(SendQueueWaiter):
    """The READs of one link."""

    def __cinit__(self, QueuePair qp):
        self.qp = qp
        self.turns = deque()
        self.ended = []

    cdef int add(self, Pulls pulls) except -1:
        if not pulls.in_turns:
            pulls.in_turns = True
            self.turns.append(pulls)
        return 0

    cdef int need(self) except -1:
        return NEEDS_CALL if self.qp.cq.may_post_fragment(False) else NEEDS_MORE_ROOM

    cdef int on_room(self) except -1:
        """READs or sends have completed, here or elsewhere."""
        cdef list ended
        cdef Pulls pulls
        if self.ended:
            ended, self.ended = self.ended, []
            for pulls in ended:
                pulls.noted = False
                if pulls.flow is not None:      # else a callback of another channel ended this one
                    pulls.flow.on_room()
        return self.pump()

    cdef int pump(self) except -1:
        """Post what the limits allow: READs of the QP, its send queue, and what the engine has under way."""
        cdef Pulls pulls
        cdef int more
        cdef QueuePair qp = self.qp
        while self.turns and self.reads < qp.max_reads and not qp.failed:
            if not qp.cq.may_post_fragment(False) or qp.sq_free() <= SQ_RESERVE + 1:
                qp.cq.fair_queue.add(self)
                return 0
            pulls = self.turns.popleft()
            pulls.in_turns = False
            if not pulls.may_read():
                continue
            try:
                more = pulls.post_read()
            except BaseException as error:
                contain(error)
                # There will never be enough memory, or the user's code failed (and may have closed the channel).
                if pulls.flow is not None:
                    pulls.flow.on_broken(error)
                continue
            if more:
                self.add(pulls)
            if self.turns and qp.cq.fair_queue.waiting:
                # Others of this engine wait for the same limit: one each.
                qp.cq.fair_queue.add(self)
                return 0
        return 0


@cython.final
cdef class Pulls:
    """The pulls of one channel, in the order in which their messages were announced.

    :param flow: the channel, which gets ``on_room()``, ``on_memory()`` and, with every READ, ``on_fragment_done()``:
        it passes the last one on to ``read_done()``.
    :param qp: prepared for long messages.
    :param memory: ``contracts.RendezvousMemory`` of the link group.
    :param fragment: most bytes of one READ.
    """

    def __cinit__(self, Flow flow, QueuePair qp, memory, uint32_t fragment):
        self.flow = flow
        self.memory = memory
        self.fragment = fragment
        self.to_read, self.reading = deque(), deque()
        if qp.puller is None:
            qp.puller = Puller(qp)
        self.puller = <Puller>qp.puller

    # ---- for the channel

    cdef bint can_read(self) noexcept:
        """Whether the two devices agreed on READs."""
        return self.puller.qp.max_reads > 0

    cdef int begin(self, Pull pull) except -1:
        """Pull a message whose announcement has been checked."""
        self.to_read.append(pull)
        self.puller.add(self)
        return self.puller.pump()

    cdef int go_on(self) except -1:
        """What pulling had to wait for may have come."""
        if self.to_read and not self.puller.qp.failed:
            self.puller.add(self)
            self.puller.pump()
        return 0

    cdef int fill(self, Pull pull) except -1:
        """A message is complete: bring the body to where the user wants it, unless it is there."""
        cdef Py_buffer view
        cdef uint32_t head_bytes = <uint32_t>PyBytes_GET_SIZE(pull.head)
        if pull.block is None:
            return 0
        if not pull.placement.released:         # else it was withdrawn
            PyObject_GetBuffer(pull.placement.view, &view, PyBUF_WRITABLE)
            with nogil:
                aio_copy(view.buf, pull.start + head_bytes, pull.remote_bytes)
            PyBuffer_Release(&view)
        return self.let_go(pull)

    cdef int withdraw(self, object placement) except -1:
        """Post no more READs into it. The message is complete when those that were posted are."""
        cdef Pull pull
        for pull in self.reading:
            if pull.placement is not placement or not pull.direct:
                continue
            if pull.posted != pull.remote_bytes:
                pull.posted = pull.remote_bytes
                self.to_read.remove(pull)
            if pull.under_way == 0:
                self.reading.remove(pull)
                self.let_go(pull)
            return 0
        placement.release()                     # what was read went elsewhere
        return 0

    cdef int let_go(self, Pull pull) except -1:
        """The device is done with the memory of a message."""
        block, pull.block = pull.block, None
        if block is not None:
            self.memory.release_sink(block)
        if pull.placement is not None:
            self.memory.end_placement(pull.placement)
        return 0

    cdef object lend(self, Pull pull):
        """A message that is complete, as its user gets it."""
        cdef LentSink lent
        if pull.copy is None and self.memory.may_lend():
            lent = LentSink.__new__(LentSink)
            block, pull.block = pull.block, None
            lent.block, lent.memory, lent.start, lent.length = block, self.memory, pull.start, pull.size()
            return memoryview(lent)
        # A copy where users hold so much already that pulls could find no memory. The block goes once there is one.
        message = memoryview(pull.copy if pull.copy is not None else bytes_of(pull.start, pull.size()))
        block, pull.block, pull.share = pull.block, None, None
        self.memory.release_sink(block)
        return message

    cdef int cancel(self, Pull pull) except -1:
        """The message is not wanted any more. Its sink stays until the READs into it are done."""
        if pull.under_way:
            pull.cancelled = True
        elif pull.begun:
            if pull in self.reading:
                self.reading.remove(pull)       # begun, and at this moment nothing of it is under way
            self.let_go(pull)
        return 0

    cdef int link_failed(self) except -1:
        """The device touches these sinks no more, or only until the QP is in ERROR. The memory stays this link's. What
        is a user's stays registered, and is held, until the link is closed."""
        cdef Pull pull
        for pull in self.reading:
            if pull.under_way and pull.direct:
                placement, pull.placement = pull.placement, None
                placement.release()
            if pull.cancelled:
                self.let_go(pull)
            pull.under_way = 0
        self.reading.clear()
        self.reads = 0
        self.puller.turns.clear()
        return 0

    cdef bint covers(self, uint64_t remote_addr) noexcept:
        """Whether this address is in a message that is being pulled, or about to be."""
        cdef object pulls
        for pulls in (self.reading, self.to_read):
            for pull in pulls:
                if (<Pull>pull).remote_addr <= remote_addr < (<Pull>pull).remote_addr + (<Pull>pull).remote_bytes:
                    return True
        return False

    # ---- READs

    cdef bint may_read(self):
        """A pull does not begin while the user takes no messages: it would keep memory that others need."""
        cdef Pull pull
        if not self.to_read:
            return False
        pull = <Pull>self.to_read[0]
        if not pull.begun:
            return self.wanted
        return pull.copy is None or pull.under_way == 0

    cdef bint ask(self, Pull pull) except -1:
        """Whether the user names memory for the body that the device can be given."""
        pull.asked = True
        pull.placement = self.placer.place(pull.head, pull.remote_bytes)
        if not self.to_read or self.to_read[0] is not pull:
            raise ClosedResourceError("the channel was closed while it asked where a message goes")
        if pull.placement is None:
            return False
        known = self.memory.begin_placement(pull.placement)
        if known is None:
            return False
        pull.sink, pull.lkey = known
        pull.direct = True
        return True

    cdef object take_part(self, Pull pull):
        """A sink for one READ at a time, for a message that is put together outside, which may be; None: not now."""
        copy = PyBytes_FromStringAndSize(NULL, pull.size())
        block = self.memory.take_sink(min(pull.remote_bytes, self.fragment))
        if block is not None:
            # Not before: a pull that held a share and waited for a sink could wait behind one that waits for a share.
            pull.share, pull.copy = self.memory.count_copy(pull.size()), copy
        return block

    cdef bint find_sink(self, Pull pull) except -1:
        """Memory to pull the message into; False: not now, the channel waits for it.

        :raises MemoryError: not even for a fragment.
        """
        cdef uint32_t head_bytes = <uint32_t>PyBytes_GET_SIZE(pull.head)
        block = None
        if self.placer is not None and not pull.asked and self.ask(pull):
            pull.begun = True
            self.reading.append(pull)
            return True
        try:
            block = self.memory.take_sink(pull.room())
        except MemoryError:
            if not self.memory.may_copy(pull.size()):
                # Not as for a sink: others may have their shares for ever, and this one would keep all from pulling.
                self.memory.wait_for_copy(self.flow)
                return False
            block = self.take_part(pull)
        if block is None:
            self.memory.wait_for_sink(self.flow)
            return False
        pull.block = block
        if pull.copy is None:
            pull.start = <unsigned char *><uintptr_t><uint64_t>block.address + pull.pad()
        else:
            pull.start = <unsigned char *>PyBytes_AS_STRING(pull.copy)
        memcpy(pull.start, PyBytes_AS_STRING(pull.head), head_bytes)
        pull.sink = block.address if pull.copy is not None else <uint64_t><uintptr_t>pull.start + head_bytes
        pull.lkey = block.lkey
        pull.begun = True
        self.reading.append(pull)
        return True

    cdef int post_read(self) except -1:
        """Post one READ. 1: there are more to post; 0: not now.

        :raises MemoryError: there will never be enough.
        """
        cdef Pull pull = self.to_read[0]
        cdef QueuePair qp = self.puller.qp
        cdef aio_chain chain
        cdef uint64_t sink
        cdef uint32_t n
        if not pull.begun and not self.find_sink(pull):
            return 0
        n = pull.remote_bytes - pull.posted
        if n > self.fragment:
            n = self.fragment
        sink = pull.sink
        if pull.copy is None:
            sink += pull.posted
        else:
            pull.staged = n
        chain.length = 0
        aio_chain_read(&chain, qp._send_id(&chain), sink, n, pull.lkey, IBV_SEND_SIGNALED, pull.remote_addr + pull.posted, pull.rkey)
        pull.posted += n
        pull.under_way += 1
        self.reads += 1
        self.puller.reads += 1
        if pull.posted == pull.remote_bytes:
            self.to_read.popleft()
        qp.post_fragment(self.flow, &chain, 0)
        return 1 if self.may_read() else 0

    cdef int read_done(self) noexcept:
        """The oldest READ of the channel has completed."""
        cdef Pull pull
        if self.puller.qp.failed or not self.reading:
            return 0
        # READs of a queue pair complete in the order in which they were posted, and so do the pulls of a channel.
        pull = self.reading[0]
        pull.under_way -= 1
        self.reads -= 1
        self.puller.reads -= 1
        if pull.copy is not None and not pull.cancelled:
            aio_copy(pull.start + PyBytes_GET_SIZE(pull.head) + pull.posted - pull.staged,
                     <void *><uintptr_t><uint64_t>pull.block.address, pull.staged)
            if pull.posted != pull.remote_bytes:
                self.puller.add(self)
        if pull.under_way == 0 and (pull.cancelled or pull.posted == pull.remote_bytes):
            self.reading.popleft()
            if pull.cancelled or pull.direct:
                self.let_go(pull)
            if not self.noted:
                self.noted = True
                self.puller.ended.append(self)
        return 0
