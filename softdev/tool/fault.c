/*
 * softdev fault: faults by hand in a process that runs on the device. `softdev` calls it.
 *
 * It sends one datagram to the socket of that process, and prints the answer (src/core/control.c). The kernel says who
 * answers: another process could have taken the name.
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/control.h"

enum { BAD_REQUEST = 1, USAGE = 2, NOBODY = 3, REQUEST = 1023, ANSWER = 1 << 14, PATIENCE_MS = 5000 };

static int usage(FILE *to, int status)
{
	fputs("usage: softdev fault PID FAULT...     makes a fault in a running process, and prints its number\n"
	      "       softdev fault PID list         faults there are, and the process's queue pairs\n"
	      "       softdev fault PID clear [N]    ends the fault of that number, or all\n"
	      "\n"
	      "The process is one of yours that runs on the device, in the same network namespace. A fault is words:\n"
	      "  port=down, mtu=1024, gid=N, slow=5ms       states of the port and the device\n"
	      "  qp=any, qp=0x1234, async=gid_change        a queue pair dies; an event\n"
	      "  retry=0.01, rnr=0.5, cqe_lost=0.001 ...    by chance; man 7 softdev has all\n"
	      "  at=1s for=2s every=10s                     when it begins, how long it lasts, when it comes again\n"
	      "  device=soft1, seed=7                       which device; the same draws again\n"
	      "\n"
	      "Examples:\n"
	      "  softdev fault 4711 port=down for=2s\n"
	      "  softdev fault 4711 cqe_late=0.1 late=20ms for=1m seed=7\n",
	      to);
	return status;
}

/* The request from the words of the command line. False: too long. */
static bool join(char **words, int count, char request[REQUEST + 1])
{
	size_t used = 0;

	for (int i = 0; i < count; i++) {
		const size_t n = strlen(words[i]);

		if (n + (i > 0) > REQUEST - used)
			return false;
		if (i)
			request[used++] = ' ';
		memcpy(request + used, words[i], n);
		used += n;
	}
	request[used] = 0;
	return true;
}

/* A datagram of that process and this user. The bytes, or -1: no answer. */
static ssize_t receive(int fd, pid_t pid, char *answer, size_t size)
{
	for (;;) {
		union {
			char bytes[CMSG_SPACE(sizeof(struct ucred))];
			struct cmsghdr align;
		} control;
		struct iovec iov = { answer, size };
		struct msghdr header = { .msg_iov = &iov,
					 .msg_iovlen = 1,
					 .msg_control = control.bytes,
					 .msg_controllen = sizeof(control.bytes) };
		struct pollfd readable = { .fd = fd, .events = POLLIN };
		struct ucred sender = { .pid = -1 };

		if (poll(&readable, 1, PATIENCE_MS) <= 0)
			return -1;
		const ssize_t got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
		if (got < 0)
			return -1;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c))
			if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS)
				memcpy(&sender, CMSG_DATA(c), sizeof(sender));
		if (sender.pid == pid && sender.uid == getuid())
			return got;
	}
}

static int ask(pid_t pid, const char *request)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX }, own = { .sun_family = AF_UNIX };
	static char answer[ANSWER];
	const int on = 1, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	const int n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, SOFT_CONTROL_NAME "-%u-%d",
			       (unsigned)getuid(), (int)pid);

	/* A name of its own, which the kernel chooses, for the answer. */
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) ||
	    bind(fd, (struct sockaddr *)&own, sizeof(own.sun_family))) {
		perror("softdev fault");
		return NOBODY;
	}
	const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
	if (sendto(fd, request, strlen(request), 0, (const struct sockaddr *)&name, length) < 0) {
		fprintf(stderr, "softdev fault: process %d is none of yours that has opened the device here%s%s\n",
			(int)pid, errno == ECONNREFUSED ? "" : ": ", errno == ECONNREFUSED ? "" : strerror(errno));
		return NOBODY;
	}
	const ssize_t got = receive(fd, pid, answer, sizeof(answer) - 1);
	if (got < 4) {
		fprintf(stderr, "softdev fault: process %d does not answer\n", (int)pid);
		return NOBODY;
	}
	answer[got] = 0;
	const bool ok = strtol(answer, NULL, 10) == 0;
	fputs(answer + 4, ok ? stdout : stderr);
	return ok ? 0 : BAD_REQUEST;
}

int main(int argc, char **argv)
{
	char request[REQUEST + 1], *end;

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		return usage(stdout, 0);
	if (argc < 3)
		return usage(stderr, USAGE);
	errno = 0;
	const long pid = strtol(argv[1], &end, 10);
	if (errno || *end || pid <= 0 || pid > 0x7fffffff)
		return usage(stderr, USAGE);
	if (!join(argv + 2, argc - 2, request)) {
		fprintf(stderr, "softdev fault: a request has at most %d bytes\n", REQUEST);
		return USAGE;
	}
	return ask((pid_t)pid, request);
}
