/*
 * Rule: why modify_qp was refused. The transitions and their attributes are those of IBTA 11.2.5.2.
 */
#include <infiniband/verbs.h>

#include "trace/explain/explain.h"

enum {
	STATES = IBV_QPS_ERR + 1,
	START = IBV_QP_PKEY_INDEX | IBV_QP_PORT,
	PATHS = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE,
	DESTINATION = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	RC_RTR = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	RC_RTS = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
	LATER = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_RATE_LIMIT | IBV_QP_QKEY | IBV_QP_PKEY_INDEX | PATHS |
		IBV_QP_MIN_RNR_TIMER,
};

/* Attributes that a program must give. False: there is no such transition. */
static bool required(unsigned type, unsigned from, unsigned to, uint32_t *mask)
{
	const bool rc = type == IBV_QPT_RC, ud = type == IBV_QPT_UD;

	*mask = 0;
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return true;
	if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
		*mask = START | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	else if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
		*mask = ud ? 0 : DESTINATION | (rc ? RC_RTR : 0);
	else if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
		*mask = rc ? RC_RTS : IBV_QP_SQ_PSN;
	else
		return (from == to && from != IBV_QPS_RESET && from != IBV_QPS_ERR) ||
		       (from == IBV_QPS_RTS && to == IBV_QPS_SQD) || (from == IBV_QPS_SQD && to == IBV_QPS_RTS) ||
		       (from == IBV_QPS_SQE && to == IBV_QPS_RTS);
	return true;
}

static uint32_t foreign(unsigned type, uint32_t needed)
{
	uint32_t never = 0;

	if (type == IBV_QPT_UD)
		never = DESTINATION | RC_RTR | (RC_RTS & ~IBV_QP_SQ_PSN) | IBV_QP_ACCESS_FLAGS;
	else if (type == IBV_QPT_UC)
		never = RC_RTR | (RC_RTS & ~IBV_QP_SQ_PSN) | IBV_QP_QKEY;
	return never & ~needed;
}

static const struct device *device_of(const struct story *s, uint8_t number)
{
	for (size_t n = s->device_count; n-- > 0;) {
		if (s->devices[n].number == number)
			return &s->devices[n];
	}
	return NULL;
}

/* What is wrong with a value, as a sentence; NULL: nothing that can be seen. */
static const char *wrong_value(const struct story *s, const struct qp *qp, const struct trace_modify *m, char *text,
			       size_t size)
{
	const struct device *device = device_of(s, qp->device);
	const struct trace_limits *most = device && device->limited ? &device->limits : NULL;

	if (m->mask & IBV_QP_PORT && !m->port)
		snprintf(text, size, "port_num is 0, and ports are numbered from 1");
	else if (m->mask & IBV_QP_PORT && m->port != 1)
		snprintf(text, size, "port_num is %u, which the device may not have", m->port);
	else if (m->mask & IBV_QP_PKEY_INDEX && m->pkey_index)
		snprintf(text, size, "pkey_index is %u; on Ethernet only 0 has a partition key", m->pkey_index);
	else if (m->mask & IBV_QP_PATH_MTU && !trace_mtu_bytes(m->path_mtu))
		snprintf(text, size,
			 "path_mtu is %u%s, and no enum ibv_mtu: it is not in bytes, but from IBV_MTU_256 (1) to "
			 "IBV_MTU_4096 (5)",
			 m->path_mtu, m->path_mtu == 255 ? " or more" : "");
	else if (m->mask & IBV_QP_DEST_QPN && m->dest_qpn > 0xffffff)
		snprintf(text, size, "dest_qp_num is 0x%x, which has more than 24 bits: its bytes may be swapped",
			 m->dest_qpn);
	else if (m->mask & IBV_QP_MAX_QP_RD_ATOMIC && most && m->max_rd_atomic > most->max_qp_init_rd_atom)
		snprintf(text, size, "max_rd_atomic is %u, and the device has at most %u", m->max_rd_atomic,
			 most->max_qp_init_rd_atom);
	else if (m->mask & IBV_QP_MAX_DEST_RD_ATOMIC && most && m->max_dest_rd_atomic > most->max_qp_rd_atom)
		snprintf(text, size, "max_dest_rd_atomic is %u, and the device has at most %u", m->max_dest_rd_atomic,
			 most->max_qp_rd_atom);
	else if (m->mask & IBV_QP_RETRY_CNT && m->retry_cnt > 7)
		snprintf(text, size, "retry_cnt is %u, and 7 is the most", m->retry_cnt);
	else if (m->mask & IBV_QP_RNR_RETRY && m->rnr_retry > 7)
		snprintf(text, size, "rnr_retry is %u, and 7 is the most (it means: for ever)", m->rnr_retry);
	else if (m->mask & IBV_QP_TIMEOUT && m->timeout > 31)
		snprintf(text, size, "timeout is %u, and 31 is the most (4.096 us times two to that power)",
			 m->timeout);
	else if (m->mask & IBV_QP_MIN_RNR_TIMER && m->min_rnr_timer > 31)
		snprintf(text, size, "min_rnr_timer is %u, and 31 is the most", m->min_rnr_timer);
	else
		return NULL;
	return text;
}

