# cython: language_level=3, boundscheck=False, wraparound=False
"""The receiving half of a channel (``_channel.pyx``): what comes is handed over whole, in order, and as soon as it is here.

What cannot be handed over yet waits in the inbox: small messages as they are, large ones while they are being pulled
(``_large.pyx``). How much may wait is the channel's own credit (``proto/message.py``).
"""
from collections import deque

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t

from ._link_channel_format cimport ANNOUNCE_BYTES, HEADER_BYTES, HEAD_MOST, get32
from ._rendezvous cimport Pull, PullingConnection
from ..proto.message cimport ReceiveBudget


cdef class ReceivingConnection(PullingConnection):
    """A connection whose user gets messages by callback."""

    cdef int begin(self, uint32_t max_message_bytes, uint32_t receive_bytes) except -1:
        """:param receive_bytes: cost of what waits here for the user at most."""
        self.max_message_bytes = max_message_bytes
        self.inc = ReceiveBudget(receive_bytes)
        self.inbox = deque()
        return 0

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
        self.pull_on()

    # ---- what a subclass has

    cdef int violation(self, str text) except -1:
        """The peer broke the protocol: nothing of it is believed any more."""
        raise NotImplementedError

    cdef int end(self, object error) except -1:
        """No further messages come; ``error``: why, None when the peer has ended in order."""
        raise NotImplementedError

    cdef int fail_by_user(self, object error) except -1:
        """``on_message`` raised this."""
        raise NotImplementedError

    # ---- messages from the peer

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
        pull.head = message[ANNOUNCE_BYTES:length]
        try:
            self.memory.check(pull.room())
        except MemoryError as error:
            self.distrusted = True
            return self.end(error)
        self.inbox.append(pull)
        return self.pull(pull)

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
            self.fail_by_user(error)
        return 0

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

    cdef bint takes_messages(self):
        return self._on_message is not None

    cdef int drop_inbox(self) except -1:
        """What was not handed over goes."""
        cdef object message
        self.pulls.clear()
        for message in self.inbox:
            if isinstance(message, Pull):
                self.cancel(<Pull>message)
        self.inbox.clear()
        return 0
