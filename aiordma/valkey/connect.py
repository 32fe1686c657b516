"""``async with aiordma.valkey.connect(host, port)``: a stream to a valkey-server by its own RDMA protocol."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio import BrokenResourceError

from ..addresses import check_port, looking_up, show
from ..config import Config
from ..errors import AioRdmaError, VerbsError
from ..negotiation.engine import find_engine
from ..negotiation.opening import opening
from ..streams.stream import RdmaStream
from ..wake.interrupts import uninterrupted
from .connection import Connection

if TYPE_CHECKING:
    from ..addresses import Address
    from ..links.contracts import EngineView

#: As large as valkey-server's and libvalkey's.
DEFAULT_BUFFER_BYTES = 1 << 20
_LEAST, _MOST = 1 << 12, 1 << 26
_AT_A_TIME = 4
_KEY = "connecting to Valkey"


class ValkeyStream(RdmaStream):
    """A stream to a valkey-server. The contract of :class:`aiordma.RdmaStream`, with two differences: the
    protocol has no half-close, so ``send_eof()`` only ends this end's sending, and the server learns of it
    when the stream is closed; and a server that closes drops what it has not read yet.
    """


@opening
async def connect(
    host: str, port: int, *, config: Config | None = None, buffer_bytes: int = DEFAULT_BUFFER_BYTES
) -> ValkeyStream:
    """Connect to a valkey-server: ``async with connect(host, port) as stream: ...``, or ``await`` it and
    close the stream yourself.

    :param port: the server's ``rdma-port``. It may be the number of its TCP port.
    :param config: settings; default: ``Config.from_env()``.
    :param buffer_bytes: size of a transfer buffer of this end, of which there are two: a power of two from
        4 KiB to 64 MiB. The server has memory of that size for each connection, too, and waits for a round
        trip at the end of each buffer.
    :raises OSError: no connection could be made: nothing listens there by RDMA, or not in time, naming each
        address.
    :raises aiordma.NegotiationError: (an ``OSError``, too) this process cannot use RDMA; ``code`` and
        ``text`` give the reason.
    :raises ValueError: a parameter has no valid value.
    """
    connection, local, remote = await connect_pipe(host, port, config, buffer_bytes)
    return ValkeyStream(connection.pipe, local_address=local, remote_address=remote)


async def connect_pipe(
    host: str, port: int, config: Config | None, buffer_bytes: int
) -> tuple[Connection, Address, Address]:
    """The connection, and the addresses of both ends. Raises as :func:`connect`."""
    check_port(port)
    if not _LEAST <= buffer_bytes <= _MOST or buffer_bytes & (buffer_bytes - 1):
        raise ValueError(f"buffer_bytes={buffer_bytes!r}: must be a power of two from {_LEAST} to {_MOST}")
    config = config or Config.from_env()
    engine = cast("EngineView", await find_engine(config))
    with looking_up(host, port):
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problems: list[str] = []
    number = 0
    for _, _, _, _, where in found:
        try:
            connection, local = await _connect(engine, where[:2], config, buffer_bytes)
        except (VerbsError, BrokenResourceError, TimeoutError, ValueError) as error:
            number = number or getattr(error, "errno", None) or errno.ECONNREFUSED
            problems.append(f"{show(where)}: {_reason(error, config)}")
        else:
            return connection, local, (str(where[0]), int(where[1]))
    what = "; ".join(problems)
    raise OSError(
        number,
        f"cannot connect to Valkey at {host!r} port {port} by RDMA: {what}. Was valkey-server built with "
        "RDMA, and started with --rdma-bind and --rdma-port?",
    )


@uninterrupted
async def _connect(
    engine: EngineView, where: Any, config: Config, buffer_bytes: int
) -> tuple[Connection, Address]:
    async with _turn(engine):
        connection = Connection(engine, buffer_bytes)
        try:
            with anyio.fail_after(config.negotiate_timeout_ms / 1000):
                return connection, await connection.connect((str(where[0]), int(where[1])))
        except BaseException:
            connection.pipe.abort()
            connection.release()
            raise


def _turn(engine: EngineView) -> anyio.Semaphore:
    """Few connect at a time: a server takes requests slowly, and what its queue has no room for is sent again
    after a while only."""
    found: anyio.Semaphore | None = engine.waker.locals.get(_KEY)
    if found is None:
        found = engine.waker.locals[_KEY] = anyio.Semaphore(_AT_A_TIME)
    return found


def _reason(error: BaseException, config: Config) -> str:
    if isinstance(error, TimeoutError) and not isinstance(error, AioRdmaError):
        return f"no answer within {config.negotiate_timeout_ms} ms"
    if isinstance(error, VerbsError) and error.errno == errno.ECONNREFUSED:
        return f"{os.strerror(errno.ECONNREFUSED)} ({error})"
    return str(error.__cause__ or error)
