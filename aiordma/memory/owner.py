"""What a peer has opened here: the owner's end of a connection for memory.

On RDMA an opening is a registration, and this end has no part in READs and WRITEs, nor in atomic operations
where the device has them. Otherwise the peer asks and this event loop does it. Every request is checked
against its opening.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import TYPE_CHECKING

from ..errors import RemoteProtocolError, VerbsError
from ..proto.memory import (
    HEADER,
    PIECE_BYTES,
    WORD_BYTES,
    Descriptor,
    Fault,
    Op,
    Rights,
    head,
    open_answer,
    parse_atomic,
    parse_span,
    word,
)
from ..verbs._window import compare_and_swap, fetch_and_add
from ..verbs.lifetime import release_all
from .atomics import BY_LOOP, atomics_of
from .errors import MemoryAccessError
from .region import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..links.link_memory import LinkMemory, Registration
    from ..wake.base import Handle, Waiter
    from .atomics import Atomics
    from .outbox import Outbox
    from .region import Grant

#: Descriptors that one peer may have open.
MAX_OPENINGS = 4096
#: Answers that wait for room: twice what an honest peer asks for.
_MAX_ANSWERS = 256
_ANSWERS = (Op.OPENED, Op.DONE, Op.REFUSED)
_TAKEN_BACK = "the owner has taken this memory back"


def _refusal_of(fault: Fault, answer: bytes) -> tuple[bytes, bytes]:
    """Instead of an answer with bytes of an opening that is over."""
    _, _, number = HEADER.unpack(answer)
    return head(Op.REFUSED, number, fault), _TAKEN_BACK.encode()


class _OpenGrant:
    """A grant that the peer has opened, by the number of its request."""

    def __init__(self, owner: Owner, number: int, grant: Grant) -> None:
        self._owner, self.number, self.grant = owner, number, grant
        self.registration: Registration | None = None
        self.atomics: Atomics | None = None
        self.why: Fault | None = None
        self._timer: Handle | None = None
        grant.openings.add(self)

    def recall(self, fault: Fault, grace: float) -> None:
        """See :class:`.region.OpenedGrant`."""
        waker = self._owner.registry.waker
        if self.why is None:
            self.why = fault
            self._owner.outbox.send(head(Op.RECALL, self.number, fault))
        if self._timer is not None:
            self._timer.cancel()
        if self.registration is None or grace <= 0:
            self.end()
        else:
            self._timer = waker.call_at(waker.now() + grace, self.end)

    def end(self) -> None:
        """The peer has no access any more: at once, or as soon as its process, which is stopped in the middle
        of one, goes on or ends. Idempotent."""
        registration = self.registration
        if registration is None or registration.closed:
            self.ended()
            return
        try:
            registration.close()
        except BaseException:
            self.ended()
            raise

    def ended(self) -> None:
        """No device knows its memory any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        atomics, self.atomics = self.atomics, None
        if atomics is not None:
            self.grant.region.atomics.leave()
        self._owner.forget(self)
        self.grant.closed(self)


