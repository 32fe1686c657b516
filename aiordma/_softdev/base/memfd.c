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
	*map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
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
	void *map = mmap(NULL, length, prot, MAP_SHARED, fd, 0);
	return map == MAP_FAILED ? NULL : map;
}
