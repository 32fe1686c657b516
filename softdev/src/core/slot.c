/*
 * The slot of this process among those of its user on this host: the high bits of its QP numbers. The owner of a slot
 * listens on two Unix sockets. One has an abstract name that contains user and slot. The other is a file in a directory
 * that only this user can change (home.c), named after the network namespace and the slot.
 *
 * The abstract name reaches all containers that share a network namespace, vanishes with its process, and cannot be
 * taken from its owner. But any user may bind it first. So the file is there, too: a peer that finds another user's
 * process behind the abstract name, or none, goes there. While other users hold all abstract names, the file alone
 * makes a slot.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/internal.h"

static socklen_t abstract_name(uint32_t slot, struct sockaddr_un *address)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	int n = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, SOFT_SLOT_NAME ".%u.%u",
			 (unsigned)getuid(), slot);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* 0: there is no directory for it. */
static socklen_t file_name(uint32_t slot, struct sockaddr_un *address)
{
	char home[SOFT_HOME_BYTES];

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (!soft_home(home))
		return 0;
	int n = snprintf(address->sun_path, sizeof(address->sun_path), "%s/%u", home, slot);
	return n < (int)sizeof(address->sun_path) ? (socklen_t)sizeof(*address) : 0;
}

static int make_socket(void)
{
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* ---- to the owner of a slot ------------------------------------------------------------------------- */

static bool same_user(int fd, pid_t *pid)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != getuid())
		return false;
	*pid = peer.pid;
	return true;
}

static int connect_to(const struct sockaddr_un *address, socklen_t length, pid_t *pid)
{
	int fd = length ? make_socket() : -1, err;

	if (!length)
		errno = ENOENT;
	if (fd < 0)
		return -1;
	if (!connect(fd, (const struct sockaddr *)address, length)) {
		if (same_user(fd, pid))
			return fd;
		errno = ECONNREFUSED;
	}
	err = errno;
	close(fd);
	errno = err;
	return -1;
}

int soft_slot_connect(uint32_t slot, pid_t *pid)
{
	struct sockaddr_un address;
	socklen_t length = abstract_name(slot, &address);
	int fd = connect_to(&address, length, pid);

	if (fd >= 0 || errno != ECONNREFUSED)
		return fd;
	length = file_name(slot, &address);
	return connect_to(&address, length, pid);
}

/* Progress thread. Given up for a moment, to refuse a connection that there is no other descriptor for. */
static int spare = -1;

/* A connection that is not taken would keep the listening socket readable, and the thread awake. */
static void refuse_one(int listen_fd)
{
	soft_shortage(errno, false);
	if (spare < 0)
		return;
	close(spare);
	int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		close(fd);
	spare = fcntl(listen_fd, F_DUPFD_CLOEXEC, 0);
}

int soft_slot_accept(int listen_fd, pid_t *pid)
{
	/* Other users connect as often as they like; what is left of them comes again. */
	for (unsigned n = 0; n < 32; n++) {
		int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0 && same_user(fd, pid))
			return fd;
		if (fd >= 0)
			close(fd);
		else if (errno == EMFILE || errno == ENFILE)
			refuse_one(listen_fd);
		if (fd < 0)
			return -1;
	}
	return -1;
}

bool soft_slot_taken(uint32_t slot)
{
	pid_t pid;
	int fd = soft_slot_connect(slot, &pid);

	if (fd < 0)
		return errno != ECONNREFUSED && errno != ENOENT; /* many may be connecting, or no descriptor is left */
	close(fd);
	return true;
}

/* The kernel's list of sockets shows names of all users. 0: none but this user's, or there is no list. */
static unsigned other_user_of(uint32_t slot)
{
	FILE *list = fopen("/proc/net/unix", "re");
	char line[256];
	unsigned found = 0;

	while (list && !found && fgets(line, sizeof(line), list)) {
		const char *name = strstr(line, "@" SOFT_SLOT_NAME ".");
		char *end;

		if (!name)
			continue;
		const unsigned long user = strtoul(name + sizeof("@" SOFT_SLOT_NAME), &end, 10);
		if (*end == '.' && user != getuid() && strtoul(end + 1, NULL, 10) == slot)
			found = (unsigned)user + 1;
	}
	if (list)
		fclose(list);
	return found;
}

