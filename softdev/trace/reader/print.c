/*
 * Records as lines of text.
 */
#include <inttypes.h>

#include "trace/reader/reader.h"

static void print_modify(FILE *to, const struct trace_modify *m)
{
	char mask[TRACE_FLAGS_BYTES], access[TRACE_FLAGS_BYTES];

	fprintf(to, " from %s", trace_state_name(m->from));
	if (m->mask & 1)
		fprintf(to, " to %s", trace_state_name(m->state));
	fprintf(to, " (%s)", trace_mask_text(m->mask, mask));
	if (m->mask & 1 << 3)
		fprintf(to, " access=%s", trace_access_text(m->access, access));
	if (m->mask & 1 << 6)
		fprintf(to, " qkey=0x%x", m->qkey);
	if (m->mask & 1 << 8)
		fprintf(to, " path_mtu=%u", trace_mtu_bytes(m->path_mtu));
	if (m->mask & 1 << 20)
		fprintf(to, " dest_qp_num=0x%x", m->dest_qpn);
	if (m->mask & 1 << 12)
		fprintf(to, " rq_psn=0x%x", m->rq_psn);
	if (m->mask & 1 << 16)
		fprintf(to, " sq_psn=0x%x", m->sq_psn);
	if (m->mask & 1 << 9)
		fprintf(to, " timeout=%u", m->timeout);
	if (m->mask & 1 << 10)
		fprintf(to, " retry_cnt=%u", m->retry_cnt);
	if (m->mask & 1 << 11)
		fprintf(to, " rnr_retry=%u", m->rnr_retry);
	if (m->mask & 1 << 13)
		fprintf(to, " max_rd_atomic=%u", m->max_rd_atomic);
	if (m->mask & 1 << 17)
		fprintf(to, " max_dest_rd_atomic=%u", m->max_dest_rd_atomic);
	if (m->origin == TRACE_BY_CM)
		fprintf(to, " by rdma_cm");
	else if (m->origin == TRACE_FOUND)
		fprintf(to, " as it was found");
}

static void print_wr(FILE *to, const struct trace_record *r)
{
	const struct trace_wr *wr = &r->wr;

	if (r->kind == TRACE_SEND)
		fprintf(to, " %s", trace_opcode_name(wr->opcode));
	fprintf(to, " wr_id=0x%" PRIx64 " %u bytes in %u, lkey=0x%x", wr->wr_id, wr->length, wr->num_sge, wr->lkey);
	if (wr->remote || wr->rkey)
		fprintf(to, " to 0x%" PRIx64 " rkey=0x%x", wr->remote, wr->rkey);
	if (wr->flags)
		fprintf(to, "%s%s%s%s", wr->flags & 2 ? " signaled" : "", wr->flags & 8 ? " inline" : "",
			wr->flags & 1 ? " fence" : "", wr->flags & 4 ? " solicited" : "");
	if (wr->place)
		fprintf(to, " [%u]", wr->place);
}

static void print_address(FILE *to, const struct trace_address *a)
{
	char here[TRACE_ADDRESS_BYTES], there[TRACE_ADDRESS_BYTES];

	fprintf(to, " to %s", a->global ? trace_gid_text(a->dgid, there) : "no GID");
	if (a->sgid_known)
		fprintf(to, " from GID %u, %s, %s", a->sgid_index, trace_gid_text(a->sgid, here),
			trace_gid_type_name(a->gid_type));
	else if (a->global)
		fprintf(to, " from GID %u, which is empty", a->sgid_index);
	fprintf(to, "; the port's MTU is %u", trace_mtu_bytes(a->active_mtu));
}

static void print_cm(FILE *to, const struct trace_cm_call *c)
{
	char text[TRACE_ADDRESS_BYTES];
	uint8_t gid[16] = { [10] = 0xff, [11] = 0xff };

	fprintf(to, " %s", trace_cm_call_name(c->what));
	if (!c->family)
		return;
	for (int i = 0; i < 16; i++) {
		if (c->family != 2)
			gid[i] = c->address[i];
		else if (i < 4)
			gid[12 + i] = c->address[i];
	}
	fprintf(to, " %s port %u", trace_gid_text(gid, text), c->port);
}

