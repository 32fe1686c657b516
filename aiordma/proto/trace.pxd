# C types of trace.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from .rpc cimport part, room

@cython.locals(time=uint64_t)
cdef int64_t _time(const unsigned char* block, int at) noexcept
@cython.locals(value=uint64_t, place=int)
cdef uint64_t _u64(const unsigned char* data, int at) noexcept

@cython.locals(place=int)
cdef void _put(unsigned char* out, int at, uint64_t value) noexcept
@cython.locals(out=bytearray)
cdef bytes _block(uint64_t number, uint64_t first, uint64_t second, uint64_t third, uint64_t fourth)

@cython.final
cdef class ClientTrace:
    cdef readonly uint64_t number
    cdef readonly str method
    cdef readonly int64_t created
    cdef public bint on_wire
    cdef public str peer
    cdef public int64_t offset
    cdef readonly int64_t sent
    cdef readonly int64_t arrived
    cdef readonly int64_t done
    cdef readonly int64_t received
    cdef readonly int64_t started
    cdef readonly int64_t finished
    cdef readonly int64_t replied
    cdef readonly int code

    cdef void _begin(self, uint64_t number, str method, int64_t created)
    cpdef bytes block(self, int64_t now)
    cpdef void left(self, int64_t now)
    @cython.locals(received=int64_t, started=int64_t, finished=int64_t, replied=int64_t)
    cpdef int arrive(self, bytes block, int64_t now) except -1
    cpdef int64_t end(self, int64_t now, int code) except? -1
    @cython.locals(out=int64_t, back=int64_t)
    cpdef stages(self, int64_t offset)

@cython.final
cdef class ServerTrace:
    cdef readonly uint64_t number
    cdef readonly str method
    cdef readonly int64_t received
    cdef public int64_t started
    cdef public int64_t finished
    cdef readonly int64_t replied
    cdef public int code
    cdef public str peer

    cdef void _begin(self, uint64_t number, str method, int64_t received)
    cpdef bytes block(self, int64_t now)

@cython.final
cdef class ClockOffset:
    cdef readonly int window
    cdef readonly uint64_t samples
    cdef readonly int64_t offset
    cdef readonly int64_t round_trip
    cdef int64_t _best_offset
    cdef int64_t _best_trip

    @cython.locals(trip=int64_t, offset=int64_t)
    cpdef void add(self, int64_t sent, int64_t received, int64_t replied, int64_t arrived)

@cython.final
cdef class Histogram:
    cdef object _array
    cdef uint64_t[::1] counts
    cdef readonly uint64_t count
    cdef readonly uint64_t total
    cdef readonly int64_t highest

    @cython.locals(at=int)
    cpdef void add(self, int64_t value)
    @cython.locals(at=int, seen=uint64_t, wanted=uint64_t)
    cpdef int64_t percentile(self, double share)
    @cython.locals(at=int)
    cpdef list buckets(self)

@cython.locals(shift=int)
cpdef int bucket_of(int64_t value)
@cython.locals(top=int64_t)
cpdef int64_t limit_of(int at)

cdef class Tracer:
    cdef public object clock
    cdef public uint64_t base
    cdef public uint64_t counter
    cdef public bint requests
    cdef public bint handlers
    cdef public bint on_wire
    cdef public uint64_t sample
    cdef public int64_t slow_request
    cdef public int64_t slow_handler
    cdef public object calls
    cdef public object handled
    cdef public dict call_times
    cdef public dict handler_times

    # Not cpdef: a subclass in Python would be searched for an override at each moment of a call.
    cdef int64_t _now(self) except? -1
    @cython.locals(on_wire=bint, trace=ClientTrace)
    cpdef ClientTrace begin(self, str method)
    cpdef bytes block(self, ClientTrace trace)
    cpdef left(self, ClientTrace trace)
    cpdef arrived(self, ClientTrace trace, bytes block)
    @cython.locals(took=int64_t)
    cpdef end(self, ClientTrace trace, int code, str peer, ClockOffset offset)
    @cython.locals(trace=ServerTrace)
    cpdef ServerTrace received(self, bytes block, str method)
    cpdef started(self, ServerTrace trace)
    cpdef finished(self, ServerTrace trace)
    @cython.locals(took=int64_t, block=bytes)
    cpdef bytes reply(self, ServerTrace trace, int code, str peer)

@cython.locals(found=Histogram)
cdef Histogram times(dict histograms, str method)
