/*
 * Shared memory: slabs that peers may map, and the segments the device makes for itself.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/engine.h"

int soft_shm_create(const char *name, size_t length, void **map)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	/* A segment that shrinks under its reader kills the reader with SIGBUS: nobody may resize it. */
	if (ftruncate(fd, (off_t)length) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
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

int soft_shm_read_only(int fd)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

void *soft_shm_map(int fd, size_t length, int prot)
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

struct soft_slab *soft_slab_find(const char *addr, uint64_t length)
{
	struct soft_slab *slab;

	pthread_mutex_lock(&soft_proc.lock);
	for (slab = soft_proc.slabs; slab; slab = slab->next)
		if (addr >= slab->addr && length <= slab->length &&
		    (size_t)(addr - slab->addr) <= slab->length - length)
			break;
	pthread_mutex_unlock(&soft_proc.lock);
	return slab;
}

SOFT_EXPORT void *aiordma_soft_alloc(struct ibv_pd *pd, size_t length)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *map;

	if (!pd || !soft_is(pd->context) || !length || length > SIZE_MAX / 2) {
		errno = EINVAL;
		return NULL;
	}
	if (!soft_usable(to_ctx(pd->context)))
		return NULL;
	struct soft_slab *slab = calloc(1, sizeof(*slab));
	if (!slab)
		return NULL;
	length = (length + page - 1) & ~(page - 1);
	slab->fd = soft_shm_create("aiordma-soft-slab", length, &map);
	if (slab->fd < 0) {
		free(slab);
		return NULL;
	}
	/* For regions that grant READ only. Without /proc such regions are simply not mapped by peers. */
	slab->fd_ro = soft_shm_read_only(slab->fd);
	slab->addr = map;
	slab->length = length;
	slab->pd = soft_pd_root(to_pd(pd));
	atomic_fetch_add(&slab->pd->refs, 1);
	pthread_mutex_lock(&soft_proc.lock);
	slab->id = ++soft_proc.slab_serial;
	slab->next = soft_proc.slabs;
	soft_proc.slabs = slab;
	pthread_mutex_unlock(&soft_proc.lock);
	return slab->addr;
}

SOFT_EXPORT int aiordma_soft_free(struct ibv_pd *pd, void *ptr, size_t length)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct soft_slab **link, *slab;
	int err = EINVAL;

	if (!pd || !soft_is(pd->context))
		return EINVAL;
	if (!soft_usable(to_ctx(pd->context)))
		return EIO;
	length = (length + page - 1) & ~(page - 1);
	pthread_mutex_lock(&soft_proc.lock);
	for (link = &soft_proc.slabs; (slab = *link); link = &slab->next) {
		if (slab->addr != ptr || slab->length != length || slab->pd != soft_pd_root(to_pd(pd)))
			continue;
		err = atomic_load(&slab->regions) ? EBUSY : 0;
		if (!err)
			*link = slab->next;
		break;
	}
	pthread_mutex_unlock(&soft_proc.lock);
	if (err)
		return err;
	soft_links_slab_gone(slab->id);
	munmap(slab->addr, slab->length);
	close(slab->fd);
	if (slab->fd_ro >= 0)
		close(slab->fd_ro);
	atomic_fetch_sub(&slab->pd->refs, 1);
	free(slab);
	return 0;
}
