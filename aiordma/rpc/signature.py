"""What a handler's signature means: parameters, their types, and which of the four kinds of call it is."""

from __future__ import annotations

import collections.abc
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .codec import describe_type, encodable_type


class Kind(enum.IntEnum):
    """What flows in a call besides its arguments."""

    #: Arguments, one result.
    UNARY = 0
    #: Arguments, any number of items back.
    SERVER_STREAM = 1
    #: Arguments and any number of items, one result.
    CLIENT_STREAM = 2
    #: Items in both directions, independently.
    BIDI = 3

    @property
    def streams_in(self) -> bool:
        """Whether the caller sends items."""
        return self >= 2

    @property
    def streams_out(self) -> bool:
        """Whether the handler sends items."""
        return self & 1 == 1


class _NoDefault:
    def __repr__(self) -> str:
        return "no default"


#: Stands for the default of a parameter that must be given.
NO_DEFAULT: Any = _NoDefault()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument that travels."""

    name: str
    #: The annotation; ``Any`` when there is none.
    hint: Any
    #: ``NO_DEFAULT`` when it must be given.
    default: Any
    #: Given by keyword only.
    keyword_only: bool
    #: Given by position only.
    positional_only: bool = False

    def __str__(self) -> str:
        text = f"{self.name}: {describe_type(self.hint)}"
        return text if self.default is NO_DEFAULT else f"{text} = {self.default!r:.64}"


@dataclass(frozen=True, slots=True)
class Signature:
    """A handler as its callers see it."""

    kind: Kind
    parameters: tuple[Parameter, ...]
    #: Type of the result or, where the handler streams, of each item; ``Any`` when it is not annotated.
    returns: Any
    #: Type of each item that the caller sends; None where the caller sends none.
    item: Any
    #: Where among the positional arguments the handler takes the call's context; -1: it takes none.
    context_index: int
    #: Where among the positional arguments it takes the caller's items; -1: it takes none.
    stream_index: int
    #: Unary and client-streaming: it is to be awaited. Streaming: it makes an asynchronous iterator.
    is_async: bool

    def __str__(self) -> str:
        shown = [str(p) for p in self.parameters if not p.keyword_only]
        if any(p.keyword_only for p in self.parameters):
            shown += ["*", *(str(p) for p in self.parameters if p.keyword_only)]
        if self.kind.streams_in:
            shown.append(f"stream of {describe_type(self.item)}")
        result = describe_type(self.returns)
        return f"({', '.join(shown)}) -> {'stream of ' if self.kind.streams_out else ''}{result}"


_ASYNC_ITERATORS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
_ITERATORS = (*_ASYNC_ITERATORS, collections.abc.Iterator, collections.abc.Generator)


def _item_of(hint: Any, kinds: tuple[type, ...]) -> Any:
    """Item type of an iterator annotation of one of ``kinds``; None when ``hint`` is no such annotation."""
    origin = typing.get_origin(hint) or hint
    if origin not in kinds:
        return None
    arguments = typing.get_args(hint)
    return arguments[0] if arguments else Any


def _is_context(hint: Any) -> bool:
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return any(getattr(member, "__rpc_context__", False) is True for member in members)


def _chain(handler: Any) -> list[Any]:
    """``handler`` and what it wraps: a decorator may hide from Python that a function is a coroutine's."""
    found = [handler]
    while True:
        inner = found[-1]
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        elif isinstance(call := getattr(inner, "__call__", None), types.MethodType):  # noqa: B004
            inner = call  # an object with a __call__ of its own
        else:
            return found
        found.append(inner)


