/*
 * Parent domains and thread domains: a PD under another handle, and a promise about threads.
 *
 * The device takes its locks anyway and allocates its queues itself: the custom allocators of a parent domain serve
 * memory that hardware reads, and there is none here.
 */
#include "verbs/internal.h"

#include <stdlib.h>

#define SUPPORTED_MASK (IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)

struct ibv_td *soft_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct ibv_td *td;

	if (!soft_usable(to_ctx(context)))
		return NULL;
	if (attr->comp_mask) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	td = calloc(1, sizeof *td);
	if (td) {
		td->context = context;
		atomic_fetch_add(&to_ctx(context)->objects, 1);
	}
	return td;
}

int soft_dealloc_td(struct ibv_td *td)
{
	if (!soft_usable(to_ctx(td->context)))
		return EIO;
	atomic_fetch_sub(&to_ctx(td->context)->objects, 1);
	free(td);
	return 0;
}

struct ibv_pd *soft_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	struct soft_pd *pd;

	if (!soft_usable(to_ctx(context)))
		return NULL;
	if (attr->comp_mask & ~(uint32_t)SUPPORTED_MASK) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!attr->pd || attr->pd->context != context || (attr->td && attr->td->context != context)) {
		errno = EINVAL;
		return NULL;
	}
	pd = soft_pd_create(to_ctx(context), to_pd(attr->pd));
	return pd ? &pd->pd : NULL;
}
