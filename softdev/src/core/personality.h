/*
 * The limits and manners of the device: its own, or those of a card (SOFTDEV_PERSONALITY). Part of the core's contract.
 * Fixed for this process. Devices of other processes may differ, as on two hosts.
 */
#ifndef SOFTDEV_PERSONALITY_H
#define SOFTDEV_PERSONALITY_H

#include <stdbool.h>
#include <stdint.h>

/* The keys of personalities/soft.toml, which explains them. */
struct soft_personality {
	uint32_t vendor_id, vendor_part_id;
	uint32_t max_qp_wr, max_send_sge, max_recv_sge, max_sge_rd, max_inline_data;
	uint32_t max_cqe, min_cqe;
	uint32_t max_qp, max_cq, max_mr, max_pd, max_mw, max_ah, max_srq, max_srq_wr, max_srq_sge;
	uint32_t max_rd_atomic;
	const char *atomics;
	bool cqe_less_one, rc, uc, ud, immediate, iwarp, by_cm, loopback;
	/* manners */
	uint32_t sge_error, recv_sge_error, inline_error, early_error, late_error, late_recv_error;
	bool negative_errors, signaled_only;
	const char *no_reads, *placement, *completions;
	uint32_t coalesce, coalesce_us;
	uint32_t inline_block, inline_before, inline_before_ud, inline_head;
};

/* Whether WRITEs may be placed in any order, at least in memory that allows it. Set before there is a queue pair. */
extern bool soft_unordered;

/* Whether each work request has a completion of its own, and they come in any order. Set before there is a queue pair. */
extern bool soft_completes_in_any_order;

/* Never NULL. A name that there is not is said on standard error, once, and the device is itself. */
const struct soft_personality *soft_personality(void);

#endif
