/*
 * Rule: why an object could not be made.
 */
#include <infiniband/verbs.h>

#include "trace/explain/explain.h"

static const struct trace_limits *limits_of(const struct story *s, uint8_t number)
{
	for (size_t n = s->device_count; n-- > 0;) {
		if (s->devices[n].number == number && s->devices[n].limited)
			return &s->devices[n].limits;
	}
	return NULL;
}

/* A program that tries again and again has made one mistake. which: of those that have the same name. */
static uint64_t alike(const struct trace_item *item, unsigned which)
{
	const struct trace_record *r = &item->record;

	return (uint64_t)which << 56 | (uint64_t)r->kind << 48 | (uint64_t)r->error << 32 |
	       (r->kind == TRACE_MR ? r->qpn : 0);
}

static void judge_qp(struct findings *to, const struct story *s, const struct incident *one,
		     const struct trace_item *item)
{
	const struct trace_limits *most = limits_of(s, item->record.device);
	const char *why = trace_errno_name(item->record.error);
	const struct trace_qp_asked *asked = one->wr < 0 ? NULL : &item_at(s, (size_t)one->wr)->record.asked;

	if (asked && most && (asked->send_wr > most->max_qp_wr || asked->recv_wr > most->max_qp_wr))
		found(to, s, "qp-limits", FAILED, item->ns, alike(item, 0),
		      "create_qp failed (%s): max_send_wr %u and max_recv_wr %u were asked for, and the device has at "
		      "most %u (max_qp_wr).",
		      why, asked->send_wr, asked->recv_wr, most->max_qp_wr);
	else if (asked && most && (asked->send_sge > most->max_sge || asked->recv_sge > most->max_sge))
		found(to, s, "qp-limits", FAILED, item->ns, alike(item, 1),
		      "create_qp failed (%s): max_send_sge %u and max_recv_sge %u were asked for, and the device has "
		      "at most %u (max_sge).",
		      why, asked->send_sge, asked->recv_sge, most->max_sge);
	else
		found(to, s, "qp-refused", FAILED, item->ns, alike(item, 0),
		      "create_qp failed (%s)%s: max_inline_data %u was asked for; the completion queues must be of "
		      "the same device, and the type one that it has.",
		      why, item->record.error == 95 ? ", as the device has no such type or option" : "",
		      asked ? asked->inline_bytes : 0);
}

static void judge_mr(struct findings *to, const struct story *s, const struct trace_item *item)
{
	const struct trace_record *r = &item->record;
	const uint32_t remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	char access[TRACE_FLAGS_BYTES];

	trace_access_text(r->qpn, access);
	if (r->error == 22 && r->qpn & remote && !(r->qpn & IBV_ACCESS_LOCAL_WRITE))
		found(to, s, "access-flags", FAILED, item->ns, alike(item, 0),
		      "reg_mr failed (EINVAL): the access is %s. What a peer may write, this side must be allowed to "
		      "write: add LOCAL_WRITE.",
		      access);
	else if (r->error == 14)
		found(to, s, "register-fault", FAILED, item->ns, alike(item, 0),
		      "reg_mr of %llu bytes at 0x%llx failed (EFAULT): a part of it is not mapped, or may not be "
		      "written though the access is %s.",
		      (unsigned long long)r->mr.length, (unsigned long long)r->mr.address, access);
	else if (r->error == 22 && !r->mr.length)
		found(to, s, "register-nothing", FAILED, item->ns, alike(item, 0),
		      "reg_mr failed (EINVAL): the length is 0.");
	else
		found(to, s, "register-refused", FAILED, item->ns, alike(item, 0),
		      "reg_mr of %llu bytes failed (%s)%s.", (unsigned long long)r->mr.length,
		      trace_errno_name(r->error),
		      r->error == 12 ?
			      ": look at the limit for locked memory (ulimit -l), or at the number of regions" :
			      "");
}

void rule_make(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != MAKE_REFUSED)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const struct trace_limits *most = limits_of(s, item->record.device);
		switch (item->record.kind) {
		case TRACE_QP:
			judge_qp(to, s, one, item);
			break;
		case TRACE_MR:
			judge_mr(to, s, item);
			break;
		case TRACE_CQ:
		case TRACE_CQ_RESIZED:
			found(to, s, "cq-limits", FAILED, item->ns, alike(item, !item->record.cq.asked),
			      "%s with %u entries failed (%s)%s; the device has at most %u.",
			      trace_kind_name(item->record.kind), item->record.cq.asked,
			      trace_errno_name(item->record.error),
			      item->record.cq.asked ? "" : ": a completion queue has at least one",
			      most ? most->max_cqe : 0);
			break;
		default:
			found(to, s, "make-refused", FAILED, item->ns, alike(item, 0), "%s failed (%s).",
			      trace_kind_name(item->record.kind), trace_errno_name(item->record.error));
		}
	}
}
