/*
 * The file and its rings. SOFTDEV_TRACE names the directory; a process makes its file there at its first call of
 * verbs or rdma_cm, so that shells and other helpers leave none.
 */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "trace/recorder/recorder.h"

_Thread_local struct trace_thread trace_self __attribute__((tls_model("initial-exec")));
static _Thread_local struct trace_record unread;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the claims, and of making the file */
static pthread_key_t key;
static int file = -1;
static struct trace_header *header;
static struct trace_ring *rings;
static struct trace_record *locked[TRACE_RING_THREADS];
static bool used[TRACE_RINGS];
static char begun_in[PATH_MAX]; /* the directory, where the recorder came later */
void *trace_behind = RTLD_NEXT;
static atomic_bool failed; /* there is no file, and will be none */

static uint64_t now(clockid_t clock)
{
	struct timespec at;

	clock_gettime(clock, &at);
	return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

static void leave(void *self)
{
	struct trace_thread *thread = self;

	pthread_mutex_lock(&lock);
	if (thread->ring && rings) {
		used[thread->ring - rings] = false; /* its records stay until another thread writes over them */
		munmap(thread->records, TRACE_THREAD_RECORDS * sizeof(struct trace_record));
	}
	thread->ring = NULL;
	thread->records = NULL;
	pthread_mutex_unlock(&lock);
}

static void forget(void)
{
	for (unsigned n = 0; n < TRACE_RING_THREADS; n++) {
		if (locked[n])
			munmap(locked[n], TRACE_LOCKED_RECORDS * sizeof(struct trace_record));
		locked[n] = NULL;
	}
	if (header)
		munmap(header, trace_ring_offset(0));
	header = NULL;
	rings = NULL;
	if (file >= 0)
		close(file);
	file = -1;
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* The child gets a file of its own, should it call verbs. */
static void in_child(void)
{
	if (trace_self.ring)
		munmap(trace_self.records, TRACE_THREAD_RECORDS * sizeof(struct trace_record));
	forget();
	memset(used, 0, sizeof(used));
	trace_self = (struct trace_thread){ 0 };
	pthread_mutex_unlock(&lock);
}

static void start(void)
{
	pthread_key_create(&key, leave);
	pthread_atfork(before_fork, after_fork, in_child);
}

static void late(void)
{
	if (!header)
		return;
	header->late_ns = now(CLOCK_MONOTONIC);
	header->late_ticks = trace_ticks();
}

__attribute__((destructor)) static void finish(void)
{
	pthread_mutex_lock(&lock);
	if (header) {
		late();
		__atomic_store_n(&header->ended, 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
}

static void read_line(const char *path, char *to, size_t size)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	const ssize_t got = fd < 0 ? 0 : read(fd, to, size - 1);

	if (fd >= 0)
		close(fd);
	to[got > 0 ? got : 0] = '\0';
	to[strcspn(to, "\n")] = '\0';
}

/* Arguments are as much a part of its name as the path: python3 server.py. */
static void read_program(char *to, size_t size)
{
	const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, to, size - 1);

	if (fd >= 0)
		close(fd);
	for (; got > 0 && !to[got - 1]; got--)
		continue;
	for (ssize_t i = 0; i < got; i++) {
		if (!to[i] || (unsigned char)to[i] < ' ')
			to[i] = ' ';
	}
	to[got > 0 ? got : 0] = '\0';
}

/* A program may call exec(): the number in the name is then the next one. */
static int make_file(const char *directory, char path[PATH_MAX])
{
	int fd = -1;

	for (unsigned n = 0; fd < 0 && n < 1000; n++) {
		if (snprintf(path, PATH_MAX, "%s/%d-%u.rec", directory, (int)getpid(), n) >= PATH_MAX) {
			errno = ENAMETOOLONG;
			break;
		}
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0 && errno != EEXIST)
			break;
	}
	return fd;
}

/*
 * Room for a part of the file is made before it is mapped: where the disk is full, a store into a hole of it would be
 * the end of the program. The pages are there when it first writes.
 */
static void *map(uint64_t offset, uint64_t length)
{
	void *at;

	errno = posix_fallocate(file, (off_t)offset, (off_t)length);
	if (errno)
		return NULL;
	at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, (off_t)offset);
	return at == MAP_FAILED ? NULL : at;
}

