/*
 * Names of the bus. Each is bound twice: in the abstract namespace, and as a file in a directory that only this user
 * can enter (core/home.c).
 *
 * Abstract names reach all containers that share a network namespace, and vanish with their process. But any user may
 * bind one first, and then receives what is sent to it. So the file decides whether a name is free, and messages go to
 * files first. The abstract name alone serves where there is no directory, and between containers that share a network
 * but no directory. (Two such containers may hold the same port, as each has a file of its own.)
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cm/names.h"

static socklen_t place_name(int place, const char *name, struct sockaddr_un *to)
{
	char home[SOFT_HOME_BYTES];
	int n;

	*to = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (place == CM_ABSTRACT) {
		n = snprintf(to->sun_path + 1, sizeof(to->sun_path) - 1, SOFT_CM_NAME ".%u.%s", (unsigned)getuid(),
			     name);
		return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
	}
	if (!soft_home(home))
		return 0;
	n = snprintf(to->sun_path, sizeof(to->sun_path), "%s/cm.%s", home, name);
	return n < (int)sizeof(to->sun_path) ? (socklen_t)sizeof(*to) : 0;
}

socklen_t cm_name_process(int place, uint32_t slot, struct sockaddr_un *to)
{
	char name[16];

	snprintf(name, sizeof(name), "%u", slot);
	return place_name(place, name, to);
}

socklen_t cm_name_port(int place, const struct cm_port *port, struct sockaddr_un *to)
{
	char address[33] = "any", name[64];

	if (!port->gid && port->family)
		snprintf(address, sizeof(address), "any%d", (int)port->family);
	for (int i = 0; port->gid && i < 16; i++)
		snprintf(address + (ptrdiff_t)2 * i, 3, "%02x", port->gid[i]);
	snprintf(name, sizeof(name), "%x.%u.%s%s", port->space, port->port, address, port->listen ? ".listen" : "");
	return place_name(place, name, to);
}

/* ---- binding ---------------------------------------------------------------------------------------- */

static int make_socket(void)
{
	return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* -1 with errno. */
static int bind_name(const struct sockaddr_un *name, socklen_t length)
{
	const int one = 1;
	int fd = make_socket();

	if (fd < 0)
		return -1;
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) ||
	    bind(fd, (const struct sockaddr *)name, length)) {
		int err = errno;
		close(fd);
		errno = err;
		return -1;
	}
	return fd;
}

/* A process that died has left the file. */
static bool is_stale(const struct sockaddr_un *name)
{
	int fd = make_socket();
	bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)name, sizeof(*name)) && errno == ECONNREFUSED;

	if (fd >= 0)
		close(fd);
	return stale;
}

/* The directory is locked. -1 with errno. */
static int bind_file(const struct sockaddr_un *name, socklen_t length)
{
	int fd = bind_name(name, length);

	if (fd >= 0 || errno != EADDRINUSE)
		return fd;
	if (!is_stale(name)) {
		errno = EADDRINUSE;
		return -1;
	}
	unlink(name->sun_path);
	return bind_name(name, length);
}

/* 0 or errno. */
static int bind_both(const struct sockaddr_un names[CM_PLACES], const socklen_t lengths[CM_PLACES],
		     struct cm_bus_name *made)
{
	const int lock = lengths[CM_FILE] ? soft_home_lock() : -1;
	int err = 0;

	*made = CM_BUS_NO_NAME;
	if (lock >= 0) {
		made->fd[CM_FILE] = bind_file(&names[CM_FILE], lengths[CM_FILE]);
		err = made->fd[CM_FILE] < 0 ? errno : 0;
	}
	if (err != EADDRINUSE) {
		made->fd[CM_ABSTRACT] = bind_name(&names[CM_ABSTRACT], lengths[CM_ABSTRACT]);
		/* With a file, it does not matter who holds the abstract name; without, this is the only one. */
		if (made->fd[CM_ABSTRACT] >= 0 || (errno == EADDRINUSE && made->fd[CM_FILE] >= 0))
			err = 0;
		else
			err = errno;
	}
	if (err)
		cm_bus_release(made);
	if (lock >= 0)
		close(lock);
	return err;
}

/* What processes that were killed have left in the directory. */
static void sweep(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	char home[SOFT_HOME_BYTES];
	const int lock = soft_home_lock();
	DIR *all = lock >= 0 && soft_home(home) ? opendir(home) : NULL;

	for (struct dirent *entry; all && (entry = readdir(all));) {
		if (strncmp(entry->d_name, "cm.", 3) != 0 ||
		    snprintf(name.sun_path, sizeof(name.sun_path), "%s/%s", home, entry->d_name) >=
			    (int)sizeof(name.sun_path))
			continue;
		if (is_stale(&name))
			unlink(name.sun_path);
	}
	if (all)
		closedir(all);
	if (lock >= 0)
		close(lock);
}

int cm_bus_bind_process(struct cm_bus_name *made)
{
	struct sockaddr_un names[CM_PLACES];
	socklen_t lengths[CM_PLACES];

	sweep();
	for (int place = 0; place < CM_PLACES; place++)
		lengths[place] = cm_name_process(place, soft_proc.slot, &names[place]);
	return bind_both(names, lengths, made);
}

static int bind_port(const struct cm_port *wanted, struct cm_bus_name *made)
{
	struct sockaddr_un names[CM_PLACES];
	socklen_t lengths[CM_PLACES];

	for (int place = 0; place < CM_PLACES; place++)
		lengths[place] = cm_name_port(place, wanted, &names[place]);
	return bind_both(names, lengths, made);
}

/* Any address of both families excludes any of one, whose name differs. The file decides, as when it is bound. */
static bool is_taken(const struct cm_port *wanted, enum cm_family family)
{
	struct cm_port other = *wanted;
	struct sockaddr_un name;
	socklen_t length;

	other.family = family;
	length = cm_name_port(CM_FILE, &other, &name);
	if (!length)
		length = cm_name_port(CM_ABSTRACT, &other, &name);
	const int fd = make_socket();
	const bool taken = fd >= 0 && !connect(fd, (const struct sockaddr *)&name, length);
	if (fd >= 0)
		close(fd);
	return taken;
}

int cm_bus_bind_port(const struct cm_port *wanted, struct cm_bus_name *made)
{
	int err = bind_port(wanted, made); /* first, so that of two who try at the same time one finds the other */

	if (err || wanted->gid || wanted->listen)
		return err;
	const bool taken =
		wanted->family ? is_taken(wanted, CM_BOTH) : is_taken(wanted, CM_IPV4) || is_taken(wanted, CM_IPV6);
	if (taken)
		cm_bus_release(made);
	return taken ? EADDRINUSE : 0;
}

void cm_bus_release(struct cm_bus_name *name)
{
	struct sockaddr_un file = { 0 };
	socklen_t length = sizeof(file);

	if (name->fd[CM_FILE] >= 0 && !getsockname(name->fd[CM_FILE], (struct sockaddr *)&file, &length) &&
	    *file.sun_path)
		unlink(file.sun_path);
	cm_bus_forget(name);
}

void cm_bus_forget(struct cm_bus_name *name)
{
	for (int place = 0; place < CM_PLACES; place++)
		if (name->fd[place] >= 0)
			close(name->fd[place]);
	*name = CM_BUS_NO_NAME;
}
