/*
 * Other recordings of the same time, in which peers may be. There may be hundreds of them, each with a million records: those
 * come first whose queue pairs belong to those that are shown, as far as there is room.
 */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <string.h>
#include <unistd.h>

#include "trace/explain/explain.h"
#include "trace/tool/tool.h"

struct peering {
	struct shelf *shelf;
	struct map own, named; /* numbers of queue pairs: of those that are shown, and of what they are connected to */
	bool rest;             /* those that have none of them, too */
};

static bool same_time(const struct trace_recording *a, const struct trace_header *other)
{
	const struct trace_header *one = &a->header;

	return (trace_is_alive(other) || other->late_ns >= one->begin_ns) &&
	       (a->alive || one->late_ns >= other->begin_ns) && !strcmp(one->host, other->host);
}

/* By its header alone. */
static bool is_peer(const struct shelf *shelf, const char *path)
{
	struct trace_header header;
	bool useful = false;

	if (trace_peek_file(&header, path))
		return false;
	for (size_t n = 0; n < shelf->count; n++) {
		const struct trace_header *own = &shelf->recordings[n].header;
		if (own->pid == header.pid && own->begin_ns == header.begin_ns)
			return false; /* it is here already */
		useful |= n < shelf->shown && same_time(&shelf->recordings[n], &header);
	}
	return useful;
}

static void note_numbers(struct peering *to, const struct trace_record *r)
{
	const bool send =
		r->kind == TRACE_SEND && (r->wr.opcode == IBV_WR_SEND || r->wr.opcode == IBV_WR_SEND_WITH_IMM);

	/* What does not get in for want of memory is looked at last. */
	if (r->kind == TRACE_QP)
		map_put(&to->own, r->qpn, 0);
	else if (r->kind == TRACE_MODIFY && r->modify.mask & IBV_QP_DEST_QPN)
		map_put(&to->named, r->modify.dest_qpn, 0);
	else if (send && r->wr.rkey)
		map_put(&to->named, r->wr.rkey, 0); /* of a datagram */
}

static bool is_related(const struct peering *of, const struct trace_record *r)
{
	if (r->kind != TRACE_QP && r->kind != TRACE_MODIFY)
		return false;
	return map_get(&of->named, r->qpn) >= 0 || (r->kind == TRACE_MODIFY && r->modify.mask & IBV_QP_DEST_QPN &&
						    map_get(&of->own, r->modify.dest_qpn) >= 0);
}

/* By the calls that make and change objects, a few at a time. */
static bool has_related(const struct peering *of, const char *path)
{
	enum { SOME = 256 };
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	struct trace_record some[SOME];
	struct trace_ring ring;
	bool found = false;

	if (fd < 0)
		return false;
	if (!trace_fetch_file(&fd, TRACE_HEADER_BYTES, &ring, sizeof(ring)))
		ring.head = 0;
	const uint64_t size = trace_ring_records(TRACE_RING_CONTROL), count = ring.head < size ? ring.head : size;
	for (uint64_t i = 0; i < count && !found; i += SOME) {
		const uint64_t at = trace_ring_offset(TRACE_RING_CONTROL) + i * sizeof(*some);
		const size_t now = count - i < SOME ? (size_t)(count - i) : SOME;
		if (!trace_fetch_file(&fd, at, some, now * sizeof(*some)))
			break;
		for (size_t n = 0; n < now && !found; n++)
			found = is_related(of, &some[n]);
	}
	close(fd);
	return found;
}

static void add_peer(const char *path, const char *name, void *with)
{
	struct peering *to = with;
	struct shelf *shelf = to->shelf;

	if (!shelf_is_recording(name) || !is_peer(shelf, path) || (!to->rest && !has_related(to, path)))
		return;
	struct trace_recording *recording = shelf_next(shelf, path);
	if (!recording)
		return;
	if (trace_load_file(recording, path))
		trace_free(recording);
	else
		shelf->count++;
}

static void add_run(const char *path, const char *name, void *with)
{
	(void)name;
	shelf_each(path, add_peer, with);
}

void shelf_add_peers(struct shelf *shelf)
{
	struct peering to = { .shelf = shelf };
	char base[PATH_MAX];

	shelf->shown = shelf->count;
	if (!shelf->shown || !shelf_base(base))
		return;
	for (size_t n = 0; n < shelf->shown; n++) {
		for (size_t i = 0; i < shelf->recordings[n].count; i++)
			note_numbers(&to, &shelf->recordings[n].items[i].record);
	}
	shelf->left_out = 0;
	shelf_each(base, add_run, &to);
	/* That there is none of that number, can be said then. */
	to.rest = true;
	const size_t related = shelf->left_out;
	shelf_each(base, add_run, &to);
	shelf->left_out = related;
	if (related && !shelf->quiet)
		fprintf(stderr, "softdev: %zu recordings of peers are left out: there is no room beside the others\n",
			related);
	map_free(&to.own);
	map_free(&to.named);
}