static bool fill_file(void)
{
	if (ftruncate(file, (off_t)trace_ring_offset(TRACE_RINGS)))
		return false;
	header = map(0, trace_ring_offset(0));
	if (!header)
		return false;
	rings = (struct trace_ring *)(void *)((char *)header + TRACE_HEADER_BYTES);
	for (unsigned n = 0; n < TRACE_RING_THREADS; n++) {
		locked[n] = map(trace_ring_offset(n), TRACE_LOCKED_RECORDS * sizeof(struct trace_record));
		if (!locked[n])
			return false;
	}
	*header = (struct trace_header){
		.record_bytes = sizeof(struct trace_record),
		.rings = TRACE_RINGS,
		.locked_records = TRACE_LOCKED_RECORDS,
		.thread_records = TRACE_THREAD_RECORDS,
		.pid = (uint32_t)getpid(),
		.parent = (uint32_t)getppid(),
		.begin_unix_ns = now(CLOCK_REALTIME),
		.begin_ns = now(CLOCK_MONOTONIC),
		.begin_ticks = trace_ticks(),
	};
	late();
	read_program(header->program, sizeof(header->program));
	read_line("/proc/sys/kernel/hostname", header->host, sizeof(header->host));
	/* Last: who finds it finds the rest. */
	uint64_t magic;
	memcpy(&magic, TRACE_MAGIC, sizeof(magic));
	__atomic_store_n((uint64_t *)(void *)header->magic, magic, __ATOMIC_RELEASE);
	return true;
}

/* lock held */
static bool ready(void)
{
	const char *directory = *begun_in ? begun_in : getenv("SOFTDEV_TRACE");
	char path[PATH_MAX];

	if (header)
		return true;
	if (atomic_load(&failed))
		return false;
	if (!directory || !*directory) {
		atomic_store(&failed, true);
		return false;
	}
	file = make_file(directory, path);
	if (file >= 0 && fill_file())
		return true;
	const int error = errno;
	if (file >= 0)
		unlink(path); /* no recording, and nobody could read it */
	fprintf(stderr, "softdev: nothing is recorded, as there can be no file in SOFTDEV_TRACE=\"%s\": %s\n",
		directory, strerror(error));
	forget();
	atomic_store(&failed, true);
	return false;
}

bool trace_on(void)
{
	const int saved = errno;
	bool on;

	if (atomic_load_explicit(&failed, memory_order_relaxed))
		return false;
	pthread_once(&once, start);
	pthread_mutex_lock(&lock);
	on = ready();
	pthread_mutex_unlock(&lock);
	errno = saved;
	return on;
}

int trace_begin(const char *directory)
{
	int error = EALREADY;

	pthread_once(&once, start);
	pthread_mutex_lock(&lock);
	if (!header && snprintf(begun_in, sizeof(begun_in), "%s", directory) < (int)sizeof(begun_in)) {
		atomic_store(&failed, false);
		error = ready() ? 0 : EIO;
		if (header)
			header->attached = 1;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

bool trace_claim(void)
{
	struct trace_thread *self = &trace_self;
	const int saved = errno;
	unsigned n = TRACE_RING_THREADS;

	if (!trace_on())
		return false;
	pthread_mutex_lock(&lock);
	while (n < TRACE_RINGS && used[n])
		n++;
	struct trace_record *records =
		n < TRACE_RINGS && rings ?
			map(trace_ring_offset(n), TRACE_THREAD_RECORDS * sizeof(struct trace_record)) :
			NULL;
	if (records) {
		used[n] = true;
		rings[n].thread = (uint32_t)syscall(SYS_gettid);
		*self = (struct trace_thread){
			.records = records, .ring = &rings[n], .head = rings[n].head, .mask = TRACE_THREAD_RECORDS - 1
		};
	} else {
		*self = (struct trace_thread){ .records = &unread };
	}
	pthread_mutex_unlock(&lock);
	pthread_setspecific(key, self);
	errno = saved;
	return true;
}

void trace_count_lost(void)
{
	if (header)
		__atomic_fetch_add(&header->lost, 1, __ATOMIC_RELAXED);
}

void trace_note(unsigned ring, const struct trace_record *record)
{
	const int saved = errno;

	if (!trace_on())
		return;
	pthread_mutex_lock(&lock);
	if (rings) {
		struct trace_ring *to = &rings[ring];
		struct trace_record *at = &locked[ring][to->head & (TRACE_LOCKED_RECORDS - 1)];

		*at = *record;
		__atomic_store_n(&to->head, to->head + 1, __ATOMIC_RELEASE);
		late();
	}
	pthread_mutex_unlock(&lock);
	trace_self.empty = NULL;
	errno = saved;
}
