/*
 * Protection domains and memory regions.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs/internal.h"

struct soft_pd *soft_pd_create(struct soft_ctx *ctx, struct soft_pd *parent)
{
	static atomic_uint handles;
	struct soft_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->pd.context = &ctx->v.context;
	pd->pd.handle = atomic_fetch_add(&handles, 1);
	if (parent) {
		pd->parent = soft_pd_root(parent);
		atomic_fetch_add(&parent->refs, 1);
	}
	atomic_fetch_add(&ctx->objects, 1);
	return pd;
}

SOFT_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	if (!soft_is(context))
		return REAL(ibv_alloc_pd, "IBVERBS_1.1")(context);
	if (!soft_usable(to_ctx(context)))
		return NULL;
	struct soft_pd *pd = soft_pd_create(to_ctx(context), NULL);
	return pd ? &pd->pd : NULL;
}

SOFT_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	if (!soft_is(pd->context))
		return REAL(ibv_dealloc_pd, "IBVERBS_1.1")(pd);
	struct soft_ctx *ctx = to_ctx(pd->context);
	struct soft_pd *soft = to_pd(pd);

	if (!soft_usable(ctx))
		return EIO;
	if (atomic_load(&soft->refs))
		return EBUSY;
	if (soft->parent)
		atomic_fetch_sub(&soft->parent->refs, 1);
	atomic_fetch_sub(&ctx->objects, 1);
	free(soft);
	return 0;
}

/* ---- memory regions ------------------------------------------------------------------------------- */

/* The kernel pins pages at registration and refuses unmapped memory; here at least check the mapping. */
static bool is_mapped(const void *addr, size_t length)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)addr & ~(page - 1), end = (uintptr_t)addr + length;
	unsigned char resident[1024];

	while (at < end) {
		size_t chunk = end - at < sizeof(resident) * page ? end - at : sizeof(resident) * page;
		if (mincore((void *)at, chunk, resident) && errno == ENOMEM)
			return false;
		at += chunk;
	}
	return true;
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Linux 5.14 can tell without a signal. Where it cannot, memory counts as usable. */
static bool tells_rights(void)
{
	static atomic_int known = -1;

	if (atomic_load_explicit(&known, memory_order_relaxed) < 0) {
		const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), here = (uintptr_t)&known & ~(page - 1);
		atomic_store(&known, !madvise((void *)here, page, MADV_POPULATE_WRITE));
	}
	return atomic_load_explicit(&known, memory_order_relaxed);
}

static bool is_usable(uintptr_t at, bool writes)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	return !madvise((void *)(at & ~(page - 1)), page, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) ||
	       (errno != EINVAL && errno != EFAULT);
}

/*
 * The kernel pins all pages, and refuses those without the rights that the access needs. Here the first and the last
 * one stand for all: what programs register by mistake is constant data, or a mapping as a whole, and memory that the
 * program has not touched yet should not be taken for that.
 */
static bool has_rights(const void *addr, size_t length, unsigned access)
{
	const uintptr_t at = (uintptr_t)addr, last = at + length - 1;
	const bool writes = access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);

	return !tells_rights() || (is_usable(at, writes) && is_usable(last, writes));
}

enum {
	MR_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB,
	FLUSH_ACCESS = 1 << 8 | 1 << 9, /* global and persistent; headers may be older */
};

static int access_check(unsigned access)
{
	if (access & ~((unsigned)MR_ACCESS | IBV_ACCESS_OPTIONAL_RANGE))
		return access & ((unsigned)FLUSH_ACCESS | IBV_ACCESS_ON_DEMAND) ? EOPNOTSUPP : EINVAL;
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	return 0;
}

static int region_check(void *addr, size_t length, uint64_t iova, unsigned access)
{
	if (!length || (uintptr_t)addr + length < (uintptr_t)addr || iova + length < iova)
		return EINVAL;
	if (soft_slab_find(addr, length))
		return 0;
	return is_mapped(addr, length) && has_rights(addr, length, access) ? 0 : EFAULT;
}

