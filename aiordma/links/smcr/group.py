"""A link group with a kernel's SMC-R: its one link, and the connections on it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Protocol

from ...addresses import host_of
from ..contracts import LinkKey
from ..group import LinkGroup
from ..pregranted import RingHolder
from ..ring_size import first_ring_bytes
from .link import RIGHTS, KernelLink, KernelParts
from .member import KernelMember
from .rings import RingPlaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...proto.smcr import SmcrGroup
    from ..group import GroupOwner
    from ..member import Member
    from ..pregranted import RingGranter
    from .absence import Absence

#: Ring of a connection at most. It does not grow, so a stream has one that others would have to earn.
_LARGEST_RING = 512 << 10
#: Connections that were offered and never made, each of which costs a ring, before nothing joins any more.
_MOST_LOST = 16
#: A link group has at most 255 connections.
_MOST_RINGS = 256 + _MOST_LOST


class GroupKeeper(Protocol):
    """What finds the groups for new connections."""

    #: By what the two ends know of a group.
    groups_here: dict[SmcrGroup, KernelGroup]
    #: What answers on their links while the event loop does not poll.
    absence: Absence

    def is_asking(self, host: str) -> bool:
        """Whether this end, as a client, negotiates with a server there."""

    def forget(self, group: SmcrGroup) -> None:
        """No connection may join it any more. Idempotent."""


class KernelGroup(LinkGroup):
    """Connections with one kernel.

    :param on_failed: called when the link fails before it was active.
    """

    link: KernelLink
    _LINK = KernelLink
    _RINGS = RIGHTS

    def __init__(
        self,
        kernels: GroupKeeper,
        engine: GroupOwner,
        side: str,
        peer: str,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._kernels = kernels
        self._share = engine.reserve_completions(KernelParts.COMPLETIONS)
        self._tell: Callable[[BaseException], None] | None = on_failed
        #: What the two ends know of the group, once they have agreed on it.
        self.agreed: SmcrGroup | None = None
        #: What finds it for new connections.
        self.host: object = None
        #: The peer, as it names itself.
        self.hostname, self.release = "", 0
        # No other connection finds it by its key.
        key = LinkKey(secrets.token_bytes(8), side, 0, host_of(peer))
        try:
            super().__init__(engine, key, peer)
        except BaseException:
            engine.return_completions(self._share)
            raise
        ring_bytes = min(first_ring_bytes(engine.config, engine.pool), _LARGEST_RING)
        self.places = RingPlaces(self.rings, ring_bytes, _MOST_RINGS)
        if side == "server":
            # Either end may delete the link when it is unused: this one needs no list to find it.
            engine.unlist_group(self)

    def _take_parts(self) -> KernelParts:
        return KernelParts(self.engine)

    def _new_pregranted(self) -> RingHolder | RingGranter:
        return RingHolder(self, self.engine.grants)  # which stays empty

    def join(self, kind: int = 0) -> KernelMember:
        member = KernelMember(self)
        self.enter(member)
        return member

    def begin(self, agreed: SmcrGroup, on_active: Callable[[], None]) -> None:
        """The two ends have agreed on the link."""
        self.agreed = agreed
        self._kernels.groups_here[agreed] = self

        def active() -> None:
            self._tell = None
            self.set_up_ended()
            on_active()

        self.link.begin(agreed.link, self._kernels.absence, active)

    @property
    def streams_go_on(self) -> bool:
        return False

    def _in_use(self) -> bool:
        return any(member.carrier is not None and member.needs_link for member in self.members)

    def left(self, member: Member) -> None:
        if self.agreed is not None:
            self.agreed.leave(member.pipe.token)
        if self.places.lost >= _MOST_LOST:
            self._forget()  # the next connection makes another group
        super().left(member)

    def retire(self, now: float) -> None:
        # A server's end knows who joins. A client hears it from the server, which may be about to say so.
        if self.key.side == "client" and self._kernels.is_asking(self.key.host):
            return
        super().retire(now)
        if self.retired:
            self._forget()

    def _forget(self) -> None:
        if self.agreed is not None:
            self._kernels.forget(self.agreed)

    def _on_link_failed(self, reason: BaseException) -> None:
        self._forget()
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(reason)
        self.engine.unlist_group(self)
        self.set_up_ended()
        if not self.members:
            self.close()

    def free_page(self) -> None:
        super().free_page()
        self.places.close()

    def statistics(self) -> dict[str, Any]:
        found = super().statistics()
        found["peer"] = f"{self.peer} ({self.description})"
        return found

    @property
    def description(self) -> str:
        """The peer, for people."""
        return f"SMC-R v2.{self.release}" + (f" of {self.hostname}" if self.hostname else "")

    def close(self) -> None:
        if not self._closed:
            self._forget()
            super().close()
            self.engine.return_completions(self._share)
