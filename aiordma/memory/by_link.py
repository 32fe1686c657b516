"""READs, WRITEs and atomic operations on the link: the peer's loop has no part in them.

Memory that the device can reach by itself is used in place: what lies in a region of this end, and on devices
that take what is written with the request, anything. Other memory is staged through registered blocks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from anyio import BrokenResourceError

from ..errors import AioRdmaError, VerbsError
from ..pipes._one_sided import READ, WRITE
from ..verbs._spans import Spans
from .errors import MemoryAccessError
from .local import check_length, resolve_exactly
from .operation import Operation, given_up
from .region import Piece, Pieces, Region

if TYPE_CHECKING:
    from typing import Self

    from ..credit import CreditWindow, QueueEntry
    from ..links.link_memory import LinkMemory
    from ..pipes._one_sided import OneSided, Transfer
    from ..verbs.memory.arena import Block
    from .local import Memory
    from .operation import Remote

#: Staged at a time, at most.
_STAGE_BYTES = 1 << 20
#: READs of up to so many bytes, and atomic operations, use a block that is kept: to take one costs more.
_SMALL_BYTES = 4096
#: Pieces that are shorter on average are staged: a copy costs less than their requests.
_SHORT_PIECES = 512
_LISTS = (list, tuple, Pieces)
#: Staged blocks in a row, before others of the loop have their turn.
_LOOKS = 4


class LinkCarrier:
    """The operations of one peer on its link.

    :param credit: one for each 64 KiB under way.
    :param fragment: bytes for one credit.
    """

    path = "rdma"

    def __init__(self, memory: LinkMemory, credit: CreditWindow, fragment: int) -> None:
        self.memory, self.credit, self._fragment = memory, credit, fragment
        self.transfers: OneSided = memory.new_transfers()
        self.takes_any_buffer = self.transfers.takes_any_buffer
        #: A block that is kept for small READs, one at a time, and its bytes; None: in use, or not there yet.
        self._spare: tuple[Block, memoryview] | None = None
        self._closed = False
        #: Made before the post, so that nothing is posted without its operation; kept if it was not needed.
        self._unused: _Begun | None = None

    # ---- one buffer: the path on which every hundred nanoseconds count

    def start(self, op: int, remote: Remote, start: int, nbytes: int, local: Any) -> Operation[None] | None:
        """See :class:`.operation.OperationPath`."""
        fragment = self._fragment
        count = 1 if nbytes <= fragment else min(-(-nbytes // fragment), self.credit.limit)
        credit = self.credit
        if local.__class__ is Region:
            local = local[:]
        whole = local.__class__ is Piece or self._may_be_whole(op, nbytes, local)
        if not whole or not credit.try_acquire(count):
            return self.start_pieces(op, remote, Spans.one(start, nbytes), local)
        region: Region | None = None
        stage: tuple[Block, memoryview] | None = None
        transfer: Transfer | None
        begun: _Begun | None = None
        remote.users += 1
        try:
            begun, self._unused = self._unused or _Begun(self), None
            if local.__class__ is Piece:
                region = local.region
                transfer = self._in_region(op, remote, start, nbytes, local)
            elif op == WRITE:
                address = remote.address + start
                transfer = self.transfers.whole(WRITE, local, nbytes, 0, address, remote.rkey, 0)
            else:
                stage, self._spare = self._spare, None
                transfer = self._by_spare(remote, start, nbytes, local, stage)
            if transfer is not None and not transfer.done:
                begun.begun(op, remote, count, region, stage, transfer)
                return begun
        except BaseException as error:
            self._unused = begun
            self._let_go(remote, count, None, stage)
            raise self.lost(error) from error
        self._unused = begun
        self._let_go(remote, count, region, stage)
        if transfer is None:  # it has steps
            return self.start_pieces(op, remote, Spans.one(start, nbytes), local)
        if transfer.error is not None:
            raise self.lost(transfer.error) from transfer.error
        return None

    def _may_be_whole(self, op: int, nbytes: int, local: Memory) -> bool:
        if local.__class__ in _LISTS:
            return False
        if op == WRITE:
            return self.takes_any_buffer
        return nbytes <= _SMALL_BYTES and self._spare is not None

    def _let_go(
        self, remote: Remote, count: int, region: Region | None, stage: tuple[Block, memoryview] | None
    ) -> None:
        self.credit.release(count)
        remote.users -= 1
        if not remote.users and not remote.live:
            remote.settle()
        if region is not None:
            region.end_use()
        if stage is not None:
            self.give_stage(stage)

    def _in_region(self, op: int, remote: Remote, start: int, nbytes: int, local: Piece) -> Transfer:
        region, first = local.region, local.start
        if local.stop - first != nbytes:
            check_length(local.stop - first, nbytes)
        if op == READ and region.readonly:
            raise BufferError("what is read into must be writable")
        region.begin_use()
        try:
            return self.transfers.at(
                op,
                region.address + first,
                nbytes,
                region.lkey(self.memory),
                remote.address + start,
                remote.rkey,
                region,
                region.opaque,
            )
        except BaseException:
            region.end_use()
            raise

    def _by_spare(
        self, remote: Remote, start: int, nbytes: int, into: Any, stage: tuple[Block, memoryview] | None
    ) -> Transfer | None:
        assert stage is not None  # see _may_be_whole()
        block = stage[0]
        address = remote.address + start
        return self.transfers.whole(READ, into, nbytes, block.lkey, address, remote.rkey, block.address)

    # ---- any memory

    def start_pieces(self, op: int, remote: Remote, places: Spans, local: Memory) -> Operation[None]:
        """See :class:`.operation.OperationPath`."""
        spans, region = resolve_exactly(local, places.nbytes, writable=op == READ)
        short = spans.nbytes < spans.count * _SHORT_PIECES and places.count < spans.count
        if region is not None and (region.opaque or not short):
            region.begin_use()
        elif short or op == READ or not self.takes_any_buffer:
            return _Staged(
                self, op, remote, places, spans, self._count(min(places.nbytes, _STAGE_BYTES))
            ).begin()
        return _Direct(self, op, remote, places, spans, region, self._count(places.nbytes)).begin()

    def start_atomic(self, op: int, remote: Remote, offset: int, value: int, compare: int) -> Operation[int]:
        """See :class:`.operation.OperationPath`."""
        return _Atomic(self, op, remote, offset, value, compare).begin()

    # ---- what operations need

    def _count(self, nbytes: int) -> int:
        return min(max(1, -(-nbytes // self._fragment)), self.credit.limit)

    def take_stage(self, length: int) -> tuple[Block, memoryview] | None:
        """A block and its bytes; None: wait for one."""
        if length <= _SMALL_BYTES and self._spare is not None:
            stage, self._spare = self._spare, None
            return stage
        block = self.memory.take(max(length, _SMALL_BYTES))
        return None if block is None else (block, block.view())

    def give_stage(self, stage: tuple[Block, memoryview]) -> None:
        """The device does not use it any more."""
        if self._spare is None and not self._closed and stage[0].length == _SMALL_BYTES:
            self._spare = stage
        else:
            self.memory.release(stage[0])

    def lost(self, error: BaseException) -> BaseException:
        """What users get when the link cannot do it. One that waited may have its own reason."""
        own = isinstance(error, (MemoryAccessError, MemoryError)) or (
            isinstance(error, VerbsError) and error.operation.startswith("ibv_reg_")
        )
        if isinstance(error, AioRdmaError) and not own:
            return BrokenResourceError(f"the peer is lost: {error}")
        return error

    def close(self) -> None:
        """See :class:`.operation.OperationPath`."""
        self._closed = True
        self._unused = None
        self.transfers.close()
        if self._spare is not None:
            (block, _), self._spare = self._spare, None
            self.memory.release(block)

    @property
    def under_way(self) -> int:
        """Requests to the device that have not ended."""
        return self.transfers.under_way


class _OnLink(Operation[Any]):
    """One operation: it gets its credit, then it is posted. Counts as a user of the peer's memory."""

    def __init__(self, carrier: LinkCarrier, op: int, remote: Remote, count: int) -> None:
        self._carrier, self._op, self._remote, self._count = carrier, op, remote, count
        self._entry: QueueEntry | None = None
        self._transfer: Transfer | None = None
        self._cancelled = False

    def begin(self) -> Self:
        """Post it as soon as there is credit for it. What it was given is released in any case."""
        credit, count = self._carrier.credit, self._count
        self._remote.users += 1
        self._count = 0
        try:
            if credit.try_acquire(count):
                self._count = count
                self._post()
            else:
                self._entry = credit.request(count, self)
        except BaseException as error:
            self._seen = True
            self._finish(error)
            raise self._carrier.lost(error) from error
        return self

    def set(self) -> None:
        """There is credit, or the connection is over (see :meth:`CreditWindow.request`)."""
        entry, self._entry = self._entry, None
        if self.done or entry is None:
            return
        if entry.granted:
            self._count = entry.n
            self._go_on()
        else:
            self._finish(self._why_not())

    def _go_on(self) -> None:
        """Post, where no caller is there to be told."""
        try:
            if not self._remote.live:
                self._remote.check_open()
            self._post()
        except Exception as error:
            self._finish(error)

    def _why_not(self) -> BaseException:
        try:
            self._remote.check_open()
        except Exception as error:
            return error
        return BrokenResourceError("the peer is lost")

    def _follow(self, transfer: Transfer) -> None:
        self._transfer = transfer
        if transfer.done:
            self._posted_ended(transfer)
        else:
            transfer.when_done(self)
            try:
                self._carrier.transfers.soon()
            except MemoryError:
                pass  # it was posted, and is this operation's: who waits for it looks by himself

    def __call__(self, transfer: Transfer) -> None:
        """The device has ended it. (A bound method would take memory behind the post.)"""
        self._posted_ended(transfer)

    def _look(self) -> bool:
        for _ in range(_LOOKS):
            transfer = self._transfer
            if transfer is None or not self._carrier.transfers.spin(transfer):
                break
        return self.done

    def cancel(self) -> None:
        """See :class:`Operation`."""
        self._cancelled = True
        if self.done:
            return
        if self._entry is not None:
            entry, self._entry = self._entry, None
            self._carrier.credit.withdraw(entry)
            self._finish(given_up())
        elif self._transfer is not None:
            self._carrier.transfers.give_up(self._transfer)

    def _finish(self, error: BaseException | None = None, result: int | None = None) -> None:
        carrier, count = self._carrier, self._count
        self._transfer = None
        if error is None and self._cancelled:
            error, self._seen = given_up(), True
        self._release()
        self._end(result, None if error is None else carrier.lost(error))
        if count:
            carrier.credit.release(count)
        self._remote.end_use()

    def _post(self) -> None:
        raise NotImplementedError

    def _posted_ended(self, transfer: Transfer) -> None:
        self._finish(transfer.error)

    def _release(self) -> None:
        """Let go of memory of this end."""


