# What the simulator's parts share: packets, ports, flows, and the heap of events.
from libc.stdint cimport int8_t, int32_t, int64_t, uint64_t

from rocefabric._rate cimport Profile, Rate

cdef enum:
    BULK = 0
    ROCE = 1
    CNP = 2
    CLASSES = 3

cdef enum Kind:
    DATA = 0
    ACK = 1
    NAK = 2
    NOTE = 3

cdef enum What:
    ARRIVE = 0
    DONE = 1
    PAUSE = 2
    ANSWER = 3
    WAKE = 4
    START = 5
    TIMEOUT = 6
    FAIL = 7
    REROUTE = 8
    DRAINED = 9
    LOOK = 10
    WATCH = 11
    RESTORE = 12

cdef enum:
    BUCKETS = 20000  # of latency,
    BUCKET_PS = 100000
    DRAIN_HIGH_PS = 20000000  # what a slow host holds back before it pauses, and when it resumes
    DRAIN_LOW_PS = 10000000

cdef enum:
    PAUSE_WIRE = 84
    CONTROL_WIRE = 86
    NOTE_WIRE = 98

cdef struct Packet:
    int32_t flow
    int32_t seq
    int32_t wire
    int32_t cells
    int32_t hops     # offset of its path
    int32_t hop
    int32_t ingress  # port of the switch it is in
    int32_t after    # next in the queue, or in the list of free ones
    int8_t kind
    int8_t group
    int8_t marked
    int64_t ready
    int64_t born

cdef struct Queue:
    int32_t head
    int32_t tail
    int64_t cells

cdef struct Port:
    int32_t node
    int32_t peer
    int64_t byte_ps
    int64_t delay_ps
    Queue queues[3]
    int64_t deficit[3]
    int32_t turn
    int32_t sending
    bint busy
    bint paused
    bint storming  # the watchdog drops what is for this port, whatever its pauses
    bint down
    int64_t wake_at
    # pauses that this port sends
    bint wanted
    bint told
    bint due
    int64_t headroom
    int64_t guaranteed_used
    int64_t shared_used
    int64_t headroom_used
    # marking
    double average
    int64_t ticked
    double kmin
    double kmax
    double pmax
    int64_t spared  # packets since the last mark, and the lot that the next one waits for; -1: none is drawn
    double lot
    # cap of the strict queue, and how slowly the host takes its packets
    int64_t cap_ps
    int64_t cap_ready
    int64_t drain_ps
    int64_t free_at
    # counted
    int64_t pauses
    int64_t paused_at
    int64_t paused_ps
    int64_t most_cells
    int64_t most_headroom
    int64_t marks
    int64_t lossless_drops
    int64_t lossy_drops
    int64_t sent_bytes
    int64_t received_bytes
    int64_t notes

cdef struct Node:
    bint is_switch
    int64_t shared
    int64_t shared_used
    int64_t guarantee
    double alpha
    double lossy_alpha
    int64_t latency_ps
    # host: its reaction point's parameters, and its flows with something to send, a circle through their `beside`
    Profile profile
    int32_t first
    int32_t last_served
    int32_t flows

cdef struct Flow:
    int32_t node
    int32_t forth
    int32_t back
    int32_t packets
    int32_t group
    int32_t wire
    int32_t last_wire
    int32_t ack_every
    int32_t then_first  # flows that start when this one has arrived: the first, and the one after this
    int32_t then_next
    int32_t beside
    int64_t start_ps
    bint running
    bint finished
    int32_t next_seq
    int32_t una
    int32_t una_before
    int32_t expected
    bint naked
    double window
    double threshold
    int64_t noted_at  # when the receiver last notified, or last looked whether it must
    bint noticed      # a packet was marked since
    Rate rate
    int64_t done_at
    int64_t resent
    int64_t timeouts
    int64_t notes
    int64_t received

cdef struct Event:
    int64_t at
    uint64_t order
    int32_t what
    int32_t a
    int32_t b

cdef struct Heap:
    Event *events
    int64_t size
    int64_t room
    uint64_t order


cdef inline bint before(const Event *x, const Event *y) noexcept nogil:
    return x.at < y.at or (x.at == y.at and x.order < y.order)


# The caller has made room.
cdef inline void heap_put(Heap *heap, int64_t at, int32_t what, int32_t a, int32_t b) noexcept nogil:
    cdef int64_t place = heap.size, above
    cdef Event event
    event.at, event.order, event.what, event.a, event.b = at, heap.order, what, a, b
    heap.order += 1
    heap.size += 1
    while place:
        above = (place - 1) >> 2
        if not before(&event, &heap.events[above]):
            break
        heap.events[place] = heap.events[above]
        place = above
    heap.events[place] = event


cdef inline Event heap_take(Heap *heap) noexcept nogil:
    cdef Event first = heap.events[0], last
    cdef int64_t place = 0, child, best, end
    heap.size -= 1
    last = heap.events[heap.size]
    while True:
        child = 4 * place + 1
        if child >= heap.size:
            break
        best = child
        end = child + 4 if child + 4 < heap.size else heap.size
        child += 1
        while child < end:
            if before(&heap.events[child], &heap.events[best]):
                best = child
            child += 1
        if not before(&heap.events[best], &last):
            break
        heap.events[place] = heap.events[best]
        place = best
    heap.events[place] = last
    return first
