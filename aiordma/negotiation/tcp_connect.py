"""The TCP connection that everything begins on: name look-up, several addresses, clear errors."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
from typing import TYPE_CHECKING, Any

import anyio

from .. import wake
from ..addresses import check_host, check_port, looking_up, show, sockaddr_of
from ..errors import remedy
from ..wake.names import getaddrinfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .smc_option import Question

#: Time after which the next address is tried beside one that has not answered (RFC 8305, section 5).
_NEXT_ADDRESS_S = 0.25

Candidate = tuple[int, Any]  # address family, sockaddr


async def resolve(host: str | None, port: int) -> list[Candidate]:
    """The addresses of ``host``, best first. An IP address takes no look-up.

    :raises OSError: the name is not known.
    :raises ValueError: ``port`` is no port number. :raises TypeError: ``host`` is no text.
    """
    check_host(host)
    if host and isinstance(port, int):
        known = _numeric(host, port)
        if known is not None:
            return [known]
    check_port(port)
    with looking_up(host, port):
        infos = await getaddrinfo(host, port)
    return [(int(info[0]), info[4]) for info in infos]


@functools.lru_cache(maxsize=1024)
def _numeric(host: str, port: int) -> Candidate | None:
    """The address that ``host`` spells out; None: it is a name.

    :raises ValueError: ``port`` is no port number.
    """
    check_port(port)
    with contextlib.suppress(OSError):
        socket.inet_pton(socket.AF_INET, host)
        return socket.AF_INET, (host, port)
    with contextlib.suppress(OSError):
        socket.inet_pton(socket.AF_INET6, host)
        return socket.AF_INET6, (host, port, 0, 0)
    return None


async def connect_tcp(
    candidates: Sequence[Candidate], local_host: str | None = None, question: Question | None = None
) -> socket.socket:
    """Connect to the first address that answers; a slow one is joined by the next after 0.25 s.

    :param question: asks in the SYN.

    :raises OSError: none answered; of the kind they have in common (``ConnectionRefusedError`` ...), naming
        each address. Its attribute ``attempts`` has an error for each, if there were several.
    """
    if len(candidates) == 1:
        return await _connect(*candidates[0], local_host, question)
    found: list[socket.socket] = []
    errors: list[OSError] = []

    async def attempt(candidate: Candidate, failed: anyio.Event, scope: anyio.CancelScope) -> None:
        try:
            sock = await _connect(*candidate, local_host, question)
        except OSError as exc:
            errors.append(exc)
            failed.set()
        else:
            found.append(sock)
            scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            for candidate in candidates:
                failed = anyio.Event()
                tasks.start_soon(attempt, candidate, failed, tasks.cancel_scope)
                with anyio.move_on_after(_NEXT_ADDRESS_S):
                    await failed.wait()
    except BaseException:
        _drop(found, question)
        raise
    if not found:
        numbers = {exc.errno for exc in errors}
        number = numbers.pop() if len(numbers) == 1 else errno.EHOSTUNREACH
        error = OSError(number, "; ".join(exc.strerror or str(exc) for exc in errors))
        error.attempts = errors  # type: ignore[attr-defined]
        raise error from errors[-1]
    if len(found) > 1:
        _drop(found[1:], question)
    return found[0]


def _drop(sockets: Iterable[socket.socket], question: Question | None) -> None:
    """They are not needed."""
    for sock in sockets:
        if question is not None:
            question.withdraw(sock)
        sock.close()


def _new_socket(family: int) -> socket.socket:
    try:
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        if hint := remedy(error.errno or 0):
            raise OSError(error.errno, f"{error.strerror}: {hint}") from error
        raise


async def _connect(
    family: int, sockaddr: Any, local_host: str | None, question: Question | None = None
) -> socket.socket:
    sock = _new_socket(family)
    try:
        if local_host is not None:
            sock.bind(sockaddr_of(local_host, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if question is not None:
            question.ask(sock, family)
        number = sock.connect_ex(sockaddr)
        if number == errno.EINPROGRESS:
            # Over loopback the TCP handshake is done by now, which a second call shows without the loop.
            number = sock.connect_ex(sockaddr)
            while number == errno.EALREADY:
                await wake.current().wait_writable(sock.fileno())
                # A socket is writable while another processor still takes in its SYN-ACK, and what that says
                # may be missing then. connect() waits for it, as it locks the socket.
                number = sock.connect_ex(sockaddr)
        if number not in (0, errno.EISCONN):
            raise OSError(number, f"cannot connect to {show(sockaddr)}: {os.strerror(number)}")
    except BaseException:
        _drop([sock], question)
        raise
    return sock
