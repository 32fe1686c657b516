"""A small HTTP server for a page that others only read: one GET on each connection, and strict limits.

A web page of somebody else, open in the reader's browser, must not get at it: names that may lead here by
another name server (DNS rebinding) are refused by the ``Host`` field, and no other origin may read the
answers. On loopback only this user's connections are answered, and root's, as with the sockets of `aiordma
stat`; and no other user's, nor those from other hosts, take their places.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
from collections import Counter
from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Bytes of a request, seconds for it and for the answer, and connections at a time of each kind of client.
_MOST_BYTES, _PATIENCE_S, _AT_A_TIME = 8192, 10.0, 32
_REQUEST = re.compile(rb"(GET|HEAD) (/[\x21-\x7e]*) HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e\x80-\xff]?[\t\x20-\x7e\x80-\xff]*)")
_HEADERS = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n"
)


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class _Client(Enum):
    """Who has connected."""

    #: This user, or root.
    OWN = auto()
    #: Another user of this host, on loopback.
    STRANGER = auto()
    #: From an address to which the user has opened the page.
    OF_ELSEWHERE = auto()


class Answer(NamedTuple):
    """What is at a path."""

    kind: str
    body: bytes


class HttpRequest(NamedTuple):
    """What is asked for."""

    method: str
    path: str
    host: str


def parse(head: bytes) -> HttpRequest:
    """The request in the bytes up to its empty line. :raises RefusedError: it is none, or brings a body."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    asked = _REQUEST.fullmatch(first)
    if asked is None:
        known = re.match(rb"[A-Z]+ /[\x21-\x7e]* HTTP/1\.[01]$", first)
        raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.BAD_REQUEST)
    fields: dict[bytes, bytes] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None or (field[1].lower() == b"host" and b"host" in fields):
            raise RefusedError(HTTPStatus.BAD_REQUEST)
        fields[field[1].lower()] = field[2].rstrip(b" \t")
    if b"transfer-encoding" in fields or fields.get(b"content-length", b"0") != b"0":
        raise RefusedError(HTTPStatus.BAD_REQUEST)
    if b"host" not in fields:
        raise RefusedError(HTTPStatus.BAD_REQUEST)
    path = asked[2].decode("ascii").partition("?")[0]
    return HttpRequest(asked[1].decode("ascii"), path, fields[b"host"].decode("latin-1"))


def host_is_safe(field: str, own: str) -> bool:
    """Whether the ``Host`` field is an address, ``localhost``, or the name that was given: no other name can
    have been made to lead here.

    :param own: what the server was told to listen on.
    """
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(:[0-9]{1,5})?", field)
    if found is None:
        return False
    name = found[1].strip("[]").lower()
    if name in ("localhost", own.lower()):
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


class Site:
    """Some paths and what is there.

    :param host: to listen on.
    :param answers: by path, each made when it is asked for.
    """

    def __init__(self, host: str, answers: Mapping[str, Callable[[], Answer]]) -> None:
        self._host, self._answers = host, answers
        self._open = Counter[_Client]()

    async def listen(self, port: int) -> asyncio.Server:
        """:raises OSError: it cannot listen there."""
        return await asyncio.start_server(self._serve, self._host, port, limit=_MOST_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _client(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        self._open[client] += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if self._open[client] <= _AT_A_TIME:
                    writer.write(await self._answer(reader, client))
                    await writer.drain()
        except (OSError, EOFError, TimeoutError):
            writer.transport.abort()
        finally:
            self._open[client] -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, client: _Client) -> bytes:
        method = "GET"
        try:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
            request = parse(head)
            method = request.method
            if not host_is_safe(request.host, self._host):
                raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST)
            if client is _Client.STRANGER:
                raise RefusedError(HTTPStatus.FORBIDDEN)
            make = self._answers.get(request.path)
            if make is None:
                raise RefusedError(HTTPStatus.NOT_FOUND)
            status, answer = HTTPStatus.OK, make()
        except RefusedError as error:
            status = error.status
            answer = Answer("text/plain; charset=utf-8", f"{status.phrase}\n".encode())
        head_lines = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"Content-Type: {answer.kind}\r\nContent-Length: {len(answer.body)}\r\n{_HEADERS}\r\n"
        )
        return head_lines.encode() + (b"" if method == "HEAD" else answer.body)


def _client(client: tuple[str, int] | None, server: tuple[str, int]) -> _Client:
    """Who has connected. All clients on loopback are of this host, and may have any of its addresses."""
    if client is None:  # it has gone
        return _Client.STRANGER
    if not any(_is_loopback(host) for host, *_ in (client, server)):
        return _Client.OF_ELSEWHERE
    return _Client.OWN if _owner(client, server) in (os.getuid(), 0) else _Client.STRANGER


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Whose connection it is, as the kernel lists it; None: it is not there."""
    wanted = [_as_listed(*client[:2]), _as_listed(*server[:2])]
    for name in ("tcp6",) if ":" in client[0] else ("tcp",):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/net/{name}") as file:
            for line in file:
                words = line.split()
                if words[1:3] == wanted:
                    return int(words[7])
    return None


def _as_listed(host: str, port: int) -> str:
    """As ``/proc/net/tcp`` has an address: words of four bytes in the host's order."""
    raw = ipaddress.ip_address(host.partition("%")[0]).packed
    order = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)) if _IS_LITTLE else raw
    return f"{order.hex().upper()}:{port:04X}"


_IS_LITTLE = memoryview(b"\x01\x00\x00\x00").cast("I")[0] == 1