static void region_fill(struct soft_region *r, struct soft_pd *pd, void *addr, size_t length, uint64_t iova,
			unsigned access)
{
	r->access = access & ((unsigned)MR_ACCESS | IBV_ACCESS_RELAXED_ORDERING);
	r->base = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
	r->length = length;
	r->host = addr;
	r->pd = pd;
	atomic_store(&r->lent, 0);
	r->slab = soft_slab_find(addr, length);
	if (r->slab)
		atomic_fetch_add(&r->slab->regions, 1);
}

struct ibv_mr *soft_mr_create(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
	struct soft_pd *root = soft_pd_root(to_pd(pd));
	struct soft_mr *mr;
	uint32_t key;
	int err = access_check(access);

	if (!err)
		err = region_check(addr, length, iova, access);
	mr = err ? NULL : calloc(1, sizeof(*mr));
	if (!mr) {
		errno = err ? err : ENOMEM;
		return NULL;
	}
	err = soft_key_reserve(&key);
	if (err) {
		free(mr);
		errno = err;
		return NULL;
	}
	soft_guard_install();
	region_fill(&mr->region, root, addr, length, iova, access);
	mr->region.key = key;
	mr->mr.context = pd->context;
	mr->mr.pd = pd;
	mr->mr.addr = addr;
	mr->mr.length = length;
	mr->mr.handle = soft_key_index(key);
	mr->mr.lkey = mr->mr.rkey = key;
	atomic_fetch_add(&root->refs, 1);
	soft_key_publish(mr->mr.handle, &mr->region);
	return &mr->mr;
}

SOFT_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					    unsigned access)
{
	if (!soft_is(pd->context))
		return REAL(ibv_reg_mr_iova2, "IBVERBS_1.8")(pd, addr, length, iova, access);
	if (!soft_usable(to_ctx(pd->context)))
		return NULL;
	return soft_mr_create(pd, addr, length, iova, access);
}

SOFT_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	if (!soft_is(pd->context))
		return REAL(ibv_reg_mr_iova, "IBVERBS_1.7")(pd, addr, length, iova, access);
	if (!soft_usable(to_ctx(pd->context)))
		return NULL;
	return soft_mr_create(pd, addr, length, iova, (unsigned)access);
}

SOFT_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (!soft_is(pd->context))
		return REAL(ibv_reg_mr, "IBVERBS_1.1")(pd, addr, length, access);
	if (!soft_usable(to_ctx(pd->context)))
		return NULL;
	return soft_mr_create(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

struct ibv_mr *soft_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access)
{
	const int err = soft_buf_check(pd, buf, addr, length);

	if (err) {
		errno = err;
		return NULL;
	}
	return soft_mr_create(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

/* Of rdma-core 59 and later; the headers may be older. */
struct ibv_mr_init_attr;
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *given);
struct soft_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct ibv_buf *buf; /* of 65 and later: it is there if comp_mask says so */
};
enum { MR_IOVA = 1, MR_ADDR = 2, MR_FD = 4, MR_FD_OFFSET = 8, MR_BUF = 32, MR_FILE = MR_FD | MR_FD_OFFSET };

SOFT_EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *given)
{
	const struct soft_mr_init_attr *attr = (const struct soft_mr_init_attr *)(const void *)given;

	if (!soft_is(pd->context)) {
		__typeof__(&ibv_reg_mr_ex) real = REAL(ibv_reg_mr_ex, "IBVERBS_1.15");
		if (real)
			return real(pd, given);
		errno = ENOSYS;
		return NULL;
	}
	if (!soft_usable(to_ctx(pd->context)))
		return NULL;
	/* No handles that the device never makes. */
	if (attr->comp_mask & ~(uint64_t)(MR_IOVA | MR_ADDR | MR_FILE | MR_BUF)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (attr->comp_mask == (MR_FILE | MR_IOVA))
		return soft_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd, attr->access);
	if (!(attr->comp_mask & MR_ADDR) || attr->comp_mask & MR_FILE) {
		errno = EINVAL;
		return NULL;
	}
	const int err = attr->comp_mask & MR_BUF ? soft_buf_check(pd, attr->buf, attr->addr, attr->length) : 0;
	if (err) {
		errno = err;
		return NULL;
	}
	return soft_mr_create(pd, attr->addr, attr->length,
			      attr->comp_mask & MR_IOVA ? attr->iova : (uintptr_t)attr->addr, (unsigned)attr->access);
}

