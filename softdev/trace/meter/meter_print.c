/*
 * The text format of Prometheus. All series of a family stand together, so each family goes over all processes.
 */
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "trace/meter/meter.h"

enum { LABELS = 320 };

struct family {
	const char *name, *type, *help;
	size_t offset; /* of a uint64_t */
};

static void begin(FILE *to, const char *name, const char *type, const char *help)
{
	fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* What stands between the braces. */
static void labels(char text[LABELS], const struct meter *m, const char *device, const char *key, uint64_t value,
		   const char *peer)
{
	char quoted[80] = "";
	size_t n = 0;

	for (const char *c = key ? device : ""; *c && n < sizeof(quoted) - 3; c++) {
		if (*c == '"' || *c == '\\')
			quoted[n++] = '\\';
		quoted[n++] = *c;
	}
	quoted[n] = '\0';
	n = (size_t)snprintf(text, LABELS, "pid=\"%u\"", m->pid);
	if (key)
		n += (size_t)snprintf(text + n, LABELS - n, ",device=\"%s\",%s=\"0x%llx\"", quoted, key,
				      (unsigned long long)value);
	if (peer)
		snprintf(text + n, LABELS - n, ",peer=\"%s\"", peer);
}

static void qp_labels(char text[LABELS], const struct meter *m, const struct meter_qp *qp)
{
	labels(text, m, m->devices[qp->device], "qp", qp->number,
	       qp->type == IBV_QPT_UD ? "" : m->peers[qp->peer].address);
}

static uint64_t value_at(const void *of, size_t offset)
{
	uint64_t value;

	memcpy(&value, (const char *)of + offset, sizeof(value));
	return value;
}

static void number(FILE *to, const char *name, const char *label, uint64_t value)
{
	fprintf(to, "%s{%s} %llu\n", name, label, (unsigned long long)value);
}

static void histogram(FILE *to, const char *name, const char *label, const uint64_t *buckets, size_t count,
		      const double *bounds, double sum)
{
	uint64_t below = 0;

	for (size_t n = 0; n < count; n++) {
		below += buckets[n];
		if (n + 1 == count)
			fprintf(to, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, label, (unsigned long long)below);
		else
			fprintf(to, "%s_bucket{%s,le=\"%g\"} %llu\n", name, label,
				bounds ? bounds[n] : (double)(1u << n), (unsigned long long)below);
	}
	fprintf(to, "%s_sum{%s} %.9g\n%s_count{%s} %llu\n", name, label, sum, name, label, (unsigned long long)below);
}

static void latencies(FILE *to, const char *name, const char *label, const struct meter_latencies *of)
{
	histogram(to, name, label, of->buckets, METER_LATENCIES, meter_latency_bounds, of->sum);
}

static void batches(FILE *to, const char *name, const char *label, const struct meter_batches *of)
{
	histogram(to, name, label, of->buckets, METER_BATCHES, NULL, (double)of->sum);
}

#define EACH_QP(meters, count, label, qp)                                                                              \
	for (size_t k_ = 0; k_ < (count); k_++)                                                                        \
		for (const struct meter_qp *qp = (meters)[k_]->qps;                                                    \
		     qp && qp < (meters)[k_]->qps + (meters)[k_]->qp_count &&                                          \
		     (qp_labels(label, (meters)[k_], qp), true);                                                       \
		     qp++)

static void print_qps(FILE *to, struct meter *const *meters, size_t count)
{
	static const struct family families[] = {
		{ "softdev_sends_total", "counter", "Work requests posted to a send queue.",
		  offsetof(struct meter_qp, traffic.sends) },
		{ "softdev_send_bytes_total", "counter", "Bytes of these.",
		  offsetof(struct meter_qp, traffic.send_bytes) },
		{ "softdev_doorbells_total", "counter", "Calls that posted them.",
		  offsetof(struct meter_qp, doorbells) },
		{ "softdev_receives_total", "counter", "Receives that completed.",
		  offsetof(struct meter_qp, traffic.receives) },
		{ "softdev_receive_bytes_total", "counter", "Bytes of these.",
		  offsetof(struct meter_qp, traffic.receive_bytes) },
		{ "softdev_refused_posts_total", "counter", "Work requests that posting has refused.",
		  offsetof(struct meter_qp, refused) },
	};
	char label[LABELS];

	begin(to, "softdev_qp_info", "gauge", "Queue pairs, with their type and state.");
	EACH_QP(meters, count, label, qp)
	fprintf(to, "softdev_qp_info{%s,type=\"%s\",state=\"%s\"} 1\n", label, trace_qp_type_name(qp->type),
		qp->gone ? "destroyed" : trace_state_name(qp->state));
	for (size_t f = 0; f < sizeof(families) / sizeof(*families); f++) {
		begin(to, families[f].name, families[f].type, families[f].help);
		EACH_QP(meters, count, label, qp)
		number(to, families[f].name, label, value_at(qp, families[f].offset));
	}
	begin(to, "softdev_outstanding_sends", "gauge", "Work requests of the send queue without a completion.");
	EACH_QP(meters, count, label, qp)
	number(to, "softdev_outstanding_sends", label, qp->sent_count);
	begin(to, "softdev_completion_errors_total", "counter", "Completions with an error, by their status.");
	EACH_QP(meters, count, label, qp)
	{
		for (unsigned n = 0; n < METER_STATUSES; n++) {
			if (qp->statuses[n])
				fprintf(to, "softdev_completion_errors_total{%s,status=\"%s\"} %llu\n", label,
					n ? trace_status_name(n) : "other", (unsigned long long)qp->statuses[n]);
		}
	}
	begin(to, "softdev_post_batch_requests", "histogram", "Work requests that one call posts to a send queue.");
	EACH_QP(meters, count, label, qp)
	batches(to, "softdev_post_batch_requests", label, &qp->posts);
	begin(to, "softdev_latency_seconds", "histogram",
	      "Time from posting a work request to polling its completion.");
	EACH_QP(meters, count, label, qp)
	latencies(to, "softdev_latency_seconds", label, &qp->traffic.latencies);
}

static void print_peers(FILE *to, struct meter *const *meters, size_t count)
{
	static const struct family families[] = {
		{ "softdev_peer_sends_total", "counter",
		  "Work requests posted for a peer, also of queue pairs that were destroyed.",
		  offsetof(struct meter_traffic, sends) },
		{ "softdev_peer_send_bytes_total", "counter", "Bytes of these.",
		  offsetof(struct meter_traffic, send_bytes) },
		{ "softdev_peer_receives_total", "counter", "Receives from a peer that completed.",
		  offsetof(struct meter_traffic, receives) },
		{ "softdev_peer_receive_bytes_total", "counter", "Bytes of these.",
		  offsetof(struct meter_traffic, receive_bytes) },
		{ "softdev_peer_completion_errors_total", "counter", "Completions with an error.",
		  offsetof(struct meter_traffic, errors) },
	};
	const size_t whole = sizeof(families) / sizeof(*families);
	char label[LABELS];

	for (size_t f = 0; f <= whole; f++) {
		if (f < whole)
			begin(to, families[f].name, families[f].type, families[f].help);
		else
			begin(to, "softdev_peer_latency_seconds", "histogram",
			      "Time from posting a work request for a peer to polling its completion.");
		for (size_t k = 0; k < count; k++) {
			for (size_t n = 0; n < METER_PEERS; n++) {
				const struct meter_peer *peer = &meters[k]->peers[n];
				const struct meter_traffic *t = &peer->traffic;
				if (!t->sends && !t->receives && !t->errors)
					continue;
				labels(label, meters[k], NULL, NULL, 0, peer->address);
				if (f < whole)
					number(to, families[f].name, label, value_at(t, families[f].offset));
				else
					latencies(to, "softdev_peer_latency_seconds", label, &t->latencies);
			}
		}
	}
}

/* Work requests whose completions this queue will get. */
static uint64_t pending(const struct meter *m, const struct meter_cq *cq)
{
	uint64_t sum = 0;

	for (size_t n = 0; n < m->qp_count; n++) {
		const struct meter_qp *qp = &m->qps[n];
		if (qp->gone)
			continue;
		for (size_t i = 0; i < qp->sent_count && qp->send_cq == cq->object; i++)
			sum += qp->sent[(qp->sent_head + i) & (qp->sent_room - 1)].signalled;
		if (qp->recv_cq == cq->object && !qp->has_srq && qp->receives_posted > qp->receives_done)
			sum += qp->receives_posted - qp->receives_done;
	}
	return sum;
}

static void print_cqs(FILE *to, struct meter *const *meters, size_t count)
{
	static const struct family families[] = {
		{ "softdev_cq_entries", "gauge", "Completions that a completion queue has room for.",
		  offsetof(struct meter_cq, entries) },
		{ "softdev_cq_completions_total", "counter", "Completions that were polled.",
		  offsetof(struct meter_cq, completions) },
		{ "softdev_cq_polls_total", "counter", "Looks into a completion queue.",
		  offsetof(struct meter_cq, polls) },
		{ "softdev_cq_empty_polls_total", "counter", "Those that found nothing.",
		  offsetof(struct meter_cq, empty_polls) },
		{ "softdev_cq_arms_total", "counter", "Requests for an event.", offsetof(struct meter_cq, arms) },
		{ "softdev_cq_events_total", "counter", "Events that were taken.", offsetof(struct meter_cq, events) },
		{ "softdev_cq_pending_completions", "gauge",
		  "Work requests whose completions will come here, or lie here: its depth at most.", SIZE_MAX },
		{ "softdev_cq_poll_batch_completions", "histogram", "Completions that one poll finds.", SIZE_MAX - 1 },
	};
	char label[LABELS];

	for (size_t f = 0; f < sizeof(families) / sizeof(*families); f++) {
		begin(to, families[f].name, families[f].type, families[f].help);
		for (size_t k = 0; k < count; k++) {
			for (size_t n = 0; n < meters[k]->cq_count; n++) {
				const struct meter_cq *cq = &meters[k]->cqs[n];
				labels(label, meters[k], meters[k]->devices[cq->device], "cq", cq->object, NULL);
				if (families[f].offset == SIZE_MAX)
					number(to, families[f].name, label, cq->gone ? 0 : pending(meters[k], cq));
				else if (families[f].offset == SIZE_MAX - 1)
					batches(to, families[f].name, label, &cq->polled);
				else
					number(to, families[f].name, label, value_at(cq, families[f].offset));
			}
		}
	}
}

static void print_processes(FILE *to, struct meter *const *meters, size_t count)
{
	static const struct family families[] = {
		{ "softdev_qps_created_total", "counter", "Queue pairs that were made.",
		  offsetof(struct meter, qps_made) },
		{ "softdev_qps_destroyed_total", "counter", "Queue pairs that were destroyed.",
		  offsetof(struct meter, qps_destroyed) },
		{ "softdev_qps_not_counted_total", "counter", "Those that have no series, as there are too many.",
		  offsetof(struct meter, left_out) },
		{ "softdev_mrs_registered_total", "counter", "Memory regions that were registered.",
		  offsetof(struct meter, registered) },
		{ "softdev_mrs_deregistered_total", "counter", "Memory regions that were deregistered.",
		  offsetof(struct meter, deregistered) },
		{ "softdev_records_total", "counter", "Records that all this was counted of.",
		  offsetof(struct meter, records) },
		{ "softdev_records_missed_total", "counter",
		  "Records that newer ones have replaced before they were read: counters are short by them.",
		  offsetof(struct meter, missed) },
		{ "softdev_records_lost_total", "counter", "Records of threads that got no room to record.",
		  offsetof(struct meter, lost) },
	};
	char label[LABELS];

	begin(to, "softdev_process_info", "gauge", "Processes, with their command.");
	for (size_t k = 0; k < count; k++) {
		fprintf(to, "softdev_process_info{pid=\"%u\",program=\"", meters[k]->pid);
		trace_print_quoted(to, meters[k]->program);
		fputs("\",host=\"", to);
		trace_print_quoted(to, meters[k]->host);
		fputs("\"} 1\n", to);
	}
	for (size_t f = 0; f < sizeof(families) / sizeof(*families); f++) {
		begin(to, families[f].name, families[f].type, families[f].help);
		for (size_t k = 0; k < count; k++) {
			labels(label, meters[k], NULL, NULL, 0, NULL);
			number(to, families[f].name, label, value_at(meters[k], families[f].offset));
		}
	}
	begin(to, "softdev_async_events_total", "counter", "Asynchronous events.");
	for (size_t k = 0; k < count; k++) {
		for (unsigned n = 0; n < METER_EVENTS; n++) {
			if (meters[k]->events[n])
				fprintf(to, "softdev_async_events_total{pid=\"%u\",event=\"%s\"} %llu\n",
					meters[k]->pid, n == METER_EVENTS - 1 ? "other" : trace_async_name(n),
					(unsigned long long)meters[k]->events[n]);
		}
	}
}

void meters_print_findings(FILE *to, const struct findings *findings)
{
	static const char *const words[] = { [FAILED] = "failed", [WRONG] = "wrong", [ADVICE] = "advice" };

	begin(to, "softdev_findings", "gauge",
	      "What softdev trace --explain says now, by the names of its findings: how often.");
	for (size_t n = 0; n < findings->count; n++) {
		const struct finding *one = &findings->list[n];
		unsigned long long times = 0;
		for (size_t i = 0; i < findings->count; i++) {
			const struct finding *other = &findings->list[i];
			if (other->story->from->header.pid != one->story->from->header.pid ||
			    other->severity != one->severity || strcmp(other->name, one->name) != 0)
				continue;
			if (i < n) {
				times = 0;
				break; /* it was printed with that one */
			}
			times += other->times;
		}
		if (times)
			fprintf(to, "softdev_findings{pid=\"%u\",name=\"%s\",severity=\"%s\"} %llu\n",
				one->story->from->header.pid, one->name, words[one->severity], times);
	}
}

void meters_print(FILE *to, struct meter *const *meters, size_t count)
{
	for (size_t k = 0; k < count; k++)
		meter_close_batches(meters[k]);
	print_processes(to, meters, count);
	print_qps(to, meters, count);
	print_peers(to, meters, count);
	print_cqs(to, meters, count);
}
