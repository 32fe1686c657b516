# cython: language_level=3, boundscheck=False, wraparound=False
"""Whole messages on a link (X-RDMA): the contract of ``contracts.Channel`` over RDMA.

Short messages are one SEND each on the link's window. A longer one stays with its sender, which announces it with its
head. The receiver pulls it when it has room (``_rendezvous.pyx``). Messages are handed over in the order in which they
were sent (``_link_channel_receive.pyx``), so a short one waits for a longer one before it on the same channel. Other
channels of the link do not wait.

Credit. The link's window is returned when a message has been dispatched. What the user of a channel has not been given
yet is bounded by the channel's own credit (``proto/message.py``). Each end reports the running total of what it has
handed over in the header of everything it sends. It sends a CREDIT message at the end of the tick after a large
message, after a quarter of the budget, or when the sender has reported that it waits.

The end is in ``_link_channel_life.pyx``.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t

from anyio import BrokenResourceError, ClosedResourceError

from ..plain cimport check_plain
from ..datapath._hybrid cimport NOTHING, hybrid_poll
from ..datapath._qp cimport QueuePair
from ..proto.message cimport SendBudget
from ._link_channel_format cimport ANNOUNCE, CLOSE, CREDIT, FLAG_ABORT, FLAG_WAITING, HEADER_BYTES, MESSAGE, get32
from ._link_channel_life cimport ChannelLife
from ._link_channel_receive cimport GOES_ON, PEER_FAILED, Inbox
from ._link_channel_send cimport WANT_CREDIT, WANT_LINK, WANT_MEMORY, WANT_NOTHING, Outbox
from ._rendezvous cimport Pulls, Sources

from ..errors import LinkError
from ..proto.message import ChannelStatistics
from ..wake.escaping import contain
from .end_report import EndReport

cdef enum:
    TURN = 16               # messages that one channel sends before others that wait have their turn


cdef bint has_news(void *channel, uint64_t before) noexcept:
    """Whether messages were handed over since there were ``before``, or it is over."""
    cdef MessageChannel self = <MessageChannel>channel
    return self.over or self.inbox.message_count != before


@cython.final
cdef class MessageChannel(ChannelLife):
    """One channel on a link. Non-blocking; single-threaded, in the thread of the engine's loop.

    :param qp: the link it runs on, prepared for long messages.
    :param memory: where large messages are kept for the peer, and pulled into (``contracts.RendezvousMemory``).
    :param receive_bytes: what waits here for the user at most.
    :param fragment: most bytes of one READ.
    :param own: owner of the channel's TCP connection; ``on_finished(channel)`` releases it.
    """

    path = "rdma"

    def __init__(self, QueuePair qp, *, object memory, uint32_t max_message_bytes, uint32_t receive_bytes,
                 uint32_t fragment=65536, object own=None):
        self._own = own
        self.end_report = EndReport(qp.cq.call_soon)
        self.sources = Sources(memory)
        self.pulls = Pulls(self, qp, memory, fragment)
        self.inbox = Inbox(qp.cq, self.pulls, max_message_bytes, receive_bytes)
        self.outbox = Outbox(qp, self.inbox, self.sources, max_message_bytes)
        qp.register(self)

    def connect(self, *, uint32_t peer_token, uint32_t budget, uint32_t message_bytes) -> None:
        """The peer's half, from its Accept or Confirm.

        :param budget: cost of what the peer keeps for its user at most.
        :param message_bytes: longest message, header and all, for which the peer's receives and our sends have room.
        """
        self.outbox.connect(peer_token, budget, message_bytes)

    # ---- state

    @property
    def max_message_bytes(self) -> int:
        return self.outbox.max_message_bytes

    @property
    def on_message(self):
        return self.inbox.on_message

    @on_message.setter
    def on_message(self, callback) -> None:
        self.inbox.set_on_message(callback)
        if callback is not None and self.inbox.waiting:
            self.qp.cq.call_soon(self._deliver_soon)

    @property
    def placer(self):
        return self.pulls.placer

    @placer.setter
    def placer(self, placer) -> None:
        self.pulls.placer = placer

    def withdraw(self, placement) -> None:
        """See ``Channel.withdraw``."""
        self.pulls.withdraw(placement)
        if not self.over:
            self.qp.cq.call_soon(self._deliver_soon)

    def _deliver_soon(self) -> None:
        self.deliver()
        self.pulls.go_on()

    @property
    def messages_sent(self) -> int:
        return self.outbox.message_count

    @property
    def bytes_sent(self) -> int:
        return self.outbox.byte_count

    @property
    def large_sent(self) -> int:
        return self.outbox.large_count

    @property
    def messages_received(self) -> int:
        return self.inbox.message_count

    @property
    def bytes_received(self) -> int:
        return self.inbox.byte_count

    @property
    def large_received(self) -> int:
        return self.inbox.large_count

    @property
    def blocked_ns(self) -> int:
        """For so long a message has waited for what it lacks; 0: none does."""
        return 0 if self.want == WANT_NOTHING else self.qp.cq.clock.ns() - self.blocked_at

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            messages_sent=self.messages_sent, messages_received=self.messages_received, bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received, large_sent=self.large_sent, large_received=self.large_received,
            large_placed=self.inbox.placed_count, times_blocked=self.times_blocked,
            outstanding=0 if self.outbox.budget is None else self.outbox.budget.outstanding,
            receive_high_water=self.inbox.budget.high_water)

    # ---- sending

    def try_send(self, bytes head not None, body=b"") -> bool:
        """See ``Channel.try_send``."""
        cdef Py_buffer view
        cdef bint may_post
        cdef int lacks
        if self.closed or self.ending or self.peer_ended or self.error is not None or self.outbox.budget is None:
            self.refuse()
        if self.in_turn:
            may_post = self.quota > 0 and self.qp.can_send_in_turn()
        else:
            may_post = self.qp.can_send_data(self.queued)
        if PyBytes_CheckExact(body):
            lacks = self.outbox.send(
                <const unsigned char *>PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head),
                <const unsigned char *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), may_post)
        else:
            check_plain(body)
            PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
            try:
                lacks = self.outbox.send(
                    <const unsigned char *>PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head),
                    <const unsigned char *>view.buf, view.len, may_post)
            finally:
                PyBuffer_Release(&view)
        if lacks != WANT_NOTHING:
            self.blocked(lacks)
            return False
        self.active_at = self.qp.cq.second
        if self.in_turn:
            self.quota -= 1
        return True

    cdef int refuse(self) except -1:
        if self.closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self.error is not None:
            raise BrokenResourceError(f"the connection is lost: {self.error}") from self.error
        if self.outbox.budget is None:
            raise RuntimeError("not connected yet")
        raise BrokenResourceError("the peer has closed the connection") from LinkError("the peer has closed the connection")

    cdef int blocked(self, int why) except -1:
        """Remember what try_send() lacks: on_writable is due when it comes."""
        self.times_blocked += 1
        if self.want == WANT_NOTHING:
            self.blocked_at = self.qp.cq.clock.ns()
        self.want = why
        if why == WANT_LINK:
            self.qp.enqueue(self)
        elif why == WANT_MEMORY:
            self.sources.memory.wait_for_source(self)
        elif not self.asked:
            self.ask = True     # the peer must know that we wait, or it may keep credit that it could report
            self.qp.enqueue(self)
        return 0

    cdef int writable(self) except -1:
        self.want = WANT_NOTHING
        if self.on_writable is not None and not self.over:
            self.qp.cq.wakes += 1
            try:
                self.on_writable()
            except BaseException as error:
                self.fail_by_user(error)
                contain(error)
        return 0

    cdef bint is_quiet(self) noexcept:
        return self.want != WANT_LINK or self.over      # else its user sends, in on_writable

    cdef int flush(self) except -1:
        cdef QueuePair qp = self.qp
        if qp.failed or self.finished or self.outbox.budget is None:
            return 1
        if self.close_is_due():
            if not qp.can_message():
                return 0
            self.close_sent, self.abort_sent = True, self.aborting
            qp.say_last(self.queued)
            # Signalled: only when the peer's device has it may the TCP connection be closed.
            self.outbox.post_control(CLOSE, FLAG_ABORT if self.aborting else 0, True)
            self.closing_position = qp.sq_posted
            if qp.cq.helping:
                qp.wait_for_room(self)      # to finish calls its owner: that is for the loop
            else:
                self.finish_if_done()
            return 1
        if self.inbox.credit_due or self.ask:
            if not qp.can_message():
                return 0
            self.asked, self.ask = self.asked or self.ask, False
            self.credits_sent += 1
            if self.want != WANT_LINK or self.over:
                qp.say_last(self.queued)
            self.outbox.post_control(CREDIT, FLAG_WAITING if self.asked else 0, False)
        if self.want != WANT_LINK or self.over:
            return 1
        if not qp.can_send_in_turn() or qp.long_room() == NULL:
            return 0
        self.in_turn, self.quota = True, TURN
        try:
            self.writable()
        finally:
            self.in_turn = False
        if self.close_is_due() or self.inbox.credit_due or self.ask:
            return 2 if qp.can_message() else 0     # enqueue() did nothing for it: it is in the queue
        if self.want != WANT_LINK:
            return 1
        return 2 if self.quota <= 0 and qp.can_send_in_turn() else 0

    # ---- receiving

    cdef int on_channel(self, const unsigned char *message, uint32_t length) except -1:
        cdef SendBudget sent = self.outbox.budget
        cdef uint32_t reported = 0
        if self.finished:
            return 0
        if sent is None:
            # It overtook the Confirm that travels on TCP: nothing of ours can have been handed over.
            if get32(message + 8) != 0:
                return self.violation("credit for messages that were never sent")
        else:
            reported = sent.reported
            if not sent.receive_report(get32(message + 8)):
                return self.violation("credit for messages that were never sent")
            if sent.reported != reported:
                self.asked = False
                if self.sources.announced:
                    self.sources.release(sent.reported)
        if message[0] == MESSAGE or message[0] == ANNOUNCE:
            self.receive(message, length)
        elif message[0] == CREDIT:
            if message[1] & FLAG_WAITING:
                self.inbox.peer_waits = True
                if self.inbox.budget.taken != self.inbox.budget.reported:
                    self.inbox.credit_due = True
                    self.qp.enqueue(self)
        elif message[0] == CLOSE:
            self.receive_close(message[1] & FLAG_ABORT)
        else:
            self.violation(f"a message of unknown type 0x{message[0]:02x}")
        if self.want == WANT_CREDIT and sent.reported != reported:
            self.writable()
        return 0

    cdef int receive(self, const unsigned char *message, uint32_t length) except -1:
        cdef bint small = message[0] == MESSAGE
        self.active_at = self.qp.cq.second
        if self.closed or self.distrusted:
            return 0
        if self.peer_ended:
            return self.violation("a message after its close" if small else "an announcement after its close")
        return self.follow(self.inbox.receive_small(message + HEADER_BYTES, length - HEADER_BYTES) if small
                           else self.inbox.receive_announcement(message, length))

    cdef int follow(self, int verdict) except -1:
        """Do what the inbox left to be done."""
        if self.inbox.credit_due:
            self.qp.enqueue(self)
        if verdict == GOES_ON:
            return 0
        if verdict == PEER_FAILED:
            return self.distrust(self.inbox.take_error())
        return self.fail_by_user(self.inbox.take_error())

    cdef int deliver(self) except -1:
        if not self.inbox.delivering:
            self.follow(self.inbox.deliver())
            if (self.peer_ended or self.lost is not None) and not self.inbox.waiting:
                self.end(self.lost)
        return 0

    cdef void on_fragment_done(self, uint64_t until) noexcept:
        self.pulls.read_done()

    cdef int on_room(self) except -1:
        """A pull has ended, or the closing message has been acknowledged."""
        if self.close_is_due():
            self.qp.enqueue(self)
        if self.inbox.waiting:
            self.deliver()
        return self.finish_if_done()

    def on_memory(self) -> None:
        """Some of the memory that this channel waited for may have come back."""
        self.pulls.go_on()
        if self.want == WANT_MEMORY:
            self.writable()

    cdef bint speaks_to(self, uint32_t token, uint64_t remote_addr) noexcept:
        if remote_addr == 0:
            return self.outbox.budget is not None and self.outbox.peer_token == token
        return self.pulls.covers(remote_addr)

    # ---- hybrid polling

    def spin(self) -> bool:
        """See ``Channel.spin``. Posts what was put off first."""
        cdef uint64_t before = self.inbox.message_count
        if hybrid_poll(self.qp.cq, has_news, <void *>self, before) == NOTHING:
            self.qp.cq.park()
        return has_news(<void *>self, before)
