# cython: annotation_typing=False
"""The server's end of a connection: from a CALL to its handler, and from the handler to the REPLY.

``def`` handlers run right where their CALL is read. ``async def`` handlers begin there, too (``wake``'s
starter), and get a task of their own when they wait. Everything that a handler may end with, a result, an
exception, a cancellation, becomes exactly one REPLY.
"""

from __future__ import annotations

import inspect
import logging
import math
import traceback
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Any

import anyio

from ..errors import LinkError, LocalProtocolError, RemoteProtocolError
from ..observe.trace import recorder
from ..proto.call import Call
from ..proto.metadata import encode_metadata
from ..proto.objects import MAX_HELD_OBJECTS
from ..proto.rpc import CALL, CANCEL, CREDIT, END, ITEM, PING, Hello, error_message
from ..proto.server_calls import ServerCalls
from ..proto.trace import TIMED_MASK, Tracer  # (asked as in reply.py)
from ..wake.base import SHARE_SECONDS
from ..wake.escaping import contain
from .context import Context
from .counted import UNCOUNTED_BYTES, check_held, check_objects
from .errors import MAX_DETAILS_BYTES, Code, RpcError
from .handling import Handling, Received
from .interceptor import RefusedCall, ServerCall
from .items import Inbox, Sending
from .multiplexer import SHORT_BYTES, Multiplexer, newest
from .routes import wrong_kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..pipes.contracts import Channel, Message
    from ..pipes.placement import Placement
    from ..proto.rpc import RpcMessage
    from .arguments import Arguments
    from .codec import Payload
    from .multiplexer import Buffer
    from .routes import Dispatch, Route

_log = logging.getLogger("aiordma.rpc")

#: What a client may announce: methods by number, and bytes of metadata of one call.
_METHODS = 4096
_METADATA_BYTES = 16384
#: Bytes that wait for a client until nothing more of it is looked at; what runs then is still answered. Small
#: calls of a busy client pass its large replies up to here.
_MOST_QUEUED_BYTES = 256 << 20


