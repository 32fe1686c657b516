/*
 * Rules: memory that is deregistered while it is used, and memory that is registered too often.
 */
#include <infiniband/verbs.h>

#include "trace/explain/explain.h"

void rule_dereg(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != DEREG_IN_USE)
			continue;
		const struct trace_item *item = item_at(s, one->item), *wr = item_at(s, (size_t)one->wr);
		const struct qp *qp = &s->qps[one->qp];
		const bool send = wr->record.kind == TRACE_SEND;
		const bool certain = send && (wr->record.wr.flags & IBV_SEND_SIGNALED || qp->caps.sig_all);
		found(to, s, "dereg-in-use", certain ? WRONG : ADVICE, item->ns, s->mrs[one->mr].object,
		      "the region of lkey 0x%x was deregistered while the %s wr_id 0x%llx of QP 0x%x, which uses it, "
		      "had no completion%s.",
		      wr->record.wr.lkey, send ? trace_opcode_name(wr->record.wr.opcode) : "receive",
		      (unsigned long long)wr->record.wr.wr_id, qp->number,
		      certain ? ": it may fail, or touch other memory" : "");
	}
}

void rule_churn(struct findings *to, const struct story *s)
{
	enum { MANY = 16, TWICE = 2 };
	uint64_t brief = 0, unused = 0, again = 0, posts = 0;
	struct map seen = { 0 };

	for (size_t n = 0; n < s->mr_count; n++) {
		const struct mr *mr = &s->mrs[n];
		if (!mr->gone)
			continue;
		brief += mr->uses && mr->uses <= TWICE;
		unused += !mr->uses;
		again += map_get(&seen, mr->is.address) >= 0;
		if (!map_put(&seen, mr->is.address, (uint32_t)n))
			break;
	}
	map_free(&seen);
	for (size_t n = 0; n < s->qp_count; n++)
		posts += s->qps[n].send_posts + s->qps[n].recv_posts;
	const uint64_t in_all = s->mr_count;
	if (brief >= MANY && brief * 2 >= in_all)
		found(to, s, "registration-per-message", WRONG, s->mrs[0].made, 0,
		      "memory is registered for each message: %llu regions were registered, %llu of them for one or "
		      "two work requests and then deregistered, with %llu work requests in all. A registration costs "
		      "more than most messages: register once, and reuse%s.",
		      (unsigned long long)in_all, (unsigned long long)brief, (unsigned long long)posts,
		      again >= MANY ? "; the same addresses came again" : "");
	else if (brief + unused >= (uint64_t)4 * MANY && (brief + unused) * 2 >= in_all)
		found(to, s, "registration-churn", ADVICE, s->mrs[0].made, 0,
		      "%llu regions were registered and deregistered again, %llu of them without a work request of "
		      "this side that used them%s. Keep regions, if peers do not need them to end.",
		      (unsigned long long)brief + unused, (unsigned long long)unused,
		      again >= MANY ? ", and the same addresses came again" : "");
}
