/*
 * Which personality the device has. The values are those of personalities/NAME.toml, which the build turns into
 * core/personalities.inc: the function `read_soft` for soft.toml, and so on, and the table NAMES of all of them.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

#include "core/personalities.inc"

static struct soft_personality chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;
bool soft_unordered, soft_completes_in_any_order;

/* A card's limits may be above what the device can do. */
static void clamp(struct soft_personality *p)
{
	const struct soft_personality wanted = *p;

	read_soft(p);
#define AT_MOST(field) wanted.field < p->field ? wanted.field : p->field
	p->max_qp_wr = AT_MOST(max_qp_wr);
	p->max_send_sge = AT_MOST(max_send_sge);
	p->max_recv_sge = AT_MOST(max_recv_sge);
	p->max_sge_rd = AT_MOST(max_sge_rd);
	p->max_inline_data = AT_MOST(max_inline_data);
	p->max_cqe = AT_MOST(max_cqe);
	p->min_cqe = AT_MOST(min_cqe);
	p->max_qp = AT_MOST(max_qp);
	p->max_cq = AT_MOST(max_cq);
	p->max_mr = AT_MOST(max_mr);
	p->max_pd = AT_MOST(max_pd);
	p->max_mw = AT_MOST(max_mw);
	p->max_ah = AT_MOST(max_ah);
	p->max_srq = AT_MOST(max_srq);
	p->max_srq_wr = AT_MOST(max_srq_wr);
	p->max_srq_sge = AT_MOST(max_srq_sge);
	p->max_rd_atomic = AT_MOST(max_rd_atomic);
#undef AT_MOST
	p->vendor_id = wanted.vendor_id;
	p->vendor_part_id = wanted.vendor_part_id;
	p->atomics = wanted.atomics;
	p->cqe_less_one = wanted.cqe_less_one;
	p->rc = wanted.rc;
	p->uc = wanted.uc;
	p->ud = wanted.ud;
	p->immediate = wanted.immediate;
	p->iwarp = wanted.iwarp;
	p->by_cm = wanted.by_cm;
	p->loopback = wanted.loopback;
	p->sge_error = wanted.sge_error;
	p->recv_sge_error = wanted.recv_sge_error;
	p->inline_error = wanted.inline_error;
	p->early_error = wanted.early_error;
	p->late_error = wanted.late_error;
	p->late_recv_error = wanted.late_recv_error;
	p->negative_errors = wanted.negative_errors;
	p->signaled_only = wanted.signaled_only;
	p->no_reads = wanted.no_reads;
	p->placement = wanted.placement;
	p->completions = wanted.completions;
	p->coalesce = wanted.coalesce;
	p->coalesce_us = wanted.coalesce_us;
	p->inline_block = wanted.inline_block;
	p->inline_before = wanted.inline_before;
	p->inline_before_ud = wanted.inline_before_ud;
	p->inline_head = wanted.inline_head;
}

static void choose(void)
{
	const char *said = getenv("SOFTDEV_PERSONALITY");
	const size_t all = sizeof(NAMES) / sizeof(NAMES[0]);
	size_t n = 0;

	read_soft(&chosen);
	if (!said || !*said)
		return;
	while (n < all && strcmp(NAMES[n].name, said) != 0)
		n++;
	if (n < all) {
		NAMES[n].read(&chosen);
		clamp(&chosen);
		soft_unordered = strcmp(chosen.placement, "ordered") != 0;
		/* A work request without a completion has a place in the queue that only a later one's completion gives back. */
		soft_completes_in_any_order = chosen.signaled_only && !strcmp(chosen.completions, "any");
		return;
	}
	fprintf(stderr, "softdev: SOFTDEV_PERSONALITY=\"%s\" is not known, so it is soft; there are:", said);
	for (n = 0; n < all; n++)
		fprintf(stderr, " %s", NAMES[n].name);
	fputc('\n', stderr);
}

const struct soft_personality *soft_personality(void)
{
	pthread_once(&once, choose);
	return &chosen;
}
