/*
 * Datagrams over RoCE.
 */
#include <stdlib.h>
#include <string.h>

#include "roce/internal.h"

void soft_roce_ud_take(struct soft_qp *qp, const struct roce_packet *p, const struct roce_inbound *in,
		       struct soft_after *after)
{
	const struct soft_rx what = {
		.opcode = p->opcode == (ROCE_UD | ROCE_SEND_ONLY_IMM) ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
		.solicited = p->solicited,
		.imm = p->imm,
		.src_qp = p->src_qpn,
		.length = p->payload_length,
	};
	struct ibv_global_route route = { .traffic_class = in->tos, .hop_limit = 64 };
	union ibv_gid from;
	uint8_t grh[SOFT_GRH_BYTES];

	memcpy(route.dgid.raw, in->path.dst, 16);
	memcpy(from.raw, in->path.src, 16);
	soft_grh_write(grh, &from, &route, p->payload_length);
	soft_lock(&qp->rq_lock);
	if (atomic_load(&qp->number) == p->qpn)
		soft_ud_deliver(qp, &what, p->qkey, grh, (const char *)p->payload, after);
	soft_unlock(&qp->rq_lock);
}

void soft_roce_ud_expect(void)
{
	/* Without a port the QP serves this host only; who asks for the path to another host gets the error. */
	if (soft_roce_mode() != ROCE_OFF)
		(void)soft_roce_open();
}

int soft_roce_ah(struct soft_ctx *ctx, struct soft_ah *ah)
{
	struct roce_route *route = malloc(sizeof(*route));
	int err = route ? soft_roce_open() : ENOMEM;

	if (!err) {
		soft_roce_route(ctx, &ah->attr, 0, route);
		const enum ibv_mtu mtu = soft_roce_mtu(route);
		ah->max = 128u << mtu;
		err = mtu ? 0 : errno;
	}
	if (err) {
		free(route);
		return err;
	}
	ah->route = route;
	atomic_fetch_add(&soft_pollers, 1);
	return 0;
}

void soft_roce_ah_free(struct soft_ah *ah)
{
	atomic_fetch_sub(&soft_pollers, 1);
	free(ah->route);
}

enum soft_run soft_roce_ud_send(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t qkey,
				const uint8_t grh[SOFT_GRH_BYTES], const char *payload)
{
	struct roce_batch *batch = soft_roce_batch();
	const struct soft_ah *ah = wqe->ud.ah;
	const uint32_t pad = roce_pad(wqe->length);
	const struct roce_packet p = {
		.opcode = (uint8_t)(ROCE_UD |
				    (wqe->opcode == IBV_WR_SEND_WITH_IMM ? ROCE_SEND_ONLY_IMM : ROCE_SEND_ONLY)),
		.pkey = ROCE_PKEY,
		.migrated = true,
		.solicited = wqe->flags & IBV_SEND_SOLICITED,
		.qpn = wqe->ud.qpn,
		.src_qpn = qp->qp.qp_num,
		.qkey = qkey,
		.imm = wqe->imm,
		.payload_length = wqe->length,
	};
	struct roce_route route;

	(void)grh; /* the packet's own headers serve as well */
	if (!batch)
		return SOFT_RUN_DONE;
	route = *ah->route;
	if (ah->here)
		route.path.dst_port = soft_roce_own_port(wqe->ud.qpn);
	uint8_t *to = soft_roce_room(batch);
	const size_t size = roce_pack_headers(&p, to);
	memcpy(to + size, payload, wqe->length);
	memset(to + size + wqe->length, 0, pad);
	soft_roce_add(batch, &route, size + wqe->length + pad);
	soft_roce_send(batch);
	return SOFT_RUN_DONE;
}
