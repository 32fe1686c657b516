"""One negotiation at the engine: what a Proposal, Accept and Confirm mean for QPs and rings.

RFC 7609 distinguishes first contact, which makes a link group, from subsequent contact, which joins one.
:class:`ClientContact` and :class:`ServerContact` do both. The messages travel elsewhere
(:mod:`aiordma.negotiation`, :mod:`.failover`): their driver calls the steps in order, or :meth:`abandon`,
which releases everything.
"""

from __future__ import annotations

import errno
import secrets
import socket
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from ..addresses import host_of, leads_to
from ..errors import Code, LinkError, NegotiationError, VerbsError
from ..proto.clc import Accept, Confirm, Proposal
from ..proto.proof import accept_proof, confirm_proof, link_secret
from ..verbs.abi import Mtu
from ..verbs.memory.budget import MemoryLimitError
from ..verbs.qp import QpAddress
from .cm_connect import CmAddress
from .contracts import LinkKey, server_key
from .failover.leave import may_fail_over
from .group import GroupOwner, LinkGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..addresses import Address
    from ..verbs.softlib import Shortage
    from .member import Member
    from .pregranted import GrantingListener

_NO_PROOF = "the Accept does not prove that it answers our Proposal"


A = TypeVar("A", Accept, Confirm)

#: Messages that are kept, for others that are like them.
_PROPOSALS, _ANSWERS = 256, 16
#: First contacts of one client at a time, where those before stall.
_SET_UPS = 4


def _qp_address(answer: Accept | Confirm) -> QpAddress:
    return QpAddress(answer.gid, answer.lid, answer.qpn, answer.psn, Mtu(answer.mtu), answer.dest_rd_atomic)


class ContactOwner(GroupOwner, Protocol):
    """The engine, as negotiations see it."""

    @property
    def groups(self) -> Mapping[LinkKey, LinkGroup]: ...
    @property
    def all_groups(self) -> Collection[LinkGroup]: ...
    @property
    def max_links(self) -> int: ...
    @property
    def proposals(self) -> dict[tuple[Any, ...], Proposal]:
        """The last ones, for those that are like them."""

    def path_works(self, peer: str) -> None:
        """A link to ``peer`` has come up."""


