"""Asking a server whether it negotiates, and nothing else: it needs no device, and nothing that takes time to
load.

The question is a Proposal of a kind of its own, which every listener of aiordma turns away before it looks at
anything else. It travels on a connection that carries nothing but it.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any

from ..proto import clc
from ..proto.clcstream import Splitter
from ..proto.errors import RemoteProtocolError
from .peer_cache import head_start_s
from .smc_map import map_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..proto.syn_option import SynOption
    from .smc_option import Question

#: No server with RDMA is as far away as this.
_CONNECT_S = 1.0


class Answer(enum.Enum):
    """What a server's answer says of it."""

    NEGOTIATES = enum.auto()
    PLAIN = enum.auto()
    """It speaks something else."""
    CLOSED = enum.auto()
    """It closed the connection without a word: a plain one, or one that is just being started anew."""
    SILENT = enum.auto()
    """It did not answer in time: a plain one, or one that is busy."""
    NO_OPTION = enum.auto()
    """Its SYN-ACK does not have SMC's TCP option, which each server has that negotiates (``smcr_strict``)."""
    UNREACHABLE = enum.auto()
    """There was no connection to ask on."""


def ask(addresses: Iterable[tuple[int, Any]], milliseconds: int) -> Answer:
    """Ask the first address that can be connected to. Blocks the thread.

    :param addresses: family and address of sockets, TCP's.
    :param milliseconds: how long the answer may take, without round trips.
    """
    for family, address in addresses:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no descriptor is left, or no IPv6
            continue
        with sock, _by_option(sock) as asked:
            sock.settimeout(_CONNECT_S)
            try:
                sock.connect(address)
            except ConnectionResetError:  # it was there
                return Answer.CLOSED
            except OSError:
                continue
            try:
                option = None if asked is None else _answer(asked, sock, address)
            except OSError:  # whether it waits for CLC is not known any more
                return Answer.UNREACHABLE
            if option is not None and (option.in_answer or not option.is_aiordma):
                return Answer.NEGOTIATES  # aiordma; or a kernel, whose program never sees this connection
            if asked is not None and asked.unanswered and _is_strict():
                return Answer.NO_OPTION
            return _ask_on(sock, head_start_s(sock, milliseconds))
    return Answer.UNREACHABLE


def _answer(asked: Question, sock: socket.socket, address: Any) -> SynOption | None:
    # With a time limit, the connect() before has believed poll(), which does not wait for what is said.
    sock.connect_ex(address)
    return asked.answer(sock)


@contextlib.contextmanager
def _by_option(sock: socket.socket) -> Iterator[Question | None]:
    """Ask by SMC's TCP option, too, where the host is set up for it."""
    place = map_path(os.environ.get("AIORDMA_SMCR") or "auto")
    if place is None:
        yield None
        return
    from . import smc_option  # for hosts that are set up

    options = smc_option.of_setting(place)
    asked = None if options is None else smc_option.Question(options)
    if asked is None:
        yield None
        return
    asked.ask(sock, sock.family)
    try:
        yield asked
    finally:
        asked.withdraw(sock)


def _is_strict() -> bool:
    return (os.environ.get("AIORDMA_SMCR_STRICT") or "0").strip() == "1"


def question() -> bytes:
    """The message. A listener that gets it first closes the connection, which its program does not see."""
    return clc.Proposal(
        engine_id=secrets.token_bytes(16),
        nonce=secrets.token_bytes(16),
        host_id=bytes(16),
        kind=clc.Kind.QUESTION,
    ).encode()


def _ask_on(sock: socket.socket, seconds: float) -> Answer:
    splitter, deadline = Splitter(), time.monotonic() + seconds
    try:
        sock.sendall(question())
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return Answer.SILENT
            sock.settimeout(left)
            data = sock.recv(clc.MAX_MESSAGE_BYTES)
            if not data:
                return Answer.CLOSED
            for message in splitter.feed(data):
                # One that echoes is no peer.
                return Answer.PLAIN if isinstance(message, clc.Proposal) else Answer.NEGOTIATES
    except TimeoutError:
        return Answer.SILENT
    except OSError:
        return Answer.CLOSED
    except RemoteProtocolError:
        return Answer.PLAIN
