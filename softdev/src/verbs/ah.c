/*
 * Address handles: creation, and the checks of their attributes.
 */
#include "verbs/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* True if RoCE can send there: our port, a GRH, an existing source GID. */
static bool route_is_valid(struct soft_ctx *ctx, const struct ibv_ah_attr *attr)
{
	union ibv_gid sgid;

	return attr->port_num == 1 && soft_port_is_up(&ctx->v.context) && attr->is_global &&
	       soft_gid_get(ctx, attr->grh.sgid_index, &sgid);
}

struct ibv_ah *soft_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct soft_ctx *ctx = to_ctx(pd->context);
	bool valid = route_is_valid(ctx, attr);
	struct soft_ah *soft = valid ? calloc(1, sizeof *soft) : NULL;

	if (!soft) {
		errno = valid ? ENOMEM : EINVAL;
		return NULL;
	}
	soft->ah = (struct ibv_ah){ .context = pd->context, .pd = pd };
	soft->attr = *attr;
	soft_gid_get(ctx, attr->grh.sgid_index, &soft->sgid);
	soft->max = SOFT_UD_MTU; /* of memory: a path over interfaces has its own */
	const bool local = soft_gid_is_local(ctx, &attr->grh.dgid);
	/* Neither here nor with a route, a datagram is sent and never arrives. */
	const bool lost = local && !soft_personality()->loopback;
	soft->here = local && !lost;
	const int error = !lost && soft_roce_wanted(ctx, attr) ? soft_roce_ah(ctx, soft) : 0;
	if (error) {
		free(soft);
		errno = error;
		return NULL;
	}
	atomic_fetch_add(&to_pd(pd)->refs, 1);
	return &soft->ah;
}

int soft_destroy_ah(struct ibv_ah *ah)
{
	atomic_fetch_sub(&to_pd(ah->pd)->refs, 1);
	if (to_ah(ah)->route)
		soft_roce_ah_free(to_ah(ah));
	free(to_ah(ah));
	return 0;
}

int soft_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh,
			 struct ibv_ah_attr *attr)
{
	union ibv_gid here;
	int index;

	memset(attr, 0, sizeof *attr);
	attr->dlid = wc->slid;
	attr->src_path_bits = wc->dlid_path_bits;
	attr->port_num = port_num;
	if (!(wc->wc_flags & IBV_WC_GRH)) {
		attr->sl = wc->sl;
		return 0;
	}
	/* Its sl is the kind of packet (soft_grh_kind); the traffic class has the priority. */
	attr->is_global = 1;
	if (!soft_grh_read(grh, &attr->grh, &here)) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	index = soft_gid_find(to_ctx(context), &here);
	if (index < 0) {
		errno = EINVAL;
		return -1;
	}
	attr->grh.sgid_index = (uint8_t)index;
	return 0;
}
