"""The transport of a stream that has failed over to TCP: its bytes in frames (``proto/frames.py``).

What was sent by RDMA and did not arrive goes first. What the kernel does not take at once is kept and counts
as sent, one frame at most beyond that; so a frame is always whole, whatever becomes of the sending task.

How the stream and the connection end is decided in ``proto/life/frames.py``. This moves the bytes, and does
what is decided there.

If the stream returns to RDMA (``rejoin.py``), each direction ends here with a frame that announces it, and
the TCP connection is released, silent as it was before the failover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import BrokenResourceError, ClosedResourceError

from ...errors import Code, LinkError, NegotiationError, RemoteProtocolError
from ...plain import check_plain
from ...proto import clc
from ...proto.frames import MAX_BODY_BYTES, Assembler, data_header, negotiation_frame
from ...proto.life.frames import FramesLife
from ...proto.life.outputs import CloseTcp, Put, ResetTcp
from ...wake.draining import Draining
from ...wake.escaping import call
from .ahead import Ahead
from .tcp_carrier import PEER_DIED, lost_because

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...errors import FallbackReason
    from ...pipes.contracts import Buffer
    from ...pipes.tls import Carrier
    from ...proto.life.outputs import Output
    from ...wake.base import Handle, Waker
    from ..contracts import RejoinView
    from .tcp_carrier import TcpCarrier

#: Read in one turn of the loop before others have theirs, and at a time: more takes long when it comes in
#: frames of a few bytes.
_TURN_BYTES = _READ_BYTES = 64 * 1024
#: What a read counts at least: with TLS, each record is one.
_LEAST_BYTES = 1024
#: Answers of the negotiation that may wait for a peer that does not read. Further ones are not given: it
#: would not read them either. A peer that keeps the rules has one proposal at a time.
_MOST_ANSWERS = 64


class FramedPipe:
    """Owns the carrier. Non-blocking, in the thread of its loop.

    :param peer: the other end, for people.
    :param unplaced: bytes to be sent first.
    :param reason: why the stream is here.
    :param peer_closed: the peer has closed already: it takes nothing.
    """

    __slots__ = (
        "_again",
        "_ahead",
        "_answers",
        "_assembler",
        "_blocked",
        "_carrier",
        "_failure",
        "_limit",
        "_out",
        "_received",
        "_sent",
        "_telling",
        "_waker",
        "life",
        "new_rejoin",
        "on_readable",
        "on_writable",
        "peer",
        "reason",
    )

    def __init__(
        self,
        carrier: TcpCarrier,
        waker: Waker,
        peer: str,
        unplaced: bytes,
        reason: FallbackReason,
        *,
        peer_closed: bool = False,
    ) -> None:
        self._carrier, self._waker, self.peer, self.reason = carrier, waker, peer, reason
        #: Begins an attempt to return to RDMA.
        self.new_rejoin: Callable[[], RejoinView]
        self._out: list[Output] = []
        #: How far the stream has come here.
        self.life: FramesLife[RejoinView] = FramesLife(self._out, peer_closed=peer_closed)
        self._assembler = Assembler()
        self._ahead = Ahead(waker, self.read_soon)
        self._again = False  # it will be read on, as more may be there than the last turn's share
        self._blocked = False  # a sender came short and is to be called
        self._answers = 0  # of the negotiation, since nothing waited to be sent
        self._telling = False  # on_readable will be called
        self._failure: BaseException | None = None  # why the life is broken
        self._limit: Handle | None = None
        #: Called when data, the end or an error has come.
        self.on_readable: Callable[[], None] | None = None
        #: Called when there is room again after try_send() came short, or on an error.
        self.on_writable: Callable[[], None] | None = None
        self._sent = self._received = 0
        carrier.on_input, carrier.on_flushed, carrier.on_failed = (
            self._on_input,
            self._on_flushed,
            self._pull_and_wake,
        )
        rest = memoryview(unplaced)
        for at in range(0, len(rest), MAX_BODY_BYTES):
            part = rest[at : at + MAX_BODY_BYTES]
            carrier.put(data_header(len(part)), part)
        # With TLS, what follows the last message may have been decrypted with it: no readiness tells.
        waker.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._carrier.closed:
            self._carrier.watch(True)
            self._on_input()

    # -- sending

    def try_send(self, data: Buffer, start: int = 0) -> int:
        """Take as many bytes of ``data[start:]`` as may go now; their number."""
        life = self.life
        if life.closed or life.eof_sent:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if life.peer_closed:
            cause = LinkError("the peer has closed the stream")
            raise BrokenResourceError(str(cause)) from cause
        carrier = self._carrier
        self._check_carrier()
        check_plain(data)
        with memoryview(data) as given, given.cast("B") as whole, whole[start:] as view:
            at = 0
            while at < len(view) and not carrier.pending:
                with view[at : at + MAX_BODY_BYTES] as part:
                    carrier.put(data_header(len(part)), part)
                    at += len(part)
            total = len(view)
        self._check_carrier()
        self._sent += at
        self._blocked = at < total
        return at

    def sent_all(self) -> bool:
        """Whether the kernel has all that was taken, or nothing will go any more. If not, ``on_writable`` is
        called when it has."""
        carrier = self._carrier
        lost = carrier.closed or (carrier.failure or self._failure) is not None
        done = lost or not carrier.pending
        self._blocked = self._blocked or not done
        return done

    def _check_carrier(self) -> None:
        reason = self._failure or self._carrier.failure
        if reason is not None:
            raise BrokenResourceError(f"the connection is lost: {reason}") from reason

    def _on_flushed(self) -> None:
        if self.life.awaits_flush:
            self._go_on()
            if self.life.attempt is not None:
                self.life.attempt.try_hand_over()
        elif self._blocked and self.on_writable is not None:
            self._blocked = False
            self.on_writable()

    def send_eof(self) -> None:
        """The peer reads the end behind what was sent. Idempotent."""
        self.life.send_eof()
        self._go_on()

    # -- receiving

    def _on_input(self) -> None:
        if self._ahead.full:
            self._carrier.watch(False)  # the user does not read: the kernel slows the peer down
            self._ahead.wait()
        else:
            self._pull_and_wake()

    def look(self) -> None:
        """Notice what has come, data, room, or the end, whether or not the loop has had a turn since."""
        self._carrier.go_on()
        self._read_on()

    def _read_on(self) -> None:
        """The user has taken what was too much. A message of the negotiation may be next, and the user need
        not ask for more: it has what it wanted."""
        life = self.life
        if not (life.closed or life.gone or life.ended or life.on_ring):
            self._on_input()

    def _pull_and_wake(self) -> None:
        self._pull()
        life = self.life
        if life.closed or self._carrier.failure is not None:
            self._go_on()
        if self.on_readable is not None and (self._ahead.bytes or life.ended):
            call(self.on_readable)
        if self.on_writable is not None and (life.failure or life.lost or life.peer_closed):
            self.on_writable()

    def read_soon(self) -> None:
        """There may be room for what waits in the kernel."""
        self._waker.call_soon(self._read_on)

    def _pull(self) -> None:
        """Read until nothing is there or enough is; if it is much, others have their turn before the rest."""
        if self._read() and not self._again:
            self._again = True
            self._waker.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._again = False
        if not self._carrier.closed:
            self._on_input()

    def _read(self) -> bool:
        """Read a turn's share, or less; whether more may be there."""
        carrier, life = self._carrier, self.life
        left = _TURN_BYTES
        while life.failure is None and not self._ahead.full:
            if carrier.closed or life.on_ring:
                return False
            try:
                data = carrier.read(_READ_BYTES) if left > 0 else None
                if data is None:
                    carrier.watch(True)
                    return left <= 0
                if not data:
                    raise LinkError(PEER_DIED)
                left -= max(len(data), _LEAST_BYTES)
                self._take(data)
            except LinkError as error:
                self._fail(error.reason)
                break
            except RemoteProtocolError as error:
                self._fail(str(error), fault=True)
                break
            except MemoryError as error:  # what was read is lost
                self._fail(lost_because(error))
                break
        return False

    def _take(self, data: bytes) -> None:
        assembler, life = self._assembler, self.life
        parts = assembler.feed(data)
        self._received += sum(map(len, parts))
        if not life.closed:
            self._ahead.add(parts, len(data))
        if assembler.flags != life.peer:
            life.peer = assembler.flags
            if life.attempt is not None:
                life.attempt.peer_ended()
            life.acknowledge()
            self._go_on()
        while assembler.messages:
            self._negotiate(assembler.messages.pop(0))
        if assembler.on_ring:
            self._carrier.watch(False)
            if life.attempt is None:
                raise RemoteProtocolError("frames: the peer goes to a ring that it does not have")
            life.on_ring = True
            life.attempt.peer_moved()

    def _fail(self, reason: str, *, fault: bool = False) -> None:
        self._carrier.watch(False)
        self.life.fail(reason, fault=fault)
        self._go_on()
        if self.life.failure is not None:
            self._give_up_attempt()

    def _give_up_attempt(self) -> None:
        if self.life.attempt is not None:
            self.life.attempt.cancel()

    def try_receive(self, max_bytes: int) -> bytes | None:
        """What is there, at most ``max_bytes``; None when nothing is; ``b""`` at the end."""
        if not self.readable:
            return self._nothing()
        first = self._ahead.front[:max_bytes]
        self.consume(len(first))
        return bytes(first)

    def try_receive_into(self, buffer: bytearray | memoryview) -> int:
        """Fill ``buffer`` with what is there; -1 when nothing is, 0 at the end."""
        check_plain(buffer)
        with memoryview(buffer) as given, given.cast("B") as view:
            data = self.try_receive(len(view))
            if data is None:
                return -1
            view[: len(data)] = data
            return len(data)

    def view(self) -> memoryview:
        """The received bytes that can be lent without a copy; may be empty."""
        if not self.readable:
            self._nothing()
            return memoryview(b"")
        return self._ahead.front[:]

    def consume(self, n: int) -> None:
        """The first ``n`` bytes of :meth:`view` are taken."""
        if not 0 <= n <= len(self._ahead.front):
            raise ValueError(f"consume({n}): fewer bytes are readable")
        if n:
            self._ahead.take(n)

    def _nothing(self) -> bytes | None:
        if self.life.closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self.life.done:
            return b""
        if self._failure is not None:
            raise BrokenResourceError(f"the connection is lost: {self._failure}") from self._failure
        return None

    # -- state

    @property
    def readable(self) -> int:
        """Bytes that are there."""
        if not self._ahead.bytes:
            self._pull()
            if self._ahead.front and not self._telling and self.on_readable is not None:
                # Who asks may be another than the task that waits, and the kernel announces this no more.
                self._telling = True
                self._waker.call_soon(self._tell)
        return self._ahead.bytes

    def _tell(self) -> None:
        self._telling = False
        if self._ahead.bytes and self.on_readable is not None:
            self.on_readable()

    @property
    def writable(self) -> int:
        """1 when some can be sent now, else 0: the kernel does not tell how much."""
        life = self.life
        shut = life.closed or life.eof_sent or life.peer_closed or self.error is not None
        return 0 if shut or self._carrier.pending else 1

    @property
    def at_eof(self) -> bool:
        """The peer has finished, and everything was taken."""
        return self.life.done and not self._ahead.bytes

    @property
    def drained(self) -> bool:
        """The peer sends by a ring, and all that came by TCP was taken."""
        return self.life.on_ring and not self._ahead.bytes

    @property
    def error(self) -> BaseException | None:
        """Why the connection is lost, None while it is not (or when everything came before that)."""
        return None if self.life.done else self._failure

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes of the stream that were sent and received here."""
        return self._sent, self._received

    # -- returning to RDMA: rejoin() begins it, and the attempt directs the rest

    @property
    def may_rejoin(self) -> bool:
        """Whether the stream is on TCP and whole."""
        return self.life.may_rejoin and self._carrier.failure is None

    def rejoin(self) -> RejoinView:
        """Try to return to RDMA, or join the attempt under way.

        :raises NegotiationError: not in this state.
        """
        attempt = self.life.attempt
        if attempt is None:
            if not self.may_rejoin:
                raise NegotiationError(Code.OUT_OF_SYNC, "the stream is closed, half-closed or on RDMA")
            attempt = self.life.attempt = self.new_rejoin()
            attempt.ask()
            self.read_to_the_end()
        return attempt

    def _negotiate(self, data: bytes) -> None:
        life = self.life
        if life.attempt is not None:
            life.attempt.receive(data)
            return
        message = clc.decode(data)
        if isinstance(message, clc.Decline):
            return  # of an attempt that has ended here already
        self._answers = self._answers + 1 if self._carrier.pending else 0
        if self._answers > _MOST_ANSWERS:
            return
        if life.closed or life.eof_sent:
            # The END that was sent is the answer: the peer gives its attempt up, and may close. What is
            # behind the END could find the connection closed, and the reset would cost the peer what it has
            # not sent yet.
            return
        # A peer that has ended since has given its attempt up.
        if isinstance(message, clc.Proposal) and not (life.moved or life.done):
            life.attempt = attempt = self.new_rejoin()
            attempt.answer(data)
            self.read_to_the_end()
        else:
            self.put_frame(negotiation_frame(clc.Decline(diagnosis=Code.OUT_OF_SYNC).encode()))

    def put_frame(self, frame: bytes) -> None:
        """Send a message of the negotiation."""
        if not self.life.moved:
            self._carrier.put(frame)

    def end_sending(self) -> None:
        """This end's last frame: what follows goes by a ring."""
        self.life.move()
        self._go_on()

    def read_to_the_end(self) -> None:
        """What comes behind the peer's data is needed, whether the user reads or not.

        A slow reader would let the negotiation wait for longer than the other end does, and the link that is
        made with it, for which all other connections to this peer wait. And a user that waits to send does
        not read. When the rings that it sends on failed, it waited for the TCP connection, the connection for
        the peer's last frame, and that for the user: for ever.
        """
        self._ahead.stretch(True)
        self.read_soon()

    def release(self) -> tuple[Carrier, bytes] | None:
        """Release the TCP connection, with what the peer has sent behind its last frame; None: not yet."""
        self._go_on()
        if not self.life.release():
            return None
        self._set_limit()
        _draining.discard(self._waker, self)
        return self._carrier.release(), self._assembler.rest

    def say_unread(self) -> str:
        """How much the peer has not read, for people."""
        return f"at least {self._carrier.unread} bytes wait for {self.peer}"

    def stay(self) -> bool:
        """The attempt has failed. False: the stream is lost, as part of it has gone to the ring already."""
        self._ahead.stretch(False)
        stays = self.life.stay(self._waker.now())
        self._go_on()
        return stays

    # -- the end

    def close(self) -> None:
        """Close both directions; what was sent still arrives. Idempotent."""
        life = self.life
        if life.closed:
            return
        self._forget_user()
        if not life.gone:
            _draining.add(self._waker, self)
        if life.close(self._waker.now()):
            self._give_up_attempt()
        self._go_on()
        self._pull()
        self._go_on()

    def _forget_user(self) -> None:
        self.on_readable = self.on_writable = None
        self._ahead.drop()

    def abort(self) -> None:
        """Reset the connection: the peer gets an error. Idempotent."""
        self._forget_user()
        self.life.abort()
        self._go_on()

    def _end(self) -> None:
        """The time to wait for the peer is over, or the event loop ends."""
        self.life.on_timer()
        self._go_on()

    def _go_on(self) -> None:
        """Do what the life asks for, and tell it what has become of that."""
        life, carrier = self.life, self._carrier
        self._carry_out()
        if carrier.failure is not None:
            life.fail_sending(carrier.failure.reason)
        if life.closed or life.moved:
            now = self._waker.now()
            if life.awaits_flush and not carrier.pending:
                life.flushed(now)
            life.end_if_done(now)
            self._carry_out()
        if life.failure is not None and self._failure is None:
            self._failure = (RemoteProtocolError if life.fault else LinkError)(life.failure)
        self._set_limit()

    def _carry_out(self) -> None:
        out, carrier = self._out, self._carrier
        while out:
            output = out.pop(0)
            if isinstance(output, Put):
                carrier.put(output.data)
            elif isinstance(output, (CloseTcp, ResetTcp)):
                (carrier.close if isinstance(output, CloseTcp) else carrier.reset)()
                _draining.discard(self._waker, self)
                self._give_up_attempt()

    def _set_limit(self) -> None:
        """One timer, for as long as the life has a deadline."""
        deadline = self.life.deadline
        if self._limit is not None and deadline is None:
            self._limit.cancel()
            self._limit = None
        elif self._limit is None and deadline is not None:
            self._limit = self._waker.call_at(deadline, self._end)

    def _push(self) -> bool:
        """The event loop ends: send what the kernel takes, and drop what has come, which would reset the
        connection if it stayed unread; whether nothing is left."""
        self._carrier.push()
        more = self.life.attempt is None and self._read()
        return not more and self.sent_all()


_draining = Draining[FramedPipe](FramedPipe._end, FramedPipe._push)
