/*
 * Buffers of ibv_alloc_buf: memory that libibverbs allocates in the way that a device wants. This one wants nothing, so
 * they are pages of the process, as libibverbs gives for most devices. rdma-core 65's own programs allocate theirs so.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs/internal.h"

struct soft_buf {
	struct soft_buf *next;
	struct ibv_pd *pd;
	uint8_t *addr;
	size_t size, mapped;
};

/* A handle has no context that says whose it is: what is not listed here is another device's. */
static struct soft_lock lock;
static struct soft_buf *all;

static struct soft_buf **find(const struct ibv_buf *buf)
{
	struct soft_buf **at = &all;

	while (*at && (const void *)*at != (const void *)buf)
		at = &(*at)->next;
	return at;
}

void *soft_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (size + page - 1) & ~(page - 1);

	if (mapped < size) {
		errno = ENOMEM;
		return NULL;
	}
	void *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	struct soft_buf *made = calloc(1, sizeof(*made));
	if (!made) {
		munmap(map, mapped);
		errno = ENOMEM;
		return NULL;
	}
	*made = (struct soft_buf){ .pd = pd, .addr = map, .size = size, .mapped = mapped };
	soft_lock(&lock);
	made->next = all;
	all = made;
	soft_unlock(&lock);
	*buf = (struct ibv_buf *)(void *)made;
	return map;
}

bool soft_free_buf(struct ibv_buf *buf)
{
	soft_lock(&lock);
	struct soft_buf **at = find(buf), *found = *at;
	if (found)
		*at = found->next;
	soft_unlock(&lock);
	if (!found)
		return false;
	munmap(found->addr, found->mapped);
	free(found);
	return true;
}

bool soft_is_buf(const struct ibv_buf *buf)
{
	soft_lock(&lock);
	const bool ours = *find(buf);
	soft_unlock(&lock);
	return ours;
}

int soft_buf_check(const struct ibv_pd *pd, const struct ibv_buf *buf, const void *addr, size_t length)
{
	soft_lock(&lock);
	const struct soft_buf *found = *find(buf);
	const uintptr_t from = found ? (uintptr_t)addr - (uintptr_t)found->addr : 0;
	const bool within = found && found->pd == pd && from <= found->size && length <= found->size - from;
	soft_unlock(&lock);
	return within ? 0 : EINVAL;
}
