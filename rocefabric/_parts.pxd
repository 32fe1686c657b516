# What a simulation consists of.
from libc.stdint cimport int32_t, int64_t, uint64_t

from rocefabric._rate cimport Profile
from rocefabric._state cimport Flow, Heap, Node, Packet, Port


cdef class Parts:
    cdef Heap heap
    cdef Node *nodes
    cdef Port *ports
    cdef Flow *flows
    cdef Packet *packets
    cdef int32_t *hops
    cdef int64_t *latency
    cdef int32_t node_count, port_count, flow_count, packet_room, free_packet
    cdef int64_t hop_count
    cdef int32_t *ways  # two paths for each change of a flow's route
    cdef int32_t way_count
    cdef uint64_t random
    cdef Profile profile
    cdef public object trace
    cdef int64_t cell, answer_ps, obey_ps, resume_cells, poll_ps, interval_ps, timeout_ps, watchdog_ps, restore_ps
    cdef bint mark_departing, spaced_marks, note_at_interval
    cdef double weight, window
    cdef int64_t weights[3]
    cdef readonly int64_t now
    cdef readonly int64_t events
    cdef readonly int64_t created, delivered, lossless_drops, lossy_drops, lost, live, pauses, slowest_ps
    cdef readonly int64_t expired, watchdogs, watchdog_drops

    cdef int add_node(self) except -1
    cdef int32_t path(self, ports) except -1
    cdef int room(self, int64_t more) except -1 nogil
    cdef void put(self, int64_t at, int32_t what, int32_t a, int32_t b) noexcept nogil
    cdef int make_room(self) except -1 nogil
    cdef int32_t make(self, int32_t flow, int kind, int32_t seq, int32_t wire, int group, int32_t hops) noexcept nogil
    cdef void drop(self, int32_t at) noexcept nogil
    cdef void push(self, Port *port, int32_t at) noexcept nogil
    cdef int32_t pop(self, Port *port, int group) noexcept nogil
