"""Control of one link to a Linux kernel's SMC-R, as a state machine (RFC 7609, section 4.5; SMC-Rv2).

A link group has one link here: a second one that the peer offers is refused. The owner brings the messages of
the link's queue pair that are not CDC, the time, and whether anything else was heard. It gets events, and
takes what is to be sent one by one (:meth:`SmcrLink.next_message`) whenever it can send. Time is an argument,
in seconds of any clock; there is no I/O here.

Linux gives the peer two seconds for each of its requests. It takes the link away when Test Link is not
answered, and a connection goes to TCP when Confirm RKey or Confirm Link is not. So an owner must bring
messages and send answers even while its program is busy.

What a peer can cause is bounded: answers that it does not fetch (:data:`MAX_ANSWERS`), and keys
(:data:`MAX_KEYS`).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from . import llc
from .codes import Code
from .errors import LocalProtocolError, RemoteProtocolError
from .frozen import Frozen
from .llcframe import MESSAGE_BYTES, RESPONSE, is_version_1

MAX_ANSWERS = 64
"""Answers that wait to be sent. Linux has one request of a kind under way at a time."""
MAX_KEYS = 255
"""Pairs of key and address that Linux keeps for each link group, and this end for its peer."""
_REJECT, _NEGATIVE = 0x40, 0x20
_NO_EYE_CATCHERS = 0x03


class LinkTimes(NamedTuple):
    """Seconds."""

    #: for Confirm Link, in each direction
    confirm: float = 5.0
    #: silence after which the peer's program is asked for a sign of life; 0: never
    idle: float = 30.0
    #: for its answer
    answer: float = 5.0


class LinkEnd(Frozen, kw_only=True):
    """One end of the link."""

    gid: bytes
    """GID of the port."""
    qpn: int
    """Number of the queue pair."""
    mac: bytes = bytes(6)
    """MAC address of the port."""
    uid: int = 0
    """The end's own number for the link."""


class LinkState(enum.Enum):
    """Where the link is."""

    ACTIVATING = "waiting for Confirm Link"
    ACTIVE = "active"
    ENDED = "ended"


class LinkActive(Frozen):
    """The link works in both directions: connections may use it."""


class LinkEnded(Frozen):
    """The link is out of use: its connections have lost their peer. Take its last message, and let it go."""

    code: int
    """The reason as a number."""
    text: str
    """What happened."""
    orderly: bool = False
    """The peer has ended the link by itself, and says that nothing is lost."""


LinkEvent: TypeAlias = LinkActive | LinkEnded