class _Parameters:
    """The parameters of a handler, sorted into arguments, the context and the stream of items."""

    def __init__(self, name: str, parameters: Iterable[inspect.Parameter]) -> None:
        self._name = name
        self.arguments: list[Parameter] = []
        #: positions; -1: the handler takes none
        self.context_index = self.stream_index = -1
        #: type of the items of the stream
        self.item: Any = None
        position = 0
        for p in parameters:
            self._add(p, position)
            position += p.kind is not p.KEYWORD_ONLY

    def _add(self, p: inspect.Parameter, position: int) -> None:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise TypeError(f"{self._name}: takes {p}; every argument of a method needs a name of its own")
        hint = Any if p.annotation is inspect.Parameter.empty else p.annotation
        streamed = _item_of(hint, _ASYNC_ITERATORS)
        if streamed is not None:
            self._check_special(p, self.stream_index)
            self.stream_index, self.item = position, streamed
        elif _is_context(hint):
            self._check_special(p, self.context_index)
            self.context_index = position
        else:
            default = NO_DEFAULT if p.default is inspect.Parameter.empty else p.default
            keyword_only, positional_only = p.kind is p.KEYWORD_ONLY, p.kind is p.POSITIONAL_ONLY
            self.arguments.append(Parameter(p.name, hint, default, keyword_only, positional_only))

    def _check_special(self, p: inspect.Parameter, before: int) -> None:
        if p.kind is p.KEYWORD_ONLY:
            raise TypeError(f"{self._name}: parameter {p.name!r} must not be keyword-only")
        if before >= 0:
            raise TypeError(f"{self._name}: two parameters like {p.name!r}; a call has one")


class _Result:
    """What a handler returns, and how it runs."""

    def __init__(self, name: str, handler: Callable[..., Any], annotation: Any) -> None:
        chain = _chain(handler)
        returns = Any if annotation is inspect.Signature.empty else annotation
        item = _item_of(returns, _ITERATORS)
        async_generator = any(map(inspect.isasyncgenfunction, chain))
        generator = any(map(inspect.isgeneratorfunction, chain))
        coroutine = any(map(inspect.iscoroutinefunction, chain))
        self.streams = item is not None or async_generator or generator
        if not self.streams:
            self.hint, self.is_async = returns, coroutine
            return
        if coroutine:
            raise TypeError(
                f"{name}: returns an iterator from a coroutine; make it an asynchronous generator "
                "(async def with yield), or a plain def that returns the iterator"
            )
        #: of the result, or of each of its items
        self.hint = returns if item is None else item
        self.is_async = async_generator or (not generator and _item_of(returns, _ASYNC_ITERATORS) is not None)


def _inspected(
    name: str, handler: Callable[..., Any], localns: Mapping[str, Any] | None
) -> inspect.Signature:
    try:
        return inspect.signature(handler, eval_str=True, locals=localns)
    except NameError as exc:
        raise TypeError(
            f"{name}: an annotation cannot be resolved: {exc}; import its type at run time (not only for "
            "type checkers) and define it at module level"
        ) from exc
    except (TypeError, ValueError) as exc:
        raise TypeError(f"{name}: {handler!r} cannot be served: {exc}") from exc


def read_signature(
    name: str, handler: Callable[..., Any], localns: Mapping[str, Any] | None = None
) -> Signature:
    """What ``handler`` takes and returns.

    :param name: the method's name, for error messages.
    :param localns: names that annotations may use besides the globals of the handler's module.
    :raises TypeError: it cannot be served; the message says why and what to change.
    """
    raw = _inspected(name, handler, localns)
    takes = _Parameters(name, raw.parameters.values())
    result = _Result(name, handler, raw.return_annotation)
    kind = Kind((2 if takes.stream_index >= 0 else 0) + result.streams)
    if kind.streams_in and not result.is_async:
        raise TypeError(f"{name}: takes a stream, so it must be 'async def'")
    for what, hint in (("the result", result.hint), ("a streamed item", takes.item)):
        if hint is not None:
            try:
                encodable_type(hint)
            except TypeError as exc:
                raise TypeError(f"{name}: {what}: {exc}") from exc
    return Signature(
        kind,
        tuple(takes.arguments),
        result.hint,
        takes.item,
        takes.context_index,
        takes.stream_index,
        result.is_async,
    )
