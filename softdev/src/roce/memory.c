/*
 * Callbacks of the requester and responder of rc.h: access to a queue pair's memory and receives, and how long to wait.
 */
#include <string.h>

#include "roce/internal.h"

/* ---- requester -------------------------------------------------------------------------------------- */

static bool scatter(void *owner, uint32_t index, uint32_t offset, const uint8_t *from, uint32_t n)
{
	struct soft_roce *w = owner;

	return soft_wqe_scatter(w->qp, w->wqes[index & w->ask.mask], offset, (const char *)from, n);
}

enum { LONGER = 4 };
static const uint64_t living_ns = 10000000000;

/*
 * An adapter answers at once or never. Here a process answers, and it may wait for a CPU, or stand still with its
 * machine. So the peer gets the longest time that the specification allows (9.7.6.1.3), four times the shortest, and a
 * softdev device that has answered before as long as one of this host, whose process the device can look for.
 */
static uint64_t patience(void *owner, uint64_t shortest_ns)
{
	const struct soft_roce *w = owner;
	const uint32_t slot = w->ask.qpn >> SOFT_QPN_INDEX_BITS;
	const uint64_t longer = shortest_ns * LONGER;

	if (!w->route.here && atomic_load_explicit(&w->peer, memory_order_relaxed) != ROCE_OURS)
		return longer;
	if (w->route.here && (slot == soft_proc.slot || !soft_slot_taken(slot)))
		return shortest_ns;
	return longer > living_ns ? longer : living_ns;
}

const struct roce_ask_owner soft_roce_ask_calls = { .scatter = scatter, .patience = patience };

/* ---- responder -------------------------------------------------------------------------------------- */

static bool receive(void *owner)
{
	struct soft_roce *w = owner;
	struct soft_qp *qp = w->qp;

	if (qp->current || soft_rq_take(qp))
		return true;
	w->answer.rnr_timer = qp->attr.min_rnr_timer; /* of now */
	atomic_store(&qp->starved, false);            /* the requester sends again */
	if (qp->qp.qp_type == IBV_QPT_RC)
		soft_count_rnr();
	return false;
}

static int place(void *owner, uint32_t offset, const uint8_t *from, uint32_t n)
{
	struct soft_roce *w = owner;

	return soft_rx_place(w->qp, offset, (const char *)from, n, w->after);
}

static int deliver(void *owner, const struct roce_delivery *delivery)
{
	struct soft_roce *w = owner;
	const struct soft_rx what = {
		.opcode = delivery->opcode,
		.solicited = delivery->solicited,
		.imm = delivery->imm,
		.src_qp = w->qp->attr.dest_qp_num,
		.length = delivery->length,
	};

	return soft_rx_receive_done(w->qp, &what, w->after);
}

static char *remote(void *owner, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status)
{
	struct soft_roce *w = owner;

	char *at = soft_rx_remote(w->qp, opcode, rkey, addr, length, status, w->after);

	/* What is read leaves later, when nothing can be refused any more. Longer than a packet: it is asked for again. */
	if (at && opcode == IBV_WR_RDMA_READ && length && length <= ROCE_MAX_PACKET &&
	    !soft_guard_probe(at, length, false)) {
		*status = soft_rx_missing(w->qp, w->after);
		return NULL;
	}
	return at;
}

static int write_to(void *owner, char *to, const uint8_t *from, uint32_t n)
{
	struct soft_roce *w = owner;

	const bool loosely = soft_unlikely(soft_unordered) && n && soft_is_loose(w->answer.rkey);
	const bool whole =
		loosely ? soft_place(w->qp, to, (const char *)from, n) : soft_rx_copy(to, (const char *)from, n);

	return whole ? 0 : soft_rx_missing(w->qp, w->after);
}

static int atomic(void *owner, uint8_t opcode, char *at, uint64_t compare_add, uint64_t swap, uint64_t *old)
{
	struct soft_roce *w = owner;

	return soft_rx_atomic(opcode, at, compare_add, swap, old) ? 0 : soft_rx_missing(w->qp, w->after);
}

static void broken(void *owner)
{
	struct soft_roce *w = owner;

	soft_async_push(to_ctx(w->qp->qp.context), IBV_EVENT_QP_REQ_ERR, &w->qp->qp);
	soft_after_fail(w->after, w->qp);
}

const struct roce_answer_owner soft_roce_answer_calls = {
	.receive = receive,
	.place = place,
	.deliver = deliver,
	.remote = remote,
	.write = write_to,
	.atomic = atomic,
	.broken = broken,
};
