# The messages of a channel (_link_channel.pyx), after the 4 bytes that all messages of a link begin with.
#
# Header of all (12 bytes, big-endian): type, flags, 2 bytes of zero, token of the receiver, running total of the
# sender's messages handed over. ANNOUNCE: address (8), rkey (4), length (4), then the head.
from libc.stdint cimport uint32_t

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


cdef inline void put32(unsigned char *to, uint32_t value) noexcept:
    to[0], to[1], to[2], to[3] = value >> 24, (value >> 16) & 0xff, (value >> 8) & 0xff, value & 0xff


cdef inline uint32_t get32(const unsigned char *at) noexcept:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]