class Owner:
    """The openings of one peer.

    :param memory: the link's; None on TCP.
    """

    def __init__(self, outbox: Outbox, memory: LinkMemory | None) -> None:
        self.outbox, self._memory = outbox, memory
        self.registry = Registry.current()
        self._own_atomics = BY_LOOP if memory is None else atomics_of(memory.device, memory.atomics)
        self._openings: dict[int, _OpenGrant] = {}
        self._waiters: list[Waiter] = []
        #: Nothing is opened any more.
        self._closing = False
        self._ended: OrderedDict[int, Fault] = OrderedDict()

    def forget(self, opening: _OpenGrant) -> None:
        self._openings.pop(opening.number, None)
        # The program may write other things there from now on.
        why = Fault.UNKNOWN if opening.why is None else opening.why
        self.outbox.replace(opening, functools.partial(_refusal_of, why))
        if opening.why is not None:
            self._ended[opening.number] = opening.why
            if len(self._ended) > MAX_OPENINGS:
                self._ended.popitem(last=False)
        if not self._openings:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.set()

    def end(self) -> None:
        """The connection is over."""
        openings = list(self._openings.values())
        release_all("memory of this end that a peer had open", *(each.end for each in openings))

    async def recall_all(self, grace: float) -> None:
        """Have the peer end what it has under way in this end's memory. From now on it opens none."""
        self._closing = True
        for opening in list(self._openings.values()):
            opening.recall(Fault.REVOKED, grace)
        while self._openings:
            waiter = self.registry.waker.new_waiter()
            self._waiters.append(waiter)
            await waiter.wait()

    def receive(self, op: int, number: int, body: memoryview) -> None:
        """A request.

        :raises RemoteProtocolError: no honest peer sends that.
        """
        if len(self.outbox) > _MAX_ANSWERS < self.outbox.waiting(*_ANSWERS):
            raise RemoteProtocolError("more requests for memory than the credit allows")
        try:
            if op == Op.OPEN:
                self._open(number, body)
            elif op == Op.READ:
                view = self._bytes(body, Rights.READ)
                self.outbox.send(head(Op.DONE, number), view, of=self._openings[parse_span(body)[0]])
            elif op == Op.WRITE:
                self._write(body)
                self.outbox.send(head(Op.DONE, number))
            else:
                self.outbox.send(head(Op.DONE, number), word(self._atomic(op, body)))
        except MemoryAccessError as error:
            self.outbox.send(head(Op.REFUSED, number, error.fault), str(error).encode())

    def release(self, number: int) -> None:
        """The peer has ended its use of an opening."""
        opening = self._openings.get(number)
        if opening is not None:
            opening.end()

    def _open(self, number: int, body: memoryview) -> None:
        if number in self._openings:
            raise RemoteProtocolError("two descriptors were opened by one number")
        try:
            descriptor = Descriptor.decode(bytes(body))
        except ValueError as error:
            raise MemoryAccessError(Fault.MALFORMED, str(error)) from error
        grant = self.registry.find(descriptor)
        if self._closing:
            raise MemoryAccessError(Fault.LIMIT, "the owner is closing this connection")
        if self._memory is None:
            grant.region.check_by_loop()
        if len(self._openings) >= MAX_OPENINGS:
            raise MemoryAccessError(Fault.LIMIT, f"more than {MAX_OPENINGS} descriptors open at a time")
        atomics = None
        if descriptor.rights & Rights.ATOMIC:
            if not self._own_atomics.by_device:
                grant.region.check_by_loop()
            atomics = grant.region.atomics.join(self._own_atomics)
        opening = _OpenGrant(self, number, grant)
        opening.atomics = atomics
        address = rkey = 0
        if self._memory is not None:
            try:
                opening.registration = self._register(self._memory, grant, atomics, opening.ended)
            except BaseException as error:
                opening.end()
                if not isinstance(error, (VerbsError, OSError)):
                    raise
                raise MemoryAccessError(Fault.LIMIT, f"the owner cannot register it: {error}") from error
            address, rkey = grant.region.address + grant.start, opening.registration.rkey
        self._openings[number] = opening
        self.outbox.send(
            open_answer(
                number,
                address,
                descriptor.length,
                rkey,
                descriptor.rights,
                atomics_by_device=atomics is not None and atomics.by_device,
            )
        )

    @staticmethod
    def _register(
        memory: LinkMemory, grant: Grant, atomics: Atomics | None, on_close: Callable[[], None]
    ) -> Registration:
        from ..verbs.abi import Access

        access = Access.NONE
        if grant.descriptor.rights & Rights.READ:
            access |= Access.REMOTE_READ
        if grant.descriptor.rights & Rights.WRITE:
            access |= Access.LOCAL_WRITE | Access.REMOTE_WRITE
        if atomics is not None and atomics.by_device:
            access |= Access.LOCAL_WRITE | Access.REMOTE_ATOMIC
        return grant.region.registered(memory, grant.start, grant.descriptor.length, access, on_close)

    # ---- done by this end's loop

    def _bytes(self, body: memoryview, right: Rights, length: int | None = None) -> memoryview:
        number, offset, asked = parse_span(body)
        opening = self._openings.get(number)
        why = self._ended.get(number) if opening is None else opening.why
        if why is not None:
            raise MemoryAccessError(why, _TAKEN_BACK)
        if opening is None:
            raise MemoryAccessError(Fault.UNKNOWN, "this descriptor is not open")
        grant = opening.grant
        length = asked if length is None else length
        if length > PIECE_BYTES:
            raise RemoteProtocolError(f"{length} bytes of memory in one message, at most {PIECE_BYTES}")
        if length and not grant.descriptor.rights & right:
            raise MemoryAccessError(Fault.RIGHTS, f"the descriptor does not allow {right.name}")
        if offset + length > grant.descriptor.length:
            raise MemoryAccessError(Fault.RANGE, "bytes outside of what the descriptor describes")
        if not length:
            return memoryview(b"")
        grant.region.check_by_loop()
        first = grant.start + offset
        return grant.region[first : first + length].view

    def _write(self, body: memoryview) -> None:
        data = body[16:]
        self._bytes(body, Rights.WRITE, len(data))[:] = data

    def _atomic(self, op: int, body: memoryview) -> int:
        self._bytes(body, Rights.ATOMIC, WORD_BYTES)  # checks it
        operand, compare = parse_atomic(body[16:])
        number, offset, _ = parse_span(body)
        opening = self._openings[number]
        assert opening.atomics is not None
        opening.atomics.check_by_loop()
        grant = opening.grant
        address = grant.region.address + grant.start + offset
        if address % WORD_BYTES:
            raise MemoryAccessError(Fault.RANGE, "an atomic operation on a word that is not aligned")
        if op == Op.FETCH_ADD:
            return fetch_and_add(address, operand)
        return compare_and_swap(address, compare, operand)