class ServerConnection(Multiplexer):
    """One client.

    :param calls: how many calls it may have in flight.
    :param window: bytes of items that it may send on a stream before any of them are taken.
    """

    side = "server"

    def __init__(
        self,
        channel: Channel,
        peer: str,
        dispatch: Dispatch,
        *,
        calls: int = 1024,
        window: int = 262144,
    ) -> None:
        self.machine = ServerCalls(Hello(calls, _METHODS, window, _METADATA_BYTES))
        super().__init__(channel, self.machine, peer)
        self._message = self.machine.message
        self._dispatch = dispatch
        self._staying = False
        #: routes of method numbers whose first call may not have been handed over yet
        self._announced: dict[int, Route] = {}
        # A client that keeps to its limit gets one reply for each call, and for those with streams one item,
        # one CREDIT and the HEADERS at a time.
        self._most_queued = 4 * calls + 8
        # Replies that it does not take are not bounded by its calls: a call is over when it is answered.
        self._most_queued_bytes = _MOST_QUEUED_BYTES
        #: objects that all its calls in flight may have (``Config.max_connection_objects``)
        self.most_held = MAX_HELD_OBJECTS

    def begin(self) -> None:
        """As of :class:`Multiplexer`."""
        if self._dispatch.places:
            self.place_messages()
        super().begin()

    # ---- what arrives

    def _place(self, kind: int, message: RpcMessage, front: memoryview, nbytes: int) -> Placement | None:
        if kind != CALL or self.machine.leaving or self.ended is not None:
            return None
        number = message.method
        if message.name is not None:
            route = self._dispatch.routes.get(message.name)
            if route is not None and 0 < number <= self.machine.own.methods:
                self._announced[number] = route
        else:
            route = self.machine.bound(number) or self._announced.get(number)
        if route is None or route.place is None:
            return None
        placement: Placement | None = route.place(message.encoding, front, nbytes)
        return placement

    def _on_message(self, data: Message) -> None:
        event = self._receive(data)
        if event == 2:  # CALL
            if not self._staying:
                self._staying = True
                self.waker.call_soon(self._stay)
            self._on_call(self.machine.call)
        elif event:
            self._on_other(event)
        if self._message.payload.__class__ is memoryview:
            self._message.payload = b""  # see Multiplexer

    def _stay(self) -> None:
        """A client that calls once often calls again at once: look for that before the event loop sleeps, as
        long as the channel's polling policy finds that it pays and no other task of this loop has work."""
        waker = self.waker
        if self.ended is None:
            until = waker.now() + SHARE_SECONDS
            spin = self.channel.spin
            rounds = 0
            while spin() and self.ended is None:
                rounds += 1
                if rounds & 15 == 0 and waker.now() > until:
                    # Files, timers and signals of the loop have their turn, too.
                    waker.call_soon(self._stay)
                    return
        self._staying = False

    def _on_other(self, event: int) -> None:
        machine, message = self.machine, self._message
        call = machine.call
        if event == ITEM:
            call.owner.on_item(message.encoding, message.payload)
        elif event == CREDIT:
            call.owner.on_credit()
        elif event == END:
            call.owner.on_end()
        elif event == CANCEL:
            code = message.extra
            self.stop(call, Code.DEADLINE_EXCEEDED if code == Code.DEADLINE_EXCEEDED else Code.CANCELLED)
        elif event == PING:
            self.send_merged(self, machine.pong(int(self.waker.now() * 1e9)), newest)

    def _on_call(self, call: Call) -> None:
        message = self._message
        if len(self._queue) + len(self._urgent) > self._most_queued:
            raise self._flooded()
        route = self.machine.target or self._find_route()
        if route is None:
            self._refuse(call, message.name or "", False, "there is no such method")
            return
        deadline_us = message.deadline_us
        if deadline_us >= 0:
            call.deadline = self.waker.now() + deadline_us * 1e-6
        if route.kind or call.kind:
            self._on_stream(call, route)
            return
        encoding = message.encoding
        payload: Payload = message.payload
        context = trace = None
        args: Any = None
        if message.trace is not None or recorder.handlers or call.serial & TIMED_MASK == 1:
            call.trace = trace = Tracer.received(recorder, message.trace, route.method.name)
        try:
            args, kwargs = self._decode(call, route, encoding, payload)
            if route.context_index >= 0 or route.unary is not None:
                context = self._context(call, route, args)
            if not route.is_async and route.unary is None:
                if trace is not None:
                    Tracer.started(recorder, trace)
                dispatch = self._dispatch
                result = dispatch.call(route.handler, args, kwargs, dispatch.variables.copy())
                encoding, payload = route.encode(result)
        except BaseException as exc:
            self._refused(call, route.method.name, True, exc if args is None else None, None)
            self._handler_failed(call, route, exc, context)
            return
        if route.is_async or route.unary is not None:
            self._begin(call, self._run_unary(call, route, args, kwargs, context))
        elif not call.closed:
            self._reply(call, encoding, payload, context)

    def _flooded(self) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{len(self._queue) + len(self._urgent)} messages wait for a client that does not read: it makes "
            f"more calls than the {self.machine.own.calls} that are allowed before their replies have come"
        )

    def _find_route(self) -> Route | None:
        """The route of the name in the message; the method's number stands for it from now on."""
        route = self._dispatch.routes.get(self._message.name or "")
        if route is not None:
            self.machine.bind(route)
        return route

    def _decode(self, call: Call, route: Route, encoding: int, payload: Payload) -> Arguments:
        """The arguments of a call: (positional, by keyword)."""
        if encoding and len(payload) > UNCOUNTED_BYTES:
            where = f"{route.method.name}: arguments"
            objects = check_objects(encoding, payload, self.most_objects, self.most_keys, route.keys, where)
            self.hold(call, 0, objects, where)
        arguments: Arguments = route.decode(encoding, payload)
        return arguments

    def hold(self, call: Call, earlier: int, objects: int, where: str) -> None:
        """A message of ``call`` is about to become ``objects`` objects, instead of ``earlier`` ones.

        :raises RpcError: ``RESOURCE_EXHAUSTED``, all calls in flight would have too many.
        """
        more = objects - earlier
        if call.closed:
            return
        check_held(self.machine.objects - earlier, objects, self.most_held, where)
        call.objects += more
        self.machine.objects += more

    def _context(self, call: Call, route: Route, args: list[Any]) -> Context:
        """The context of ``call``, put among the arguments if the handler takes it."""
        context = Context(self, call, route.method.name, self._message.metadata)
        if route.context_index >= 0:
            args[route.context_index] = context
        return context

    def _begin(self, call: Call, coro: Any) -> None:
        dispatch = self._dispatch
        job = dispatch.start(coro, dispatch.variables.copy())
        if job is None:
            return
        # It waits. What happened to the call while it ran its first step finds its job only now.
        owner = call.owner
        if owner is None:
            call.owner = job
        else:
            owner.job = job
        if call.stop:
            job.cancel()
        elif call.deadline != math.inf and not call.closed:
            self.watch(call, call.deadline)

    async def _run_unary(
        self, call: Call, route: Route, args: list[Any], kwargs: dict[str, Any], context: Context | None
    ) -> None:
        try:
            if call.stop:
                raise self._refused(call, route.method.name, True, self.stopped(call), context)
            trace = call.trace
            if trace is not None:
                Tracer.started(recorder, trace)
            if route.unary is None:
                result = await route.handler(*args, **kwargs)
            else:
                result = await route.unary(ServerCall(route.method, context, args, kwargs))
            if trace is not None:
                Tracer.finished(recorder, trace)
            encoding, payload = route.encode(result)
        except BaseException as exc:
            if self._is_cancelled(call, exc):
                self._handler_cancelled(call, context)
                raise
            self._handler_failed(call, route, exc, context)
        else:
            if not call.closed:
                self._reply(call, encoding, payload, context)

    # ---- streams

    def _on_stream(self, call: Call, route: Route) -> None:
        message = self._message
        wrong = wrong_kind(route, call.kind)
        if wrong:
            self._refuse(call, route.method.name, True, wrong)
            return
        inbox = Inbox(self, self.machine, call) if route.takes_items else None
        if inbox is not None and call.ended:
            inbox.finish()
        call.owner = handling = Handling(self, call, inbox, Sending(self, self.machine, call))
        if recorder.handlers:  # (there are no stages of a call with streams: the client is told nothing)
            call.trace = Tracer.received(recorder, None, route.method.name)
        context = Context(self, call, route.method.name, message.metadata)
        try:
            args, kwargs = self._decode(call, route, message.encoding, message.payload)
        except BaseException as exc:
            self._refused(call, route.method.name, True, exc, context)
            self._handler_failed(call, route, exc, context)
            return
        if route.context_index >= 0:
            args[route.context_index] = context
        if inbox is not None:
            args[route.stream_index] = Received(inbox, route.method, call, self)
        run = self._run_stream if route.kind & 1 else self._run_one
        self._begin(call, run(handling, route, args, kwargs, context))

    async def _run_one(
        self, handling: Handling, route: Route, args: list[Any], kwargs: dict[str, Any], context: Context
    ) -> None:
        """A handler with one result, of a call that has a stream."""
        call = handling.call
        if not route.is_async and route.unary is None:
            try:
                encoding, payload = route.encode(route.handler(*args, **kwargs))
            except BaseException as exc:
                self._handler_failed(call, route, exc, context)
            else:
                self._reply(call, encoding, payload, context)
        else:
            await self._run_unary(call, route, args, kwargs, context)
        handling.ended()

    async def _run_stream(
        self, handling: Handling, route: Route, args: list[Any], kwargs: dict[str, Any], context: Context
    ) -> None:
        call = handling.call
        send = handling.sending.send
        encode = route.method.encode_item
        try:
            if call.stop:
                raise self._refused(call, route.method.name, True, self.stopped(call), context)
            if route.stream is not None:
                items = route.stream(ServerCall(route.method, context, args, kwargs))
            else:
                items = route.handler(*args, **kwargs)
            if hasattr(items, "__aiter__"):
                iterator: AsyncIterator[Any] = items.__aiter__()
                closing: Any = aclosing(iterator) if inspect.isasyncgen(iterator) else nullcontext()
                async with closing:
                    async for item in iterator:
                        self._send_headers(call, context)
                        await send(*encode(item))
            else:
                for item in items:
                    self._send_headers(call, context)
                    await send(*encode(item))
        except BaseException as exc:
            if self._is_cancelled(call, exc):
                self._handler_cancelled(call, context)
                raise
            self._handler_failed(call, route, exc, context)
        else:
            if not call.closed:
                self._reply(call, 0, b"", context)
        handling.ended()

    def _send_headers(self, call: Call, context: Context) -> None:
        if not call.headers and not call.closed:
            headers = context.take_headers()
            if headers is not None:
                self.send(self.machine.headers(call, headers))

    # ---- how calls end

    def stop(self, call: Call, code: Code) -> None:
        """Cancel the handler of ``call``; its REPLY will have ``code``."""
        if call.stop == 0 and not call.closed:
            call.stop = code
            owner = call.owner
            if owner is not None:
                owner.cancel()

    def _reply(self, call: Call, encoding: int, payload: Payload, context: Context | None) -> None:
        block = None if call.trace is None else Tracer.reply(recorder, call.trace, 0, self.peer)
        if context is None:
            head = self.machine.reply(call, encoding, None, None, block)
        else:
            head = self.machine.reply(call, encoding, context.take_headers(), context.trailing, block)
        if encoding == 3:  # BULK
            head, payload = payload.behind(head)  # type: ignore[union-attr]
        self._finish(call, head, payload, "the result")  # type: ignore[arg-type]
        if self._drained:
            self._look_whether_drained()

    def _finish(self, call: Call, head: bytes, payload: Buffer, what: str) -> None:
        """Send the REPLY, or that it cannot be sent."""

        def instead(exc: Exception) -> bytes:
            return error_message(call.id, Code.RESOURCE_EXHAUSTED, f"{what} cannot be sent: {exc}")

        try:
            if not call.kind and len(head) + len(payload) <= SHORT_BYTES:
                self.send_short(head, payload)
            else:
                self.send(head, payload, instead)  # of a stream, behind its items
        except ValueError as exc:
            self.send(instead(exc))

    def _fail(
        self,
        call: Call,
        code: int,
        text: str,
        details: bytes | None = None,
        context: Context | None = None,
        trailing: bytes | None = None,
    ) -> None:
        if call.closed:
            return
        headers = None
        if context is not None:
            headers = context.take_headers()
            trailing = trailing or context.trailing
        block = None if call.trace is None else Tracer.reply(recorder, call.trace, code, self.peer)
        try:
            message = self.machine.fail(call, code, text, details, headers, trailing, block)
        except Exception:  # each error has its reply: a caller waits for it
            _log.exception("an error cannot be sent as it is: only its code and message are")
            message = self.machine.fail(call, code, text, None, None, None, block)
        self._finish(call, message, b"", "the error of the call")
        if self._drained:
            self._look_whether_drained()

    def _refuse(self, call: Call, name: str, known: bool, why: str) -> None:
        text = f"{name}: {why}"
        self._refused(call, name, known, RpcError(Code.UNIMPLEMENTED, text), None)
        self._fail(call, Code.UNIMPLEMENTED, text)

    def _refused(
        self, call: Call, name: str, known: bool, exc: BaseException | None, context: Context | None
    ) -> Any:
        """Tell the interceptors that no handler gets the call; ``exc`` again (None: a handler had it).

        :param context: None: the call is that of the message that was read last.
        """
        for refused in self._dispatch.refusals if exc is not None else ():
            if context is None:
                context = Context(self, call, name, self._message.metadata)
            error = exc if isinstance(exc, RpcError) else RpcError(Code.UNKNOWN, "the handler failed")
            try:
                refused(RefusedCall(name, known, context), error)
            except Exception:
                _log.exception("%s: an interceptor's refused() failed", name)
        return exc

    def stopped(self, call: Call) -> RpcError:
        """Why the handler of ``call`` was cancelled."""
        texts = {
            Code.DEADLINE_EXCEEDED: "the deadline passed before the handler ended",
            Code.CANCELLED: "cancelled by the client",
            Code.INVALID_ARGUMENT: "the method takes no stream of items",
        }
        code = Code(call.stop) if call.stop else Code.CANCELLED
        return RpcError.of(code, texts.get(code, "the server is shutting down"))

    def _is_cancelled(self, call: Call, exc: BaseException) -> bool:
        """Whether ``exc`` has ended a handler because its task is cancelled, or its coroutine closed."""
        if isinstance(exc, anyio.get_cancelled_exc_class()):
            return call.stop != 0 or self._dispatch.is_cancelled()
        return isinstance(exc, GeneratorExit)

    def _handler_cancelled(self, call: Call, context: Context | None) -> None:
        if not call.stop:
            call.stop = Code.UNAVAILABLE  # not by us: the event loop ends
        error = self.stopped(call)
        self._fail(call, error.code, error.message, context=context)

    def _handler_failed(self, call: Call, route: Route, exc: BaseException, context: Context | None) -> None:
        """It has raised ``exc``, which goes no further: this may run in the callback for others' messages, or
        in the task of another operation, which polls."""
        if contain(exc):
            self._fail(call, Code.UNAVAILABLE, "the server is shutting down", context=context)
            return
        if call.closed:
            return  # the connection is lost, and the handler noticed
        if isinstance(exc, RpcError) and hasattr(exc, "code"):  # a class of theirs may not have called ours
            trailing = None
            try:
                trailing = encode_metadata(exc.metadata) if exc.metadata else None
            except Exception:
                _log.exception("%s: metadata of an error cannot be sent", route.method.name)
            code, text = _plain(exc.code, exc.message)
            self._fail(call, code, text, exc.details, context, trailing)
            return
        if isinstance(exc, LocalProtocolError) and call.stop:
            self._handler_cancelled(call, context)
            return
        _log.error("handler of %s failed", route.method.name, exc_info=exc)
        text, details = "the handler failed; the server's log says why", None
        if self._dispatch.expose_errors:
            text = _shown(exc)
            details = "".join(traceback.format_exception(exc)).encode("utf-8", "replace")[-MAX_DETAILS_BYTES:]
        self._fail(call, Code.UNKNOWN, text, details, context)

    def _on_deadline(self, call: Call) -> None:
        self.stop(call, Code.DEADLINE_EXCEEDED)

    def _on_lost(self, calls: list[Call]) -> None:
        for call in calls:
            if not call.stop:
                call.stop = Code.CANCELLED
                owner = call.owner
                if owner is not None:
                    owner.cancel()
        self._wake_drained()

    # ---- the end

    def drain(self) -> None:
        """Take no more calls; those in flight go on."""
        if self.ended is None:
            message = self.machine.goaway(Code.UNAVAILABLE, "the server is shutting down")
            if message is not None:
                self.send(message)

    async def drained(self) -> None:
        """Wait until no call is in flight and all replies have left."""
        if not self._is_drained():
            await self._wait_drained()

    def _is_drained(self) -> bool:
        return self.ended is not None or not (self.machine.calls or self._queue or self._urgent)

    def _look_whether_drained(self) -> None:
        if self._drained and self._is_drained():
            self._wake_drained()

    def _flush(self) -> None:
        Multiplexer._flush(self)
        self._look_whether_drained()

    def stop_all(self) -> None:
        """Cancel every handler."""
        for call in list(self.machine.calls.values()):
            self.stop(call, Code.UNAVAILABLE)

    def give_up(self) -> None:
        """End the connection although calls are in flight."""
        self.abort(LinkError("closed by this end", self.peer))


def _plain(code: object, text: object) -> tuple[int, str]:
    """Code and message of an error, which its owner may have changed to anything."""
    known = code if isinstance(code, int) and 0 < code <= 255 else Code.UNKNOWN
    return int(known), text if isinstance(text, str) else repr(text)


def _shown(exc: BaseException) -> str:
    try:
        return f"{type(exc).__name__}: {exc}"
    except Exception:
        return f"{type(exc).__name__}, whose text cannot be shown"
