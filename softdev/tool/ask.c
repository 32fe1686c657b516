/*
 * Asks a process that runs on the device, by its socket (src/core/control.c). The kernel says who answers: another process
 * could have taken the name.
 */
#include "tool/ask.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "src/base/control.h"

enum { PATIENCE_MS = 5000, ANSWER = 1 << 14 };

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

int control_ask(const char *command, pid_t pid, const char *request, const char **said)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX }, own = { .sun_family = AF_UNIX };
	static char answer[ANSWER];
	const int on = 1, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	const int n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, SOFT_CONTROL_NAME "-%u-%d",
			       (unsigned)getuid(), (int)pid);

	/* A name of its own, which the kernel chooses, for the answer. */
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) ||
	    bind(fd, (struct sockaddr *)&own, sizeof(own.sun_family))) {
		perror(command);
		if (fd >= 0)
			close(fd);
		return -1;
	}
	const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
	if (sendto(fd, request, strlen(request), 0, (const struct sockaddr *)&name, length) < 0) {
		fprintf(stderr, "%s: process %d is none of yours that has opened the device here%s%s\n", command,
			(int)pid, errno == ECONNREFUSED ? "" : ": ", errno == ECONNREFUSED ? "" : strerror(errno));
		close(fd);
		return -1;
	}
	const ssize_t got = receive(fd, pid, answer, sizeof(answer) - 1);
	close(fd);
	if (got < 4) {
		fprintf(stderr, "%s: process %d does not answer\n", command, (int)pid);
		return -1;
	}
	answer[got] = 0;
	*said = answer + 4;
	return (int)strtol(answer, NULL, 10);
}
