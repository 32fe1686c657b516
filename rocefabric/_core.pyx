# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False
"""The simulator's engine: packets through shared-buffer switches, event by event.

Times are picoseconds, buffers are cells. Deterministic: events of one time happen in the order in which they were
scheduled, and the only random numbers, for marking, come from the seed. `tests/rocefabric/reference.py` is the same
in plain Python; both must do the same event by event.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport realloc

from rocefabric._rate cimport Profile, rate_catch_up
from rocefabric._receivers cimport Receivers
from rocefabric._state cimport (
    ANSWER, ARRIVE, BUCKETS, BULK, CLASSES, DONE, DRAIN_LOW_PS, DRAINED, FAIL, LOOK, PAUSE, REROUTE, RESTORE, ROCE, START, TIMEOUT,
    WAKE, WATCH,
    Event, Flow, Packet, Port, heap_take,
)


cdef class Simulation(Receivers):
    """One run. Add switches, hosts, cables and flows, then `run()`, as often as wanted."""

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
                if self.watchdog_ps and self.nodes[port.node].is_switch:
                    self.put(self.now + self.watchdog_ps, WATCH, event.a, 0)
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
        elif event.what == LOOK:
            self.look_for_marks(event.a, event.b)
        elif event.what == REROUTE:
            flow.forth, flow.back = self.ways[2 * event.b], self.ways[2 * event.b + 1]
            self.start(self.hops[flow.forth])
        elif event.what == WATCH:
            self.watch(event.a)
        elif event.what == RESTORE:
            self.restore(event.a)
        elif event.what == FAIL:
            self.break_port(event.a)
            self.break_port(self.ports[event.a].peer)

    # A port that was paused all the time, with something to send: its queue is emptied, and takes nothing for a while.
    cdef void watch(self, int32_t at) noexcept nogil:
        cdef Port *port = &self.ports[at]
        cdef int32_t packet
        if not port.paused or port.storming or self.now - port.paused_at < self.watchdog_ps:
            return
        if port.queues[ROCE].head < 0:
            self.put(self.now + self.watchdog_ps, WATCH, at, 0)
            return
        port.storming = True
        self.watchdogs += 1
        while port.queues[ROCE].head >= 0:
            packet = self.pop(port, ROCE)
            self.release(packet)
            self.watchdog_drops += 1
            self.drop(packet)
        self.put(self.now + self.restore_ps, RESTORE, at, 0)

    cdef void restore(self, int32_t at) noexcept nogil:
        if self.ports[at].paused:
            self.put(self.now + self.restore_ps, RESTORE, at, 0)
        else:
            self.ports[at].storming = False

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
                self.room(64 + self.flow_count + self.port_count)
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

    cdef int note(self, Event *event) except -1:
        cdef Packet *packet
        if event.what == ARRIVE:
            packet = &self.packets[event.b]
            self.trace.append((event.at, event.what, event.a, packet.flow, packet.seq, packet.kind, packet.marked))
        else:
            self.trace.append((event.at, event.what, event.a, event.b))
        return 0

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
        cdef const Profile *profile = &self.nodes[flow.node].profile
        if flow.rate.paced:
            rate_catch_up(&flow.rate, profile, self.now)
        return flow.rate.current if flow.rate.paced else profile.line_bps

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