class _Begun(_OnLink):
    """One buffer, that is posted at once."""

    def __init__(self, carrier: LinkCarrier) -> None:
        # All attributes are here, so that to set them takes no memory.
        self._carrier, self._entry, self._cancelled = carrier, None, False
        self._op = self._count = 0
        self._remote: Any = None
        self._region: Region | None = None
        self._stage: tuple[Block, memoryview] | None = None
        self._transfer = None

    def begun(
        self,
        op: int,
        remote: Remote,
        count: int,
        region: Region | None,
        stage: tuple[Block, memoryview] | None,
        transfer: Transfer,
    ) -> None:
        """It was posted, with credit, is counted, and its end will be noticed. Takes no memory.

        :param stage: what a READ goes to first.
        """
        self._op, self._remote, self._count = op, remote, count
        self._region, self._stage, self._transfer = region, stage, transfer
        transfer.when_done(self)

    def cancel(self) -> None:
        """See :class:`Operation`."""
        if self._transfer is not None and self._stage is not None:
            self._transfer.forget_buffer()
        super().cancel()

    def _release(self) -> None:
        region, self._region = self._region, None
        if region is not None:
            region.end_use()
        stage, self._stage = self._stage, None
        if stage is not None:
            self._carrier.give_stage(stage)


class _Direct(_OnLink):
    """Memory that the device reaches by itself."""

    def __init__(
        self,
        carrier: LinkCarrier,
        op: int,
        remote: Remote,
        places: Spans,
        local: Spans,
        region: Region | None,
        count: int,
    ) -> None:
        super().__init__(carrier, op, remote, count)
        self._places, self._local, self._region = places, local, region

    def _post(self) -> None:
        carrier, remote, region = self._carrier, self._remote, self._region
        self._follow(
            carrier.transfers.pieces(
                self._op,
                self._local,
                self._places,
                lkey=0 if region is None else region.lkey(carrier.memory),
                base=remote.address,
                rkey=remote.rkey,
                opaque=region is not None and region.opaque,
            )
        )

    def _release(self) -> None:
        self._local.release()
        region, self._region = self._region, None
        if region is not None:
            region.end_use()


