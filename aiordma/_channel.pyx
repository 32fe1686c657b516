# cython: language_level=3, boundscheck=False, wraparound=False
"""Whole messages on a link (X-RDMA): the contract of ``channel.Channel`` over RDMA.

Short messages are one SEND each on the link's window. A longer one stays in registered memory of the sender, which
announces it with its head; the receiver pulls it with RDMA READs of one fragment each, when it has room, and what it
then says about it frees the sender's memory. Messages are handed over in the order in which they were sent, so a short
one waits for a longer one before it on the same channel; other channels of the link do not wait.

Credit. The link's window is given back when a message has been dispatched. What the user of a channel has not been given
yet is bounded by the channel's own credit (``proto/message.py``): each end tells the running total of what it has handed
over, in the header of everything it sends, and in a CREDIT message of its own at the end of the tick after a large
message, after a quarter of the budget, or when the sender has said that it waits.

The end. CLOSE says: I send no more messages, and I READ no more; so what was announced to that end can be freed. An end
that gets it answers with its own when it has handed over everything before it. Both have been said and delivered, or the
link has failed: then the channel is finished, and its TCP connection may go.

Header of all messages (12 bytes, big-endian): type, flags, 2 bytes of zero, token of the receiver, running total of the
sender's messages handed over. ANNOUNCE: address (8), rkey (4), length (4), then the head.
"""
import logging
from collections import deque

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from anyio import BrokenResourceError, ClosedResourceError

from ._cq cimport CompletionQueue, Starving, clock_ns
from ._qp cimport SQ_RESERVE, Connection, QueuePair
from ._verbs cimport IBV_SEND_SIGNALED, aio_chain, aio_chain_read
from .proto.message cimport ReceiveBudget, SendBudget

from .errors import LinkError, RemoteProtocolError
from .proto import message as rules
from .proto.message import ChannelStatistics, check_size

logger = logging.getLogger("aiordma.channel")

cdef enum:
    MESSAGE = 0xC1
    ANNOUNCE = 0xC2
    CREDIT = 0xC3
    CLOSE = 0xC4
    FLAG_WAITING = 1        # of CREDIT: the sender waits for credit itself
    FLAG_ABORT = 1          # of CLOSE
    HEADER_BYTES = 12
    ANNOUNCE_BYTES = 28
    HEAD_MOST = 512
    TURN = 16               # messages that one channel sends before others in line have their turn
    LONG_COPY_BYTES = 16384 # copied without the GIL
    ALIGN = 64
    WANT_NOTHING = 0
    WANT_LINK = 1
    WANT_CREDIT = 2
    WANT_MEMORY = 3

assert HEAD_MOST == rules.MAX_HEAD_BYTES


cdef inline void put32(unsigned char *to, uint32_t value) noexcept:
    to[0], to[1], to[2], to[3] = value >> 24, (value >> 16) & 0xff, (value >> 8) & 0xff, value & 0xff


cdef inline uint32_t get32(const unsigned char *at) noexcept:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


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


cdef class Puller(Starving):
    def __cinit__(self, QueuePair qp):
        self.qp = qp
        self.turns = deque()
        self.ready = []

    cdef int add(self, MessageChannel channel) except -1:
        if not channel.in_turns:
            channel.in_turns = True
            self.turns.append(channel)
        return 0

    cdef int on_room(self) except -1:
        """READs or sends have completed, here or elsewhere."""
        cdef list ready
        cdef MessageChannel channel
        if self.ready:
            ready, self.ready = self.ready, []
            for channel in ready:
                channel.noted = False
                channel.after_reads()
        return self.pump()

    cdef int pump(self) except -1:
        """Post what the limits allow: READs of the QP, its send queue, and what the engine has under way."""
        cdef MessageChannel channel
        cdef int more
        cdef QueuePair qp = self.qp
        while self.turns and self.reads < qp.max_reads and not qp.failed:
            if not qp.cq.may_post_fragment() or qp.sq_free() <= SQ_RESERVE + 1:
                qp.cq.starve(self)
                return 0
            channel = self.turns.popleft()
            channel.in_turns = False
            if not channel.wants_to_pull():
                continue
            more = channel.post_read()
            if more > 0:
                self.add(channel)
            elif more < 0:
                channel.memory.wait(channel)
            if self.turns and qp.cq.starved:
                # Others of this engine wait for the same limit: one each.
                qp.cq.starve(self)
                return 0
        return 0


