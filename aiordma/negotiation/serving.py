"""One handler for each connection of a listener: a server outlives its clients and its handlers' errors."""

from __future__ import annotations

import logging
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import anyio
from anyio import BrokenResourceError, EndOfStream, IncompleteRead

from ..wake.escaping import is_cancellation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Literal, Self


class Abortable(Protocol):
    """What a listener hands out: anyio's ``AsyncResource`` that can also be ended without waiting."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
        /,
    ) -> bool | None: ...
    async def aclose(self) -> None: ...
    def abort(self) -> None:
        """End it at once: the peer gets an error."""


T = TypeVar("T", bound=Abortable)

OnError: TypeAlias = "Literal['log', 'raise'] | Callable[[T, Exception], object]"
"""What becomes of an exception of a handler: see :meth:`ConnectionListener.serve`."""

_log = logging.getLogger("aiordma.serve")

_LOSSES = (BrokenResourceError, EndOfStream, IncompleteRead, ConnectionError)


def is_loss(exc: BaseException) -> bool:
    """Whether a handler that raised this has lost its peer, and did nothing wrong.

    A refused connection is none: the handler has tried to connect somewhere else.
    """
    if isinstance(exc, BaseExceptionGroup):
        return all(is_loss(each) for each in exc.exceptions)
    return isinstance(exc, _LOSSES) and not isinstance(exc, ConnectionRefusedError)


def check_arguments(handler: Any, on_error: Any) -> None:
    """:raises TypeError: the handler is no function. :raises ValueError: it is no valid ``on_error``."""
    if not callable(handler):
        raise TypeError(f"serve({handler!r}): the handler must be a coroutine function of the connection")
    if on_error not in ("log", "raise") and not callable(on_error):
        raise ValueError(
            f"on_error={on_error!r} is not valid: it must be 'log', 'raise', "
            "or a function of the connection and the exception"
        )


class Handlers(Generic[T]):
    """The handlers of one listener: how many run, and how they ended."""

    def __init__(self) -> None:
        self.running = self.failed = self.lost = 0

    async def run(
        self, handler: Callable[[T], Awaitable[object]], connection: T, on_error: OnError[T]
    ) -> None:
        """Run one, and close its connection; abort it if the handler raises, or the peer would take for whole
        what breaks off.

        Cancellation, ``KeyboardInterrupt`` and other exceptions that are no ``Exception`` pass through.
        But on asyncio, a handler that is not cancelled itself gets ``CancelledError`` from a future or task
        that is; that is an error of the handler. anyio's task group would take the handler for ended, and
        end the task that accepts, without a word.
        """
        self.running += 1
        whole = False
        try:
            result = handler(connection)
            if not isawaitable(result):
                raise TypeError(f"{handler!r} is no coroutine function: write the handler with `async def`")
            await result
            whole = True
        except Exception as exc:
            await self.report(connection, exc, on_error)
        except anyio.get_cancelled_exc_class() as exc:
            if is_cancellation(exc):
                raise
            error = RuntimeError("the handler has awaited what somebody else has cancelled")
            error.__cause__ = exc
            await self.report(connection, error, on_error)
        finally:
            self.running -= 1
            if not whole:
                connection.abort()
            await connection.aclose()

    async def report(self, connection: T, exc: Exception, on_error: OnError[T]) -> None:
        """Count what a handler has raised, and pass it on.

        :raises Exception: ``exc``, if ``on_error`` is "raise"; or what ``on_error`` itself raises.
        """
        lost = is_loss(exc)
        if lost:
            self.lost += 1
        else:
            self.failed += 1
        if on_error == "raise":
            raise exc
        if callable(on_error):
            result = on_error(connection, exc)
            if isawaitable(result):
                await result
        elif lost:
            _log.info("a handler has lost its client, %r: %s", connection, _shown(exc))
        else:
            _log.error("the handler of %r has failed: %s", connection, _shown(exc), exc_info=exc)


def _shown(exc: BaseException) -> str:
    text = str(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
