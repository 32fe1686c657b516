"""When a link is silent: probe it, and when the probe is not answered, give it up (after X-RDMA).

The probe is a zero-byte RDMA WRITE: the peer's device answers it, its program need not run. One object for
each link, looked at by the engine's one timer; the data path only keeps a count of what was heard.
"""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    """What the owner has to do."""

    FINE = enum.auto()
    """Nothing."""
    PROBE = enum.auto()
    """Post a probe, then call :meth:`Keepalive.probed`."""
    LOST = enum.auto()
    """No answer in time: break the link."""


class Keepalive:
    """The silence of one link. Times are seconds of any clock.

    :param idle: silence after which a probe is sent; 0: only :meth:`suspect` asks for one.
    :param timeout: time in which something must be heard after a probe.
    :param now: the time now.
    :raises ValueError: a negative ``idle``, or a ``timeout`` that is not positive.
    """

    __slots__ = ("_heard", "_idle", "_probed_at", "_quiet_since", "_suspect", "_timeout")

    def __init__(self, idle: float, timeout: float, now: float) -> None:
        self.set_times(idle, timeout)
        self._heard = 0
        self._quiet_since = now
        self._probed_at: float | None = None
        self._suspect = False

    def set_times(self, idle: float, timeout: float) -> None:
        """Other times from now on; as of the constructor."""
        if idle < 0 or timeout <= 0:
            raise ValueError(f"idle={idle}, timeout={timeout}: must be 0 or more, and more than 0")
        self._idle, self._timeout = idle, timeout

    @property
    def probing(self) -> bool:
        """Whether a probe is under way."""
        return self._probed_at is not None

    def look(self, now: float, heard: int) -> Verdict:
        """Judge the link.

        :param heard: any number that changes whenever something came from the peer, be it the completion of
            a probe. Silence counts from the look that sees no change, so it is noticed up to one interval of
            the owner's timer late, and the data path needs no clock.
        """
        if heard != self._heard:
            self._heard = heard
            self._quiet_since = now
            self._probed_at = None
            self._suspect = False
            return Verdict.FINE
        if self._probed_at is not None:
            return Verdict.LOST if now - self._probed_at >= self._timeout else Verdict.FINE
        if self._suspect or (self._idle > 0 and now - self._quiet_since >= self._idle):
            return Verdict.PROBE
        return Verdict.FINE

    def probed(self, now: float) -> None:
        """A probe was posted."""
        if self._probed_at is None:
            self._probed_at = now

    def suspect(self) -> None:
        """Something else looks wrong (the TCP connection ended): the next look asks for a probe at once."""
        self._suspect = True

    def next_deadline(self) -> float | None:
        """When :meth:`look` can next have something to do, None when never."""
        if self._probed_at is not None:
            return self._probed_at + self._timeout
        if self._suspect:
            return self._quiet_since
        return self._quiet_since + self._idle if self._idle > 0 else None
