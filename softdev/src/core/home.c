/*
 * A directory that no other user can enter or replace, for sockets of this user's processes: one for each network
 * namespace, as abstract names are. Tried in this order: $XDG_RUNTIME_DIR and /run/user/<uid>, if they are this user's
 * alone; then /dev/shm and /tmp, where anybody can make directories. There, names that others have taken are skipped.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/internal.h"

enum { NAMES = 64 };

static char home_path[SOFT_HOME_BYTES];
static pid_t home_of; /* the process that looked: a child may have another network namespace */
static pthread_mutex_t home_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_private(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	bool ok = fd >= 0 && !fstat(fd, &st) && st.st_uid == getuid() && !(st.st_mode & 077);

	if (fd >= 0)
		close(fd);
	return ok;
}

/* Makes base and in it the directory of the network namespace. */
static bool settle(const char *base)
{
	struct stat ns;

	if ((mkdir(base, 0700) && errno != EEXIST) || !is_private(base))
		return false;
	if (stat("/proc/self/ns/net", &ns))
		ns.st_ino = 0;
	int n = snprintf(home_path, sizeof(home_path), "%s/%lu", base, (unsigned long)ns.st_ino);
	return n < (int)sizeof(home_path) && (!mkdir(home_path, 0700) || errno == EEXIST) && is_private(home_path);
}

static bool settle_somewhere(void)
{
	static const char *const shared[] = { "/dev/shm", "/tmp" };
	const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
	const unsigned uid = (unsigned)getuid();
	char base[SOFT_HOME_BYTES], user[32];
	int n;

	snprintf(user, sizeof(user), "/run/user/%u", uid);
	for (int i = 0; i < 2; i++) {
		const char *at = i ? user : runtime;
		if (!at || *at != '/' || !is_private(at))
			continue;
		n = snprintf(base, sizeof(base), "%s/" SOFT_HOME_NAME, at);
		if (n < (int)sizeof(base) && settle(base))
			return true;
	}
	for (int i = 0; i < 2; i++) {
		for (unsigned k = 0; k < NAMES; k++) {
			char tail[16] = "";
			if (k)
				snprintf(tail, sizeof(tail), ".%u", k);
			snprintf(base, sizeof(base), "%s/" SOFT_HOME_NAME "-%u%s", shared[i], uid, tail);
			if (settle(base))
				return true;
			if (errno == ENOENT || errno == EROFS)
				break;
		}
	}
	return false;
}

bool soft_home(char path[SOFT_HOME_BYTES])
{
	pthread_mutex_lock(&home_lock);
	if (home_of != getpid()) {
		home_of = getpid();
		if (!settle_somewhere())
			*home_path = 0;
	}
	snprintf(path, SOFT_HOME_BYTES, "%s", home_path);
	pthread_mutex_unlock(&home_lock);
	return *path;
}

/*
 * A process that is stopped while it has the lock stops another one for these 8 ms, and then for a second not again.
 * (A process that dies has let it go.) Callers do without the lock then, and without the directory.
 */
enum { PATIENCE_MS = 8, IMPATIENT_MS = 1000 };

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

int soft_home_lock(void)
{
	static const struct timespec pause = { .tv_nsec = 500000 };
	static atomic_uint_fast64_t impatient_until;
	char home[SOFT_HOME_BYTES], path[SOFT_HOME_BYTES + 8];

	if (!soft_home(home))
		return -1;
	snprintf(path, sizeof(path), "%s/lock", home);
	int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	/* Held for some microseconds, by a process that runs. */
	const uint64_t until = now_ms() + PATIENCE_MS;
	const bool waits = until > atomic_load(&impatient_until);
	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (waits && now_ms() < until) {
			nanosleep(&pause, NULL);
			continue;
		}
		if (waits)
			atomic_store(&impatient_until, until + IMPATIENT_MS);
		close(fd);
		return -1;
	}
	return fd;
}