class _Contact:
    def __init__(self, engine: ContactOwner, kind: int, engine_id: bytes) -> None:
        #: What the peer knows this end by.
        self.engine_id = engine_id
        self.engine, self.kind = engine, kind
        self.group: LinkGroup | None = None
        self.member: Member | None = None
        self.first_contact = False
        #: The caller will attach the TCP connection. A connection whose link fails before that waits for it,
        #: and then fails over.
        self.awaits_tcp = False
        #: The peer has not read the Proposal, and may not for long: nothing waits for its answer.
        self.stands = False
        self._done = False

    def _answer_fields(self) -> dict[str, Any]:
        assert self.group is not None
        assert self.member is not None
        own = self.group.link.address
        return {
            "first_contact": self.first_contact,
            "gid": own.gid,
            "lid": own.lid,
            "qpn": own.qp_num,
            "psn": own.psn,
            "mtu": int(own.mtu),
            **self.member.offered(),
            "engine_id": self.engine_id,
            "host_id": self.engine.host_id,
            "window": self.engine.config.window,
            "rd_atomic": own.rd_atomic,
            "dest_rd_atomic": own.rd_atomic,
            "recv_bytes": self.engine.config.small_message_bytes,
            "hostname": socket.gethostname() if self.first_contact else "",
            "max_links": self.engine.max_links,
        }

    def _answer(self, kind: type[A], proof: bytes, **fields: Any) -> A:
        """This end's Accept or Confirm; ``fields`` are those that not every connection has."""
        group, member, config = self.group, self.member, self.engine.config
        assert group is not None
        assert member is not None
        if self.first_contact:
            return kind(**self._answer_fields(), **fields, proof=proof)
        # For one connection after the other on a link, little of it changes.
        key = kind, *fields.values()
        made_for, last = group.answers.get(key, (None, None))
        if last is not None and made_for is config:
            another: A = last.for_another(**member.offered(), proof=proof)
            return another
        if len(group.answers) >= _ANSWERS:
            group.answers.clear()
        made = kind(**self._answer_fields(), **fields, proof=proof)
        group.answers[key] = config, made
        return made

    def _check_answer(self, answer: Accept | Confirm) -> None:
        if not answer.is_aiordma:
            raise NegotiationError(Code.MODE_MISMATCH, "the answer does not come from aiordma")
        if answer.window != self.engine.config.window:
            raise NegotiationError(
                Code.CONFIGURATION,
                f"message window {self.engine.config.window} here, {answer.window} at the peer: "
                "set AIORDMA_WINDOW alike",
            )

    def _bring_up_link(self, answer: Accept | Confirm) -> None:
        """Connect to the queue pair that the peer names. :raises VerbsError:

        Where that is its TCP connection does not tell: its adapter may have an address of its own.
        """
        assert self.group is not None
        backend, host = self.engine.backend, host_of(self.group.peer)
        to_here = backend.is_soft and (self.engine.config.soft_wire == "off" or answer.gid == backend.gid.raw)
        self.group.link.bring_up(_qp_address(answer), proved=to_here or leads_to(answer.gid, host))

    def _connect(self, answer: Accept | Confirm) -> Any:
        assert self.member is not None
        self.member.awaits_tcp = self.awaits_tcp
        return self.member.connect(
            peer_token=answer.token,
            ring_addr=answer.ring_addr,
            rkey=answer.rkey,
            ring_bytes=answer.ring_bytes,
            recv_bytes=answer.recv_bytes,
        )

    async def _confirm_link(self, *, ask: bool) -> None:
        """First contact: prove the new link in both directions. :raises LinkError: it does not work.

        :param ask: this end sends the request. It is the server's, but on iWARP the client must send first.
        """
        assert self.group is not None
        link, peer = self.group.link, self.group.peer
        try:
            with anyio.fail_after(self.engine.config.link_timeout_ms / 1000):
                await (link.ask_to_confirm() if ask else link.wait_for_confirm())
        except TimeoutError:
            self.engine.path_failed(peer, Code.TIMEOUT_CONFIRM_LINK.text)
            raise LinkError(Code.TIMEOUT_CONFIRM_LINK.text, peer) from None
        self.group.set_up_ended()
        if link.failure is None:  # else the failure has been noted, and stands
            self.engine.path_works(peer)

    def is_proved(self) -> bool:
        """Whether the peer has proved the link, by all that has come over it, dispatched or not."""
        self.engine.poller.drain()
        return self.group is not None and self.group.link.proved

    def break_link(self, reason: str) -> None:
        """Break the link: the peer may be using the ring, and only this ends that for certain."""
        if self.group is not None:
            self.group.link.queue_pair.break_link(LinkError(reason, self.group.peer))

    def outlive(self, reason: Exception) -> Any:
        """The link has failed when both ends had agreed.

        :return: the connection, which goes on over its TCP connection once that is attached; None: it cannot.
        """
        group, member = self.group, self.member
        if self._done or group is None or member is None or member.connection is None:
            return None
        if not may_fail_over(reason) or not group.streams_go_on or not member.whole:
            return None
        if group.link.orderly:
            return None  # the peer has given the connection up
        member.awaits_tcp = True
        if not group.link.queue_pair.failed:
            group.link.queue_pair.break_link(reason)
        if not member.fails_over:
            return None
        self._done = True
        return member.connection

    @property
    def is_over(self) -> bool:
        """Whether the pipe has been handed out, or never will be."""
        return self._done

    def shortage(self) -> Shortage | None:
        """Descriptors or memory that the device lacked for a connection of late, and what helps."""
        soft = self.engine.backend.soft
        return None if soft is None else soft.shortage()

    def abandon(self) -> None:
        """Release everything. Idempotent; without effect once the pipe has been handed out."""
        if self._done:
            return
        self._done = True
        if self.member is not None:
            self.member.discard()
        if self.group is None:
            return
        if self.first_contact and not self.group.active:
            self.group.close()
        else:
            # The peer may not know this link any more: find out before the next connection tries to join.
            self.group.link.suspect()


