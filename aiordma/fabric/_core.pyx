# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False
"""The simulator's engine: packets through shared-buffer switches, event by event.

Times are picoseconds, buffers are cells. Deterministic: events of one time happen in the order in which they were
scheduled, and the only random numbers, for marking, come from the seed. `tests/fabric/reference.py` is the same
in plain Python; both must do the same event by event.
"""

from libc.math cimport pow
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from aiordma.fabric._rate cimport Profile, Rate, profile_of, rate_catch_up, rate_notified, rate_sent, rate_when
from aiordma.fabric._state cimport (
    ACK, ANSWER, ARRIVE, BULK, CLASSES, CNP, CONTROL_WIRE, DATA, DONE, DRAINED, FAIL, NAK, NOTE, NOTE_WIRE, PAUSE,
    PAUSE_WIRE, REROUTE, ROCE, START, TIMEOUT, WAKE, Event, Flow, Heap, Node, Packet, Port, Queue, heap_put, heap_take,
)

cdef int64_t NEVER = 0x7fffffffffffffff
cdef int BUCKETS = 20000       # of latency, 100 ns each
cdef int64_t BUCKET_PS = 100000
cdef int64_t DRAIN_HIGH_PS = 20000000  # what a slow host holds back before it pauses, and when it resumes
cdef int64_t DRAIN_LOW_PS = 10000000


