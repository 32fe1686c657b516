# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False
"""What becomes of a packet that arrives: a switch queues it, a host takes it, answers it, or hears from its peer."""

from libc.stdint cimport int32_t, int64_t

from rocefabric._rate cimport rate_notified
from rocefabric._senders cimport Senders
from rocefabric._state cimport (
    ACK, ANSWER, BUCKET_PS, BUCKETS, BULK, CNP, CONTROL_WIRE, DATA, DRAIN_HIGH_PS, DRAIN_LOW_PS, DRAINED, LOOK, NAK, NOTE,
    NOTE_WIRE, ROCE, START, TIMEOUT, Flow, Node, Packet, Port,
)


cdef class Receivers(Senders):
    """Go-back-N and DCQCN's notification point at hosts."""

    cdef void through_switch(self, int32_t at, int32_t ingress) noexcept nogil:
        cdef Packet *packet = &self.packets[at]
        cdef Port *source = &self.ports[ingress]
        cdef int32_t out = self.hops[packet.hops + packet.hop]
        cdef Port *port
        cdef Node *node = &self.nodes[source.node]
        if out < 0:
            self.expired += 1
            self.drop(at)
            return
        port = &self.ports[out]
        if port.down:
            self.lost += 1
            self.drop(at)
            return
        if packet.group == ROCE:
            if port.storming:
                self.watchdog_drops += 1
                self.drop(at)
                return
            if not self.admit(node, source, ingress, packet.cells):
                source.lossless_drops += 1
                self.lossless_drops += 1
                self.drop(at)
                return
            self.look(port)
            if packet.kind == DATA and not self.mark_departing:
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
        self.delivered += 1
        self.drop(at)
        if packet.kind != DATA:
            self.told(packet.flow, packet.kind, packet.seq, arrived)
            return
        if packet.group == ROCE:
            self.received(arrived, &packet)
            self.notify(packet.flow, arrived, packet.marked)
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

    # At once if the last notification is an interval old; or once an interval, from the flow's first packet on.
    cdef void notify(self, int32_t number, int32_t port, bint marked) noexcept nogil:
        cdef Flow *flow = &self.flows[number]
        if self.note_at_interval:
            if marked:
                flow.noticed = True
            if flow.noted_at < 0:
                self.look_for_marks(number, port)
        elif marked and self.now - flow.noted_at >= self.interval_ps:
            flow.noted_at = self.now
            self.ports[port].notes += 1
            self.answer(number, NOTE, 0, port)

    cdef void look_for_marks(self, int32_t number, int32_t port) noexcept nogil:
        cdef Flow *flow = &self.flows[number]
        flow.noted_at = self.now
        if flow.noticed:
            flow.noticed = False
            self.ports[port].notes += 1
            self.answer(number, NOTE, 0, port)
        if flow.done_at < 0:
            self.put(self.now + self.interval_ps, LOOK, number, port)

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
            rate_notified(&flow.rate, &self.nodes[flow.node].profile, self.now)
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
