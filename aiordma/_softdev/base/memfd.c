/*
 * Memory segments that other processes may map.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

int soft_memfd_create(const char *name, size_t length, void **map)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	/* A segment that shrinks while it is read kills the reader with SIGBUS, so sealing forbids resizing. */
	if (ftruncate(fd, (off_t)length) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
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
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < (off_t)length) {
		errno = EINVAL;
		return NULL;
	}
	void *map = map_shared(fd, length, prot);
	return map == MAP_FAILED ? NULL : map;
}
