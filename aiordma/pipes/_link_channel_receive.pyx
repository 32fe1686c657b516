# cython: language_level=3, boundscheck=False, wraparound=False
"""The receiving half of a channel (``_link_channel.pyx``): what arrives is handed over whole, in order, and at once.

What cannot be handed over yet waits in the inbox: small messages as they are, large ones while they are being pulled
(``_rendezvous.pyx``). The channel's own credit (``proto/message.py``) bounds how much waits.

An :class:`Inbox` calls its user's ``on_message`` and nothing else. What concerns the channel it returns, or leaves in
``credit_due`` for the channel to look at.
"""
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t

from .._cq cimport CompletionPoller
from ..proto.message cimport ReceiveBudget
from ..verbs._copy cimport bytes_of
from ._link_channel_format cimport ANNOUNCE_BYTES, HEADER_BYTES, HEAD_MOST, get32
from ._rendezvous cimport Pull, Pulls

from ..errors import RemoteProtocolError
from ..wake.escaping import contain


cdef object broken_rule(str text):
    """The error of a peer that did not keep to the protocol."""
    return RemoteProtocolError(f"the peer broke the protocol of a channel: {text}")


@cython.final
cdef class Inbox:
    """What a channel has received and not handed over, and how it is handed over.

    :param cq: of the link, whose wake-ups are counted.
    :param pulls: of the channel.
    :param receive_bytes: cost of what waits here for the user at most.
    """

    def __cinit__(self, CompletionPoller cq, Pulls pulls, uint32_t max_message_bytes, uint32_t receive_bytes):
        self.cq = cq
        self.pulls = pulls
        self.max_message_bytes = max_message_bytes
        self.budget = ReceiveBudget(receive_bytes)
        self.waiting = deque()

    cdef void set_on_message(self, object callback):
        """``callback`` gets every message from now on; None: messages wait."""
        self.on_message = callback
        self.pulls.wanted = callback is not None

    cdef object take_error(self):
        """Why the last method that did not return GOES_ON did not."""
        error, self.error = self.error, None
        return error

    cdef int refuse(self, str text) except -1:
        self.error = broken_rule(text)
        return PEER_FAILED

    # ---- messages from the peer

    cdef int receive_small(self, const unsigned char *body, uint32_t size) except -1:
        """A whole message."""
        cdef bytes data
        if size > self.max_message_bytes or not self.budget.receive(size):
            return self.refuse(f"a message of {size} bytes, more than it may send")
        data = bytes_of(body, size)
        if self.on_message is None or self.waiting:
            self.waiting.append(data)
            return GOES_ON
        return self.hand_over(data, size, False)

    cdef int receive_announcement(self, const unsigned char *message, uint32_t length) except -1:
        """The announcement of a message that is to be pulled, header and all."""
        cdef Pull pull
        cdef uint32_t head_bytes = length - ANNOUNCE_BYTES
        if length < ANNOUNCE_BYTES or head_bytes > HEAD_MOST:
            return self.refuse(f"an announcement of {length} bytes")
        pull = Pull.__new__(Pull)
        pull.remote_addr = (<uint64_t>get32(message + HEADER_BYTES) << 32) | get32(message + HEADER_BYTES + 4)
        pull.rkey = get32(message + HEADER_BYTES + 8)
        pull.remote_bytes = get32(message + HEADER_BYTES + 12)
        if pull.remote_bytes == 0 or pull.remote_addr + pull.remote_bytes < pull.remote_addr:
            return self.refuse(f"{pull.remote_bytes} bytes announced at 0x{pull.remote_addr:x}")
        if (<uint64_t>head_bytes + pull.remote_bytes > self.max_message_bytes
                or not self.budget.receive(head_bytes + pull.remote_bytes)):
            return self.refuse(f"a message of {head_bytes + pull.remote_bytes} bytes, more than it may send")
        if not self.pulls.can_read():
            return self.refuse("a message to be pulled, and the devices agreed on no READs")
        pull.head = message[ANNOUNCE_BYTES:length]
        self.waiting.append(pull)
        self.pulls.begin(pull)
        return GOES_ON

    # ---- to the user

    cdef int hand_over(self, object message, uint32_t size, bint large, object placement=None) except -1:
        cdef bint much = self.budget.take(size)
        if much or large or self.peer_waits:
            self.credit_due = True
        self.message_count += 1
        self.byte_count += size
        self.large_count += large
        self.cq.wakes += 1
        try:
            if placement is None:
                self.on_message(message)
            elif self.pulls.placer is not None:
                self.pulls.placer.placed(message, placement)
        except BaseException as error:
            contain(error)
            self.error = error
            return USER_FAILED
        return GOES_ON

    cdef int deliver(self) except -1:
        """Hand over what can be, from the front. Does nothing inside of itself."""
        cdef Pull pull
        cdef object message
        cdef int verdict = GOES_ON
        if self.delivering:
            return GOES_ON
        self.delivering = True
        try:
            while verdict == GOES_ON and self.waiting and self.on_message is not None:
                message = self.waiting[0]
                if isinstance(message, Pull):
                    pull = <Pull>message
                    if not pull.complete():
                        break
                    try:
                        message = self.bring(pull)
                    except Exception as error:
                        self.error = error      # no memory for it: what follows must not be taken for it
                        return PEER_FAILED
                    if not self.waiting:
                        break                   # the channel was closed meanwhile
                    self.waiting.popleft()
                    verdict = self.hand_over(message, pull.size(), True, pull.placement)
                else:
                    self.waiting.popleft()
                    verdict = self.hand_over(message, <uint32_t>PyBytes_GET_SIZE(message), False)
        finally:
            self.delivering = False
        return verdict

    cdef object bring(self, Pull pull):
        """What the user gets of a message that is complete."""
        if pull.placement is None:
            return self.pulls.lend(pull)
        self.pulls.fill(pull)
        self.placed_count += pull.direct
        return pull.head

    cdef bint keep_whole(self) except -1:
        """Nothing more comes. What is whole stays, up to the first message that is not; whether that is all."""
        cdef object message
        cdef Py_ssize_t whole = 0, most = len(self.waiting)
        for message in self.waiting:
            if isinstance(message, Pull) and not (<Pull>message).complete():
                break
            whole += 1
        self.pulls.to_read.clear()
        while len(self.waiting) > whole:
            message = self.waiting.pop()
            if isinstance(message, Pull):
                self.pulls.cancel(<Pull>message)
        return whole == most

    cdef int drop(self) except -1:
        """What was not handed over goes."""
        cdef object message
        self.pulls.to_read.clear()
        for message in self.waiting:
            if isinstance(message, Pull):
                self.pulls.cancel(<Pull>message)
        self.waiting.clear()
        return 0