class _WithStage(_OnLink):
    """Memory that no device knows: by a block."""

    _stage: tuple[Block, memoryview] | None = None

    def _take(self, length: int) -> tuple[Block, memoryview] | None:
        """The block; None: :meth:`on_memory` comes when there may be one."""
        if self._stage is None:
            self._stage = self._carrier.take_stage(length)
            if self._stage is None:
                self._carrier.memory.wait(self)
        return self._stage

    def on_memory(self) -> None:
        """A block may have come back (see ``Waiting``)."""
        if not self.done and self._transfer is None:
            self._go_on()

    def cancel(self) -> None:
        """See :class:`Operation`."""
        if not self.done and self._entry is None and self._transfer is None:
            self._cancelled = True  # it waits for a block: what comes then is for the next
            self._finish()
        else:
            super().cancel()

    def _release(self) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            self._carrier.give_stage(stage)


class _Staged(_WithStage):
    """READ or WRITE, as many blocks one after the other as needed."""

    def __init__(
        self, carrier: LinkCarrier, op: int, remote: Remote, places: Spans, local: Spans, count: int
    ) -> None:
        super().__init__(carrier, op, remote, count)
        self._places, self._local = places, local
        self._at = 0

    def _post(self) -> None:
        length = min(self._places.nbytes - self._at, _STAGE_BYTES)
        stage = self._take(length)
        if stage is None:
            return
        block, view = stage
        if self._op == WRITE:
            self._local.gather(self._at, view[:length])
        places = self._places
        if length != places.nbytes:
            places = places.cut(self._at, length)
        remote = self._remote
        self._follow(
            self._carrier.transfers.pieces(
                self._op,
                Spans.one(block.address, length),
                places,
                lkey=block.lkey,
                base=remote.address,
                rkey=remote.rkey,
            )
        )

    def _posted_ended(self, transfer: Transfer) -> None:
        self._transfer = None
        if transfer.error is not None or self._cancelled:
            # In memory of a user who does not wait, or after a failure, nothing is changed any more.
            self._finish(transfer.error)
            return
        length = min(self._places.nbytes - self._at, _STAGE_BYTES)
        if self._op == READ and length:
            assert self._stage is not None
            self._local.scatter(self._at, self._stage[1][:length])
        self._at += length
        if self._at == self._places.nbytes:
            self._finish()
        else:
            self._go_on()

    def cancel(self) -> None:
        """See :class:`Operation`."""
        self._local.release()  # the device does not know it
        super().cancel()

    def _release(self) -> None:
        self._local.release()
        super()._release()


class _Atomic(_WithStage):
    """An atomic operation on a word."""

    def __init__(
        self, carrier: LinkCarrier, op: int, remote: Remote, offset: int, value: int, compare: int
    ) -> None:
        super().__init__(carrier, op, remote, 1)
        self._offset, self._value, self._compare = offset, value, compare

    def _post(self) -> None:
        stage = self._take(8)
        if stage is None:
            return
        remote = self._remote
        self._follow(
            self._carrier.transfers.atomic(
                self._op,
                stage[0].address,
                lkey=stage[0].lkey,
                remote=remote.address + self._offset,
                rkey=remote.rkey,
                value=self._value,
                compare=self._compare,
                keep=None,
            )
        )

    def _posted_ended(self, transfer: Transfer) -> None:
        assert self._stage is not None
        self._finish(transfer.error, int.from_bytes(self._stage[1][:8], sys.byteorder))
