/* What two processes on two CPUs need at least, whatever library is between them; benchmarks/floor.py compiles and runs
 * it. floor CPU CPU SECONDS prints lines of a name and a number: nanoseconds of a round trip, or GB/s. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	MESSAGE = 64,
	MIB = 1 << 20,
	RING = 512 << 10, /* what the ring of a busy stream grows to */
	STEP = RING / 4,  /* and in which pieces it is filled and read */
	CHUNK = 64,       /* round trips between two looks at the clock */
};

struct shared {
	_Alignas(128) atomic_ulong there;
	char request[MESSAGE];
	_Alignas(128) atomic_ulong back;
	char answer[MESSAGE];
	_Alignas(128) atomic_ulong produced;
	_Alignas(128) atomic_ulong consumed;
	_Alignas(4096) char ring[RING];
};

static struct shared *both;
static int cpus[2];
static double seconds;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec * 1e-9;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

/* Waits a moment in a loop that looks at memory. */
static void pause_briefly(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

struct ends {
	int in, out;
};

/* Runs `serve` for ever in a process on the other CPU; it is killed in the end. */
static pid_t peer(void (*serve)(struct ends), struct ends its)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		pin(cpus[1]);
		serve(its);
		_exit(1);
	}
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* ---- awake: 64 bytes, and a word that says so, each way */

static void answer_awake(struct ends none)
{
	(void)none;
	for (unsigned long turn = 1;; turn++) {
		while (atomic_load_explicit(&both->there, memory_order_acquire) != turn)
			pause_briefly();
		memcpy(both->answer, both->request, MESSAGE);
		atomic_store_explicit(&both->back, turn, memory_order_release);
	}
}

static void ask_awake(unsigned long turn, char *message)
{
	memcpy(both->request, message, MESSAGE);
	atomic_store_explicit(&both->there, turn, memory_order_release);
	while (atomic_load_explicit(&both->back, memory_order_acquire) != turn)
		pause_briefly();
	memcpy(message, both->answer, MESSAGE);
}

static double awake(void)
{
	pid_t pid = peer(answer_awake, (struct ends){ -1, -1 });
	char message[MESSAGE] = "x";
	unsigned long turn = 0;
	double begun = now(), at = begun;

	for (; at < begun + seconds; at = now())
		for (int i = 0; i < CHUNK; i++)
			ask_awake(++turn, message);
	end(pid);
	return (at - begun) / turn * 1e9;
}

/* ---- asleep: what read() and write() carry, with epoll_wait() before each read() or without it */

static int waits = -1; /* an epoll; -1: read() itself waits */
static size_t carried; /* bytes of a message */

static void pass(struct ends ours, char *message, int first)
{
	struct epoll_event event;

	if (first && write(ours.out, message, carried) != (ssize_t)carried)
		die("write");
	if (waits >= 0 && epoll_wait(waits, &event, 1, -1) != 1)
		die("epoll_wait");
	if (read(ours.in, message, carried) != (ssize_t)carried)
		die("read");
	if (!first && write(ours.out, message, carried) != (ssize_t)carried)
		die("write");
}

static void watch(int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	waits = epoll_create1(0);
	if (waits < 0 || epoll_ctl(waits, EPOLL_CTL_ADD, fd, &event))
		die("epoll");
}

static void answer_asleep(struct ends its)
{
	char message[MESSAGE];

	if (waits >= 0)
		watch(its.in);
	for (;;)
		pass(its, message, 0);
}

static double asleep(struct ends ours, struct ends its, size_t bytes, int by_epoll)
{
	union {
		unsigned long one;
		char bytes[MESSAGE];
	} message = { 1 };
	unsigned long turns = 0;
	double begun, at;
	pid_t pid;

	carried = bytes;
	waits = by_epoll ? 0 : -1;
	pid = peer(answer_asleep, its);
	if (by_epoll)
		watch(ours.in);
	for (begun = at = now(); at < begun + seconds; at = now(), turns++)
		pass(ours, message.bytes, 1);
	end(pid);
	if (by_epoll)
		close(waits);
	return (at - begun) / turns * 1e9;
}

static double by_eventfd(int by_epoll)
{
	int there = eventfd(0, 0), back = eventfd(0, 0);

	if (there < 0 || back < 0)
		die("eventfd");
	return asleep((struct ends){ back, there }, (struct ends){ there, back }, 8, by_epoll);
}

static double by_socket(int by_epoll)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		die("socketpair");
	return asleep((struct ends){ pair[0], pair[0] }, (struct ends){ pair[1], pair[1] }, MESSAGE, by_epoll);
}

/* ---- copies: one of 1 MiB, and two through a ring, one by each process at the same time */

static char *touched(void)
{
	char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 1, MIB);
	return memory;
}

static double one_copy(void)
{
	char *from = touched(), *to = touched();
	double begun = now(), at = begun, moved = 0;

	for (; at < begun + seconds; at = now(), moved += MIB) {
		memcpy(to, from, MIB);
		__asm__ volatile("" : : "r"(to) : "memory");
	}
	return moved / (at - begun) * 1e-9;
}

static void fill(struct ends none)
{
	char *from = touched();

	(void)none;
	for (unsigned long at = 0;; at += STEP) {
		while (at + STEP - atomic_load_explicit(&both->consumed, memory_order_acquire) > RING)
			pause_briefly();
		memcpy(both->ring + at % RING, from + at % MIB, STEP);
		atomic_store_explicit(&both->produced, at + STEP, memory_order_release);
	}
}

static double two_copies(void)
{
	pid_t pid = peer(fill, (struct ends){ -1, -1 });
	char *to = touched();
	unsigned long taken = 0;
	double begun = now(), at = begun;

	for (; at < begun + seconds; at = now()) {
		while (atomic_load_explicit(&both->produced, memory_order_acquire) < taken + STEP)
			pause_briefly();
		memcpy(to + taken % MIB, both->ring + taken % RING, STEP);
		taken += STEP;
		atomic_store_explicit(&both->consumed, taken, memory_order_release);
	}
	end(pid);
	return taken / (at - begun) * 1e-9;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	cpus[0] = atoi(argv[1]);
	cpus[1] = atoi(argv[2]);
	seconds = atof(argv[3]);
	both = mmap(NULL, sizeof(*both), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (both == MAP_FAILED)
		die("mmap");
	memset(both, 0, sizeof(*both));
	pin(cpus[0]);
	printf("awake %g\n", awake());
	printf("eventfd %g\n", by_eventfd(0));
	printf("eventfd_epoll %g\n", by_eventfd(1));
	printf("unix %g\n", by_socket(0));
	printf("unix_epoll %g\n", by_socket(1));
	printf("one_copy %g\n", one_copy());
	printf("two_copies %g\n", two_copies());
	return 0;
}
