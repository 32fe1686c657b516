/*
 * Shared memory: slabs that peers may map, and the segments the device makes for itself.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/internal.h"

struct soft_slab *soft_slab_find(const char *addr, uint64_t length)
{
	struct soft_slab *slab;

	pthread_mutex_lock(&soft_proc.lock);
	for (slab = soft_shm.slabs; slab; slab = slab->next)
		if (addr >= slab->addr && length <= slab->length &&
		    (size_t)(addr - slab->addr) <= slab->length - length)
			break;
	pthread_mutex_unlock(&soft_proc.lock);
	return slab;
}

SOFT_EXPORT void *softdev_alloc(struct ibv_pd *pd, size_t length)
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
	slab->fd = soft_memfd_create("softdev-slab", length, &map);
	if (slab->fd < 0) {
		free(slab);
		return NULL;
	}
	slab->addr = map;
	slab->length = length;
	slab->pd = soft_pd_root(to_pd(pd));
	atomic_fetch_add(&slab->pd->refs, 1);
	pthread_mutex_lock(&soft_proc.lock);
	slab->id = ++soft_shm.slab_serial;
	slab->next = soft_shm.slabs;
	soft_shm.slabs = slab;
	pthread_mutex_unlock(&soft_proc.lock);
	return slab->addr;
}

SOFT_EXPORT int softdev_free(struct ibv_pd *pd, void *ptr, size_t length)
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
	for (link = &soft_shm.slabs; (slab = *link); link = &slab->next) {
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
	atomic_fetch_sub(&slab->pd->refs, 1);
	free(slab->cut);
	free(slab);
	return 0;
}

/* Has the kernel copy a page that is private and not written to yet. Whatever other threads write stays. */
static void own_page(char *page)
{
	_Atomic(unsigned char) *byte = (_Atomic(unsigned char) *)page;
	unsigned char value = atomic_load(byte);

	while (!atomic_compare_exchange_strong(byte, &value, value))
		;
}

/*
 * A private mapping takes the place of the shared one, at once for all threads: what they write from then on is in
 * pages of their own, and each page that none has written to becomes one here. To copy the memory and put the copy in
 * its place would lose what is written in between.
 */
static int cut_pages(struct soft_slab *slab, size_t first, size_t end, size_t page)
{
	const size_t offset = first * page, length = (end - first) * page;
	void *probe = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, slab->fd, (off_t)offset);

	/* When the other call fails, nothing is mapped there any more: so find out before. */
	if (probe == MAP_FAILED)
		return errno;
	munmap(probe, length);
	if (mmap(slab->addr + offset, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, slab->fd,
		 (off_t)offset) == MAP_FAILED)
		return errno;
	for (size_t i = first; i < end; i++) {
		own_page(slab->addr + i * page);
		slab->cut[i] = true;
	}
	return 0;
}

int soft_slab_cut(struct soft_slab *slab, size_t offset, size_t length)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = slab->length / page;
	size_t first = offset / page, end = (offset + length + page - 1) / page, next;

	if (!slab->cut && !(slab->cut = calloc(pages, sizeof(*slab->cut))))
		return ENOMEM;
	for (; first < end; first = next) {
		next = first + 1;
		if (slab->cut[first])
			continue;
		while (next < end && !slab->cut[next])
			next++;
		int err = cut_pages(slab, first, next, page);
		if (err)
			return err;
	}
	return 0;
}
