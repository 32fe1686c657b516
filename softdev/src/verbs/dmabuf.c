/*
 * Memory behind a descriptor: a dma-buf, or what else can be mapped, such as memory of memfd_create(), of which udmabuf
 * makes dma-bufs.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "verbs/internal.h"

/* The mapping is the device's own: the memory stays when the program unmaps its, or closes the descriptor. */
struct ibv_mr *soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	const uint64_t within = offset % (uint64_t)sysconf(_SC_PAGESIZE);
	const bool writes = access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	const size_t mapped = length + (size_t)within;

	if (!length || mapped < length || offset > INT64_MAX || length > INT64_MAX - offset) {
		errno = EINVAL;
		return NULL;
	}
	void *map = mmap(NULL, mapped, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd, (off_t)(offset - within));
	if (map == MAP_FAILED) {
		if (errno == ENODEV)
			errno = EOPNOTSUPP; /* nothing that has memory the processor reaches */
		return NULL;
	}
	struct ibv_mr *mr = soft_mr_create(pd, (char *)map + within, length, iova, (unsigned)access);
	if (!mr) {
		const int error = errno;

		munmap(map, mapped);
		errno = error;
		return NULL;
	}
	to_mr(mr)->map = map;
	to_mr(mr)->mapped = mapped;
	mr->addr = (void *)(uintptr_t)offset; /* as libibverbs has it */
	return mr;
}
