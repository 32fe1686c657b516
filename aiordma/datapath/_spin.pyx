# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""How long an operation may busy-poll before it sleeps: learned from what busy polls find, and what sleeps cost.

Three measurements decide, and not the number of CPUs, of which a container or a busy machine has fewer than it says:

* What a busy poll finds. The budget shrinks with each that finds nothing. After several in a row there are none for a
  while, and longer each time: the peer that is waited for may need this CPU.
* How long a sleep took. When it was short, a busy poll would have found the same without the cost of a wake-up.
* How long this thread then waited for a CPU (the run-queue delay in ``/proc``). On a busy machine most of a sleep may
  be that: the peer's answer was there soon, and a thread that polls would have seen it.
"""
from libc.stdint cimport int64_t

cdef extern from "<fcntl.h>" nogil:
    int open(const char *path, int flags)
    int O_RDONLY
    int O_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *buffer, size_t count, long offset)
    int c_close "close"(int fd)

cdef extern from "<stdlib.h>" nogil:
    long long strtoll(const char *text, char **end, int base)

cdef enum:
    MISSES = 16             # busy polls in a row that find nothing, until there are none for a while
    FIRST_PENALTY = 16      # hints that are ignored then; doubled each time
    MAX_PENALTY = 1024
    PARKS_PER_LOOK = 8      # sleeps of which one is looked at in /proc, which takes some microseconds

cdef int64_t START_NS = 20_000
cdef int64_t LEAST_NS = 1_000


cdef class RunQueueDelay:
    """How long the calling thread has waited for a CPU since it began, in nanoseconds."""

    cpdef int64_t read(self):
        """-1 where the kernel does not say."""
        cdef char text[96]
        cdef char *end
        cdef ssize_t n
        # No descriptor is kept for what is asked so rarely.
        cdef int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)
        if fd < 0:
            return -1
        n = pread(fd, text, sizeof(text) - 1, 0)
        c_close(fd)
        if n <= 0:
            return -1
        text[n] = 0
        strtoll(text, &end, 10)             # time on a CPU
        return strtoll(end, NULL, 10)


cdef class SpinPolicy:
    """Of one engine. All times in nanoseconds.

    :param queue: where the run-queue delay is read.
    :param longest_ns: the longest adaptive busy poll.
    """

    def __init__(self, RunQueueDelay queue not None, int64_t longest_ns=100_000):
        self.queue = queue
        self.longest_ns = longest_ns
        # A sleeping CPU takes about 50 us to wake on a virtual machine, so a busy poll would have served a waiter that
        # is woken within this time after it parked.
        self.would_have_paid_ns = longest_ns + longest_ns // 2
        self.set(-1)

    cpdef void set(self, int64_t fixed_ns):
        """Always this time; -1: adaptive, from the beginning."""
        self.adaptive = fixed_ns < 0
        self.max_ns = self.longest_ns if self.adaptive else fixed_ns
        self.budget_ns = START_NS if self.adaptive else fixed_ns
        self.misses = self.penalty = self.rest = 0
        self.parked_at = 0

    cpdef void found_after(self, int64_t took):
        """A busy poll found what it looked for, after this time."""
        self.found()
        if self.adaptive:
            self.budget_ns = min(self.max_ns, max(self.budget_ns, 4 * took))

    cpdef void missed(self):
        """A busy poll found nothing."""
        if not self.adaptive:
            return
        self.misses += 1
        self.budget_ns -= self.budget_ns // 4
        if self.misses < MISSES:
            if self.budget_ns < LEAST_NS:
                self.budget_ns = 0
            return
        self.budget_ns = 0
        self.misses = 0
        self.penalty = min(MAX_PENALTY, max(FIRST_PENALTY, 2 * self.penalty))
        self.rest = self.penalty

    cpdef void park(self, int64_t now):
        """An operation found nothing and will sleep."""
        if not self.adaptive:
            return
        self.parked_at = now
        self.delayed_before = -1
        if self.budget_ns < START_NS:
            self.parks += 1
            if self.parks % PARKS_PER_LOOK == 0:
                self.delayed_before = self.queue.read()

    cpdef void woken(self, int64_t now):
        """The operation that slept goes on."""
        cdef int64_t took
        if not self.parked_at:
            return
        took = now - self.parked_at
        self.parked_at = 0
        if self.budget_ns >= self.max_ns:
            return
        if took >= self.would_have_paid_ns and self.delayed_before >= 0:
            took -= self.queue.read() - self.delayed_before
        if took >= self.would_have_paid_ns:
            return
        if self.rest:
            self.rest -= 1
        else:
            self.budget_ns = min(self.max_ns, 2 * self.budget_ns + 5_000)
