# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False
"""A switch's buffer: guarantee, share and headroom of each ingress port, pauses, and ECN marks."""

from libc.math cimport pow
from libc.stdint cimport int32_t, int64_t, uint64_t

from rocefabric._parts cimport Parts
from rocefabric._state cimport ANSWER, ROCE, Node, Packet, Port


cdef class Buffers(Parts):
    """What is accounted when packets come and go."""

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
            port.spared = -1
            return
        if queue > port.kmax:
            port.spared = -1
        elif not self.drawn(port, port.pmax * (queue - port.kmin) / (port.kmax - port.kmin)):
            return
        packet.marked = 1
        port.marks += 1

    # Independent of each other, or as Linux' RED spaces them: after a number of packets that is even between 1 and 1/share.
    cdef bint drawn(self, Port *port, double share) noexcept nogil:
        if not self.spaced_marks:
            return self.draw() < share
        port.spared += 1
        if port.spared == 0:
            port.lot = self.draw()
            return False
        if port.spared * share < port.lot:
            return False
        port.spared = 0
        port.lot = self.draw()
        return True