static void print_rest(FILE *to, const struct trace_record *r)
{
	char text[TRACE_FLAGS_BYTES];

	switch (r->kind) {
	case TRACE_DEVICE:
		fprintf(to, " %s, port state %u, MTU %u", r->opened.name, r->opened.port_state,
			trace_mtu_bytes(r->opened.active_mtu));
		break;
	case TRACE_CQ:
	case TRACE_CQ_RESIZED:
		fprintf(to, " asked %u, got %u%s", r->cq.asked, r->cq.cqe, r->cq.channel ? ", with a channel" : "");
		break;
	case TRACE_SRQ:
		fprintf(to, " max_wr=%u max_sge=%u", r->srq.max_wr, r->srq.max_sge);
		break;
	case TRACE_QP:
		fprintf(to,
			" %s send_wr=%u recv_wr=%u send_sge=%u recv_sge=%u inline=%u send_cq=0x%" PRIx64
			" recv_cq=0x%" PRIx64,
			trace_qp_type_name(r->qp.type), r->qp.send_wr, r->qp.recv_wr, r->qp.send_sge, r->qp.recv_sge,
			r->qp.inline_bytes, r->qp.send_cq, r->qp.recv_cq);
		break;
	case TRACE_QP_ASKED:
		fprintf(to, " send_wr=%u recv_wr=%u send_sge=%u recv_sge=%u inline=%u", r->asked.send_wr,
			r->asked.recv_wr, r->asked.send_sge, r->asked.recv_sge, r->asked.inline_bytes);
		break;
	case TRACE_MODIFY:
		print_modify(to, &r->modify);
		break;
	case TRACE_ADDRESS:
		print_address(to, &r->address);
		break;
	case TRACE_ENTERED:
		fprintf(to, " %s", trace_kind_name(r->call.what));
		break;
	case TRACE_ASYNC:
		fprintf(to, " %s", trace_async_name(r->async.type));
		break;
	case TRACE_CM_CALL:
		print_cm(to, &r->cm_call);
		break;
	case TRACE_CM_EVENT:
		fprintf(to, " %s status=%d", trace_cm_event_name(r->cm_event.event), r->cm_event.status);
		break;
	case TRACE_MR:
		fprintf(to, " 0x%" PRIx64 ", %" PRIu64 " bytes, lkey=0x%x rkey=0x%x access=%s", r->mr.address,
			r->mr.length, r->mr.lkey, r->mr.rkey, trace_access_text(r->qpn, text));
		break;
	case TRACE_SEND:
	case TRACE_RECV:
		print_wr(to, r);
		break;
	case TRACE_DONE:
		fprintf(to, " wr_id=0x%" PRIx64 " %s", r->done.wr_id, trace_status_name(r->done.status));
		if (!r->done.status)
			fprintf(to, " %s %u bytes", trace_completed_name(r->done.opcode), r->done.byte_len);
		break;
	case TRACE_EMPTY:
		fprintf(to, " %u", r->empty.count);
		break;
	case TRACE_EVENT:
		fprintf(to, " cq=0x%" PRIx64, r->event.cq);
		break;
	case TRACE_ACK:
		fprintf(to, " %u", r->event.count);
		break;
	default:
		break;
	}
}

void trace_print(FILE *to, const struct trace_recording *recording, const struct trace_item *item)
{
	const struct trace_record *r = &item->record;
	const uint32_t thread = item->ring < TRACE_RINGS ? recording->threads[item->ring] : 0;

	fprintf(to, "%12.6f", (double)item->ns / 1e9);
	if (item->ring >= TRACE_RING_THREADS)
		fprintf(to, " %7u", thread);
	else
		fprintf(to, " %7s", "");
	fprintf(to, " %s", trace_kind_name(r->kind));
	if (r->qpn && r->kind != TRACE_MR && r->kind != TRACE_CM_CALL)
		fprintf(to, " QP 0x%x", r->qpn);
	else if (r->object)
		fprintf(to, " 0x%" PRIx64, r->object);
	print_rest(to, r);
	if (r->error)
		fprintf(to, ": %s", trace_errno_name(r->error));
	fputc('\n', to);
}

void trace_print_quoted(FILE *to, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', to);
		fputc(*text, to);
	}
}
