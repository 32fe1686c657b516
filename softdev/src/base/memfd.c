/*
 * Memory segments that other processes may map.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/base.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Of x86-64, and of aarch64 with pages of 4 KiB. */
#define HUGE_PAGE ((size_t)1 << 21)

/* Memory long enough for a huge page begins at one, here as in every process that maps it: else none can be mapped. */
static void *map_shared(int fd, size_t length, int prot)
{
	if (length < HUGE_PAGE || length > SIZE_MAX / 2)
		return mmap(NULL, length, prot, MAP_SHARED, fd, 0);
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const size_t whole = (length + page - 1) & ~(page - 1);
	char *room = mmap(NULL, whole + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return mmap(NULL, length, prot, MAP_SHARED, fd, 0);
	const size_t before = -(uintptr_t)room & (HUGE_PAGE - 1);
	void *map = mmap(room + before, length, prot, MAP_SHARED | MAP_FIXED, fd, 0);
	if (map == MAP_FAILED) {
		const int err = errno;
		munmap(room, whole + HUGE_PAGE);
		errno = err;
		return map;
	}
	if (before)
		munmap(room, before);
	munmap(room + before + whole, HUGE_PAGE - before);
	return map;
}

static bool strict;

static void read_strict(void)
{
	char first = 0;
	int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	strict = read(fd, &first, 1) == 1 && first == '2';
	close(fd);
}

bool soft_memfd_strict(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_strict);
	return strict;
}

/* Makes the pages now, where the kernel may refuse one later: to who touches it then, by SIGBUS. Returns errno. */
static int populate(int fd, size_t length)
{
	/* A signal undoes the call, so it is made in pieces. */
	const size_t piece = 4 * HUGE_PAGE;

	for (size_t at = 0; soft_memfd_strict() && at < length; at += piece) {
		const size_t left = length - at;
		while (fallocate(fd, 0, (off_t)at, (off_t)(left < piece ? left : piece)))
			if (errno != EINTR)
				return errno == ENOSPC ? ENOMEM : errno;
	}
	return 0;
}

/* Makes it that long. -1 with errno: without the signal that the kernel sends to who exceeds RLIMIT_FSIZE. */
static int stretch(int fd, size_t length)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_FSIZE, &limit) && length > limit.rlim_cur) {
		errno = EFBIG;
		return -1;
	}
	if (ftruncate(fd, (off_t)length))
		return -1;
	errno = populate(fd, length);
	return errno ? -1 : 0;
}

int soft_memfd_create(const char *name, size_t length, void **map)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	/* A segment that shrinks while it is read kills the reader with SIGBUS, so sealing forbids resizing. */
	if (stretch(fd, length) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		goto fail;
	/* The kernel makes it 0777: no other user may open it through /proc. */
	if (fchmod(fd, 0600))
		goto fail;
	*map = map_shared(fd, length, PROT_READ | PROT_WRITE);
	if (*map != MAP_FAILED)
		return fd;
fail:;
	int err = errno;
	close(fd);
	errno = err;
	return -1;
}

int soft_memfd_share(int fd, bool writable)
{
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0)
		return errno;
	if (seals & F_SEAL_SEAL)
		return writable == !(seals & F_SEAL_FUTURE_WRITE) ? 0 : EPERM;
	return fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | (writable ? 0 : F_SEAL_FUTURE_WRITE)) ? errno : 0;
}

int soft_memfd_read_only(int fd)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

void *soft_memfd_map(int fd, size_t length, int prot)
{
	struct statfs fs;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < (off_t)length) {
		errno = EINVAL;
		return NULL;
	}
	/* Huge pages of hugetlbfs can be sealed as well. Their pool may be empty when one is touched: SIGBUS. */
	if (fstatfs(fd, &fs) || fs.f_type != TMPFS_MAGIC) {
		errno = EINVAL;
		return NULL;
	}
	void *map = map_shared(fd, length, prot);
	return map == MAP_FAILED ? NULL : map;
}
