/*
 * Rules: what both ends of a connection must agree on, also where nothing has failed by it yet; and READs that may not
 * be.
 */
#include <infiniband/verbs.h>
#include <string.h>

#include "trace/explain/explain.h"

static void compare(struct findings *to, const struct story *s, const struct qp *qp, const struct peer *peer)
{
	const struct qp *there = peer->qp;
	const unsigned mtu = trace_mtu_bytes(qp->is.path_mtu), other = trace_mtu_bytes(there->is.path_mtu);
	const uint32_t psn = qp->is.sq_psn & 0xffffff, expected = there->is.rq_psn & 0xffffff;
	char wanted[TRACE_ADDRESS_BYTES], own[TRACE_ADDRESS_BYTES];

	if (mtu > other && mtu && other)
		found(to, s, "mtu-mismatch", WRONG, qp->rtr, qp->object,
		      "path_mtu is %u on QP 0x%x and %u on the peer's QP 0x%x: longer packets than the peer's are "
		      "refused there. Use the smaller one on both.",
		      mtu, qp->number, other, there->number);
	if (qp->rts && qp->seen & IBV_QP_SQ_PSN && there->seen & IBV_QP_RQ_PSN && psn != expected)
		found(to, s, "psn-mismatch", WRONG, qp->rts, qp->object,
		      "sq_psn is 0x%x on QP 0x%x, and rq_psn is 0x%x on the peer's QP 0x%x: the first packet is not "
		      "the one that is expected.",
		      psn, qp->number, expected, there->number);
	if (qp->is.max_rd_atomic > there->is.max_dest_rd_atomic && there->seen & IBV_QP_MAX_DEST_RD_ATOMIC)
		found(to, s, "rd-atomic-mismatch", there->is.max_dest_rd_atomic ? ADVICE : WRONG, qp->rts, qp->object,
		      "max_rd_atomic is %u on QP 0x%x, and max_dest_rd_atomic %u on the peer's QP 0x%x: more READs "
		      "and atomic operations than that at a time fail on cards.",
		      qp->is.max_rd_atomic, qp->number, there->is.max_dest_rd_atomic, there->number);
	if (!qp->addressed || !there->addressed || !qp->address.sgid_known || !there->address.sgid_known)
		return;
	if (qp->address.gid_type != there->address.gid_type)
		found(to, s, "gid-type", WRONG, qp->rtr, qp->object,
		      "GID index %u of QP 0x%x is %s here, and GID index %u is %s there: they do not understand each "
		      "other's packets.",
		      qp->address.sgid_index, qp->number, trace_gid_type_name(qp->address.gid_type),
		      there->address.sgid_index, trace_gid_type_name(there->address.gid_type));
	else if (memcmp(qp->address.dgid, there->address.sgid, 16) != 0)
		found(to, s, "wrong-gid", WRONG, qp->rtr, qp->object,
		      "the destination of QP 0x%x is %s, and the peer's QP 0x%x uses %s (its GID index %u): cards "
		      "drop packets from another address than that of the connection.",
		      qp->number, trace_gid_text(qp->address.dgid, wanted), there->number,
		      trace_gid_text(there->address.sgid, own), there->address.sgid_index);
}

static void look_alone(struct findings *to, const struct story *s, const struct qp *qp)
{
	const struct device *device = NULL;

	for (size_t n = 0; n < s->device_count; n++) {
		if (s->devices[n].number == qp->device)
			device = &s->devices[n];
	}
	if (qp->addressed && qp->address.active_mtu && qp->is.path_mtu > qp->address.active_mtu)
		found(to, s, "mtu-above-port", WRONG, qp->rtr, qp->object,
		      "path_mtu of QP 0x%x is %u, and the port's active_mtu is %u: cards refuse it, or lose what is "
		      "longer.",
		      qp->number, trace_mtu_bytes(qp->is.path_mtu), trace_mtu_bytes(qp->address.active_mtu));
	if (qp->addressed && !qp->address.global && device && device->is.link_layer == IBV_LINK_LAYER_ETHERNET)
		found(to, s, "no-gid", WRONG, qp->rtr, qp->object,
		      "QP 0x%x was connected with ah_attr.is_global 0. On Ethernet each address needs a GID: cards "
		      "refuse it.",
		      qp->number);
}

void rule_pairs(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->qp_count; n++) {
		const struct qp *qp = &s->qps[n];
		struct peer peer;
		if (!qp->rtr || (qp->caps.type != IBV_QPT_RC && qp->caps.type != IBV_QPT_UC))
			continue;
		look_alone(to, s, qp);
		const bool known = peer_find(to, s, qp, &peer);
		if (known && peer.mutual)
			compare(to, s, qp, &peer);
		else if (known && peer.qp->rtr && !qp->sent && !qp->received)
			found(to, s, "wrong-dest-qp", WRONG, qp->rtr, qp->object,
			      "dest_qp_num of QP 0x%x is 0x%x, and that queue pair has 0x%x as its destination: one "
			      "of the two is wrong.",
			      qp->number, qp->is.dest_qpn, peer.qp->is.dest_qpn);
		else if (!known && peer_admirer(to, s, qp, &peer) && !qp->sent && !qp->received)
			found(to, s, "wrong-dest-qp", WRONG, qp->rtr, qp->object,
			      "dest_qp_num of QP 0x%x is 0x%x, and no recorded queue pair has that number; QP 0x%x "
			      "has this one as its destination.",
			      qp->number, qp->is.dest_qpn, peer.qp->number);
	}
}

/* ---- READs and atomic operations ---------------------------------------------------------------------- */

void rule_reads(struct findings *to, const struct story *s)
{
	for (size_t i = 0; i < s->from->count; i++) {
		const struct trace_record *r = &item_at(s, i)->record;
		if (r->kind != TRACE_SEND || r->error)
			continue;
		const bool atomic =
			r->wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || r->wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
		const long n = atomic || r->wr.opcode == IBV_WR_RDMA_READ ? map_get(&s->by_qp, r->object) : NONE;
		if (n < 0)
			continue;
		const struct qp *qp = &s->qps[n];
		if (qp->seen & IBV_QP_MAX_QP_RD_ATOMIC && !qp->is.max_rd_atomic)
			found(to, s, "rd-atomic-zero", WRONG, item_at(s, i)->ns, qp->object,
			      "%s was posted to QP 0x%x, whose max_rd_atomic is 0: it may not have a single READ or "
			      "atomic operation under way. Some cards refuse it, and some never complete it.",
			      trace_an_opcode(r->wr.opcode), qp->number);
	}
}
