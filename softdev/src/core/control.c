/*
 * A socket by which another process of this user asks for faults (`softdev fault PID`), and for the recorder (`softdev
 * trace --attach PID`).
 *
 * A datagram is one request of softdev_fault(), or of soft_attach(), and so is its answer, which begins with a digit: 0, or the error. Its
 * name has this process's number in it. The kernel says who has sent a datagram: those of other users are dropped.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/internal.h"

enum { AT_ONCE = 16 };

static int control_fd = -1;

static socklen_t name_of(pid_t pid, struct sockaddr_un *name)
{
	*name = (struct sockaddr_un){ .sun_family = AF_UNIX };
	const int n = snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, SOFT_CONTROL_NAME "-%u-%d",
			       (unsigned)getuid(), (int)pid);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

void soft_control_open(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = &control_fd };
	struct sockaddr_un name;
	const socklen_t length = name_of(getpid(), &name);
	const int on = 1, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	/* Without it there are no faults by hand, and everything else is as it was. */
	if (fd < 0)
		return;
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) ||
	    bind(fd, (const struct sockaddr *)&name, length) ||
	    epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
		close(fd);
		return;
	}
	control_fd = fd;
}

void soft_control_close(void)
{
	if (control_fd >= 0)
		close(control_fd);
	control_fd = -1;
}

static bool same_user(struct msghdr *header)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		struct ucred sent_by;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS)
			continue;
		memcpy(&sent_by, CMSG_DATA(c), sizeof(sent_by));
		return sent_by.uid == getuid();
	}
	return false;
}

static int carry_out(const char *request, char *answer, size_t size)
{
	if (!strncmp(request, SOFT_CONTROL_TRACE, sizeof(SOFT_CONTROL_TRACE) - 1))
		return soft_attach(request + sizeof(SOFT_CONTROL_TRACE) - 1, answer, size);
	return softdev_fault(request, answer, size);
}

/* False: nothing more has come. */
static bool serve_one(void)
{
	union {
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	static char answer[SOFT_FAULT_ANSWER]; /* progress thread */
	char request[SOFT_FAULT_BYTES];
	struct sockaddr_un from;
	struct iovec iov = { request, sizeof(request) };
	struct msghdr header = { .msg_name = &from,
				 .msg_namelen = sizeof(from),
				 .msg_iov = &iov,
				 .msg_iovlen = 1,
				 .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes) };
	const ssize_t got = recvmsg(control_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (got < 0)
		return errno == EINTR;
	if ((header.msg_flags & MSG_CTRUNC) || !same_user(&header))
		return true;
	if (got == (ssize_t)sizeof(request) || (header.msg_flags & MSG_TRUNC)) {
		snprintf(answer, sizeof(answer), "%d a request has at most %d bytes\n", EMSGSIZE, SOFT_FAULT_BYTES - 1);
	} else {
		const int head = 4;
		char code[16];

		request[got] = 0;
		const int error = strlen(request) == (size_t)got ?
					  carry_out(request, answer + head, sizeof(answer) - (size_t)head) :
					  EINVAL;
		/* A zero byte: no more is read than what stands before it, so nothing is. */
		if (strlen(request) != (size_t)got)
			snprintf(answer + head, sizeof(answer) - (size_t)head, "a request is text\n");
		snprintf(code, sizeof(code), "%3d ", error);
		memcpy(answer, code, (size_t)head);
	}
	/* To one that has no name, or does not read, there is no answer. */
	if (header.msg_namelen > offsetof(struct sockaddr_un, sun_path) &&
	    sendto(control_fd, answer, strlen(answer), MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&from,
		   header.msg_namelen) < 0) {
		/* it is gone */
	}
	return true;
}

bool soft_control_event(const void *what)
{
	if (what != &control_fd)
		return false;
	for (int n = 0; n < AT_ONCE && serve_one(); n++)
		;
	return true;
}
