/*
 * The table of rules. Each looks at stories, and none at what another has said. Of findings of one weight and time, those
 * that stand first here are printed first.
 */
#include <string.h>

#include "trace/explain/explain.h"

static const rule rules[] = {
	rule_post_state,   rule_post_limits,
	rule_queue_full,                       /* posting: rules_post.c */
	rule_modify,       rule_make,          /* rules_modify.c, rules_make.c */
	rule_local_memory, rule_remote_memory, /* rules_memory.c */
	rule_lengths,      rule_flush,
	rule_other_status,             /* rules_status.c */
	rule_retry,        rule_rnr,   /* rules_retry.c */
	rule_pairs,        rule_reads, /* rules_pairs.c */
	rule_datagrams,                /* rules_datagrams.c */
	rule_overrun,      rule_wakeups,
	rule_polling,      rule_acks,  /* rules_cq.c */
	rule_dereg,        rule_churn, /* rules_mr.c */
	rule_vain,                     /* rules_vain.c */
	rule_ends,         rule_leaks,
	rule_stuck,                 /* rules_end.c */
	rule_port,         rule_cm, /* rules_events.c */
};

void explain(struct findings *findings, const struct story *stories, size_t count, size_t shown)
{
	memset(findings, 0, sizeof(*findings));
	findings->stories = stories;
	findings->story_count = count;
	findings->shown = shown;
	for (size_t s = 0; s < shown; s++) {
		for (size_t n = 0; n < sizeof(rules) / sizeof(*rules); n++)
			rules[n](findings, &stories[s]);
	}
}
