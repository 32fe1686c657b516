/*
 * Completions that become visible together, as a personality has it.
 *
 * A card may gather what completes and write several entries at a time; nothing orders those of different queue pairs.
 * Each completion queue holds back what comes until there are so many, or until a while has passed since the first: both
 * are drawn from the seed, and bounded. Entries of one queue pair keep their order, if the personality does not have
 * them in any, and the others come between them as it is drawn. An entry that is held back is not there yet: polling
 * does not find it, and the event of an armed queue comes when it is shown, so none is lost.
 */
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

enum { MOST = 64, US = 1000 };

struct held {
	struct ibv_wc wc;
	struct soft_qp *sender;
	uint32_t sent;
	bool solicited;
};

struct soft_batch {
	struct soft_lock lock; /* after the locks of queue pairs, before the queue's own */
	uint32_t n, limit;
	uint64_t due, draws;
	struct held held[MOST];
};

struct soft_batch *soft_batch_new(uint32_t index)
{
	struct soft_batch *batch = soft_personality()->coalesce > 1 ? calloc(1, sizeof(*batch)) : NULL;

	if (batch)
		batch->draws = (uint64_t)index << 32;
	return batch; /* no memory: each comes at once */
}

static void insert(struct soft_batch *batch, const struct held *new)
{
	uint32_t least = batch->n;

	while (least && (soft_completes_in_any_order || batch->held[least - 1].wc.qp_num != new->wc.qp_num))
		least--;
	const uint32_t at = least + (uint32_t)(soft_seed_draw(batch->draws++) % (batch->n - least + 1));
	memmove(&batch->held[at + 1], &batch->held[at], (batch->n - at) * sizeof(*new));
	batch->held[at] = *new;
	batch->n++;
	atomic_fetch_add(&soft_proc.held, 1);
}

/* The caller holds the lock: what comes meanwhile comes behind them. */
static void show(struct soft_cq *cq)
{
	struct soft_batch *batch = cq->batch;

	for (uint32_t i = 0; i < batch->n; i++) {
		const struct held *one = &batch->held[i];
		soft_cq_show(cq, &one->wc, one->solicited, one->sender, one->sent);
	}
	atomic_fetch_sub(&soft_proc.held, batch->n);
	batch->n = 0;
}

bool soft_batch_takes(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender,
		      uint32_t sent)
{
	const struct soft_personality *are = soft_personality();
	const struct held one = { .wc = *wc, .sender = sender, .sent = sent, .solicited = solicited };
	struct soft_batch *batch = cq->batch;
	uint64_t due = UINT64_MAX;

	soft_lock(&batch->lock);
	if (!batch->n) {
		const uint64_t drawn = soft_seed_draw(batch->draws++);
		batch->limit = 1 + (uint32_t)(drawn % (are->coalesce < MOST ? are->coalesce : MOST));
		if (batch->limit == 1) {
			soft_unlock(&batch->lock);
			return false;
		}
		due = batch->due = soft_clock_ns() + (drawn >> 32) % ((uint64_t)are->coalesce_us * US + 1);
	}
	insert(batch, &one);
	if (batch->n == batch->limit)
		show(cq);
	soft_unlock(&batch->lock);
	soft_clock_want(due);
	return true;
}

void soft_batch_forget(struct soft_cq *cq, uint32_t qp_num, bool all)
{
	struct soft_batch *batch = cq->batch;
	uint32_t kept = 0;

	if (!batch)
		return;
	soft_lock(&batch->lock);
	for (uint32_t i = 0; i < batch->n; i++)
		if (!all && batch->held[i].wc.qp_num != qp_num)
			batch->held[kept++] = batch->held[i];
	atomic_fetch_sub(&soft_proc.held, batch->n - kept);
	batch->n = kept;
	soft_unlock(&batch->lock);
}

void soft_batch_release(void)
{
	uint64_t next = UINT64_MAX;

	if (soft_likely(!atomic_load(&soft_proc.held)))
		return;
	for (uint32_t i = 0; i < atomic_load(&soft_proc.cq_places); i++) {
		struct soft_cq *cq = soft_cq_pin(i);
		if (!cq)
			continue;
		struct soft_batch *batch = cq->batch;
		if (batch) {
			soft_lock(&batch->lock);
			if (batch->n && batch->due <= soft_clock_ns())
				show(cq);
			if (batch->n && batch->due < next)
				next = batch->due;
			soft_unlock(&batch->lock);
		}
		soft_cq_unpin(cq);
	}
	soft_clock_want(next);
}