static void judge_address(struct findings *to, const struct story *s, const struct qp *qp,
			  const struct trace_item *item, const struct trace_address *address)
{
	char there[TRACE_ADDRESS_BYTES];
	const unsigned error = item->record.error;

	trace_gid_text(address->dgid, there);
	if (address->port_state && address->port_state != IBV_PORT_ACTIVE)
		found(to, s, "port-down", FAILED, item->ns, qp->object,
		      "modify_qp of QP 0x%x to RTR failed (%s): the port is down.", qp->number,
		      trace_errno_name(error));
	else if (!address->global)
		found(to, s, "no-gid", FAILED, item->ns, qp->object,
		      "modify_qp of QP 0x%x to RTR failed (%s): ah_attr.is_global is 0. On Ethernet each address "
		      "needs a GID: is_global 1, grh.dgid, grh.sgid_index.",
		      qp->number, trace_errno_name(error));
	else if (!address->sgid_known)
		found(to, s, "empty-gid-index", FAILED, item->ns, qp->object,
		      "modify_qp of QP 0x%x to RTR failed (%s): the GID table is empty at grh.sgid_index %u.",
		      qp->number, trace_errno_name(error), address->sgid_index);
	else
		found(to, s, error == 22 ? "modify-refused" : "no-route", FAILED, item->ns, qp->object,
		      "modify_qp of QP 0x%x to RTR failed (%s): the address %s cannot be reached from GID %u.",
		      qp->number, trace_errno_name(error), there, address->sgid_index);
}

static void judge(struct findings *to, const struct story *s, const struct incident *one)
{
	const struct trace_item *item = item_at(s, one->item);
	const struct trace_modify *m = &item->record.modify;
	const struct qp *qp = &s->qps[one->qp];
	const unsigned from = one->state, next = m->mask & IBV_QP_STATE ? m->state : from;
	const char *why = trace_errno_name(item->record.error);
	char text[200], flags[TRACE_FLAGS_BYTES];
	uint32_t needed;

	if (!required(qp->caps.type, from, next, &needed)) {
		const bool rts = next == IBV_QPS_RTS, rtr = next == IBV_QPS_RTR;
		found(to, s, "wrong-order", FAILED, item->ns, qp->object,
		      "modify_qp moved QP 0x%x from %s to %s, which is no transition (%s). The order is RESET, INIT, "
		      "RTR, RTS%s.",
		      qp->number, trace_state_name(from), trace_state_name(next), why,
		      from == IBV_QPS_ERR          ? ", and from ERR only to RESET" :
		      rts && from < IBV_QPS_RTR    ? ": RTR was left out" :
		      rtr && from == IBV_QPS_RESET ? ": INIT was left out" :
						     "");
	} else if ((m->mask & needed) != needed) {
		found(to, s, "missing-attributes", FAILED, item->ns, qp->object,
		      "modify_qp of QP 0x%x from %s to %s failed (%s): the mask lacks %s.", qp->number,
		      trace_state_name(from), trace_state_name(next), why, trace_mask_text(needed & ~m->mask, flags));
	} else if (m->mask & foreign(qp->caps.type, needed)) {
		found(to, s, "wrong-attributes", FAILED, item->ns, qp->object,
		      "modify_qp of QP 0x%x from %s to %s failed (%s): %s queue pairs do not have %s.", qp->number,
		      trace_state_name(from), trace_state_name(next), why, trace_qp_type_name(qp->caps.type),
		      trace_mask_text(m->mask & foreign(qp->caps.type, needed), flags));
	} else if (wrong_value(s, qp, m, text, sizeof(text))) {
		found(to, s, "wrong-value", FAILED, item->ns, qp->object,
		      "modify_qp of QP 0x%x from %s to %s failed (%s): %s.", qp->number, trace_state_name(from),
		      trace_state_name(next), why, text);
	} else if (one->wr >= 0) {
		judge_address(to, s, qp, item, &item_at(s, (size_t)one->wr)->record.address);
	} else {
		const uint32_t beyond = m->mask & ~(needed | (uint32_t)IBV_QP_STATE | (uint32_t)LATER);
		found(to, s, beyond ? "wrong-attributes" : "modify-refused", FAILED, item->ns, qp->object,
		      "modify_qp of QP 0x%x from %s to %s failed (%s)%s%s.", qp->number, trace_state_name(from),
		      trace_state_name(next), why, beyond ? ": these do not belong to this transition: " : "",
		      beyond ? trace_mask_text(beyond, flags) : "");
	}
}

void rule_modify(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		if (s->incidents[n].kind == MODIFY_REFUSED && s->incidents[n].qp >= 0)
			judge(to, s, &s->incidents[n]);
	}
}
