/*
 * Recordings in files. They are read, not mapped: a file that shrinks meanwhile must not end the reader.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "trace/reader/reader.h"

bool trace_fetch_file(void *file, uint64_t offset, void *to, size_t length)
{
	const int fd = *(const int *)file;
	size_t done = 0;

	while (done < length) {
		const ssize_t got = pread(fd, (char *)to + done, length - done, (off_t)(offset + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		done += (size_t)got;
	}
	return true;
}

static uint64_t ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t now;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
	return now;
#else
	return 0;
#endif
}

struct trace_clocks trace_clocks_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (struct trace_clocks){ .ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec,
				      .ticks = ticks() };
}

bool trace_is_alive(const struct trace_header *header)
{
	char host[sizeof(header->host)] = "";
	const pid_t pid = (pid_t)header->pid;

	gethostname(host, sizeof(host) - 1);
	return !header->ended && !strcmp(host, header->host) && pid > 0 && (!kill(pid, 0) || errno == EPERM);
}

/* -1, and what is wrong. */
static int open_file(const char *path, const char **wrong)
{
	struct stat found;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		*wrong = strerror(errno);
	} else if (fstat(fd, &found) || !S_ISREG(found.st_mode)) {
		close(fd);
		fd = -1;
		*wrong = "it is no file";
	}
	return fd;
}

const char *trace_peek_file(struct trace_header *header, const char *path)
{
	const char *wrong = NULL;
	int fd = open_file(path, &wrong);

	if (fd < 0)
		return wrong;
	wrong = trace_load_header(header, trace_fetch_file, &fd);
	close(fd);
	return wrong;
}

uint64_t trace_peek_records(const char *path)
{
	struct trace_ring rings[TRACE_RINGS];
	const char *wrong = NULL;
	uint64_t sum = 0;
	int fd = open_file(path, &wrong);

	if (fd < 0)
		return 0;
	if (trace_fetch_file(&fd, TRACE_HEADER_BYTES, rings, sizeof(rings))) {
		for (unsigned n = 0; n < TRACE_RINGS; n++) {
			const uint64_t size = trace_ring_records(n);
			sum += rings[n].head < size ? rings[n].head : size;
		}
	}
	close(fd);
	return sum;
}

const char *trace_load_file(struct trace_recording *recording, const char *path)
{
	const char *wrong = NULL;
	int fd = open_file(path, &wrong);

	memset(recording, 0, sizeof(*recording));
	if (fd < 0)
		return wrong;
	const struct trace_clocks clocks = trace_clocks_now();
	wrong = trace_load(recording, trace_fetch_file, &fd, &clocks);
	close(fd);
	recording->alive = !wrong && trace_is_alive(&recording->header);
	if (recording->alive && clocks.ns > recording->header.begin_ns)
		recording->now = clocks.ns - recording->header.begin_ns;
	return wrong;
}