static void region_release(struct soft_region *r)
{
	if (r->slab)
		atomic_fetch_sub(&r->slab->regions, 1);
	r->slab = NULL;
}

SOFT_EXPORT int ibv_dereg_mr(struct ibv_mr *ibmr)
{
	if (!soft_is(ibmr->context))
		return REAL(ibv_dereg_mr, "IBVERBS_1.1")(ibmr);
	struct soft_mr *mr = to_mr(ibmr);

	if (!soft_usable(to_ctx(ibmr->context)))
		return EIO;
	if (atomic_load(&mr->windows))
		return EBUSY;
	soft_key_withdraw(ibmr->handle);
	if (!soft_quiesce(&mr->region))
		return EBUSY;
	region_release(&mr->region);
	atomic_fetch_sub(&mr->region.pd->refs, 1);
	soft_key_unreserve(ibmr->handle);
	if (mr->map)
		munmap(mr->map, mr->mapped);
	free(mr);
	return 0;
}

/* The region is withdrawn, rewritten and published again. Its keys stay; peers see a new serial. */
SOFT_EXPORT int ibv_rereg_mr(struct ibv_mr *ibmr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (!soft_is(ibmr->context))
		return REAL(ibv_rereg_mr, "IBVERBS_1.1")(ibmr, flags, pd, addr, length, access);
	struct soft_mr *mr = to_mr(ibmr);
	struct soft_region *r = &mr->region;

	/* Nor does libibverbs change one of a file, whose `addr` is the place in the file. */
	if (!soft_usable(to_ctx(ibmr->context)) || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) || !flags || mr->map ||
	    ((flags & IBV_REREG_MR_CHANGE_PD) && (!pd || pd->context != ibmr->context))) {
		errno = errno == EIO ? EIO : EINVAL;
		return IBV_REREG_MR_ERR_INPUT;
	}
	struct soft_pd *root = flags & IBV_REREG_MR_CHANGE_PD ? soft_pd_root(to_pd(pd)) : r->pd;
	unsigned rights = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned)access : r->access;
	bool moved = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
	int err = access_check(rights);

	if (!err && moved)
		err = region_check(addr, length, (uintptr_t)addr, rights);
	else if (!err && flags & IBV_REREG_MR_CHANGE_ACCESS)
		err = region_check(ibmr->addr, ibmr->length, 0, rights);
	if (!err && atomic_load(&mr->windows))
		err = EBUSY;
	if (err) {
		errno = err;
		return IBV_REREG_MR_ERR_INPUT;
	}
	soft_key_withdraw(ibmr->handle);
	if (!soft_quiesce(r)) {
		soft_key_publish(ibmr->handle, r);
		errno = EBUSY;
		return IBV_REREG_MR_ERR_INPUT;
	}
	region_release(r);
	atomic_fetch_sub(&r->pd->refs, 1);
	atomic_fetch_add(&root->refs, 1);
	if (moved) {
		ibmr->addr = addr;
		ibmr->length = length;
	}
	region_fill(r, root, ibmr->addr, ibmr->length, moved ? (uintptr_t)addr : r->base, rights);
	if (flags & IBV_REREG_MR_CHANGE_PD)
		ibmr->pd = pd;
	soft_key_publish(ibmr->handle, r);
	return 0;
}
