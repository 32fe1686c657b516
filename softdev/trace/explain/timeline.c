/*
 * Stories for other programs: a timeline as JSON.
 */
#include <infiniband/verbs.h>

#include "trace/explain/rates.h"
#include "trace/explain/requests.h"

static double micros(const struct story *s, uint64_t ns, uint64_t origin)
{
	return (double)(world_time(s, ns) - origin) / 1e3;
}

struct lane {
	FILE *to;
	const struct story *story;
	unsigned process;
	uint32_t qpn;
	uint64_t origin;
};

static void print_request(void *lane, const struct trace_item *posted, const struct trace_item *done, bool own)
{
	const struct lane *in = lane;

	if (!done)
		return;
	fprintf(in->to,
		",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\",\"args\":{\"bytes\":%"
		"u,"
		"\"wr_id\":\"0x%llx\",\"status\":\"%s\"}}",
		in->process, in->qpn, micros(in->story, posted->ns, in->origin),
		(double)(done->ns > posted->ns ? done->ns - posted->ns : 0) / 1e3,
		trace_opcode_name(posted->record.wr.opcode), posted->record.wr.length,
		(unsigned long long)posted->record.wr.wr_id,
		own ? trace_status_name(done->record.done.status) : "with a later one");
}

static void print_requests(FILE *to, const struct story *s, unsigned process, uint64_t origin)
{
	for (size_t n = 0; n < s->qp_count; n++) {
		const uint32_t number = s->qps[n].number;
		struct lane lane = { to, s, process, number, origin };
		requests_of(s, &s->qps[n], print_request, &lane);
		fprintf(to,
			",\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":\"QP "
			"0x%x\"}}",
			process, number, number);
	}
}

static void print_instants(FILE *to, const struct story *s, unsigned process, uint64_t origin)
{
	for (size_t i = 0; i < s->from->count; i++) {
		const struct trace_item *item = item_at(s, i);
		const struct trace_record *r = &item->record;
		const char *detail = "";
		switch (r->kind) {
		case TRACE_MODIFY:
			detail = trace_state_name(r->modify.state);
			break;
		case TRACE_ASYNC:
			detail = trace_async_name(r->async.type);
			break;
		case TRACE_CM_EVENT:
			detail = trace_cm_event_name(r->cm_event.event);
			break;
		case TRACE_CM_CALL:
			detail = trace_cm_call_name(r->cm_call.what);
			break;
		case TRACE_DONE:
			if (r->done.status || !(r->done.opcode & IBV_WC_RECV)) {
				if (!r->done.status)
					continue;
				detail = trace_status_name(r->done.status);
			} else {
				detail = trace_completed_name(r->done.opcode);
			}
			break;
		case TRACE_MR:
		case TRACE_MR_GONE:
		case TRACE_ARM:
		case TRACE_EVENT:
			break;
		default:
			continue;
		}
		fprintf(to, ",\n{\"ph\":\"i\",\"s\":\"t\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"name\":\"%s %s\"}",
			process, r->kind == TRACE_MR ? 0 : r->qpn, micros(s, item->ns, origin),
			trace_kind_name(r->kind), detail);
	}
}

void timeline(FILE *to, const struct story *stories, size_t count)
{
	uint64_t origin = UINT64_MAX;

	for (size_t n = 0; n < count; n++) {
		if (stories[n].from->header.begin_unix_ns < origin)
			origin = stories[n].from->header.begin_unix_ns;
	}
	fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"trace\"}", to);
	for (size_t n = 0; n < count; n++) {
		const struct trace_header *header = &stories[n].from->header;
		fprintf(to, ",\n{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{\"name\":\"", header->pid);
		trace_print_quoted(to, header->program);
		fputs("\"}}", to);
		print_requests(to, &stories[n], header->pid, origin);
		print_instants(to, &stories[n], header->pid, origin);
	}
	fputs("\n]}\n", to);
}
