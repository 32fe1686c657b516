"""Received where it belongs: memory that a caller, or a method's allocator, names for one large value.

A caller gives it with the call (``into=``), since it knows what it asks for. A method has an allocator
(``@service.method(into=...)``), and so has a stream of items (``client.stream(..., into=...)``). It is asked
when a value is about to be received, and is told what it is (:class:`Incoming`). In both cases the bytes go
there from the network (:mod:`aiordma.pipes.placement`), and the value is a writable view of that memory: a
``memoryview``, or an array. What comes too short for that, with other bytes in one piece, is copied there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..pipes.placement import Placement
from ..plain import check_plain
from .bulk import Bulk, Form, bytes_of, check_length, described_value, make_array
from .codec import Encoding, describe_type
from .errors import Code, RpcError
from .reply import Reply

if TYPE_CHECKING:
    from ..pipes.placement import Registered
    from .arguments import Arguments, Decode
    from .codec import Payload
    from .connection import Connection
    from .signature import Parameter

_RAW = int(Encoding.RAW)
_BULK = int(Encoding.BULK)


class Incoming(NamedTuple):
    """A large value that is about to be received, for the allocator that names memory for it."""

    #: Length in bytes: at most ``Config.max_message_bytes``.
    nbytes: int
    #: Of an array: type of its items as in numpy's array interface, ``"<f4"``; None: plain bytes.
    dtype: str | None
    #: Of an array: its shape; None: plain bytes.
    shape: tuple[int, ...] | None
    #: The other arguments of the call by their names, checked; empty for items of a stream.
    arguments: dict[str, Any]


#: Names memory for a value: a buffer, an array, or an ``aiordma.memory`` region or piece of one.
Allocator = Callable[[Incoming], Any]


class Room:
    """Memory for a value.

    :param memory: a writable, contiguous buffer or array, or a region or piece of one.
    :raises TypeError: it is none. :raises BufferError: it is read-only, or does not lie in one piece.
    """

    __slots__ = ("form", "region", "view")

    def __init__(self, memory: Any) -> None:
        self.region: Registered | None = None
        if hasattr(memory, "registry"):  # a region
            self.region = memory
        elif hasattr(memory, "region") and hasattr(memory, "view"):  # a piece of one
            self.region, memory = memory.region, memory.view
        try:
            whole = memoryview(memory)
        except TypeError:
            if not hasattr(memory, "__dlpack__"):
                raise TypeError(
                    f"into={describe_type(type(memory))}: must be a writable buffer (bytearray, memoryview, "
                    "an array) or a region of aiordma.memory"
                ) from None
            from ..verbs._dlpack import imported  # not there without RDMA

            memory = imported(memory)
            whole = memoryview(memory)
        check_plain(whole)
        if whole.readonly:
            raise BufferError("what is received into must be writable")
        if not whole.c_contiguous:
            raise BufferError("what is received into must lie in one piece: not an array with steps")
        #: type and shape that a value must have; None: any that fits
        self.form: Form | None = None
        if whole.itemsize > 1 or whole.ndim != 1:
            self.form = _form(memory)
        #: its bytes
        self.view: memoryview = bytes_of(memory) if whole.nbytes else memoryview(bytearray())

    def refusal(self, form: Form | None, nbytes: int) -> str | None:
        """Why a value does not belong here; None: it does."""
        if nbytes > len(self.view):
            return f"{nbytes} bytes, and the memory for it has {len(self.view)}"
        if form is not None and self.form is not None and form != self.form:
            return f"an array {form}, and the memory for it is one {self.form}"
        return None

    def placement(self, nbytes: int) -> Placement:
        """Of the first ``nbytes`` bytes."""
        return Placement(self.view[:nbytes], self.region)

    def filled(self, form: Form | None, data: Any) -> Any:
        """A value that came elsewhere, copied here."""
        view = self.view[: len(data)]
        view[:] = data
        return make_array(form, view)


def _form(array: Any) -> Form | None:
    interface = getattr(array, "__array_interface__", None)
    return None if interface is None else Form(interface["typestr"], tuple(interface["shape"]))


def _named(
    allocate: Allocator, form: Form | None, nbytes: int, arguments: dict[str, Any], where: str
) -> Room:
    """Ask an allocator for memory.

    :raises RpcError: ``RESOURCE_EXHAUSTED``: it has none; ``OUT_OF_RANGE``: the value does not fit.
    """
    kind, shape = form if form is not None else (None, None)
    try:
        memory = allocate(Incoming(nbytes, kind, shape, arguments))
    except MemoryError as exc:
        raise RpcError(Code.RESOURCE_EXHAUSTED, f"{where}: no memory for {nbytes} bytes") from exc
    if memory is None:
        raise RpcError(Code.RESOURCE_EXHAUSTED, f"{where}: there is no room for {nbytes} bytes now")
    room = Room(memory)
    refusal = room.refusal(form, nbytes)
    if refusal is not None:
        raise RpcError(Code.OUT_OF_RANGE, f"{where} has {refusal}")
    return room


def _parts(encoding: int, payload: Payload, where: str) -> tuple[Form | None, Any]:
    """Form and bytes of a result or item.

    :raises RpcError: ``INTERNAL``: it is neither bytes-like nor an array.
    """
    if encoding == _RAW:
        return None, payload
    if encoding != _BULK:
        raise RpcError(Code.INTERNAL, f"{where} is neither bytes-like nor an array, as into= needs it")
    try:
        whole = Bulk.of(payload)
        form = described_value(whole.description)
        whole.check(form)
    except msgspec.MsgspecError as exc:
        raise RpcError(Code.INTERNAL, f"{where}: {exc}") from exc
    return form, whole.data


def _announced(encoding: int, front: memoryview, nbytes: int) -> Form | None:
    """Form of a result or item that is about to come. :raises msgspec.MsgspecError: it will be refused."""
    if encoding == _RAW:
        return None
    form = described_value(front)
    check_length(form, nbytes)
    return form


# ---- the caller


class ReplyInto(Reply):
    """What came back for a call whose result goes to memory of the caller."""

    __slots__ = ("placement", "room")

    def __init__(self, room: Room) -> None:
        super().__init__()
        self.room: Room | None = room
        self.placement: Placement | None = None

    def place(self, encoding: int, front: memoryview, nbytes: int) -> Placement | None:
        """See ``Connection.place``."""
        if self.room is None or encoding not in (_RAW, _BULK):
            return None
        if self.room.refusal(_announced(encoding, front, nbytes), nbytes):
            return None  # value() says why
        self.placement = self.room.placement(nbytes)
        return self.placement

    async def withdraw(self, connection: Connection) -> None:
        """The memory is the caller's again: when this returns, nothing writes there or holds it.

        (A connection remembers its last call.)
        """
        self.room, self.payload = None, b""
        placement, self.placement = self.placement, None
        if placement is not None and not placement.released:
            await connection.withdraw(placement)

    def value(self, where: str) -> Any:
        """The result, as a view of the memory.

        :raises RpcError: ``OUT_OF_RANGE``: it does not fit; ``INTERNAL``: it is neither bytes-like nor an
        array.
        """
        assert self.room is not None
        form, data = _parts(self.encoding, self.payload, f"{where}: the result")
        if self.placement is not None:
            return make_array(form, data)
        refusal = self.room.refusal(form, len(data))
        if refusal is not None:
            raise RpcError(Code.OUT_OF_RANGE, f"{where}: the result has {refusal}; nothing was written")
        return self.room.filled(form, data)


class ItemsInto:
    """Memory for the items of a stream that a caller receives.

    :param where: what the items are, for errors.
    """

    def __init__(self, where: str, allocate: Allocator) -> None:
        if not callable(allocate):
            raise TypeError(_no_allocator(where, allocate))
        self._where, self._allocate = where, allocate
        self._placements: list[Placement] = []
        self._wanted = True

    def place(self, encoding: int, front: memoryview, nbytes: int) -> Placement | None:
        """See ``Connection.place``."""
        if not self._wanted or encoding not in (_RAW, _BULK):
            return None
        form = _announced(encoding, front, nbytes)
        placement = _named(self._allocate, form, nbytes, {}, self._where).placement(nbytes)
        self._placements = [each for each in self._placements if not each.released]
        self._placements.append(placement)
        return placement

    def value(self, encoding: int, payload: Payload) -> Any:
        """An item. :raises RpcError: there is no memory for it, or it is of another kind."""
        form, data = _parts(encoding, payload, self._where)
        if not memoryview(data).readonly and type(data) is memoryview:
            return make_array(form, data)
        return _named(self._allocate, form, len(data), {}, self._where).filled(form, data)

    def withdraw_soon(self, connection: Connection) -> None:
        """The stream is closed. What the device has begun it ends, in memory that is kept so long."""
        self._wanted = False
        for placement in self._placements:
            if not placement.released:
                placement.on_released = placement.forget
                connection.channel.withdraw(placement)

    async def withdraw(self, connection: Connection) -> None:
        """Wait until nothing writes to that memory."""
        placements, self._placements = self._placements, []
        for placement in placements:
            if not placement.released:
                await connection.withdraw(placement)


def _no_allocator(where: str, allocate: object) -> str:
    return f"{where}: into={describe_type(type(allocate))}: must be a function from rpc.Incoming to memory"


async def call_into(
    connection: Connection,
    method: str,
    encoding: int,
    payload: Payload,
    timeout: float | None,  # noqa: ASYNC109  # it travels with the call
    metadata: bytes | None,
    into: Any,
) -> Any:
    """Make a unary call whose result goes to ``into``. Errors as of ``Client.call``."""
    reply = ReplyInto(Room(into))
    connection.place_messages()
    try:
        await connection.call_raw(method, encoding, payload, timeout, metadata, reply)
        return reply.value(method)
    finally:
        await reply.withdraw(connection)


# ---- the method


class Into:
    """Decodes the arguments of a method whose allocator names memory for the large one.

    :param general: what decodes them otherwise.
    :param parameter: the large one.
    """

    def __init__(self, name: str, general: Decode, parameter: Parameter, allocate: Allocator) -> None:
        self._name, self._general, self._parameter, self._allocate = name, general, parameter, allocate

    def place(self, encoding: int, front: memoryview, nbytes: int) -> Placement | None:
        """See ``ServerConnection.place``. What is wrong is an error when the whole call has come."""
        form: Form | None = None
        seen = encoding == _RAW and self._is_first()
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if encoding == _BULK:

            def large(p: Parameter, its_form: Form | None) -> None:
                nonlocal form, seen
                self._general.large(p, its_form, nbytes, None)
                form, seen = its_form, p is self._parameter

            args, kwargs = self._general.described(front, large)
        if not seen:
            return None
        return self._room(form, nbytes, args, kwargs).placement(nbytes)

    def _is_first(self) -> bool:
        """Whether a bytes-like argument alone is the large one."""
        positional = self._general.positional
        return bool(positional) and positional[0] is self._parameter

    def _room(self, form: Form | None, nbytes: int, args: list[Any], kwargs: dict[str, Any]) -> Room:
        """Ask for memory. :raises RpcError: there is none."""
        others = {p.name: value for p, value in zip(self._general.positional, args, strict=False)} | kwargs
        others.pop(self._parameter.name, None)
        where = f"{self._name}: argument '{self._parameter.name}'"
        return _named(self._allocate, form, nbytes, others, where)

    def __call__(self, encoding: int, payload: Payload) -> Arguments:
        """See :class:`~.arguments.Decode`."""
        args, kwargs = self._general.arguments(encoding, payload)
        name = self._parameter.name
        index = next((i for i, p in enumerate(self._general.positional) if p is self._parameter), -1)
        value = args[index] if index >= 0 else kwargs.get(name)
        if value is not None and value is not self._parameter.default and memoryview(value).readonly:
            # Not received there: it was short, or came in one piece with something else.
            kept = self._kept(value, args, kwargs)
            if index >= 0:
                args[index] = kept
            else:
                kwargs[name] = kept
        for hole in self._general.holes:
            args.insert(hole, None)
        return args, kwargs

    def _kept(self, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        form = _form(value)
        data = bytes_of(value) if memoryview(value).nbytes else memoryview(b"")
        return self._room(form, len(data), args, kwargs).filled(form, data)


def into_decoder(name: str, general: Decode, parameters: tuple[Parameter, ...], allocate: Allocator) -> Into:
    """:raises TypeError: the method has no parameter that could be received so, or several."""
    if not callable(allocate):
        raise TypeError(_no_allocator(name, allocate))
    found = [p for p in parameters if general.views(p.name)]
    if len(found) != 1:
        names = ", ".join(repr(p.name) for p in found) or "none"
        raise TypeError(
            f"{name}: with into=, one parameter must be annotated memoryview or numpy.ndarray; of these "
            f"there is {names}"
        )
    return Into(name, general, found[0], allocate)