class ClientContact(_Contact):
    def __init__(
        self, engine: ContactOwner, kind: int, unknown_qpn: int, traffic_class: int, peer: str
    ) -> None:
        backend, links = engine.backend, engine.max_links
        #: Where the server is; empty: it is not known.
        self.host = host = host_of(peer)
        # For one connection to a server after the other, little of it changes.
        key = host, kind, unknown_qpn, traffic_class, links, backend.gid.raw, backend.lid
        last = engine.proposals.get(key)
        super().__init__(engine, kind, engine.id_towards(host) if last is None else last.engine_id)
        nonce = secrets.token_bytes(16)
        if last is not None:
            self.proposal = last.for_another(nonce)
            return
        self.proposal = Proposal(
            kind=kind,
            unknown_qpn=unknown_qpn,
            traffic_class=traffic_class,
            max_links=links,
            tickets=engine.config.tickets if not kind else 0,
            engine_id=self.engine_id,
            nonce=nonce,
            host_id=engine.host_id,
            gid=backend.gid.raw,
            lid=backend.lid,
            by_cm=backend.by_cm,
        )
        if not unknown_qpn:
            if len(engine.proposals) >= _PROPOSALS:
                engine.proposals.clear()
            engine.proposals[key] = self.proposal

    async def accepted(self, accept: Accept, peer: str = "") -> Confirm:
        """Bring up this end. :raises NegotiationError: decline with its ``code``."""
        engine = self.engine
        self._check_engine()
        self._check_answer(accept)
        key = LinkKey(accept.engine_id, "client", self.proposal.traffic_class, host_of(peer))
        known = self._known(accept, key)
        secret = known.secret if known is not None else b""
        engine.check_reachable(accept.host_id)
        if accept.first_contact and bool(accept.cm_port) != engine.backend.by_cm:
            raise NegotiationError(Code.NEEDS_RDMA_CM)
        self.first_contact = accept.first_contact
        try:
            if accept.first_contact:
                old = engine.groups.get(key)
                if old is not None and not old.members:
                    # The server does not know the group any more. A group with streams is left alone: an
                    # engine id proves nothing, so an Accept must not break another peer's link.
                    old.close()
                self.group = LinkGroup(engine, key, peer)
                self.group.peer_links = accept.max_links
                self.member = self.group.join(self.kind)
                if engine.backend.by_cm:
                    await self._connect_by_cm(accept)
                else:
                    self._bring_up_link(accept)
            else:
                assert known is not None
                if not await known.wait_ready():
                    raise NegotiationError(Code.LINK_NOT_FOUND)
                self.group = known
                self.member = known.join(self.kind)
            self._connect(accept)
        except MemoryLimitError as error:
            raise NegotiationError(error.code, str(error)) from error
        except VerbsError as error:
            engine.path_failed(peer, str(error))
            raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
        if self.proposal.tickets and self.group.holder is not None:
            self.group.holder.learn(accept, peer)
        proof = bytes(16) if known is None else confirm_proof(self.proposal.nonce, self.engine_id, secret)
        confirm = self._answer(Confirm, proof)
        if known is None:
            self.group.secret = link_secret(accept, confirm)
        return confirm

    async def _connect_by_cm(self, accept: Accept) -> None:
        """:raises VerbsError: the server's queue pair is not reached."""
        assert self.group is not None
        server = CmAddress(accept.cm_port, accept.cm_address, accept.cm_token)
        try:
            with anyio.fail_after(self.engine.config.link_timeout_ms / 1000):
                await self.group.link.bring_up_by_cm(_qp_address(accept), server)
        except TimeoutError:
            where = f"{server.host} port {server.port}"
            raise VerbsError(errno.ETIMEDOUT, "rdma_connect", f"{where}; a firewall?") from None
        except LinkError as error:
            raise VerbsError(errno.ECONNRESET, "rdma_connect", error.reason) from error

    def _check_engine(self) -> None:
        """:raises NegotiationError: nothing begins there any more since the Proposal was made."""
        if self.engine.closed:
            raise NegotiationError(Code.SHUTTING_DOWN)
        if self.engine.drained is not None:
            raise NegotiationError(Code.DRAINED, self.engine.drained)

    def _known(self, accept: Accept, key: LinkKey) -> LinkGroup | None:
        """The group whose link the Accept names; None for first contact.

        The number of the server's QP alone names no link: the server uses it again, while here the group that
        it belonged to may still have a stream with something to read. The secret tells them apart.

        :raises NegotiationError: no group has it, or the Accept is not the answer to our Proposal.
        """
        if accept.first_contact:
            if self._proves(accept, b""):
                return None
            raise NegotiationError(Code.PROTOCOL_VIOLATION, _NO_PROOF)
        # A retired group is closing, though the server may not have been informed yet.
        named = [
            group
            for group in self.engine.all_groups
            if group.key == key and group.link.peer_qpn == accept.qpn and not group.retired
        ]
        for group in named:
            if group.secret and self._proves(accept, group.secret):
                return group
        if any(group.active or group.setting_up for group in named):
            raise NegotiationError(Code.PROTOCOL_VIOLATION, _NO_PROOF)
        raise NegotiationError(Code.LINK_NOT_FOUND)

    def _proves(self, accept: Accept, secret: bytes) -> bool:
        """Whether the server has seen our Proposal, and has the link's secret."""
        return accept.proof == accept_proof(self.proposal.nonce, accept.engine_id, secret)

    async def established(self) -> Any:
        """Wait for Confirm Link on first contact.

        :raises LinkError: it did not come, which after an Accept is no reason to fall back to TCP.
        """
        assert self.member is not None
        if self.first_contact:
            await self._confirm_link(ask=self.engine.backend.by_cm)
        self._done = True
        return self.member.connection