cdef class Simulation:
    """One run. Add switches, hosts, cables and flows, then `run()`, as often as wanted."""

    cdef Heap heap
    cdef Node *nodes
    cdef Port *ports
    cdef Flow *flows
    cdef Packet *packets
    cdef int32_t *hops
    cdef int64_t *latency
    cdef int32_t node_count, port_count, flow_count, packet_room, free_packet
    cdef int64_t hop_count
    cdef uint64_t random
    cdef Profile profile
    cdef bint out_of_memory
    cdef public object trace
    cdef int64_t cell, answer_ps, obey_ps, resume_cells, poll_ps, interval_ps, timeout_ps
    cdef double weight, window
    cdef int64_t weights[3]
    cdef readonly int64_t now
    cdef readonly int64_t events
    cdef readonly int64_t created, delivered, lossless_drops, lossy_drops, lost, live, pauses, slowest_ps

    def __cinit__(self, profile, options):
        memset(&self.heap, 0, sizeof(Heap))
        self.profile = profile_of(profile)
        self.random = options.seed * 0x9E3779B97F4A7C15 & 0xffffffffffffffff or 1
        self.cell, self.window = options.cell_bytes, options.window
        self.answer_ps, self.obey_ps = options.answer_ps, options.obey_ps
        self.resume_cells, self.poll_ps, self.weight = options.resume_cells, options.poll_ps, options.weight
        self.interval_ps, self.timeout_ps = options.cnp_interval_ps, options.timeout_ps
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
        free(self.latency)

    # ---- building

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
            for group in range(CLASSES):
                port.queues[group].head = port.queues[group].tail = -1
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
        for each in ports:
            if not 0 <= each < self.port_count:
                raise IndexError("no such port")
            self.hops[self.hop_count] = each
            self.hop_count += 1
        return <int32_t> begin

    def add_flow(self, forth, back, packets: int, wire: int, last_wire: int, roce: bool, start_ps: int, after: int):
        """Packets along the ports `forth`, answers along `back`.

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
        flow.group, flow.ack_every = (ROCE, 16) if roce else (BULK, 1)
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
        self.flows[flow].next_forth, self.flows[flow].next_back = self.path(forth), self.path(back)
        self.room(1)
        heap_put(&self.heap, at_ps, REROUTE, flow, 0)

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

    cdef void put(self, int64_t at, int32_t what, int32_t a, int32_t b) noexcept nogil:
        heap_put(&self.heap, at, what, a, b)

    # ---- packets

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

    # ---- a switch's buffer

    # Takes the cells of a lossless packet: from the guarantee, the share, or the headroom. False: no room.
    cdef bint admit(self, Node *node, Port *port, int32_t at, int64_t cells) noexcept nogil:
        cdef int64_t own = node.guarantee - port.guaranteed_used
        cdef int64_t rest
        if own > cells:
            own = cells
        rest = cells - own
        if rest and (
            port.shared_used + rest > node.alpha * (node.shared - node.shared_used)
            or node.shared_used + rest > node.shared
        ):
            if port.headroom_used + rest > port.headroom:
                return False
            port.headroom_used += rest
            if port.headroom_used > port.most_headroom:
                port.most_headroom = port.headroom_used
            if not port.wanted:
                port.wanted = True
                self.put(self.now + self.answer_ps, ANSWER, at, 0)
        else:
            port.shared_used += rest
            node.shared_used += rest
        port.guaranteed_used += own
        return True

    cdef void release(self, int32_t at) noexcept nogil:
        cdef Packet *packet = &self.packets[at]
        cdef Port *port = &self.ports[packet.ingress]
        cdef Node *node = &self.nodes[port.node]
        cdef int64_t rest = packet.cells, part
        cdef double level
        if packet.group != ROCE:
            node.shared_used -= rest
            return
        part = rest if rest < port.headroom_used else port.headroom_used
        port.headroom_used -= part
        rest -= part
        part = rest if rest < port.shared_used else port.shared_used
        port.shared_used -= part
        node.shared_used -= part
        port.guaranteed_used -= rest - part
        if port.wanted and port.headroom_used == 0:
            level = node.alpha * (node.shared - node.shared_used) - self.resume_cells
            if port.shared_used <= (level if level > 0 else 0):
                port.wanted = False
                self.put(self.now + self.answer_ps, ANSWER, packet.ingress, 0)

    cdef void look(self, Port *port) noexcept nogil:
        cdef int64_t looks, queue = port.queues[ROCE].cells
        if self.poll_ps == 0:
            return
        looks = self.now // self.poll_ps - port.ticked
        if looks <= 0:
            return
        port.ticked += looks
        port.average = queue + (port.average - queue) * pow(1 - self.weight, looks)

    cdef double draw(self) noexcept nogil:
        self.random ^= self.random >> 12
        self.random ^= self.random << 25
        self.random ^= self.random >> 27
        return ((self.random * <uint64_t> 0x2545F4914F6CDD1D) >> 11) * (1.0 / 9007199254740992.0)

    cdef void mark(self, Port *port, Packet *packet) noexcept nogil:
        cdef double queue = port.average if self.poll_ps else port.queues[ROCE].cells
        if queue <= port.kmin:
            return
        if queue > port.kmax or self.draw() < port.pmax * (queue - port.kmin) / (port.kmax - port.kmin):
            packet.marked = 1
            port.marks += 1

    cdef void through_switch(self, int32_t at, int32_t ingress) noexcept nogil:
        cdef Packet *packet = &self.packets[at]
        cdef Port *source = &self.ports[ingress]
        cdef int32_t out = self.hops[packet.hops + packet.hop]
        cdef Port *port = &self.ports[out]
        cdef Node *node = &self.nodes[source.node]
        if port.down:
            self.lost += 1
            self.drop(at)
            return
        if packet.group == ROCE:
            if not self.admit(node, source, ingress, packet.cells):
                source.lossless_drops += 1
                self.lossless_drops += 1
                self.drop(at)
                return
            self.look(port)
            if packet.kind == DATA:
                self.mark(port, packet)
        else:
            if node.shared_used + packet.cells > node.shared or (
                packet.group == BULK
                and port.queues[BULK].cells + packet.cells > node.lossy_alpha * (node.shared - node.shared_used)
            ):
                source.lossy_drops += 1
                self.lossy_drops += 1
                self.drop(at)
                return
            node.shared_used += packet.cells
        packet.ingress = ingress
        packet.ready = self.now + node.latency_ps
        self.push(port, at)
        if port.queues[ROCE].cells > port.most_cells:
            port.most_cells = port.queues[ROCE].cells
        self.start(out)

    # ---- sending

    # The next flow of a host that may send a packet of this class now: its number, or -1 with the time of the next.
    cdef int32_t ready_flow(self, Node *node, int group, int64_t *soonest) noexcept nogil:
        cdef int32_t at = node.last_served, seen
        cdef Flow *flow
        cdef int64_t when
        for seen in range(node.flows):
            at = self.flows[at].beside
            flow = &self.flows[at]
            if flow.group != group or flow.next_seq >= flow.packets or flow.next_seq - flow.una >= flow.window:
                continue
            if group == ROCE:
                when = rate_when(&flow.rate, &self.profile, self.now)
                if when > self.now:
                    if when < soonest[0]:
                        soonest[0] = when
                    continue
            return at
        return -1

    cdef int32_t emit(self, int32_t number) noexcept nogil:
        cdef Flow *flow = &self.flows[number]
        cdef int32_t wire = flow.last_wire if flow.next_seq == flow.packets - 1 else flow.wire
        cdef int32_t at = self.make(number, DATA, flow.next_seq, wire, flow.group, flow.forth)
        flow.next_seq += 1
        self.nodes[flow.node].last_served = number
        if flow.group == ROCE:
            rate_sent(&flow.rate, &self.profile, self.now, wire)
        return at

    # Bytes that the class could send now, 0 for none. `flow`: the host's flow that would; -1 if it is a queued packet.
    cdef int64_t offer(self, Port *port, int group, int32_t *flow, int64_t *soonest) noexcept nogil:
        cdef int32_t head = port.queues[group].head
        cdef Node *node = &self.nodes[port.node]
        flow[0] = -1
        if group == ROCE and port.paused:
            return 0
        if head >= 0:
            if self.packets[head].ready > self.now:
                if self.packets[head].ready < soonest[0]:
                    soonest[0] = self.packets[head].ready
                return 0
            return self.packets[head].wire
        if node.is_switch or node.flows == 0:
            return 0
        flow[0] = self.ready_flow(node, group, soonest)
        return self.flows[flow[0]].wire if flow[0] >= 0 else 0

    cdef int weigh(self, Port *port, int64_t roce, int64_t bulk) noexcept nogil:
        cdef int64_t sizes[2]
        if roce == 0 or bulk == 0:
            port.deficit[ROCE] = port.deficit[BULK] = 0
            return ROCE if roce else BULK
        sizes[BULK], sizes[ROCE] = bulk, roce
        while port.deficit[port.turn] < sizes[port.turn]:
            port.turn = 1 - port.turn
            port.deficit[port.turn] += self.weights[port.turn]
        port.deficit[port.turn] -= sizes[port.turn]
        return port.turn

    cdef void start(self, int32_t at) noexcept nogil:
        cdef Port *port = &self.ports[at]
        cdef int64_t soonest = NEVER, roce, bulk
        cdef int32_t flows[2]
        cdef int32_t packet, head
        cdef int group
        if port.busy or port.down:
            return
        if port.due:
            port.due = False
            if port.wanted != port.told:
                self.send_pause(at)
                return
        head = port.queues[CNP].head
        if head >= 0:
            if port.cap_ready > self.now:
                soonest = port.cap_ready
            elif self.packets[head].ready > self.now:
                soonest = self.packets[head].ready
            else:
                port.cap_ready = self.now + port.cap_ps * self.packets[head].wire
                self.send(at, self.pop(port, CNP))
                return
        roce = self.offer(port, ROCE, &flows[ROCE], &soonest)
        bulk = self.offer(port, BULK, &flows[BULK], &soonest)
        if roce == 0 and bulk == 0:
            if soonest != NEVER and (port.wake_at <= self.now or soonest < port.wake_at):
                port.wake_at = soonest
                self.put(soonest, WAKE, at, 0)
            return
        group = self.weigh(port, roce, bulk)
        if flows[group] >= 0:
            packet = self.emit(flows[group])
        else:
            if group == ROCE:
                self.look(port)
            packet = self.pop(port, group)
        self.send(at, packet)

    cdef void send(self, int32_t at, int32_t packet) noexcept nogil:
        cdef Port *port = &self.ports[at]
        cdef int64_t done = self.now + self.packets[packet].wire * port.byte_ps
        port.busy, port.sending = True, packet
        port.sent_bytes += self.packets[packet].wire
        self.put(done, DONE, at, 0)
        self.put(done + port.delay_ps, ARRIVE, at, packet)

    cdef void send_pause(self, int32_t at) noexcept nogil:
        cdef Port *port = &self.ports[at]
        cdef int64_t done = self.now + PAUSE_WIRE * port.byte_ps
        port.told = port.wanted
        port.busy, port.sending = True, -1
        if port.told:
            port.pauses += 1
            self.pauses += 1
        self.put(done, DONE, at, 0)
        self.put(done + port.delay_ps + self.obey_ps, PAUSE, port.peer, port.told)

    # ---- receiving

    cdef void answer(self, int32_t number, int kind, int32_t seq, int32_t port) noexcept nogil:
        cdef Flow *flow = &self.flows[number]
        cdef int group = CNP if kind == NOTE else flow.group
        cdef int32_t wire = NOTE_WIRE if kind == NOTE else CONTROL_WIRE
        self.push(&self.ports[port], self.make(number, kind, seq, wire, group, flow.back))
        self.start(port)

    cdef void received(self, int32_t at, Packet *packet) noexcept nogil:
        cdef Port *port = &self.ports[at]
        cdef int64_t took = self.now - packet.born, bucket
        if port.drain_ps:
            port.free_at = (port.free_at if port.free_at > self.now else self.now) + packet.wire * port.drain_ps
            took = port.free_at - packet.born
            if port.free_at - self.now > DRAIN_HIGH_PS and not port.wanted:
                port.wanted = True
                self.put(self.now + self.answer_ps, ANSWER, at, 0)
                self.put(port.free_at - DRAIN_LOW_PS, DRAINED, at, 0)
        port.received_bytes += packet.wire
        if took > self.slowest_ps:
            self.slowest_ps = took
        bucket = took // BUCKET_PS
        self.latency[bucket if bucket < BUCKETS else BUCKETS - 1] += 1

    cdef void deliver(self, int32_t at, int32_t arrived) noexcept nogil:
        cdef Packet packet = self.packets[at]
        cdef Flow *flow = &self.flows[packet.flow]
        cdef Port *port = &self.ports[arrived]
        self.delivered += 1
        self.drop(at)
        if packet.kind != DATA:
            self.told(packet.flow, packet.kind, packet.seq, arrived)
            return
        if packet.group == ROCE:
            self.received(arrived, &packet)
        if packet.marked and self.now - flow.noted_at >= self.interval_ps:
            flow.noted_at = self.now
            port.notes += 1
            self.answer(packet.flow, NOTE, 0, arrived)
        if packet.seq != flow.expected:
            if packet.seq < flow.expected:
                self.answer(packet.flow, ACK, flow.expected, arrived)
            elif not flow.naked:
                flow.naked = True
                self.answer(packet.flow, NAK, flow.expected, arrived)
            return
        flow.naked = False
        flow.expected += 1
        flow.received += packet.wire
        if flow.expected == flow.packets:
            flow.done_at = self.now
            self.follow(packet.flow)
        if flow.expected % flow.ack_every == 0 or flow.expected == flow.packets:
            self.answer(packet.flow, ACK, flow.expected, arrived)

    # Starts the flows that waited for this one.
    cdef void follow(self, int32_t done) noexcept nogil:
        cdef int32_t each = self.flows[done].then_first
        while each >= 0:
            self.put(self.now + self.flows[each].start_ps, START, each, 0)
            each = self.flows[each].then_next
        self.flows[done].then_first = -1

    cdef void told(self, int32_t number, int kind, int32_t seq, int32_t arrived) noexcept nogil:
        cdef Flow *flow = &self.flows[number]
        cdef int32_t fresh = seq - flow.una
        if kind == NOTE:
            flow.notes += 1
            rate_notified(&flow.rate, &self.profile, self.now)
            return
        if fresh > 0:
            flow.una = seq
            if flow.next_seq < seq:
                flow.next_seq = seq
            if flow.group == BULK:
                flow.window += fresh if flow.window < flow.threshold else fresh / flow.window
                if flow.window > self.window:
                    flow.window = self.window
        if kind == NAK and seq >= flow.una and flow.next_seq > seq:
            flow.resent += flow.next_seq - seq
            flow.next_seq = seq
            if flow.group == BULK:
                flow.threshold = flow.window / 2 if flow.window > 4 else 2
                flow.window = flow.threshold
        if flow.una >= flow.packets and flow.running:
            self.finish(number)
        self.start(arrived)

    cdef void begin(self, int32_t number) noexcept nogil:
        cdef Flow *flow = &self.flows[number]
        cdef Node *node = &self.nodes[flow.node]
        flow.running = True
        flow.rate.measured_at = self.now
        if node.flows == 0:
            flow.beside = node.last_served = number
        else:
            flow.beside = self.flows[node.last_served].beside
            self.flows[node.last_served].beside = number
            node.last_served = number
        node.flows += 1
        self.put(self.now + self.timeout_ps, TIMEOUT, number, 0)
        self.start(self.hops[flow.forth])

    cdef void finish(self, int32_t number) noexcept nogil:
        cdef Flow *flow = &self.flows[number]
        cdef Node *node = &self.nodes[flow.node]
        cdef int32_t ahead = number
        flow.running, flow.finished = False, True
        while self.flows[ahead].beside != number:
            ahead = self.flows[ahead].beside
        self.flows[ahead].beside = flow.beside
        node.flows -= 1
        if node.last_served == number:
            node.last_served = ahead

    # ---- events

    cdef void handle(self, Event *event) noexcept nogil:
        cdef Port *port = &self.ports[event.a]
        cdef int32_t at
        if event.what == ARRIVE:
            self.packets[event.b].hop += 1
            if port.down:
                self.lost += 1
                self.drop(event.b)
            elif self.nodes[self.ports[port.peer].node].is_switch:
                self.through_switch(event.b, port.peer)
            else:
                self.deliver(event.b, port.peer)
        elif event.what == DONE:
            at = port.sending
            port.busy, port.sending = False, -1
            if at >= 0 and self.nodes[port.node].is_switch:
                self.release(at)
            self.start(event.a)
        elif event.what == WAKE:
            if port.wake_at == self.now:
                port.wake_at = 0
                self.start(event.a)
        elif event.what == ANSWER:
            port.due = True
            self.start(event.a)
        elif event.what == PAUSE:
            if port.paused and not event.b:
                port.paused_ps += self.now - port.paused_at
            elif event.b and not port.paused:
                port.paused_at = self.now
            port.paused = event.b != 0
            if not port.paused:
                self.start(event.a)
        elif event.what == DRAINED:
            self.drained(event.a)
        else:
            self.seldom(event)

    cdef void drained(self, int32_t at) noexcept nogil:
        cdef Port *port = &self.ports[at]
        if port.free_at - self.now > DRAIN_LOW_PS:
            self.put(port.free_at - DRAIN_LOW_PS, DRAINED, at, 0)
        else:
            port.wanted = False
            self.put(self.now + self.answer_ps, ANSWER, at, 0)

    cdef void seldom(self, Event *event) noexcept nogil:
        cdef Flow *flow = &self.flows[event.a]
        if event.what == START:
            self.begin(event.a)
        elif event.what == TIMEOUT:
            if flow.finished:
                return
            if flow.una == flow.una_before and flow.next_seq > flow.una:
                flow.timeouts += 1
                flow.resent += flow.next_seq - flow.una
                flow.next_seq = flow.una
                flow.naked = False
                if flow.group == BULK:
                    flow.threshold = flow.window / 2 if flow.window > 4 else 2
                    flow.window = 1
            flow.una_before = flow.una
            self.put(self.now + self.timeout_ps, TIMEOUT, event.a, 0)
            self.start(self.hops[flow.forth])
        elif event.what == REROUTE:
            flow.forth, flow.back = flow.next_forth, flow.next_back
            self.start(self.hops[flow.forth])
        elif event.what == FAIL:
            self.break_port(event.a)
            self.break_port(self.ports[event.a].peer)

    # What waits in the port is lost; what is on its way is lost when it would have arrived.
    cdef void break_port(self, int32_t at) noexcept nogil:
        cdef Port *port = &self.ports[at]
        cdef int32_t packet
        cdef int group
        port.down = True
        for group in range(CLASSES):
            while port.queues[group].head >= 0:
                packet = self.pop(port, group)
                if self.packets[packet].ingress >= 0 and self.nodes[port.node].is_switch:
                    self.release(packet)
                self.lost += 1
                self.drop(packet)

    def run(self, until_ps: int) -> int:
        """Handle all events up to and including that time; returns how many they were."""
        cdef int64_t until = until_ps, begin = self.events
        cdef Event event
        cdef bint tracing = self.trace is not None
        with nogil:
            while self.heap.size and self.heap.events[0].at <= until:
                self.room(64 + self.flow_count)
                self.make_room()
                event = heap_take(&self.heap)
                self.now = event.at
                self.events += 1
                if tracing:
                    with gil:
                        self.note(&event)
                self.handle(&event)
        self.now = until
        return self.events - begin

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

    cdef int note(self, Event *event) except -1:
        cdef Packet *packet
        if event.what == ARRIVE:
            packet = &self.packets[event.b]
            self.trace.append((event.at, event.what, event.a, packet.flow, packet.seq, packet.kind, packet.marked))
        else:
            self.trace.append((event.at, event.what, event.a, event.b))
        return 0

    # ---- looking

    def port(self, at: int) -> dict:
        """Everything about one port."""
        found = self.ports[at]
        found["paused_ps"] += self.now - self.ports[at].paused_at if self.ports[at].paused else 0
        return found

    def queue(self, at: int) -> int:
        """Cells in a port's RoCE queue."""
        return self.ports[at].queues[ROCE].cells

    def queues(self) -> list:
        """Cells in the RoCE queue of each port."""
        return [self.ports[at].queues[ROCE].cells for at in range(self.port_count)]

    def pauses_by_port(self) -> list:
        """Pause frames that each port has sent."""
        return [self.ports[at].pauses for at in range(self.port_count)]

    def flow(self, at: int) -> dict:
        """Everything about one flow."""
        return self.flows[at]

    def rate(self, at: int) -> float:
        """Bits per second that a flow may send."""
        cdef Flow *flow = &self.flows[at]
        if flow.rate.paced:
            rate_catch_up(&flow.rate, &self.profile, self.now)
        return flow.rate.current if flow.rate.paced else self.profile.line_bps

    def latencies(self) -> list:
        """Packets of RoCE by time from host to host, in steps of 100 ns; the last one has all slower ones."""
        return [self.latency[at] for at in range(BUCKETS)]

    def used_cells(self, node: int) -> int:
        """What a switch has accounted, over all its ports."""
        found = self.nodes[node].shared_used
        for at in range(self.port_count):
            if self.ports[at].node == node:
                found += self.ports[at].guaranteed_used + self.ports[at].headroom_used
        return found

    def held_cells(self, node: int) -> int:
        """What is in a switch: queued, or being sent."""
        found = 0
        for at in range(self.port_count):
            if self.ports[at].node == node:
                found += sum(self.ports[at].queues[group].cells for group in range(CLASSES))
                if self.ports[at].sending >= 0:
                    found += self.packets[self.ports[at].sending].cells
        return found
