"""The table of private interfaces: whose they are, where they are used, and how to do without them.

A new one gets a row here, a check in :mod:`.shapes`, and a public way that serves when ``borrowed.ENABLED``
is false or the check finds a difference. ``tests/project/test_borrowed.py`` finds what is used without a row.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

from . import VARIABLE, shapes

if TYPE_CHECKING:
    from collections.abc import Callable

CPYTHON = "CPython"
_SWITCH = f"`{VARIABLE}=off`"
_ADAPTER = "the library's own class instead of the adapter's"

#: Releases, or beginnings of versions.
TRIED = {
    CPYTHON: ("3.11", "3.12", "3.13", "3.14", "3.15"),
    "aiohttp": ("3.14",),
    "anyio": ("4.16",),
    "grpclib": ("0.4",),
    "httpx": ("0.28",),
    "nats-py": ("2.16",),
    "redis": ("8.1",),
    "trio": ("0.35",),
    "uvloop": ("0.23",),
    "valkey": ("6.2",),
}


class Interface(NamedTuple):
    """One private interface."""

    #: CPython, or the library's name on the package index.
    owner: str
    #: The private names.
    names: tuple[str, ...]
    #: Modules of aiordma that use it.
    where: tuple[str, ...]
    #: What is done with it.
    use: str
    #: How to do without it.
    off: str
    #: What is lost then.
    lost: str
    #: What is different from what is expected; "": nothing.
    shape: Callable[[], str]


def installed(owner: str) -> str | None:
    """Its version here; None: it is not installed."""
    if owner == CPYTHON:
        return platform.python_version()
    try:
        return version(owner)
    except PackageNotFoundError:
        return None


def was_tried(owner: str, found: str) -> bool:
    """Whether this version is one of :data:`TRIED`."""
    return any(f"{found}.".startswith(f"{each}.") for each in TRIED[owner])


TABLE = (
    # ---- tasks and loops of asyncio
    Interface(
        CPYTHON,
        ("_current_tasks",),
        ("wake._private",),
        "the running task, before Python 3.12",
        _SWITCH,
        "time: `asyncio.current_task()` takes longer before 3.12",
        shapes.table_of_tasks,
    ),
    Interface(
        CPYTHON,
        ("_must_cancel",),
        ("wake._private",),
        "whether a task that does not wait has been cancelled",
        _SWITCH,
        "a task that cancels itself gets the exception when it really waits, not in its next operation",
        shapes.must_cancel,
    ),
    Interface(
        CPYTHON,
        ("_enter_task", "_leave_task"),
        ("wake._private",),
        "a handler's first step runs as a task that was made before",
        _SWITCH,
        "time: a new task for each call",
        shapes.switch_of_tasks,
    ),
    Interface(
        CPYTHON,
        ("_get_running_loop",),
        ("wake._private",),
        "the loop that runs, None if there is none",
        _SWITCH,
        "time: an exception where no loop runs",
        shapes.running_loop,
    ),
    Interface(
        CPYTHON,
        ("_ready",),
        ("wake._private",),
        "whether other callbacks are ready to run",
        _SWITCH,
        "time: operations poll less, and waits end a turn of the loop later",
        shapes.ready_queue,
    ),
    Interface(
        CPYTHON,
        ("_add_reader", "_add_writer", "_remove_reader", "_remove_writer"),
        ("compat.claims", "wake._asyncio"),
        "watches descriptors of transports, which the public methods refuse",
        _SWITCH,
        "a program that watches a descriptor of aiordma's itself is not refused by uvloop",
        shapes.descriptors,
    ),
    Interface(
        CPYTHON,
        ("_transports",),
        ("compat.claims",),
        "asyncio keeps programs off the descriptors of our transports as off its own",
        _SWITCH,
        "a program that watches a descriptor of a transport is not refused",
        shapes.transports_of_loops,
    ),
    # ---- transports and streams of asyncio
    Interface(
        CPYTHON,
        (
            "_buffer",
            "_client_connected_cb",
            "_connection_lost",
            "_drain_helper",
            "_eof",
            "_exception",
            "_limit",
            "_maybe_resume_transport",
            "_over_ssl",
            "_paused",
            "_protocol",
            "_reader",
            "_reject_connection",
            "_replace_transport",
            "_replace_writer",
            "_stream_reader",
            "_stream_writer",
            "_strong_reader",
            "_transport",
            "_wait_for_data",
            "_waiter",
            "_wakeup_waiter",
        ),
        ("compat.stream_reader", "compat.stream_writer", "compat.streams"),
        "readers that take what has arrived from the ring, and writers that wait without a turn of the loop",
        _SWITCH,
        "time: asyncio's own readers and writers serve, with a copy and a turn of the loop more; on uvloop "
        "`StreamWriter.start_tls()` on RDMA; a handler that fails leaves its connection open where asyncio's "
        "does (3.11; a plain function: before 3.14.8); and what arrived before a connection broke is not "
        "read, as on a socket",
        shapes.streams,
    ),
    Interface(
        CPYTHON,
        (
            "_FlowControlMixin",
            "_extra",
            "_loop",
            "_maybe_pause_protocol",
            "_maybe_resume_protocol",
            "_protocol_paused",
        ),
        ("compat.datagram", "compat.flow", "compat.reading", "compat.transport"),
        "the base class of transports with water marks",
        _SWITCH,
        "`loop.sendfile()` on RDMA, which asks for this class; an own one serves",
        shapes.flow_control,
    ),
    Interface(
        CPYTHON,
        ("_SSLProtocolTransport", "_start_tls_compatible"),
        ("compat.transport", "compat.upgrade"),
        "`loop.start_tls()` takes our transports, and TLS inside TLS",
        _SWITCH,
        "TLS inside TLS on uvloop. (What `loop.start_tls()` asks our transports for stays.)",
        shapes.start_tls,
    ),
    Interface(
        CPYTHON,
        ("_ssl_protocol",),
        ("compat.fallback",),
        "the extra info of TLS transports, where the path is added",
        _SWITCH,
        "time: a view around TCP transports, which answers for the path",
        shapes.ssl_protocol,
    ),
    Interface(
        CPYTHON,
        ("_SendfileMode", "_sendfile_compatible", "_sendfile_fallback", "_sock_sendfile_update_filepos"),
        ("compat.sendfile", "compat.transport"),
        "`loop.sendfile()` on RDMA",
        _SWITCH,
        "`loop.sendfile()` on RDMA refuses",
        shapes.sendfile,
    ),
    Interface(
        CPYTHON,
        ("_detach", "_server"),
        ("compat.server",),
        "a transport on TCP tells its server that it has ended",
        _SWITCH,
        "`Server.wait_closed()` does not wait for connections on TCP, as on uvloop",
        shapes.servers_of_transports,
    ),
    Interface(
        CPYTHON,
        ("_clock_resolution",),
        ("testing.virtual_time",),
        "time jumps exactly to the next timer",
        "`VirtualLoop` is for tests only",
        "a timer of a test may be a clock's resolution early",
        shapes.clock_of_loops,
    ),
    # ---- Python itself
    Interface(
        CPYTHON,
        ("_initializing",),
        ("running",),
        "whether another thread is importing a module",
        _SWITCH,
        "`aiordma run` may patch a module whose import has not ended",
        shapes.imports_that_go_on,
    ),
    Interface(
        CPYTHON,
        ("_data",),
        ("config",),
        "looks whether settings in the environment have changed",
        _SWITCH,
        "time: some 40 us for each connection that is made without `config=`",
        shapes.environment,
    ),
    Interface(
        CPYTHON,
        ("_run_module_as_main",),
        ("launch.starting",),
        "`aiordma run` starts modules and applications as `python -m` does",
        _SWITCH,
        "the words of `python -m` about a module that cannot be run",
        shapes.main_programs,
    ),
    Interface(
        CPYTHON,
        ("ob_shash", "Py_SET_SIZE"),
        ("datapath._bytes_pool",),
        "fills a large `bytes` that its receiver has dropped once more",
        _SWITCH,
        "time: large receives wait for the allocator, and shorter ones are copied",
        shapes.bytes_objects,
    ),
    # ---- libraries
    Interface(
        "anyio",
        ("_backends", "_cancel_called", "_parent_scope", "_shield", "_task_states"),
        ("wake._cancelled", "wake._private"),
        "whether a cancel scope of the running task was cancelled",
        _SWITCH,
        "time: 0.6 us instead of 0.1 us for each operation that does not wait",
        shapes.anyio_scopes,
    ),
    Interface(
        "anyio",
        ("_trio_socket",),
        ("launch.trio_methods",),
        "connections and listeners of anyio on trio, under `aiordma run`",
        _SWITCH,
        "they stay on TCP",
        shapes.anyio_on_trio,
    ),
    Interface(
        "trio",
        ("_sock", "_socket_factory"),
        ("launch.trio_methods",),
        "the socket behind trio's, and whether a test has replaced them, under `aiordma run`",
        _SWITCH,
        "listeners of trio stay on TCP under `aiordma run`, and a virtual network of a test is passed by",
        shapes.trio_sockets,
    ),
    Interface(
        "uvloop",
        ("the deque that `gc.get_referents()` shows",),
        ("wake._private",),
        "whether other callbacks are ready to run",
        _SWITCH,
        "time: operations poll less, and waits end a turn of the loop later",
        shapes.uvloop_queue,
    ),
    Interface(
        "aiohttp",
        ("_loop", "_wrap_create_connection"),
        ("integrations.aiohttp",),
        "a connector's connections are aiordma's",
        _ADAPTER,
        "connections stay on TCP, unless `aiordma run` starts the program",
        shapes.aiohttp,
    ),
    Interface(
        "grpclib",
        ("_loop",),
        ("integrations.grpclib",),
        "connections of channels and servers are aiordma's",
        _ADAPTER,
        "connections stay on TCP, unless `aiordma run` starts the program",
        shapes.grpclib,
    ),
    Interface(
        "httpx",
        ("_mounts", "_network_backend", "_pool", "_transport"),
        ("integrations.httpx",),
        "the transport's pool gets aiordma's network backend",
        "httpcore and `RdmaBackend`, which need nothing private",
        "httpx by RDMA, unless `aiordma run` starts the program",
        shapes.httpx,
    ),
    Interface(
        "nats-py",
        ("_bare_io_reader", "_bare_io_writer", "_io_reader", "_io_writer", "_transport"),
        ("integrations.nats",),
        "the client's transport is aiordma's",
        _ADAPTER,
        "connections stay on TCP, unless `aiordma run` starts the program",
        shapes.nats,
    ),
    Interface(
        "redis",
        ("_connect", "_connection_arguments", "_reader", "_writer"),
        ("integrations._redis_family", "integrations.redis"),
        "connections are made by aiordma",
        _ADAPTER,
        "connections stay on TCP, unless `aiordma run` starts the program",
        shapes.redis,
    ),
    Interface(
        "valkey",
        ("_connect", "_connection_arguments", "_reader", "_writer"),
        ("integrations._redis_family", "integrations.valkey"),
        "connections are made by aiordma",
        _ADAPTER,
        "connections stay on TCP, unless `aiordma run` starts the program",
        shapes.valkey,
    ),
)