cdef class MessageChannel(Connection):
    """One channel on a link. Non-blocking; single-threaded, in the thread of the engine's loop.

    :param qp: the link it runs on, prepared for long messages.
    :param memory: where large messages are kept for the peer, and pulled into.
    :param receive_bytes: what waits here for the user at most.
    :param fragment: most bytes of one READ.
    :param own: what is given back by ``on_finished(channel)``.
    """

    path = "rdma"

    def __init__(self, QueuePair qp, *, object memory, uint32_t max_message_bytes, uint32_t receive_bytes,
                 uint32_t fragment=65536, object own=None):
        self.memory = memory
        self.max_message_bytes = max_message_bytes
        self.inc = ReceiveBudget(receive_bytes)
        self.fragment = fragment
        self._own = own
        self.announced, self.inbox, self.pulls, self.pulling = deque(), deque(), deque(), deque()
        if qp.puller is None:
            qp.puller = Puller(qp)
        self.puller = <Puller>qp.puller
        qp.register(self)

    def connect(self, *, uint32_t peer_token, uint32_t budget, uint32_t message_bytes) -> None:
        """The peer's half, from its Accept or Confirm.

        :param budget: cost of what the peer keeps for its user at most.
        :param message_bytes: longest message, header and all, that both the peer's receives and our sends have room for.
        """
        self.peer_token = peer_token
        self.small_most = message_bytes - HEADER_BYTES
        # The smaller one: what the peer has not pulled is kept here.
        self.out = SendBudget(min(budget, self.inc.limit))

    def attach_tcp(self, sock) -> None:
        """Hand over the TCP connection that the channel began on: liveness signal, closed at the end."""
        self._own.attach_tcp(sock)

    def forget(self) -> None:
        """The negotiation failed before the peer could use this channel: unregister, say nothing."""
        self.closed = self.over = self.finished = True
        self.drop_inbox()
        self.qp.unregister(self)

    # ---- state

    @property
    def is_closed(self) -> bool:
        """This side has closed it."""
        return self.closed

    @property
    def is_finished(self) -> bool:
        """Closed, and nothing of it is in use any more."""
        return self.finished

    @property
    def peer_gone(self) -> bool:
        """The peer has said that it sends no more."""
        return self.peer_ended

    @property
    def on_message(self):
        return self._on_message

    @on_message.setter
    def on_message(self, callback) -> None:
        self._on_message = callback
        if callback is not None and self.inbox:
            self.qp.cq.call_soon(self._deliver_soon)

    def _deliver_soon(self) -> None:
        self.deliver()
        if self.pulls and not self.qp.failed:
            self.puller.add(self)
            self.puller.pump()

    @property
    def on_writable(self):
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback) -> None:
        self._on_writable = callback

    @property
    def on_closed(self):
        return self._on_closed

    @on_closed.setter
    def on_closed(self, callback) -> None:
        self._on_closed = callback

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            messages_sent=self.messages_sent, messages_received=self.messages_received,
            bytes_sent=self.bytes_sent, bytes_received=self.bytes_received,
            large_sent=self.large_sent, large_received=self.large_received, times_blocked=self.times_blocked,
            outstanding=0 if self.out is None else self.out.outstanding, receive_high_water=self.inc.high_water)

    # ---- sending

    def try_send(self, bytes head not None, body=b"") -> bool:
        """See ``Channel.try_send``."""
        cdef Py_buffer view
        if self.closed or self.ending or self.peer_ended or self.error is not None or self.out is None:
            self.refuse()
        if PyBytes_CheckExact(body):
            return self._send(<const unsigned char *>PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head),
                              <const unsigned char *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)) == 1
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            return self._send(<const unsigned char *>PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head),
                              <const unsigned char *>view.buf, view.len) == 1
        finally:
            PyBuffer_Release(&view)

    cdef int refuse(self) except -1:
        if self.closed:
            raise ClosedResourceError
        if self.error is not None:
            raise BrokenResourceError from self.error
        if self.out is None:
            raise RuntimeError("not connected yet")
        raise BrokenResourceError from LinkError("the peer has closed the connection")

    cdef int _send(self, const unsigned char *head, Py_ssize_t head_bytes, const unsigned char *body,
                   Py_ssize_t body_bytes) except -1:
        cdef QueuePair qp = self.qp
        cdef Py_ssize_t size = head_bytes + body_bytes
        cdef unsigned char *room
        if head_bytes > HEAD_MOST or size > self.max_message_bytes:
            check_size(head_bytes, size, self.max_message_bytes)
        if not self.out.allows(<uint32_t>size):
            return self.blocked(WANT_CREDIT)
        if not (self.quota > 0 and qp.can_send_in_turn() if self.in_turn else qp.can_send_data(self.queued)):
            return self.blocked(WANT_LINK)
        if size <= self.small_most:
            room = qp.long_room()
            if room == NULL:
                return self.blocked(WANT_LINK)
            self.write_header(room, MESSAGE, 0)
            memcpy(room + HEADER_BYTES, head, head_bytes)
            memcpy(room + HEADER_BYTES + head_bytes, body, body_bytes)
            self.out.send(<uint32_t>size)
            qp.send_long(room, <uint32_t>(HEADER_BYTES + size))
        elif not self._announce(head, <uint32_t>head_bytes, body, <uint32_t>body_bytes):
            return 0
        if self.in_turn:
            self.quota -= 1
        self.messages_sent += 1
        self.bytes_sent += size
        return 1

    cdef int _announce(self, const unsigned char *head, uint32_t head_bytes, const unsigned char *body,
                       uint32_t body_bytes) except -1:
        cdef QueuePair qp = self.qp
        cdef unsigned char *room = qp.long_room()
        cdef unsigned char *to
        cdef uint64_t address
        if room == NULL:
            return self.blocked(WANT_LINK)
        block = self.memory.take_source(body_bytes)
        if block is None:
            self.memory.check(body_bytes)
            return self.blocked(WANT_MEMORY)
        address = block.address
        to = <unsigned char *><uintptr_t>address
        if body_bytes < LONG_COPY_BYTES:
            memcpy(to, body, body_bytes)
        else:
            with nogil:
                memcpy(to, body, body_bytes)
        self.write_header(room, ANNOUNCE, 0)
        put32(room + HEADER_BYTES, <uint32_t>(address >> 32))
        put32(room + HEADER_BYTES + 4, <uint32_t>address)
        put32(room + HEADER_BYTES + 8, block.rkey)
        put32(room + HEADER_BYTES + 12, body_bytes)
        memcpy(room + ANNOUNCE_BYTES, head, head_bytes)
        self.announced.append((self.out.send(head_bytes + body_bytes), block))
        self.large_sent += 1
        qp.send_long(room, ANNOUNCE_BYTES + head_bytes)
        return 1

    cdef int blocked(self, int why) except -1:
        """Remember what try_send() lacks: on_writable is due when it comes."""
        self.times_blocked += 1
        self.want = why
        if why == WANT_LINK:
            self.qp.enqueue(self)
        elif why == WANT_MEMORY:
            self.memory.wait(self)
        elif not self.asked:
            # The peer must know that we wait, or it might sit on what it could tell.
            self.ask = True
            self.qp.enqueue(self)
        return 0

    cdef void write_header(self, unsigned char *room, unsigned char kind, unsigned char flags) noexcept:
        room[0], room[1], room[2], room[3] = kind, flags, 0, 0
        put32(room + 4, self.peer_token)
        put32(room + 8, self.inc.tell())
        self.tell = self.peer_wants = False

    cdef int post_control(self, unsigned char kind, unsigned char flags) except -1:
        cdef QueuePair qp = self.qp
        cdef aio_chain chain
        self.write_header(qp.message_room(), kind, flags)
        chain.length = 0
        # The last message is signalled: only when the peer's device has it may the TCP connection go.
        qp.add_message(&chain, HEADER_BYTES, kind == CLOSE)
        qp.post(&chain)
        return 0

    cdef int writable(self) except -1:
        self.want = WANT_NOTHING
        if self._on_writable is not None and not self.over:
            self.qp.cq.wakes += 1
            try:
                self._on_writable()
            except Exception as error:
                self._fail_by_user(error)
        return 0

    cdef int flush(self) except -1:
        cdef QueuePair qp = self.qp
        if qp.failed or self.finished or self.out is None:
            return 1
        if self.ending and self.reads == 0 and (not self.close_told or (self.aborting and not self.abort_told)):
            if not qp.can_message():
                return 0
            self.close_told, self.abort_told = True, self.aborting
            self.post_control(CLOSE, FLAG_ABORT if self.aborting else 0)
            self.closing_position = qp.sq_posted
            self.finish_if_done()
            return 1
        if self.tell or self.ask:
            if not qp.can_message():
                return 0
            self.asked, self.ask = self.asked or self.ask, False
            self.credits_sent += 1
            self.post_control(CREDIT, FLAG_WAITING if self.asked else 0)
        if self.want != WANT_LINK or self.over:
            return 1
        if not qp.can_send_in_turn() or qp.long_room() == NULL:
            return 0
        self.in_turn, self.quota = True, TURN
        try:
            self.writable()
        finally:
            self.in_turn = False
        if self.want != WANT_LINK:
            return 1
        return 2 if self.quota <= 0 and qp.can_send_in_turn() else 0

    # ---- receiving

    cdef int on_channel(self, const unsigned char *message, uint32_t length) except -1:
        cdef uint32_t told = 0
        if self.finished:
            return 0
        if self.out is None:
            # It overtook the Confirm that travels on TCP: nothing of ours can have been handed over.
            if get32(message + 8) != 0:
                return self.violation("credit for messages that were never sent")
        else:
            told = self.out.told
            if not self.out.hear(get32(message + 8)):
                return self.violation("credit for messages that were never sent")
            if self.out.told != told:
                self.asked = False
                if self.announced:
                    self.release_announced()
        if message[0] == MESSAGE:
            self.receive_small(message, length)
        elif message[0] == ANNOUNCE:
            self.receive_announcement(message, length)
        elif message[0] == CREDIT:
            if message[1] & FLAG_WAITING:
                self.peer_wants = True
                if self.inc.taken != self.inc.told:
                    self.tell = True
                    self.qp.enqueue(self)
        elif message[0] == CLOSE:
            self.receive_close(message[1] & FLAG_ABORT)
        else:
            self.violation(f"a message of unknown type 0x{message[0]:02x}")
        if self.want == WANT_CREDIT and self.out.told != told:
            self.writable()
        return 0

    cdef int receive_small(self, const unsigned char *message, uint32_t length) except -1:
        cdef uint32_t size = length - HEADER_BYTES
        cdef bytes data
        if self.closed or self.distrusted:
            return 0
        if self.peer_ended:
            return self.violation("a message after its close")
        if size > self.max_message_bytes or not self.inc.receive(size):
            return self.violation(f"a message of {size} bytes, more than it may send")
        data = PyBytes_FromStringAndSize(<char *>message + HEADER_BYTES, size)
        if self._on_message is None or self.inbox:
            self.inbox.append(data)
            return 0
        return self.hand_over(data, size, False)

    cdef int receive_announcement(self, const unsigned char *message, uint32_t length) except -1:
        cdef Pull pull
        cdef uint32_t head_bytes = length - ANNOUNCE_BYTES
        if self.closed or self.distrusted:
            return 0
        if self.peer_ended:
            return self.violation("an announcement after its close")
        if length < ANNOUNCE_BYTES or head_bytes > HEAD_MOST:
            return self.violation(f"an announcement of {length} bytes")
        pull = Pull.__new__(Pull)
        pull.remote_addr = (<uint64_t>get32(message + HEADER_BYTES) << 32) | get32(message + HEADER_BYTES + 4)
        pull.rkey = get32(message + HEADER_BYTES + 8)
        pull.remote_bytes = get32(message + HEADER_BYTES + 12)
        if pull.remote_bytes == 0 or pull.remote_addr + pull.remote_bytes < pull.remote_addr:
            return self.violation(f"{pull.remote_bytes} bytes announced at 0x{pull.remote_addr:x}")
        if (<uint64_t>head_bytes + pull.remote_bytes > self.max_message_bytes
                or not self.inc.receive(head_bytes + pull.remote_bytes)):
            return self.violation(f"a message of {head_bytes + pull.remote_bytes} bytes, more than it may send")
        if self.qp.max_reads == 0:
            return self.violation("a message to be pulled, and the devices agreed on no READs")
        try:
            self.memory.check(head_bytes + pull.remote_bytes)
        except MemoryError as error:
            self.distrusted = True
            return self.end(error)
        pull.channel = self
        pull.head = message[ANNOUNCE_BYTES:length]
        self.inbox.append(pull)
        self.pulls.append(pull)
        self.puller.add(self)
        return self.puller.pump()

    cdef int hand_over(self, object message, uint32_t size, bint large) except -1:
        cdef bint due = self.inc.take(size)
        if due or large or self.peer_wants:
            self.tell = True
            self.qp.enqueue(self)
        self.messages_received += 1
        self.bytes_received += size
        self.large_received += large
        self.qp.cq.wakes += 1
        try:
            self._on_message(message)
        except Exception as error:
            self._fail_by_user(error)
        return 0

    def _fail_by_user(self, error) -> None:
        logger.exception("a callback of a channel failed: the channel is broken")
        if not self.closed:
            self.break_with(error)

    cdef int deliver(self) except -1:
        """Hand over what can be, from the front."""
        cdef Pull pull
        cdef object message
        if self.delivering:
            return 0
        self.delivering = True
        try:
            while self.inbox and self._on_message is not None:
                message = self.inbox[0]
                if isinstance(message, Pull):
                    pull = <Pull>message
                    if not pull.complete():
                        break
                    self.inbox.popleft()
                    size = PyBytes_GET_SIZE(pull.head) + pull.remote_bytes
                    self.hand_over(self.take_up(pull), size, True)
                else:
                    self.inbox.popleft()
                    self.hand_over(message, <uint32_t>PyBytes_GET_SIZE(message), False)
        finally:
            self.delivering = False
        if self.peer_ended and not self.inbox:
            self.end(None)
        return 0

    # ---- pulling

    cdef bint wants_to_pull(self):
        """Nothing is begun while nobody takes messages: it would keep memory that others need."""
        return bool(self.pulls) and (self._on_message is not None or (<Pull>self.pulls[0]).block is not None)

    cdef int post_read(self) except -2:
        """Post one READ. 1: there are more to post; 0: not now; -1: no memory."""
        cdef Pull pull = self.pulls[0]
        cdef QueuePair qp = self.qp
        cdef aio_chain chain
        cdef uint32_t head_bytes = <uint32_t>PyBytes_GET_SIZE(pull.head), n, pad
        if pull.block is None:
            # The body, which is long, begins at a multiple of 64.
            pad = -head_bytes & (ALIGN - 1)
            block = self.memory.take_sink(pad + head_bytes + pull.remote_bytes)
            if block is None:
                return -1
            pull.block = block
            pull.start = <unsigned char *><uintptr_t><uint64_t>block.address + pad
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

    cdef int after_reads(self) except -1:
        """A pull has ended."""
        if self.ending and self.reads == 0:
            self.qp.enqueue(self)
        if self.inbox:
            self.deliver()
        return 0

    cdef object take_up(self, Pull pull):
        """The message, as its user gets it."""
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

    def on_memory(self) -> None:
        """Some of the memory that this channel waited for may have come back."""
        if self.pulls and not self.qp.failed:
            self.puller.add(self)
            self.puller.pump()
        if self.want == WANT_MEMORY:
            self.writable()

    cdef bint speaks_to(self, uint32_t token, uint64_t remote_addr) noexcept:
        cdef object pulls
        if remote_addr == 0:
            return self.out is not None and self.peer_token == token
        for pulls in (self.pulling, self.pulls):
            for pull in pulls:
                if (<Pull>pull).remote_addr <= remote_addr < (<Pull>pull).remote_addr + (<Pull>pull).remote_bytes:
                    return True
        return False

    # ---- hybrid polling

    def spin(self) -> bool:
        """See ``Channel.spin``. Posts what was put off first."""
        cdef CompletionQueue cq = self.qp.cq
        cdef int64_t started
        cdef uint64_t before = self.messages_received, woken = cq.wakes
        cq.flush()
        if self.over or self.closed or self.messages_received != before:
            return True
        if not cq.may_spin():
            cq.will_park()
            cq.park()
            return self.messages_received != before
        cq.spins += 1
        # One look first that needs neither the clock nor to give up the GIL: a busy peer has often answered already.
        if cq.poll():
            cq.schedule()
            if self.messages_received != before or self.over:
                cq.spin_hits += 1
                return True
            if cq.wakes != woken:
                return False
            cq.flush()
        started = clock_ns()
        while cq.spin_once(started + cq.spin_ns):
            if self.messages_received != before or self.over:
                cq.spin_paid(started)
                return True
            if cq.wakes != woken:
                return False        # it was for somebody else of this loop: let them run
            cq.flush()
        cq.spin_wasted()
        cq.will_park()
        cq.park()
        return self.messages_received != before or self.over

    # ---- end

    def close(self) -> None:
        """See ``Channel.close``."""
        self._close(False)

    def abort(self) -> None:
        """See ``Channel.abort``."""
        self._close(True)

    def _close(self, bint abnormal) -> None:
        if self.finished or (self.closed and (self.aborting or not abnormal)):
            return
        self.closed = self.over = True
        self._on_message = self._on_writable = self._on_closed = None
        self.drop_inbox()
        if self.out is None and self.error is None:
            self.error = LinkError("closed before the connection was confirmed")
        self.begin_ending(abnormal or self.error is not None)
        self.finish_if_done()

    cdef int begin_ending(self, bint abort) except -1:
        """Say CLOSE as soon as no READ of this channel is under way."""
        self.ending = True
        self.aborting = self.aborting or abort
        if self.out is not None:
            self.qp.enqueue(self)
        return 0

    cdef int receive_close(self, bint abort) except -1:
        self.drop_announced()
        if self.peer_ended and not abort:
            return 0
        self.peer_ended = True
        if abort and not self.closed and not self.over:
            self.drop_inbox()
            self.end(LinkError("the peer aborted the connection"))
        elif not self.inbox:
            self.end(None)
        return self.finish_if_done()

    cdef int end(self, object error) except -1:
        """The peer sends no more, or nothing of it is believed any more: tell the user, and answer the peer."""
        if self.error is None and not self.over:
            self.error = error
        self.begin_ending(error is not None)
        if self.over:
            return 0
        self.over = True
        callback, self._on_closed = self._on_closed, None
        self._on_message = None
        if callback is not None:
            self.qp.cq.wakes += 1
            try:
                callback(error)
            except Exception:
                logger.exception("on_closed of a channel failed")
        return 0

    cdef int violation(self, str text) except -1:
        if self.distrusted:
            return 0
        self.distrusted = True
        self.drop_inbox()
        return self.end(RemoteProtocolError(f"the peer broke the protocol of a channel: {text}"))

    cdef int on_broken(self, object reason) except -1:
        self.distrusted = True
        if self.qp.failed:
            # The device touches this memory no more, or only until the QP is in ERROR: it stays this link's.
            for pull in self.pulling:
                if (<Pull>pull).cancelled:
                    self.memory.give_sink((<Pull>pull).block)
                (<Pull>pull).under_way = 0
            self.pulling.clear()
            self.reads = 0
            self.puller.turns.clear()
            self.drop_announced()
        self.drop_inbox()
        self.end(reason)
        return self.finish_if_done()

    def break_with(self, reason: BaseException) -> None:
        """Fail this channel alone (its TCP connection was lost)."""
        if not self.finished:
            self.on_broken(reason)

    cdef int drop_inbox(self) except -1:
        """What was not handed over goes; memory that the device may still write, when its READs are done."""
        cdef Pull pull
        cdef object message
        self.pulls.clear()
        for message in self.inbox:
            if isinstance(message, Pull):
                pull = <Pull>message
                if pull.under_way:
                    pull.cancelled = True
                elif pull.block is not None:
                    if pull in self.pulling:
                        self.pulling.remove(pull)       # begun, and at this moment nothing of it is under way
                    self.memory.give_sink(pull.block)
                    pull.block = None
        self.inbox.clear()
        return 0

    cdef int release_announced(self) except -1:
        """Free what the peer has handed over."""
        cdef uint32_t until
        while self.announced:
            until, block = self.announced[0]
            if <int>(self.out.told - until) < 0:
                break
            self.announced.popleft()
            self.memory.give_source(block)
        return 0

    cdef int drop_announced(self) except -1:
        """Free everything: the peer has said, or cannot but, that it READs no more."""
        while self.announced:
            self.memory.give_source(self.announced.popleft()[1])
        return 0

    @property
    def is_aborting(self) -> bool:
        """This side has given it up, and the peer has not answered yet."""
        return self.closed and self.aborting and not self.finished

    def give_up(self) -> None:
        """An aborted channel whose peer does not answer ends without it. What it announced can be freed: what comes to lie
        there is meant for the same peer, and a READ of it that finds nothing more breaks that peer's link only."""
        if self.is_aborting and (self.reads == 0 or self.qp.failed):
            self.peer_ended = self.close_told = True
            self.closing_position = self.qp.sq_retired
            self.finish_if_done()

    @property
    def last_message_delivered(self) -> bool:
        """The peer's device has acknowledged our closing message."""
        return self.close_told and <int>(self.qp.sq_retired - self.closing_position) >= 0

    cdef int on_room(self) except -1:
        return self.finish_if_done()

    cdef int finish_if_done(self) except -1:
        if self.finished or not self.closed:
            return 0
        if not self.qp.failed and self.out is not None:
            if not self.peer_ended or self.reads:
                return 0
            if not self.last_message_delivered:
                self.qp.wait_for_room(self)     # its completion brings us back through on_room()
                return 0
        self.finished = True
        self.drop_announced()
        self.qp.unregister(self)
        if self.on_finished is not None:
            self.on_finished(self)
        return 0
