"""Which connections of a program are negotiated, judged before anything of aiordma is loaded for it.

A program that never talks to a capable peer shall lose nothing. So the reasons to leave a connection alone
come first, and the cheap ones before the others: TLS, the rules, and what is known of the server
(:class:`aiordma.negotiation.peers.Peers`).
"""

from __future__ import annotations

import errno
import functools
import os
import socket
from typing import TYPE_CHECKING, Any

from ..addresses import family_of
from ..negotiation.peers import KnownServer, is_address

if TYPE_CHECKING:
    from ..negotiation.peers import Peers
    from .rules import Rules

_TCP = (socket.AF_INET, socket.AF_INET6)
#: Libraries whose protocols send to the descriptor of a connection, not by its transport. The peer would not
#: read that by RDMA.
_SEND_PAST_TRANSPORTS = ("picows",)


class Policy:
    """The decision about each connection."""

    def __init__(self, rules: Rules, peers: Peers, *, outside_tls: bool = False) -> None:
        """:param outside_tls: payload of TLS connections may travel over RDMA, unencrypted, if the peer
        agrees.
        """
        self.rules, self.peers, self.outside_tls = rules, peers, outside_tls

    def tls_rules_it_out(self, options: dict[str, Any]) -> str | None:
        """Why TLS keeps it plain."""
        return "TLS" if options.get("ssl") and not self.outside_tls else None

    def protocol_rules_it_out(self, factory: Any) -> str | None:
        """Why connections of the protocols that `factory` makes stay plain."""
        while isinstance(factory, functools.partial):
            factory = factory.func
        library = str(getattr(factory, "__module__", "")).partition(".")[0]
        return f"{library} uses the socket itself" if library in _SEND_PAST_TRANSPORTS else None

    def switched_off(self) -> str | None:
        """Why nothing is negotiated in this process."""
        if os.environ.get("AIORDMA_MODE") == "tcp" or os.environ.get("AIORDMA_DEVICE") == "none":
            return "switched off"
        return None

    async def judge_client(
        self, loop: Any, host: Any, port: Any, options: dict[str, Any]
    ) -> KnownServer | str:
        """Whether to negotiate a connection that the program is about to make: with whom; or why not.

        :param loop: looks names up, by a method `getaddrinfo()` like asyncio's.
        """
        reason = self.switched_off() or self.tls_rules_it_out(options)
        if reason is not None:
            return reason
        sock: socket.socket | None = options.get("sock")
        address = None
        if sock is not None:
            if host is not None or port is not None or family_of(sock) not in _TCP:
                return "no TCP socket"
            try:
                address = family_of(sock), sock.getpeername()
            except OSError:
                return "its socket is not connected"
            host, port = address[1][:2]
        try:
            number = int(port)
        except (TypeError, ValueError):
            return "no port number"
        if not isinstance(host, str) or not host:
            return "no host"
        judged = await self._judge(loop, host, number)
        if isinstance(judged, str):
            return judged
        return KnownServer(host, number, judged, address, local=self.peers.is_local(host))

    async def _judge(self, loop: Any, host: str, port: int) -> bool | str:
        """Whether it is known to negotiate; or why it stays plain."""
        reason = self.rules.forbid("out", host, port)
        if reason is not None and not self.rules.need_addresses:
            return reason
        expected = self.rules.names_port("out", host, port)
        if not expected and self.peers.is_plain(host, port) and not self.peers.is_local(host):
            return "known to be plain"
        addresses = [host]
        if not is_address(host) and (self.rules.need_addresses or not self.peers.is_placed(host)):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(each[4][0]) for each in found]
            if self.rules.need_addresses:
                reason = self._judge_addresses(host, addresses, port)
                expected = expected or any(
                    self.rules.names_port("out", address, port) for address in addresses
                )
        if reason is not None:
            return reason
        return self.peers.judge(host, port, addresses, expected=expected)

    def _judge_addresses(self, host: str, addresses: list[str], port: int) -> str | None:
        """Rules by name and by network together: no address may be denied, and one must be allowed."""
        reasons = [self.rules.forbid("out", each, port) for each in addresses]
        denied = [why for why in reasons if why is not None and why.startswith("rule")]
        if denied:
            return denied[0]
        if None in reasons:
            named = self.rules.forbid("out", host, port)
            return named if named is not None and named.startswith("rule") else None
        return self.rules.forbid("out", host, port)

    def forbids_server(self, port: Any, options: dict[str, Any]) -> str | None:
        """Why a server that the program is about to make stays plain; None: it negotiates."""
        reason = self.switched_off() or self.tls_rules_it_out(options)
        if reason is not None:
            return reason
        sock: socket.socket | None = options.get("sock")
        if sock is not None:
            if family_of(sock) not in _TCP:
                return "no TCP socket"
            port = sock.getsockname()[1]
        if isinstance(port, int) and port and not self.rules.may_allow("in", port):
            return "the rules forbid the port"
        return None

    def permits(self, connection: socket.socket) -> bool:
        """Whether a connection that a server has accepted may be negotiated."""
        try:
            peer, port = connection.getpeername()[0], connection.getsockname()[1]
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            return False
        return self.rules.forbid("in", peer, port) is None
