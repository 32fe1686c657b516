"""Checks that private interfaces of others have the shape that this package expects.

Each returns what is different, or "". They import the library whose interface it is. Modules that use such an
interface call its check before, and leave the interface alone if something is different.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import asyncio.tasks
import gc
import importlib.util
import inspect
import os
import socket
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def missing(owner: object, *names: str) -> str:
    """Names that are not there, in words."""
    absent = [name for name in names if not hasattr(owner, name)]
    called = getattr(owner, "__name__", type(owner).__name__)
    return f"{called} has no {', '.join(absent)}" if absent else ""


# ---- CPython


class _NoLoop:
    """As much of a loop as asyncio's streams ask for while they are made."""

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> _Result:
        return _Result()


class _Result:
    def set_result(self, value: object) -> None:
        pass

    def done(self) -> bool:
        return False


class _Closed:
    def is_closing(self) -> bool:
        return True


def streams() -> str:
    reader = asyncio.StreamReader(limit=1, loop=_NoLoop())  # type: ignore[arg-type]
    protocol = asyncio.StreamReaderProtocol(reader, lambda *_: None, loop=_NoLoop())  # type: ignore[arg-type]
    moved = "_replace_writer" if hasattr(protocol, "_replace_writer") else "_replace_transport"
    return (
        missing(reader, "_buffer", "_limit", "_eof", "_paused", "_waiter", "_exception", "_transport")
        or missing(reader, "_wait_for_data", "_wakeup_waiter", "_maybe_resume_transport")
        or missing(protocol, "_client_connected_cb", "_over_ssl", "_reject_connection", "_stream_reader")
        or missing(protocol, "_strong_reader", "_loop", "_task", "_paused", "_connection_lost")
        or missing(protocol, "_transport", "_drain_helper", moved)
        or _of_writers()
    )


def _of_writers() -> str:
    writer: Any = asyncio.StreamWriter(_Closed(), None, None, _NoLoop())  # type: ignore[arg-type]
    return missing(writer, "_transport", "_protocol", "_reader")


def flow_control() -> str:
    base = getattr(asyncio.transports, "_FlowControlMixin", None)
    if base is None:
        return "asyncio.transports has no _FlowControlMixin"
    made = type("Made", (base,), {})(None, _NoLoop())
    return missing(
        made, "_extra", "_loop", "_protocol_paused", "_maybe_pause_protocol", "_maybe_resume_protocol"
    )


def start_tls() -> str:
    absent = missing(asyncio.sslproto, "_SSLProtocolTransport")
    return absent or _names_in(asyncio.BaseEventLoop.start_tls, "_start_tls_compatible")


def ssl_protocol() -> str:
    return _names_in(asyncio.sslproto._SSLProtocolTransport.__init__, "_ssl_protocol") or _names_in(
        asyncio.sslproto.SSLProtocol.__init__, "_extra"
    )


def sendfile() -> str:
    loop = asyncio.BaseEventLoop
    from asyncio import constants

    mode = getattr(constants, "_SendfileMode", None)
    return (
        missing(constants, "_SendfileMode")
        or missing(mode, "FALLBACK")
        or _names_in(loop.sendfile, "_sendfile_compatible", "_sendfile_fallback")
        or _parameters(getattr(loop, "_sendfile_fallback", None), "self", "transp", "file", "offset", "count")
    )


def descriptors() -> str:
    loop = asyncio.SelectorEventLoop
    return missing(loop, "_add_reader", "_add_writer", "_remove_reader", "_remove_writer")


def transports_of_loops() -> str:
    loop = asyncio.SelectorEventLoop()
    try:
        table = getattr(loop, "_transports", None)
        return (
            "" if isinstance(table, weakref.WeakValueDictionary) else "a loop's _transports is another thing"
        )
    finally:
        loop.close()


def servers_of_transports() -> str:
    from asyncio import selector_events

    transport: Any = getattr(selector_events, "_SelectorTransport", None)
    return missing(selector_events, "_SelectorTransport") or _names_in(
        transport._call_connection_lost, "_server", "_detach"
    )


def table_of_tasks() -> str:
    if sys.version_info >= (3, 12):
        return ""  # not used
    return "" if type(getattr(asyncio.tasks, "_current_tasks", None)) is dict else "_current_tasks is no dict"


def must_cancel() -> str:
    try:
        blank: Any = asyncio.Task.__new__(asyncio.Task)
        return "" if blank._must_cancel is False else "Task._must_cancel is another thing"
    except (AttributeError, TypeError) as error:
        return str(error)


def switch_of_tasks() -> str:
    return missing(asyncio.tasks, "_enter_task", "_leave_task")


def running_loop() -> str:
    return missing(asyncio, "_get_running_loop")


def ready_queue() -> str:
    loop = asyncio.SelectorEventLoop()
    try:
        return "" if isinstance(getattr(loop, "_ready", None), deque) else "a loop's _ready is no deque"
    finally:
        loop.close()


def clock_of_loops() -> str:
    loop = asyncio.SelectorEventLoop()
    try:
        return missing(loop, "_clock_resolution")
    finally:
        loop.close()


def imports_that_go_on() -> str:
    return missing(asyncio.__spec__, "_initializing")


