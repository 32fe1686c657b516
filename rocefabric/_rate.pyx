# cython: language_level=3, cdivision=True
"""DCQCN's reaction point as an object, for tests and for looking at single steps."""

from libc.string cimport memset


cdef class ReactionPoint:
    """One sender's rate. Times are picoseconds."""

    cdef Rate rate
    cdef Profile profile

    def __cinit__(self, profile):
        memset(&self.rate, 0, sizeof(Rate))
        self.profile = profile_of(profile)

    def begin(self, now: int) -> None:
        """The sender starts: its rate is measured from now."""
        self.rate.measured_at = now

    def notified(self, now: int) -> None:
        """A congestion notification has arrived."""
        rate_notified(&self.rate, &self.profile, now)

    def when(self, now: int) -> int:
        """The earliest time at which a packet may leave."""
        return rate_when(&self.rate, &self.profile, now)

    def sent(self, now: int, size: int) -> None:
        """A packet of ``size`` bytes leaves."""
        rate_sent(&self.rate, &self.profile, now, size)

    def state(self) -> dict:
        """All fields, for comparison."""
        return self.rate


cdef Profile profile_of(given):
    """From `rocefabric.dcqcn.Profile`."""
    cdef Profile p
    p.gain = given.gain
    p.alpha_ps = given.alpha_ns * 1000
    p.cut_ps = given.cut_ns * 1000
    p.step_ps = given.step_ns * 1000
    p.step_bytes = given.step_bytes
    p.fast_steps = given.fast_steps
    p.add_bps = given.add_bps
    p.hyper_bps = given.hyper_bps
    p.least_bps = given.least_bps
    p.line_bps = given.line_bps
    p.from_line = given.from_line
    p.first_alpha = given.first_alpha
    return p