bool soft_slot_answers(uint32_t slot)
{
	enum { LOOKS = 16 }; /* the list may be long */
	static atomic_uint looked;

	if (soft_slot_taken(slot))
		return true;
	if (atomic_load(&looked) >= LOOKS || atomic_fetch_add(&looked, 1) >= LOOKS)
		return false;
	const unsigned user = other_user_of(slot);
	if (user && atomic_exchange(&looked, LOOKS) < LOOKS)
		fprintf(stderr,
			"softdev: the peer of a queue pair is a process of another user (%u) of this host, and memory "
			"is "
			"shared within one user only: SOFTDEV_WIRE=only, in both, has packets reach it\n",
			user - 1);
	return false;
}

/* ---- a slot for this process ------------------------------------------------------------------------ */

/* A listening socket. -1 with errno; EADDRINUSE: some process has that name. */
static int listen_at(const struct sockaddr_un *address, socklen_t length)
{
	int fd = make_socket(), err;

	if (fd >= 0 && !bind(fd, (const struct sockaddr *)address, length) && !listen(fd, 1024))
		return fd;
	err = errno;
	if (fd >= 0)
		close(fd);
	errno = err;
	return -1;
}

/* The same in the directory, whose lock is held: a file that a dead process left is replaced. */
static int listen_in_home(uint32_t slot)
{
	struct sockaddr_un address;
	const socklen_t length = file_name(slot, &address);
	pid_t pid;
	int fd = listen_at(&address, length);

	if (fd >= 0 || errno != EADDRINUSE)
		return fd;
	fd = connect_to(&address, length, &pid);
	if (fd >= 0)
		close(fd);
	if (fd >= 0 || errno != ECONNREFUSED) {
		errno = EADDRINUSE;
		return -1;
	}
	unlink(address.sun_path);
	return listen_at(&address, length);
}

/* EADDRINUSE: not this one; other errors end the search. */
static int claim(uint32_t slot, bool home, bool squatted)
{
	struct sockaddr_un address;
	const socklen_t length = abstract_name(slot, &address);
	pid_t pid;
	int fd = squatted ? -1 : listen_at(&address, length), file = -1;

	if (!squatted && fd < 0)
		return errno;
	if (squatted && (file = connect_to(&address, length, &pid)) >= 0) {
		close(file);
		return EADDRINUSE; /* by this user */
	}
	if (home) {
		file = listen_in_home(slot);
		if (file < 0 && (squatted || errno == EADDRINUSE)) {
			int err = errno;
			if (fd >= 0)
				close(fd);
			return err;
		}
	}
	soft_proc.slot = slot;
	soft_proc.listen_fd = fd;
	soft_proc.file_fd = file;
	spare = fcntl(fd >= 0 ? fd : file, F_DUPFD_CLOEXEC, 0);
	return 0;
}

int soft_slot_claim(void)
{
	/* A slot is hard to guess, and that of a dead process is not reused at once. */
	const uint32_t first = soft_random() % SOFT_MAX_SLOT;
	const int lock = soft_home_lock();
	int err = EADDRINUSE;

	for (uint32_t round = 0; err == EADDRINUSE && round < (lock >= 0 ? 2 : 1); round++) {
		for (uint32_t n = 0; err == EADDRINUSE && n < SOFT_MAX_SLOT; n++) {
			uint32_t slot = (first + n) % SOFT_MAX_SLOT;
			if (slot)
				err = claim(slot, lock >= 0, round);
		}
	}
	if (lock >= 0)
		close(lock);
	return err == EADDRINUSE ? EADDRNOTAVAIL : err;
}

void soft_slot_leave(void)
{
	struct sockaddr_un address;

	if (soft_proc.file_fd >= 0 && file_name(soft_proc.slot, &address))
		unlink(address.sun_path);
	soft_slot_forget();
}

void soft_slot_forget(void)
{
	if (spare >= 0)
		close(spare);
	spare = -1;
}
