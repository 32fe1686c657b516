/*
 * Rates over a window, and the table of them.
 */
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#include "trace/explain/rates.h"

/* The oldest instant of which all records are left. */
static uint64_t reach(const struct trace_recording *from)
{
	uint64_t first[TRACE_RINGS], latest = 0;

	if (!from->overwritten[TRACE_RING_THREADS])
		return 0;
	memset(first, 0xff, sizeof(first));
	for (size_t i = 0; i < from->count; i++) {
		const struct trace_item *item = &from->items[i];
		if (item->ns < first[item->ring])
			first[item->ring] = item->ns;
	}
	for (unsigned n = TRACE_RING_THREADS; n < TRACE_RINGS; n++) {
		if (first[n] != UINT64_MAX && first[n] > latest)
			latest = first[n];
	}
	return latest;
}

static void count_send(struct qp_rates *of, const struct trace_record *r)
{
	of->sends++;
	of->calls += !r->wr.place;
	of->send_bytes += r->wr.length;
}

bool rates_of(struct rates *to, const struct story *s, uint64_t now, uint64_t window)
{
	const uint64_t whole = reach(s->from), begin = now > window ? now - window : 0;
	const uint64_t from = whole > begin ? whole : begin;

	to->qps = calloc(s->qp_count + 1, sizeof(*to->qps));
	to->window = now > from ? now - from : 1;
	if (!to->qps)
		return false;
	for (size_t n = 0; n < s->qp_count; n++) {
		to->qps[n].qp = &s->qps[n];
		to->qps[n].latencies = s->qps[n].latencies;
	}
	for (size_t i = 0; i < s->from->count; i++) {
		const struct trace_item *item = item_at(s, i);
		const struct trace_record *r = &item->record;
		if (item->ns < from || r->error)
			continue;
		if (r->kind == TRACE_SEND) {
			const long n = map_get(&s->by_qp, r->object);
			if (n >= 0)
				count_send(&to->qps[n], r);
		} else if (r->kind == TRACE_DONE && !r->done.status && r->done.opcode & IBV_WC_RECV) {
			const long n = map_get(&s->by_number, key_of(r->device, r->qpn));
			if (n >= 0) {
				to->qps[n].receives++;
				to->qps[n].recv_bytes += r->done.byte_len;
			}
		}
	}
	return true;
}

void rates_free(struct rates *rates)
{
	free(rates->qps);
	rates->qps = NULL;
}

static void print_qp(FILE *to, const struct qp_rates *of, double seconds)
{
	const struct qp *qp = of->qp;
	char address[TRACE_ADDRESS_BYTES];

	fprintf(to, "  0x%06x %-4s %-5s %-16.16s %10.0f %9.1f %10.0f %9.1f %7.1f %5zu/%-5u", qp->number,
		trace_qp_type_name(qp->caps.type), trace_state_name(qp->state), peer_address(qp, address),
		(double)of->sends / seconds, (double)of->send_bytes / seconds / 1e6, (double)of->receives / seconds,
		(double)of->recv_bytes / seconds / 1e6, of->calls ? (double)of->sends / (double)of->calls : 0,
		queue_length(&qp->sends), qp->caps.send_wr);
	if (of->latencies.count)
		fprintf(to, " %8.1f %8.1f %8.1f", (double)latency_part(&of->latencies, 0.5) / 1e3,
			(double)latency_part(&of->latencies, 0.99) / 1e3, (double)of->latencies.most / 1e3);
	fputc('\n', to);
}

void rates_print(FILE *to, const struct story *s, uint64_t now, uint64_t window)
{
	struct rates rates;
	uint64_t calls = 0;

	if (!rates_of(&rates, s, now, window))
		return;
	const double seconds = (double)rates.window / 1e9;
	fprintf(to, "%s (pid %u), over %.3f s\n", s->from->header.program, s->from->header.pid, seconds);
	fprintf(to, "  %-8s %-4s %-5s %-16s %10s %9s %10s %9s %7s %11s %8s %8s %8s\n", "QP", "type", "state", "peer",
		"sends/s", "MB/s", "receives/s", "MB/s", "batch", "queue", "p50 us", "p99 us", "max us");
	for (size_t n = 0; n < s->qp_count; n++) {
		calls += rates.qps[n].calls;
		if (!s->qps[n].gone || rates.qps[n].sends || rates.qps[n].receives)
			print_qp(to, &rates.qps[n], seconds);
	}
	fprintf(to, "  %-18s %8s %12s %12s %12s %8s\n", "completion queue", "entries", "completions", "polls", "empty",
		"batch");
	for (size_t n = 0; n < s->cq_count; n++) {
		const struct cq *cq = &s->cqs[n];
		const uint64_t full = cq->polls > cq->empty_polls ? cq->polls - cq->empty_polls : 0;
		fprintf(to, "  0x%-16llx %8u %12llu %12llu %12llu %4.1f/%-3llu\n", (unsigned long long)cq->object,
			cq->is.cqe, (unsigned long long)cq->completions, (unsigned long long)cq->polls,
			(unsigned long long)cq->empty_polls, full ? (double)cq->completions / (double)full : 0,
			(unsigned long long)cq->poll_batch_most);
	}
	fprintf(to, "  %.0f doorbells/s\n", (double)calls / seconds);
	rates_free(&rates);
}
