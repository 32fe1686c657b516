/*
 * Unreliable datagrams: sending, delivery and injected reordering.
 */
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

/* A datagram held back until the next one is delivered. rq_lock. */
struct soft_ud_held {
	struct soft_rx rx;
	uint32_t qkey;
	uint8_t grh[SOFT_GRH_BYTES];
	char payload[SOFT_UD_MTU];
};

/* A received datagram: the first 40 bytes of its receive are for the routing header (IBTA 10.4.1.2). */
static void receive(struct soft_qp *b, const struct soft_rx *rx, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
		    const char *payload, struct soft_after *after)
{
	struct soft_rx whole = *rx;

	if (!soft_takes(b) || b->qp.qp_type != IBV_QPT_UD || qkey != b->attr.qkey)
		return;
	if (!soft_rq_take(b)) {
		atomic_store(&b->starved, false);
		return;
	}
	if (rx->length + SOFT_GRH_BYTES > b->current->length) {
		soft_rx_receive_error(b, IBV_WC_LOC_LEN_ERR, after);
		return;
	}
	if (soft_rx_place(b, 0, (const char *)grh, SOFT_GRH_BYTES, after) ||
	    soft_rx_place(b, SOFT_GRH_BYTES, payload, rx->length, after))
		return;
	whole.length += SOFT_GRH_BYTES;
	whole.grh = true;
	whole.sl = soft_grh_kind(grh);
	soft_rx_receive_done(b, &whole, after);
}

/* True: the datagram waits for the next one. */
static bool hold(struct soft_qp *b, const struct soft_rx *rx, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
		 const char *payload)
{
	struct soft_ud_held *held = b->ud_held ? NULL : malloc(sizeof(*held));

	if (!held)
		return false;
	held->rx = *rx;
	held->qkey = qkey;
	memcpy(held->grh, grh, SOFT_GRH_BYTES);
	memcpy(held->payload, payload, rx->length);
	b->ud_held = held;
	return true;
}

void soft_ud_deliver(struct soft_qp *b, const struct soft_rx *rx, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
		     const char *payload, struct soft_after *after)
{
	char changed[SOFT_UD_MTU];

	if (soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) && soft_fault_is_cut(b))
		return;
	if (soft_fault(SOFT_FAULT_CORRUPT) && rx->length) {
		memcpy(changed, payload, rx->length);
		changed[rx->length / 2] ^= 0x40;
		payload = changed;
	}
	if (soft_fault(SOFT_FAULT_REORDER) && hold(b, rx, qkey, grh, payload))
		return;
	receive(b, rx, qkey, grh, payload, after);
	if (soft_fault(SOFT_FAULT_DUPLICATE))
		receive(b, rx, qkey, grh, payload, after);
	struct soft_ud_held *held = b->ud_held;
	if (soft_unlikely(held)) {
		b->ud_held = NULL;
		receive(b, &held->rx, held->qkey, held->grh, held->payload, after);
		free(held);
	}
}

static enum soft_run run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after)
{
	struct soft_rx rx = {
		.opcode = wqe->opcode,
		.solicited = wqe->flags & IBV_SEND_SOLICITED,
		.imm = wqe->imm,
		.src_qp = qp->qp.qp_num,
		.length = wqe->length,
	};
	/* A queue key with the highest bit set means the QP's own (IBTA 10.2.5). */
	uint32_t qkey = wqe->ud.qkey & 0x80000000u ? qp->attr.qkey : wqe->ud.qkey;
	const struct soft_ah *ah = wqe->ud.ah;
	uint8_t grh[SOFT_GRH_BYTES];
	char payload[SOFT_UD_MTU];

	if (wqe->length > ah->max) {
		wqe->status = IBV_WC_LOC_LEN_ERR;
		return SOFT_RUN_DONE;
	}
	if (ah->ah.pd != qp->qp.pd || !soft_wqe_gather(qp, wqe, 0, payload, wqe->length)) {
		wqe->status = ah->ah.pd != qp->qp.pd ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR;
		return SOFT_RUN_DONE;
	}
	if (soft_fault(SOFT_FAULT_DROP))
		return SOFT_RUN_DONE;
	if (ah->route)
		return soft_fabrics.net->send_datagram(qp, wqe, qkey, NULL, payload);
	if (!ah->here)
		return SOFT_RUN_DONE;
	soft_grh_write(grh, &ah->sgid, &ah->attr.grh, wqe->length);
	if (wqe->ud.qpn >> SOFT_QPN_INDEX_BITS != soft_proc.slot)
		return soft_fabrics.host->send_datagram(qp, wqe, qkey, grh, payload);
	struct soft_qp *b = soft_qp_find(wqe->ud.qpn);
	if (b) {
		soft_lock(&b->rq_lock);
		if (atomic_load(&b->number) == wqe->ud.qpn) {
			soft_ud_deliver(b, &rx, qkey, grh, payload, after);
		}
		soft_unlock(&b->rq_lock);
	}
	return SOFT_RUN_DONE;
}

/* False: datagram lanes are never hot. */
static bool take(struct soft_qp *qp, struct soft_after *after)
{
	if (qp->ud_in)
		soft_fabrics.host->take_datagrams(qp, after);
	return false;
}

static void connected(struct soft_qp *qp, struct soft_after *after)
{
	(void)qp, (void)after;
	soft_fabrics.net->expect_datagrams();
}

static void leave(struct soft_qp *qp)
{
	free(qp->ud_held);
	qp->ud_held = NULL;
	if (qp->ud_in)
		soft_fabrics.host->close_datagrams(qp);
}

const struct soft_path_ops soft_datagram_path = {
	.run = run,
	.receive = take,
	.connected = connected,
	.leave = leave,
};
