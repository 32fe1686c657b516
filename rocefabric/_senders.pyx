# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False
"""How a port sends: pauses first, notifications up to their cap, then RoCE and everything else by weight."""

from libc.stdint cimport int32_t, int64_t

from rocefabric._buffers cimport Buffers
from rocefabric._rate cimport rate_sent, rate_when
from rocefabric._state cimport (
    ARRIVE, BULK, CNP, DATA, DONE, PAUSE, PAUSE_WIRE, ROCE, WAKE, Flow, Node, Port,
)

cdef int64_t NEVER = 0x7fffffffffffffff


cdef class Senders(Buffers):
    """Ports of switches send what is queued, those of hosts what their flows have."""

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
                when = rate_when(&flow.rate, &node.profile, self.now)
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
            rate_sent(&flow.rate, &self.nodes[flow.node].profile, self.now, wire)
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
                head = port.queues[ROCE].head
                if self.mark_departing and self.packets[head].kind == DATA:
                    self.mark(port, &self.packets[head])
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
