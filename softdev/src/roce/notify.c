/*
 * Congestion notifications, both ways: to the sender of a marked packet, and from a receiver, which slow a queue pair down.
 */
#include "roce/peer.h"

void soft_roce_notify(struct soft_roce *w)
{
	struct roce_batch *batch = NULL;
	const struct roce_packet p = {
		.opcode = ROCE_CNP_OPCODE,
		.pkey = ROCE_PKEY,
		.migrated = true,
		.becn = true,
		.qpn = w->answer.qpn,
		.payload_length = ROCE_CNP_BYTES,
	};
	const uint64_t now = soft_clock_ns();
	uint64_t before = atomic_load(&w->cnp_at);
	struct roce_route route;

	atomic_fetch_add_explicit(&soft_roce_counters.marked, 1, memory_order_relaxed);
	if (now - before < ROCE_CNP_NS || !atomic_compare_exchange_strong(&w->cnp_at, &before, now) ||
	    !(batch = soft_roce_batch()))
		return;
	roce_route_of(w, &route);
	route.traffic_class = soft_roce_cnp_class();
	uint8_t *to = soft_roce_room(batch);
	const size_t size = roce_pack_headers(&p, to);
	memset(to + size, 0, ROCE_CNP_BYTES);
	soft_roce_add(batch, &route, size + ROCE_CNP_BYTES);
	soft_roce_send(batch);
	atomic_fetch_add_explicit(&soft_roce_counters.cnps_sent, 1, memory_order_relaxed);
}

/*
 * Nothing in a notification can be checked but where it came from. A UC QP that only sends never hears anything else
 * from its peer.
 */
static bool may_slow(struct soft_roce *w, const struct roce_inbound *in)
{
	const enum roce_sender sender = roce_sender_of(w, in);

	if (sender != ROCE_UNPROVEN)
		return sender == ROCE_PROVEN;
	if (roce_peer_of(w) == ROCE_OURS ? in->path.src_port == atomic_load_explicit(&w->port, memory_order_relaxed) :
					   roce_peer_of(w) == ROCE_OTHERS || !w->ask.reliable)
		return true;
	atomic_fetch_add_explicit(&soft_roce_counters.wrong_peer, 1, memory_order_relaxed);
	return false;
}

void soft_roce_notified(struct soft_qp *qp, const struct roce_packet *p, const struct roce_inbound *in)
{
	soft_lock(&qp->sq_lock);
	if (qp->roce && atomic_load(&qp->number) == p->qpn && may_slow(qp->roce, in)) {
		atomic_fetch_add_explicit(&soft_roce_counters.cnps_received, 1, memory_order_relaxed);
		soft_lock(&qp->roce->rate_lock);
		roce_rate_notified(&qp->roce->rate, soft_clock_ns());
		soft_unlock(&qp->roce->rate_lock);
	}
	soft_unlock(&qp->sq_lock);
}
