# DCQCN's reaction point, step by step as the software device's (softdev/src/roce/rate.c), in picoseconds.
from libc.stdint cimport int64_t, uint32_t

cdef struct Profile:
    double gain
    int64_t alpha_ps
    int64_t cut_ps
    int64_t step_ps
    int64_t step_bytes
    uint32_t fast_steps
    double add_bps
    double hyper_bps
    double least_bps
    double line_bps
    double first_alpha
    bint from_line  # the first notification cuts the line rate (as in the paper), not the rate measured

cdef struct Rate:
    bint paced
    double current
    double target
    double alpha
    int64_t cut_at
    int64_t alpha_at
    int64_t step_at
    int64_t bytes
    uint32_t time_steps
    uint32_t byte_steps
    uint32_t hyper_steps
    int64_t next
    int64_t measured_at
    int64_t measured_bytes
    double measured

cdef enum:
    MEASURE_PS = 50000000


cdef inline double at_most(double value, double most) noexcept nogil:
    return value if value < most else most


cdef inline void rate_step(Rate *r, const Profile *p) noexcept nogil:
    cdef uint32_t more = r.time_steps if r.time_steps > r.byte_steps else r.byte_steps
    cdef uint32_t less = r.byte_steps if r.time_steps > r.byte_steps else r.time_steps
    if less > p.fast_steps:
        r.hyper_steps += 1
        r.target += r.hyper_steps * p.hyper_bps
    elif more > p.fast_steps:
        r.target += p.add_bps
    r.target = at_most(r.target, p.line_bps)
    r.current = at_most((r.target + r.current) / 2, p.line_bps)
    if r.current > p.line_bps * 0.99:
        r.paced = False


cdef inline void rate_catch_up(Rate *r, const Profile *p, int64_t now) noexcept nogil:
    while r.paced and now - r.alpha_at >= p.alpha_ps:
        r.alpha_at += p.alpha_ps
        r.alpha *= 1 - p.gain
    while r.paced and now - r.step_at >= p.step_ps:
        r.step_at += p.step_ps
        r.time_steps += 1
        rate_step(r, p)


cdef inline void rate_notified(Rate *r, const Profile *p, int64_t now) noexcept nogil:
    cdef int64_t passed
    cdef double lately
    if r.paced:
        if now - r.cut_at < p.cut_ps:
            return
        rate_catch_up(r, p, now)
    if not r.paced:
        passed = now - r.measured_at
        lately = r.measured_bytes * 8e12 / passed if passed > 0 else 0
        r.current = at_most(r.measured if r.measured > lately else lately, p.line_bps)
        if p.from_line:
            r.current = p.line_bps
        r.alpha = p.first_alpha
        r.next = now
    r.paced = True
    r.cut_at = now
    r.target = r.current
    r.current *= 1 - r.alpha / 2
    if r.current < p.least_bps:
        r.current = p.least_bps
    r.alpha = (1 - p.gain) * r.alpha + p.gain
    r.alpha_at = r.step_at = now
    r.bytes = 0
    r.time_steps = r.byte_steps = r.hyper_steps = 0


# The time from which the next packet may leave: now or later.
cdef inline int64_t rate_when(Rate *r, const Profile *p, int64_t now) noexcept nogil:
    if r.paced:
        rate_catch_up(r, p, now)
        if r.paced and r.next > now:
            return r.next
    return now


cdef inline void rate_sent(Rate *r, const Profile *p, int64_t now, int64_t size) noexcept nogil:
    if now - r.measured_at >= MEASURE_PS:
        r.measured = r.measured_bytes * 8e12 / (now - r.measured_at)
        r.measured_at = now
        r.measured_bytes = 0
    r.measured_bytes += size
    if not r.paced:
        return
    if r.next < now:
        r.next = now
    r.next += <int64_t> (size * 8e12 / r.current)
    r.bytes += size
    if r.bytes >= p.step_bytes:
        r.bytes -= p.step_bytes
        r.byte_steps += 1
        rate_step(r, p)


cdef Profile profile_of(given)