class SmcrLink:
    """One end of a link.

    :param role: "client" or "server": of the connection that made the link.
    :param own: this end.
    :param peer: the other end, as its Accept or Confirm says.
    """

    def __init__(
        self,
        role: str,
        own: LinkEnd,
        peer: LinkEnd,
        now: float,
        times: LinkTimes | None = None,
    ) -> None:
        if role not in ("client", "server"):
            raise LocalProtocolError(f"role {role!r}: must be client or server")
        self.role, self.own, self.peer = role, own, peer
        self.state = LinkState.ACTIVATING
        #: Number of the link in its group, which the server gives.
        self.number = 1
        #: Requests that were refused or ignored, for people.
        self.refused = 0
        self._times = times or LinkTimes()
        self._keys: set[tuple[int, int]] = set()
        self._out: deque[bytes] = deque()
        self._deadline: float | None = now + self._times.confirm
        self._asked: bytes | None = None  # what Test Link has to bring back
        self._tests = 0
        if role == "server":
            self._out.append(self._confirm_link(response=False))

    # ---- what comes from outside

    def receive(self, data: bytes, now: float) -> list[LinkEvent]:
        """A message of the link that is not CDC."""
        if self.state is LinkState.ENDED:
            return []
        try:
            message = llc.decode(data)
        except RemoteProtocolError as exc:
            return self._end(Code.PROTOCOL_VIOLATION, str(exc))
        handler: Handler | None = _HANDLERS.get(type(message))
        if handler is None:
            text = f"LLC: {type(message).__name__} is not for links to other implementations of SMC"
            return self._end(Code.PROTOCOL_VIOLATION, text)
        self.heard(now)
        events = handler(self, bytes(data), message, now)
        if len(self._out) > MAX_ANSWERS:
            return self._end(Code.PROTOCOL_VIOLATION, "the peer asks more than it lets this end answer")
        return events

    def receive_answered(self, data: bytes, now: float) -> list[LinkEvent]:
        """As :meth:`receive`, of a request that was answered without this machine, because it was late."""
        waiting = len(self._out)
        events = self.receive(data, now)
        while len(self._out) > waiting:
            self._out.pop()
        return events

    def heard(self, now: float) -> None:
        """Something has come from the peer's program: CDC, in most cases."""
        if self.state is LinkState.ACTIVE:
            self._asked = None
            self._deadline = now + self._times.idle if self._times.idle else None

    def next_deadline(self) -> float | None:
        """When :meth:`on_timer` must be called, None: never."""
        return self._deadline

    def on_timer(self, now: float) -> list[LinkEvent]:
        """The time of :meth:`next_deadline` has come."""
        if self._deadline is None or now < self._deadline:
            return []
        if self.state is LinkState.ACTIVATING:
            return self._end(Code.TIMEOUT_CONFIRM_LINK, Code.TIMEOUT_CONFIRM_LINK.text)
        if self._asked is not None:
            return self._end(Code.LINK_LOST, "the peer has not answered Test Link in time")
        self._tests += 1
        self._asked = self._tests.to_bytes(16, "big")
        self._deadline = now + self._times.answer
        self._out.append(self._encoded(llc.TestLink(user_data=self._asked)))
        return []

    def next_message(self) -> bytes | None:
        """The next message to send on the link, solicited (Linux looks at no other); None: nothing now."""
        return self._out.popleft() if self._out else None

    # ---- what the owner asks for

    def add_key(self, rkey: int, addr: int) -> bool:
        """The peer has named a region, by CLC.

        :return: False: it has named too many, and the connection is to be refused.
        """
        self._keys.add((rkey, addr))
        if len(self._keys) > MAX_KEYS:
            self._keys.discard((rkey, addr))
            return False
        return True

    @property
    def keys(self) -> frozenset[tuple[int, int]]:
        """Keys and addresses that the peer has named and not taken back."""
        return frozenset(self._keys)

    def close(self, reason: int = llc.DeleteReason.PROGRAM) -> None:
        """End the link for both, now: connections that are left on it are lost. One message is to be sent."""
        if self.state is not LinkState.ENDED:
            self._end(Code.SHUTTING_DOWN, "")
            self._out.append(self._encoded(llc.DeleteLink(reason=reason, all_links=True, orderly=True)))

    # ---- the peer's messages

    def _on_confirm_link(self, data: bytes, message: llc.ConfirmLink, now: float) -> list[LinkEvent]:
        if message.qpn != self.peer.qpn or message.gid != self.peer.gid:
            text = f"Confirm Link of queue pair 0x{message.qpn:06x}, 0x{self.peer.qpn:06x} was agreed"
            return self._end(Code.PROTOCOL_VIOLATION, text)
        if not data[3] & _NO_EYE_CATCHERS:
            return self._end(Code.EYE_CATCHERS_IN_RMBE, Code.EYE_CATCHERS_IN_RMBE.text)
        if message.response != (self.role == "server"):
            return self._end(Code.PROTOCOL_VIOLATION, f"Confirm Link that a {self.role} does not get")
        if self.state is LinkState.ACTIVE and message.response:
            self.refused += 1
            return []
        if not message.response:
            self.number = message.link_num
            self._out.append(self._confirm_link(response=True))
        if self.state is LinkState.ACTIVE:
            return []
        self.state = LinkState.ACTIVE
        self.heard(now)
        return [LinkActive()]

    def _on_test_link(self, data: bytes, message: llc.TestLink, now: float) -> list[LinkEvent]:
        if not message.response:
            self._answer(data)
        return []

    def _on_confirm_rkey(self, data: bytes, message: llc.ConfirmRKey, now: float) -> list[LinkEvent]:
        if message.response:
            self.refused += 1
            return []
        # Those behind the first are for other links, of which there is none.
        first = message.tokens[0]
        known = self.add_key(first.rkey, first.addr)
        self.refused += not known
        self._answer(data, 0 if known else _NEGATIVE)
        return []

    def _on_delete_rkey(self, data: bytes, message: llc.DeleteRKey, now: float) -> list[LinkEvent]:
        if message.response:
            self.refused += 1
            return []
        request, gone = data, set(message.rkeys)
        unknown = gone - {rkey for rkey, _ in self._keys}
        self._keys = {pair for pair in self._keys if pair[0] not in gone}
        if len(data) > MESSAGE_BYTES:  # more keys than the answer has room for: it repeats the first
            data = data[:4] + bytes((min(data[4], 8),)) + data[5:MESSAGE_BYTES]
        if not unknown:
            self._answer(request, body=data)
            return []
        self.refused += 1
        mask = sum(0x80 >> i for i, rkey in enumerate(message.rkeys[:8]) if rkey in unknown)
        self._answer(request, _NEGATIVE, body=data[:5] + bytes((mask,)) + data[6:])
        return []

    def _on_add_link(self, data: bytes, message: llc.AddLink, now: float) -> list[LinkEvent]:
        self.refused += 1
        if not message.response:
            if is_version_1(data):
                data = data[:2] + b"\1" + data[3:]  # the reason: no alternate path
            self._answer(data, _REJECT)
        return []

    def _on_request_add_link(self, data: bytes, message: llc.RequestAddLink, now: float) -> list[LinkEvent]:
        self.refused += 1
        if not message.response:
            self._answer(data, body=data[:4] + bytes(MESSAGE_BYTES - 4))
        return []

    def _on_delete_link(self, data: bytes, message: llc.DeleteLink, now: float) -> list[LinkEvent]:
        if message.response:
            self.refused += 1
            return []
        if not message.all_links:
            if message.link_num != self.number:
                self.refused += 1
                return []
            self._answer(data)
        text = f"the peer has deleted the link (reason 0x{message.reason:08x})"
        answers = tuple(self._out)
        events = self._end(Code.LINK_LOST, text, orderly=message.orderly)
        self._out.extend(answers)
        return events

    # ---- inside

    def _answer(self, request: bytes, flags: int = 0, *, body: bytes | None = None) -> None:
        """The request itself (or ``body``), of 44 bytes and in the peer's byte order, with the flags of an
        answer."""
        data = request if body is None else body
        head = data[:3]
        if not is_version_1(request):
            little = int.from_bytes(request[1:3], "little") == len(request)
            head = request[:1] + MESSAGE_BYTES.to_bytes(2, "little" if little else "big")
        answer = head + bytes((data[3] | RESPONSE | flags,)) + data[4:MESSAGE_BYTES]
        self._out.append(answer)

    def _encoded(self, message: llc.LlcMessage) -> bytes:
        return llc.in_version_2(message.encode())

    def _confirm_link(self, *, response: bool) -> bytes:
        own = self.own
        return self._encoded(
            llc.ConfirmLink(
                gid=own.gid,
                qpn=own.qpn,
                link_uid=own.uid,
                link_num=self.number,
                mac=own.mac,
                max_links=1,
                response=response,
            )
        )

    def _end(self, code: int, text: str, *, orderly: bool = False) -> list[LinkEvent]:
        self.state, self._deadline, self._asked = LinkState.ENDED, None, None
        self._out.clear()
        self._keys.clear()
        return [LinkEnded(code, text, orderly)]


Handler: TypeAlias = Callable[[SmcrLink, bytes, Any, float], list[LinkEvent]]
_HANDLERS: dict[type, Handler] = {
    llc.ConfirmLink: SmcrLink._on_confirm_link,
    llc.TestLink: SmcrLink._on_test_link,
    llc.ConfirmRKey: SmcrLink._on_confirm_rkey,
    llc.DeleteRKey: SmcrLink._on_delete_rkey,
    llc.AddLink: SmcrLink._on_add_link,
    llc.RequestAddLink: SmcrLink._on_request_add_link,
    llc.DeleteLink: SmcrLink._on_delete_link,
}