def environment() -> str:
    data = getattr(os.environ, "_data", None)
    fits = isinstance(data, dict) and all(type(name) is bytes for name in data)
    return "" if fits else "the _data of os.environ is no dict of bytes"


def main_programs() -> str:
    import runpy

    return _parameters(getattr(runpy, "_run_module_as_main", None), "mod_name", "alter_argv")


def bytes_objects() -> str:
    """The hash of a bytes object lies between its size and its first byte."""
    import ctypes

    value = bytes(range(7))
    if sys.implementation.name != "cpython" or bytes.__basicsize__ != object.__basicsize__ + 17:
        return f"a bytes object has {bytes.__basicsize__} bytes before its own"
    kept = ctypes.c_ssize_t.from_address(id(value) + object.__basicsize__ + 8)
    not_yet = kept.value == -1
    return "" if not_yet and hash(value) == kept.value else "ob_shash lies elsewhere"


# ---- libraries


def anyio_scopes() -> str:
    from anyio._backends import _asyncio

    if absent := missing(_asyncio, "CancelScope", "TaskState", "_task_states"):
        return absent
    scope: Any = _asyncio.CancelScope()
    table: Any = _asyncio._task_states
    if not isinstance(table, weakref.WeakKeyDictionary) or not isinstance(getattr(table, "data", None), dict):
        return "_task_states is no WeakKeyDictionary"
    return (
        missing(_asyncio.TaskState, "cancel_scope")
        or missing(scope, "_parent_scope", "_cancel_called", "_shield")
        or ("" if scope._parent_scope is None else "a new scope has a parent")
        or ("" if scope._cancel_called is scope._shield is False else "a new scope is cancelled or shielded")
    )


def anyio_on_trio() -> str:
    if importlib.util.find_spec("trio") is None:
        return ""  # that part of anyio cannot be loaded, and nothing uses it
    _trio = importlib.import_module("anyio._backends._trio")
    return (
        missing(_trio, "TrioBackend", "TCPSocketListener", "SocketStream")
        or missing(_trio.TrioBackend, "connect_tcp")
        or _names_in(_trio.TCPSocketListener.accept, "_trio_socket")
        or _names_in(_trio, "self._trio_socket")
    )


def trio_sockets() -> str:
    trio = importlib.import_module("trio")
    with socket.socket() as sock:
        outside = trio.socket.from_stdlib_socket(sock)
        return missing(trio._socket, "_socket_factory") or missing(outside, "_sock")


def uvloop_queue() -> str:
    """A deque that the loop refers to gets what `call_soon()` schedules."""
    loop = importlib.import_module("uvloop").new_event_loop()
    try:
        handle = loop.call_soon(print)
        found = [each for each in gc.get_referents(loop) if isinstance(each, deque) and handle in each]
        handle.cancel()
        return "" if found else "no deque of the loop has what is scheduled"
    finally:
        loop.close()


def aiohttp() -> str:
    connector = importlib.import_module("aiohttp").TCPConnector
    return (
        missing(connector, "_wrap_create_connection")
        or _names_in(connector._wrap_create_connection, "_loop")
        or _names_in(connector.__mro__[1].__init__, "_loop")
    )


def grpclib() -> str:
    client, server = (importlib.import_module(f"grpclib.{name}") for name in ("client", "server"))
    return (
        _names_in(client.Channel.__init__, "_loop")
        or _names_in(client.Channel._create_connection, "_loop")
        or _names_in(server.Server.__init__, "_loop")
        or _names_in(server.Server.start, "_loop")
    )


def httpx() -> str:
    httpx = importlib.import_module("httpx")
    transport = httpx.AsyncHTTPTransport()
    client = httpx.AsyncClient(transport=transport)
    return (
        missing(transport, "_pool")
        or missing(transport._pool, "_network_backend")
        or missing(client, "_transport", "_mounts")
    )


def nats() -> str:
    transport = importlib.import_module("nats.aio.transport").TcpTransport
    client = importlib.import_module("nats.aio.client").Client
    return _names_in(
        transport, "_bare_io_reader", "_bare_io_writer", "_io_reader", "_io_writer"
    ) or _names_in(client, "_transport")


def redis() -> str:
    return _of_connection(importlib.import_module("redis.asyncio").Connection)


def valkey() -> str:
    return _of_connection(importlib.import_module("valkey.asyncio").Connection)


def _of_connection(cls: Any) -> str:
    made = cls(host="127.0.0.1", port=1)
    return missing(made, "_connect", "_connection_arguments", "_reader", "_writer")


def _names_in(function: Any, *names: str) -> str:
    """Whether the source of a function or class has these names."""
    if function is None:
        return "the function is gone"
    try:
        source = inspect.getsource(function)
    except OSError:
        return ""  # this installation has no sources
    absent = [name for name in names if name not in source]
    called = getattr(function, "__qualname__", function.__name__)
    return f"{called} does without {', '.join(absent)}" if absent else ""


def _parameters(function: Callable[..., Any] | None, *names: str) -> str:
    if function is None:
        return "the function is gone"
    found = tuple(inspect.signature(function).parameters)
    return "" if found == names else f"{function.__qualname__} takes {', '.join(found)}"
