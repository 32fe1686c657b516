# Declarations of _requests.pyx (the work requests of a pipe to a valkey-server).
from libc.stdint cimport uint32_t, uint64_t

from .._cq cimport CompletionOwner
from ..datapath._verbs cimport aio_chain, ibv_qp, ibv_wc
from ..proto.valkey cimport Incoming, Outgoing

cdef class ValkeyRequests(CompletionOwner):
    cdef object __weakref__
    cdef ibv_qp *qp
    cdef readonly uint32_t qp_num
    cdef object owner                       # Connection: memory for copies, and the end of it all
    cdef Outgoing outgoing
    cdef Incoming incoming
    cdef unsigned char *buffers             # the transfer buffers of this end, side by side
    cdef uint32_t rkey
    cdef uint64_t recv_addr, command_addr
    cdef uint32_t recv_count, recv_lkey, command_lkey
    # Positions in the send queue, as in datapath/_send_queue.
    cdef uint32_t sq_depth, sq_posted, sq_retired, sq_unsignalled, sq_signal_every, max_inline
    # Where the device does not take a whole step inline: copies of what goes to the server's buffer, how much of the
    # mirror was written, and the position up to which the device may still read what was in it before.
    cdef unsigned char *mirror
    cdef uint32_t mirror_lkey, mirror_size, mirrored, mirror_until
    cdef bint refused                       # the device has refused a request, and gets no more
    cdef uint32_t staged                    # bytes in the mirror, from there on, that are not posted yet
    cdef object failure, _on_readable, _on_writable
    cdef public bint pushes                 # see contracts.Pipe; its owners poll by themselves
    cdef public uint32_t reads_ahead        # of no use: the server is no process of ours
    cdef bint closed, eof_sent, ended, blocked, flushing, finished, dirty
    cdef readonly uint64_t last_received    # completions that prove the server alive
    cdef uint64_t sends, receives, bytes_sent, bytes_received, times_blocked, writes, registrations, registered, queries

    cdef inline uint32_t sq_free(self) noexcept:
        return self.sq_depth - (self.sq_posted - self.sq_retired)

    cdef int _post_receive(self, uint32_t slot) except -1
    cdef unsigned int next_flags(self, bint signal) noexcept
    cdef uint64_t next_id(self) noexcept
    cdef int post(self, aio_chain *chain) except -1
    cdef int send_command(self, bytes command) except -1
    cdef uint32_t room(self) noexcept
    cdef int ask_if_due(self) except -1
    cdef int write_nothing(self) except -1
    cdef void reuse_mirror(self) noexcept
    cdef int post_staged(self) except -1
    cdef int post_write(self, uint64_t source, uint32_t n, uint32_t lkey, uint32_t flags) except -1
    cdef int call(self, callback) except -1
    cdef void wake_readers(self)
    cdef void wake_writers(self)
    cdef int on_receive(self, ibv_wc *wc) except -1
    cdef int on_command(self, bytes data) except -1
    cdef int on_sent(self, ibv_wc *wc) except -1
    cdef int fail(self, object reason) except -1
    cdef int finish(self) except -1
    cdef int register_if_due(self) except -1
    cdef int check_length(self, uint32_t length) except -1
