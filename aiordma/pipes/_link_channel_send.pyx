# cython: language_level=3, boundscheck=False, wraparound=False
"""The sending half of a channel (``_link_channel.pyx``): builds its messages and posts them on the link.

A message goes whole or not at all: :meth:`Outbox.send` returns what it lacks, and the channel waits for that.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from ..datapath._qp cimport QueuePair
from ..datapath._verbs cimport aio_chain
from ..proto.message cimport SendBudget
from ..verbs._copy cimport aio_copy
from ._link_channel_format cimport ANNOUNCE, ANNOUNCE_BYTES, HEADER_BYTES, HEAD_MOST, MESSAGE, put32
from ._link_channel_receive cimport Inbox
from ._rendezvous cimport Sources

from ..proto import message as rules

assert HEAD_MOST == rules.MAX_HEAD_BYTES


@cython.final
cdef class Outbox:
    """Sends the messages of one channel.

    :param qp: the link, prepared for long messages.
    :param inbox: of the same channel.
    :param sources: of the same channel.
    """

    def __cinit__(self, QueuePair qp, Inbox inbox, Sources sources, uint32_t max_message_bytes):
        self.qp = qp
        self.inbox = inbox
        self.sources = sources
        self.max_message_bytes = max_message_bytes

    cdef void connect(self, uint32_t peer_token, uint32_t budget, uint32_t message_bytes):
        self.peer_token = peer_token
        self.small_most = message_bytes - HEADER_BYTES
        # The smaller one: what the peer has not pulled is kept here.
        self.budget = SendBudget(min(budget, self.inbox.budget.limit))

    cdef int send(self, const unsigned char *head, Py_ssize_t head_bytes, const unsigned char *body,
                  Py_ssize_t body_bytes, bint may_post) except -1:
        """Send a message, or return what that lacks.

        :param may_post: the link has credit for this channel, and it is the channel's turn.
        :raises ValueError: it is too long.
        """
        cdef Py_ssize_t size = head_bytes + body_bytes
        cdef unsigned char *room
        cdef int lacks
        if head_bytes > HEAD_MOST or size > self.max_message_bytes:
            rules.check_size(head_bytes, size, self.max_message_bytes)
        if not self.budget.allows(<uint32_t>size):
            return WANT_CREDIT
        if not may_post:
            return WANT_LINK
        if size <= self.small_most:
            room = self.qp.long_room()
            if room == NULL:
                return WANT_LINK
            self.write_header(room, MESSAGE, 0)
            memcpy(room + HEADER_BYTES, head, head_bytes)
            aio_copy(room + HEADER_BYTES + head_bytes, body, body_bytes)
            self.budget.send(<uint32_t>size)
            self.qp.send_long(room, <uint32_t>(HEADER_BYTES + size))
        else:
            lacks = self.announce(head, <uint32_t>head_bytes, body, <uint32_t>body_bytes)
            if lacks != WANT_NOTHING:
                return lacks
        self.message_count += 1
        self.byte_count += size
        return WANT_NOTHING

    cdef int announce(self, const unsigned char *head, uint32_t head_bytes, const unsigned char *body,
                      uint32_t body_bytes) except -1:
        cdef unsigned char *room = self.qp.long_room()
        cdef uint64_t address
        if room == NULL:
            return WANT_LINK
        block = self.sources.fill(body, body_bytes)
        if block is None:
            return WANT_MEMORY
        if not self.qp.can_message():
            # The copy gives up Python's lock: the thread that helps blocked loops may have taken the credit meanwhile.
            self.sources.memory.release_source(block)
            return WANT_LINK
        address = block.address
        self.write_header(room, ANNOUNCE, 0)
        put32(room + HEADER_BYTES, <uint32_t>(address >> 32))
        put32(room + HEADER_BYTES + 4, <uint32_t>address)
        put32(room + HEADER_BYTES + 8, block.rkey)
        put32(room + HEADER_BYTES + 12, body_bytes)
        memcpy(room + ANNOUNCE_BYTES, head, head_bytes)
        self.sources.add(block, self.budget.send(head_bytes + body_bytes))
        self.large_count += 1
        self.qp.send_long(room, ANNOUNCE_BYTES + head_bytes)
        return WANT_NOTHING

    cdef void write_header(self, unsigned char *room, unsigned char kind, unsigned char flags) noexcept:
        room[0], room[1], room[2], room[3] = kind, flags, 0, 0
        put32(room + 4, self.peer_token)
        put32(room + 8, self.inbox.budget.report())
        self.inbox.credit_due = self.inbox.peer_waits = False

    cdef int post_control(self, unsigned char kind, unsigned char flags, bint signal) except -1:
        """Post a message that is a header alone. The caller has checked the link's credit."""
        cdef aio_chain chain
        self.write_header(self.qp.message_room(), kind, flags)
        chain.length = 0
        self.qp.add_message(&chain, HEADER_BYTES, signal)
        self.qp.post(&chain)
        return 0
