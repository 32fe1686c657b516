"""Services: named sets of methods, made from ordinary functions or from an object's methods.

Everything about a method that does not depend on a call is worked out when it is registered: its kind, the
decoders of its arguments, what reflection reports of it. A handler that cannot be served is an error there,
not at the first call.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from .arguments import Decode, arguments_decoder
from .codec import MAX_STRUCTURED_BYTES, Shape, encode_value, explain, shape_of
from .errors import Code, RpcError
from .into import into_decoder
from .signature import Kind, Signature, read_signature

if TYPE_CHECKING:
    from ..pipes.placement import Placement
    from .codec import Payload
    from .into import Allocator

#: Longest name of a method in messages ("service.method"), in bytes.
MAX_NAME_BYTES: Final = 200

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_OPTIONS = "__rpc_method__"

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Method:
    """One method as the server calls it."""

    __slots__ = (
        "_item",
        "decode",
        "doc",
        "encode_item",
        "encode_result",
        "handler",
        "idempotent",
        "is_async",
        "item_keys",
        "keys",
        "kind",
        "name",
        "place",
        "signature",
    )

    #: Name in messages, the service's first: ``"kv.get"``.
    name: str
    kind: Kind
    #: Doing it twice is as good as once, so a client may repeat it when it does not know whether it was done.
    idempotent: bool
    #: Called with what ``decode`` gave, after the context and the stream of items were put in their places.
    handler: Callable[..., Any]
    #: Unary and client-streaming: its result is to be awaited. Streaming: it makes an asynchronous iterator
    #: (else an ordinary one).
    is_async: bool
    #: For reflection, and for where the context and the stream belong.
    signature: Signature
    #: First paragraph of the handler's docstring.
    doc: str
    #: (encoding, payload) to (positional arguments, arguments by keyword), with None in the places of the
    #: context and of the stream. Raises RpcError, INVALID_ARGUMENT naming the argument or RESOURCE_EXHAUSTED.
    decode: Callable[[int, Payload], tuple[list[Any], dict[str, Any]]]
    #: Names memory for a large argument, before that comes; None: there is no allocator.
    place: Callable[[int, memoryview, int], Placement | None] | None
    #: A result, or a stream's item, to (encoding, payload). Raises TypeError when it cannot travel.
    encode_result: Callable[[object], tuple[int, Payload]]
    encode_item: Callable[[object], tuple[int, Payload]]

    def __init__(
        self,
        name: str,
        handler: Callable[..., Any],
        *,
        idempotent: bool = False,
        into: Allocator | None = None,
        max_structured_bytes: int = MAX_STRUCTURED_BYTES,
        localns: Mapping[str, Any] | None = None,
    ) -> None:
        signature = read_signature(name, handler, localns)
        self.name = name
        self.kind = signature.kind
        self.idempotent = idempotent
        self.handler = handler
        self.is_async = signature.is_async
        self.signature = signature
        self.doc = (inspect.getdoc(handler) or "").partition("\n\n")[0].replace("\n", " ")
        if into is None:
            self.decode, self.place = arguments_decoder(name, signature, max_structured_bytes), None
        else:
            general = Decode(name, signature, max_structured_bytes)
            self.decode = decode = into_decoder(name, general, signature.parameters, into)
            self.place = decode.place
        #: what arguments and items have as keys (``proto/objects.py``)
        self.keys = 0
        for parameter in signature.parameters:
            self.keys |= shape_of(parameter.hint).keys
        self.encode_result = self.encode_item = encode_value
        self._item = Shape(signature.item, max_structured_bytes) if signature.kind.streams_in else None
        self.item_keys = 0 if self._item is None else self._item.keys

    def decode_item(self, encoding: int, payload: Payload) -> Any:
        """One item that the caller sent.

        :raises RpcError: ``INVALID_ARGUMENT`` naming the field, ``RESOURCE_EXHAUSTED``; ``INTERNAL`` when the
            method takes no items.
        """
        if self._item is None:
            raise RpcError(Code.INTERNAL, f"{self.name}: takes no stream")
        try:
            return self._item.value(encoding, payload)
        except Exception as exc:
            raise explain(exc, lambda below: f"{self.name}: streamed item{below and ' at ' + below}") from exc

    def __repr__(self) -> str:
        return f"<Method {self.name}{self.signature}>"


@overload
def method(handler: Handler, /) -> Handler: ...
@overload
def method(
    *, name: str | None = None, idempotent: bool = False, into: Allocator | None = None
) -> Callable[[Handler], Handler]: ...
def method(
    handler: Handler | None = None,
    /,
    *,
    name: str | None = None,
    idempotent: bool = False,
    into: Allocator | None = None,
) -> Handler | Callable[[Handler], Handler]:
    """Mark a method of a class as one to be served; ``Service(name, instance)`` then serves it.

    :param name: its name in the service; None: the function's own.
    :param idempotent: doing it twice is as good as once.
    :param into: names memory for the argument that is annotated ``memoryview`` or ``numpy.ndarray``: a
        function that is given an :class:`~aiordma.rpc.Incoming` and returns a writable buffer, an array, or a
        region of ``aiordma.memory``; the argument is received there. None, ``MemoryError`` or an
        ``RpcError``: the call is refused.
    """

    def mark(function: Handler) -> Handler:
        setattr(function, _OPTIONS, (name, idempotent, into))
        return function

    return mark if handler is None else mark(handler)


class Service:
    """A named set of methods.

    :param name: ``"kv"``, ``"shop.orders"``; a method's name in messages is this, a dot, and its own.
    :param of: an object whose methods marked with :func:`method` are served, with its state.
    :param max_structured_bytes: longest MessagePack payload that is decoded into containers; longer ones are
        answered with ``RESOURCE_EXHAUSTED``. Bytes-like values alone are not concerned.
    :raises ValueError: not a name.
    :raises TypeError: a method cannot be served; ``of`` has none that are marked.
    """

    def __init__(
        self, name: str, of: object = None, *, max_structured_bytes: int = MAX_STRUCTURED_BYTES
    ) -> None:
        if not _NAME.fullmatch(name) or len(name) > MAX_NAME_BYTES:
            raise ValueError(
                f"service name {name!r:.99}: letters, digits, _ and single dots between words are allowed, "
                f"and at most {MAX_NAME_BYTES} characters"
            )
        if max_structured_bytes < 1:
            raise ValueError(f"max_structured_bytes={max_structured_bytes}: must be at least 1")
        self.name = name
        self._max_structured_bytes = max_structured_bytes
        self._methods: dict[str, Method] = {}
        if of is not None:
            self._add_marked(of)

    def _add_marked(self, instance: object) -> None:
        marked = {}
        for attribute, static in inspect.getmembers_static(type(instance)):
            options = getattr(getattr(static, "__func__", static), _OPTIONS, None)
            if options is not None:
                marked[attribute] = options
        if not marked:
            raise TypeError(
                f"service {self.name!r}: {type(instance).__name__} has no methods marked with @rpc.method"
            )
        for attribute, (name, idempotent, into) in marked.items():
            handler = getattr(instance, attribute)
            self.add(handler, name=name or attribute, idempotent=idempotent, into=into)

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by their names in messages (``"kv.get"``)."""
        return MappingProxyType(self._methods)

    @overload
    def method(self, handler: Handler, /) -> Handler: ...
    @overload
    def method(
        self, /, *, name: str | None = None, idempotent: bool = False, into: Allocator | None = None
    ) -> Callable[[Handler], Handler]: ...
    def method(
        self,
        handler: Handler | None = None,
        /,
        *,
        name: str | None = None,
        idempotent: bool = False,
        into: Allocator | None = None,
    ) -> Handler | Callable[[Handler], Handler]:
        """Serve a function: ``@service.method`` or ``@service.method(name=..., idempotent=True)``.

        The function itself is returned, so that it can be called and tested as before.

        :param name: its name in the service; None: the function's own.
        :param idempotent: doing it twice is as good as once: clients may repeat it after a broken link.
        :param into: as of :func:`method`.
        :raises TypeError: it cannot be served.
        :raises ValueError: the name is no name, or taken.
        """
        # What is defined beside the handler, for example inside a function, may be named in its annotations.
        localns = sys._getframe(1).f_locals

        def register(function: Handler) -> Handler:
            self.add(function, name=name, idempotent=idempotent, into=into, localns=localns)
            return function

        return register if handler is None else register(handler)

    def add(
        self,
        handler: Callable[..., Any],
        *,
        name: str | None = None,
        idempotent: bool = False,
        into: Allocator | None = None,
        localns: Mapping[str, Any] | None = None,
    ) -> Method:
        """Serve ``handler``; the same as the decorator, for functions that exist already.

        :param localns: names that its annotations may use besides the globals of its module.
        """
        own = name if name is not None else getattr(handler, "__name__", "")
        full = f"{self.name}.{own}"
        if not _NAME.fullmatch(own) or "." in own or len(full) > MAX_NAME_BYTES:
            raise ValueError(
                f"method name {own!r:.99} of service {self.name!r}: letters, digits and _ are allowed, and "
                f"at most {MAX_NAME_BYTES} characters with the service's name; give one with name="
            )
        if full in self._methods:
            raise ValueError(f"method {full!r} is registered already")
        made = Method(
            full,
            handler,
            idempotent=idempotent,
            into=into,
            max_structured_bytes=self._max_structured_bytes,
            localns=localns,
        )
        self._methods[full] = made
        return made

    def __repr__(self) -> str:
        return (
            f"<Service {self.name}: {', '.join(m.rpartition('.')[2] for m in self._methods) or 'no methods'}>"
        )