class ServerContact(_Contact):
    accept: Accept

    def __init__(
        self,
        engine: ContactOwner,
        proposal: Proposal,
        peer: str,
        listener: GrantingListener | None,
        local: Address | None,
    ) -> None:
        super().__init__(engine, proposal.kind, engine.engine_id)
        self._proposal, self._peer = proposal, peer
        self._listener = listener if proposal.tickets and not proposal.kind else None
        self._local = local

    async def prepare(self) -> None:
        """Find or make the link group, and the ring of this connection."""
        engine = self.engine
        key = server_key(self._proposal, self._peer)
        # The client may have closed an idle link just before: what it sent on its link was sent before the
        # Proposal, and is dispatched before it.
        engine.poller.drain()
        group = await self._group_to_join(key)
        self.first_contact = group is None
        self.group = LinkGroup(engine, key, self._peer) if group is None else group
        self.member = self.group.join(self.kind)
        self.member.reserve_mirror()
        self.accept = self._answer(
            Accept,
            accept_proof(self._proposal.nonce, engine.engine_id, self.group.secret),
            **self._listener_fields(),
            **self._cm_fields(),
        )

    async def _group_to_join(self, key: LinkKey) -> LinkGroup | None:
        """The client's link; None: this contact makes one.

        While a first contact goes on, the client's other connections wait for its end, and join. One that is
        not finished soon may be that of an impostor: then another one is made beside it. Not more than a few,
        so that a slow network does not make a link for each connection.
        """
        engine = self.engine
        while (group := engine.groups.get(key)) is not None:
            stalls = group.set_up_stalls
            if stalls and sum(each.key == key and each.setting_up for each in engine.all_groups) < _SET_UPS:
                return None
            if await group.wait_ready(patient=stalls):
                break
        return group

    def _listener_fields(self) -> dict[str, object]:
        return {} if self._listener is None or self._local is None else self._listener.fields(self._local)

    def _cm_fields(self) -> dict[str, object]:
        """:raises NegotiationError: rdma_cm cannot listen at this address."""
        assert self.group is not None
        if not self.engine.backend.by_cm or not self.first_contact:
            return {}
        if self._local is None:
            raise NegotiationError(Code.NO_ROUTE, "the address of the connection is not known")
        here = self.group.link.listen_by_cm(self._local[0])
        return {"cm_port": here.port, "cm_address": here.address, "cm_token": here.token}

    async def confirmed(self, confirm: Confirm) -> Any:
        """The client has agreed: connect, and on first contact prove the link.

        :raises NegotiationError: the Confirm does not fit. :raises LinkError: the link does not come up.
        """
        assert self.group is not None
        assert self.member is not None
        self._check_answer(confirm)
        if confirm.engine_id != self._proposal.engine_id or confirm.first_contact != self.first_contact:
            raise NegotiationError(Code.OUT_OF_SYNC, "the Confirm does not belong to the Proposal")
        if self.first_contact:
            try:
                await self._bring_up(confirm)
            except VerbsError as error:
                # The client has not been asked to confirm the link, so it does not use it: decline.
                self.engine.path_failed(self._peer, str(error))
                raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
            self.group.secret = link_secret(self.accept, confirm)
        elif confirm.qpn != self.group.link.peer_qpn:
            raise NegotiationError(Code.OUT_OF_SYNC, "the Confirm names another link")
        elif confirm.proof != confirm_proof(self._proposal.nonce, confirm.engine_id, self.group.secret):
            raise NegotiationError(
                Code.PROTOCOL_VIOLATION, "the Confirm does not come from the client that made the link"
            )
        try:
            self._connect(confirm)
        except MemoryLimitError as error:
            raise NegotiationError(Code.OUT_OF_MEMORY, str(error)) from error
        if self.first_contact:
            await self._confirm_link(ask=not self.engine.backend.by_cm)
        if self._listener is not None and self.group.granter is not None:
            self.group.granter.limit = min(self._proposal.tickets, self.engine.config.tickets)
            self.group.granter.on_negotiated(self._listener, first=self.first_contact)
        self._done = True
        return self.member.connection

    async def _bring_up(self, confirm: Confirm) -> None:
        """:raises VerbsError:"""
        assert self.group is not None
        if not self.engine.backend.by_cm:
            self._bring_up_link(confirm)
            return
        # The client has confirmed because its end is connected, so this one is about to be.
        try:
            with anyio.fail_after(self.engine.config.link_timeout_ms / 1000):
                await self.group.link.bring_up_by_cm(_qp_address(confirm), None)
        except TimeoutError:
            raise VerbsError(errno.ETIMEDOUT, "rdma_accept") from None
