# cython: language_level=3, boundscheck=False, wraparound=False
"""Whole messages on a link (X-RDMA): the contract of ``channel.Channel`` over RDMA.

Short messages are one SEND each on the link's window. A longer one stays with its sender, which announces it with its
head; the receiver pulls it when it has room (``_large.pyx``). Messages are handed over in the order in which they were
sent, so a short one waits for a longer one before it on the same channel; other channels of the link do not wait.

Credit. The link's window is given back when a message has been dispatched. What the user of a channel has not been given
yet is bounded by the channel's own credit (``proto/message.py``): each end tells the running total of what it has handed
over, in the header of everything it sends, and in a CREDIT message of its own at the end of the tick after a large
message, after a quarter of the budget, or when the sender has said that it waits.

The end. CLOSE says: I send no more messages, and I READ no more; so what was announced to that end can be freed. An end
that gets it answers with its own when it has handed over everything before it. Both have been said and delivered, or the
link has failed: then the channel is finished, and its TCP connection may go.
"""
import logging

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from anyio import BrokenResourceError, ClosedResourceError

from ._link_channel_format cimport (
    ANNOUNCE,
    ANNOUNCE_BYTES,
    CLOSE,
    CREDIT,
    FLAG_ABORT,
    FLAG_WAITING,
    HEADER_BYTES,
    HEAD_MOST,
    MESSAGE,
    get32,
    put32,
)
from .._cq cimport CompletionPoller, clock_ns
from ._link_channel_receive cimport ReceivingConnection
from ._rendezvous cimport Announced
from ..datapath._qp cimport QueuePair
from ..datapath._verbs cimport aio_chain
from ..proto.message cimport SendBudget

from ..errors import LinkError, RemoteProtocolError
from ..proto import message as rules
from ..proto.message import ChannelStatistics, check_size

logger = logging.getLogger("aiordma.channel")

cdef enum:
    TURN = 16               # messages that one channel sends before others in line have their turn
    WANT_NOTHING = 0
    WANT_LINK = 1
    WANT_CREDIT = 2
    WANT_MEMORY = 3

assert HEAD_MOST == rules.MAX_HEAD_BYTES


cdef class MessageChannel(ReceivingConnection):
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
        self.prepare(qp, memory, fragment)
        self.begin(max_message_bytes, receive_bytes)
        self._own = own
        self.announced = Announced(memory)
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
        cdef uint64_t address
        if room == NULL:
            return self.blocked(WANT_LINK)
        block = self.announced.place(body, body_bytes)
        if block is None:
            return self.blocked(WANT_MEMORY)
        address = block.address
        self.write_header(room, ANNOUNCE, 0)
        put32(room + HEADER_BYTES, <uint32_t>(address >> 32))
        put32(room + HEADER_BYTES + 4, <uint32_t>address)
        put32(room + HEADER_BYTES + 8, block.rkey)
        put32(room + HEADER_BYTES + 12, body_bytes)
        memcpy(room + ANNOUNCE_BYTES, head, head_bytes)
        self.announced.add(block, self.out.send(head_bytes + body_bytes))
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
                self.fail_by_user(error)
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
                if self.announced.blocks:
                    self.announced.release(self.out.told)
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

    cdef int fail_by_user(self, object error) except -1:
        """A callback raised this."""
        logger.error("a callback of a channel failed: the channel is broken", exc_info=error)
        if not self.closed:
            self.break_with(error)
        return 0

    cdef int after_reads(self) except -1:
        if self.ending and self.reads == 0:
            self.qp.enqueue(self)
        if self.inbox:
            self.deliver()
        return 0

    def on_memory(self) -> None:
        """Some of the memory that this channel waited for may have come back."""
        self.pull_on()
        if self.want == WANT_MEMORY:
            self.writable()

    cdef bint speaks_to(self, uint32_t token, uint64_t remote_addr) noexcept:
        if remote_addr == 0:
            return self.out is not None and self.peer_token == token
        return self.pulls_from(remote_addr)

    # ---- hybrid polling

    def spin(self) -> bool:
        """See ``Channel.spin``. Posts what was put off first."""
        cdef CompletionPoller cq = self.qp.cq
        cdef int64_t started
        cdef uint64_t before = self.messages_received, woken = cq.wakes
        cq.flush()
        if self.over or self.closed or self.messages_received != before:
            return True
        if not cq.may_spin():
            cq.will_park()
            cq.park()
            return self.messages_received != before or self.over
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
        self.announced.drop()
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
            self.forget_reads()
            self.announced.drop()
        self.drop_inbox()
        self.end(reason)
        return self.finish_if_done()

    def break_with(self, reason: BaseException) -> None:
        """Fail this channel alone (its TCP connection was lost)."""
        if not self.finished:
            self.on_broken(reason)

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
        self.announced.drop()
        self.qp.unregister(self)
        if self.on_finished is not None:
            self.on_finished(self)
        return 0
