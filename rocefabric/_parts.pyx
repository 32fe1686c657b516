# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False
"""What a simulation consists of: nodes, cables, flows, packets and the queue of events, and how they are added."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from rocefabric._rate cimport profile_of
from rocefabric._state cimport (
    BUCKETS, BULK, CLASSES, FAIL, REROUTE, ROCE, START, Event, Flow, Heap, Node, Packet, Port, Queue, heap_put,
)

cdef int64_t NEVER = 0x7fffffffffffffff


cdef class Parts:
    """Built by its methods, run by `Simulation`."""

    def __cinit__(self, profile, options):
        memset(&self.heap, 0, sizeof(Heap))
        self.profile = profile_of(profile)
        self.random = options.seed * 0x9E3779B97F4A7C15 & 0xffffffffffffffff or 1
        self.cell, self.window = options.cell_bytes, options.window
        self.answer_ps, self.obey_ps = options.answer_ps, options.obey_ps
        self.resume_cells, self.poll_ps, self.weight = options.resume_cells, options.poll_ps, options.weight
        self.mark_departing, self.spaced_marks = options.mark_departing, options.spaced_marks
        self.interval_ps, self.timeout_ps = options.cnp_interval_ps, options.timeout_ps
        self.note_at_interval = options.cnp_at_interval
        self.watchdog_ps, self.restore_ps = options.watchdog_ps, options.restore_ps
        self.weights[BULK], self.weights[ROCE] = options.bulk_quantum, options.roce_quantum
        self.free_packet = -1
        self.latency = <int64_t *> calloc(BUCKETS, sizeof(int64_t))
        if self.latency == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.heap.events)
        free(self.nodes)
        free(self.ports)
        free(self.flows)
        free(self.packets)
        free(self.hops)
        free(self.ways)
        free(self.latency)

    cdef int add_node(self) except -1:
        cdef void *more = realloc(self.nodes, (self.node_count + 1) * sizeof(Node))
        if more == NULL:
            raise MemoryError
        self.nodes = <Node *> more
        memset(&self.nodes[self.node_count], 0, sizeof(Node))
        self.nodes[self.node_count].first = self.nodes[self.node_count].last_served = -1
        self.node_count += 1
        return self.node_count - 1

    def add_host(self) -> int:
        """A node that sends and receives."""
        return self.add_node()

    def add_switch(self, shared: int, guarantee: int, alpha: float, lossy_alpha: float, latency_ps: int) -> int:
        """A node that forwards; buffers in cells."""
        cdef int at = self.add_node()
        cdef Node *node = &self.nodes[at]
        node.is_switch, node.shared, node.guarantee = True, shared, guarantee
        node.alpha, node.lossy_alpha, node.latency_ps = alpha, lossy_alpha, latency_ps
        return at

    def add_cable(self, one: int, other: int, byte_ps: int, delay_ps: int) -> int:
        """Two ports, one at each node; returns the first one's, the second's is one more."""
        cdef void *more = realloc(self.ports, (self.port_count + 2) * sizeof(Port))
        cdef Port *port
        cdef int at, group
        if more == NULL:
            raise MemoryError
        self.ports = <Port *> more
        for at in range(2):
            port = &self.ports[self.port_count + at]
            memset(port, 0, sizeof(Port))
            port.node, port.peer = one if at == 0 else other, self.port_count + 1 - at
            port.byte_ps, port.delay_ps, port.sending = byte_ps, delay_ps, -1
            port.kmin = port.kmax = 1e18
            port.spared = -1
            for group in range(CLASSES):
                port.queues[group].head = port.queues[group].tail = -1
            if self.nodes[port.node].profile.step_ps == 0:
                self.nodes[port.node].profile = self.profile
                if self.profile.line_bps == 0:
                    self.nodes[port.node].profile.line_bps = 8e12 / byte_ps
        self.port_count += 2
        return self.port_count - 2

    def set_port(self, at: int, headroom: int, kmin: float, kmax: float, pmax: float, cap_ps: int, drain_ps: int):
        """Settings of one port. ``cap_ps``: per byte of the strict queue; ``drain_ps``: per byte a host takes."""
        cdef Port *port = &self.ports[at]
        port.headroom, port.kmin, port.kmax, port.pmax = headroom, kmin, kmax, pmax
        port.cap_ps, port.drain_ps = cap_ps, drain_ps

    cdef int32_t path(self, ports) except -1:
        cdef int64_t begin = self.hop_count
        cdef void *more = realloc(self.hops, (begin + len(ports)) * sizeof(int32_t))
        if more == NULL:
            raise MemoryError
        self.hops = <int32_t *> more
        for at, each in enumerate(ports):
            # -1 at the end: the packet's TTL is over, wherever it is then.
            if not 0 <= each < self.port_count and (each != -1 or at == 0 or at != len(ports) - 1):
                raise IndexError("no such port")
            self.hops[self.hop_count] = each
            self.hop_count += 1
        return <int32_t> begin

    def add_flow(self, forth, back, packets: int, wire: int, last_wire: int, roce: bool, start_ps: int, after: int):
        """Packets along the ports `forth`, answers along `back`; those of a path that ends with -1 end there.

        It starts at ``start_ps``, or that long after flow ``after`` has arrived, unless that is -1.
        """
        cdef void *more = realloc(self.flows, (self.flow_count + 1) * sizeof(Flow))
        cdef Flow *flow
        if more == NULL:
            raise MemoryError
        self.flows = <Flow *> more
        if after >= self.flow_count:
            raise IndexError("no such flow")
        flow = &self.flows[self.flow_count]
        memset(flow, 0, sizeof(Flow))
        flow.forth, flow.back = self.path(forth), self.path(back)
        flow.node = self.ports[self.hops[flow.forth]].node
        flow.packets, flow.wire, flow.last_wire = packets, wire, last_wire
        # Often in a small window: a sender asks for answers before its window is full.
        flow.group, flow.ack_every = (ROCE, max(1, min(16, <int> self.window // 4))) if roce else (BULK, 1)
        flow.window, flow.threshold = self.window if roce else 10, self.window
        flow.start_ps, flow.then_first, flow.beside, flow.then_next = start_ps, -1, -1, -1
        flow.noted_at, flow.una_before, flow.done_at = -NEVER // 2, -1, -1
        self.flow_count += 1
        if after < 0:
            self.room(1)
            heap_put(&self.heap, start_ps, START, self.flow_count - 1, 0)
        else:
            flow.then_next = self.flows[after].then_first
            self.flows[after].then_first = self.flow_count - 1
        return self.flow_count - 1

    def fail(self, at_ps: int, port: int) -> None:
        """The cable of a port breaks."""
        self.room(1)
        heap_put(&self.heap, at_ps, FAIL, port, 0)

    def reroute(self, at_ps: int, flow: int, forth, back) -> None:
        """New packets of a flow take other ports."""
        cdef void *more = realloc(self.ways, 2 * (self.way_count + 1) * sizeof(int32_t))
        if more == NULL:
            raise MemoryError
        self.ways = <int32_t *> more
        self.ways[2 * self.way_count], self.ways[2 * self.way_count + 1] = self.path(forth), self.path(back)
        self.room(1)
        heap_put(&self.heap, at_ps, REROUTE, flow, self.way_count)
        self.way_count += 1

    cdef int room(self, int64_t more) except -1 nogil:
        cdef void *grown
        if self.heap.size + more > self.heap.room:
            grown = realloc(self.heap.events, (2 * self.heap.room + more + 1024) * sizeof(Event))
            if grown == NULL:
                with gil:
                    raise MemoryError
            self.heap.events = <Event *> grown
            self.heap.room = 2 * self.heap.room + more + 1024
        return 0

    # One event makes at most four packets: room for them before it is handled, so that pointers stay valid.
    cdef int make_room(self) except -1 nogil:
        cdef void *grown
        if self.live + 8 > self.packet_room:
            grown = realloc(self.packets, (2 * self.packet_room + 1024) * sizeof(Packet))
            if grown == NULL:
                with gil:
                    raise MemoryError
            self.packets = <Packet *> grown
            self.packet_room = 2 * self.packet_room + 1024
        return 0

    cdef void put(self, int64_t at, int32_t what, int32_t a, int32_t b) noexcept nogil:
        heap_put(&self.heap, at, what, a, b)

    cdef int32_t make(self, int32_t flow, int kind, int32_t seq, int32_t wire, int group, int32_t hops) noexcept nogil:
        cdef int32_t at = self.free_packet
        cdef Packet *packet
        if at >= 0:
            self.free_packet = self.packets[at].after
        else:
            at = <int32_t> self.live
        packet = &self.packets[at]
        packet.flow, packet.kind, packet.seq, packet.wire, packet.group = flow, kind, seq, wire, group
        packet.hops, packet.hop, packet.marked, packet.after = hops, 0, 0, -1
        packet.cells = <int32_t> ((wire - 20 + self.cell - 1) // self.cell)
        packet.born = packet.ready = self.now
        packet.ingress = -1
        self.created += 1
        self.live += 1
        return at

    cdef void drop(self, int32_t at) noexcept nogil:
        self.packets[at].after = self.free_packet
        self.free_packet = at
        self.live -= 1

    cdef void push(self, Port *port, int32_t at) noexcept nogil:
        cdef Queue *queue = &port.queues[self.packets[at].group]
        self.packets[at].after = -1
        if queue.head < 0:
            queue.head = at
        else:
            self.packets[queue.tail].after = at
        queue.tail = at
        queue.cells += self.packets[at].cells

    cdef int32_t pop(self, Port *port, int group) noexcept nogil:
        cdef Queue *queue = &port.queues[group]
        cdef int32_t at = queue.head
        queue.head = self.packets[at].after
        queue.cells -= self.packets[at].cells
        return at
