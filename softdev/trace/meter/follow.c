/*
 * Reads recordings on while they are written.
 */
#include <stdlib.h>
#include <string.h>

#include "trace/meter/meter.h"

/* A thread takes a record's time first and shows the record later. */
#define HOLD_NS 2e6

struct found {
	uint32_t ring, order;
	struct trace_record record;
};

struct batch {
	struct found *list;
	size_t count, room;
};

static bool put(struct batch *to, unsigned ring, const struct trace_record *record)
{
	if (to->count == to->room) {
		const size_t room = to->room ? to->room * 2 : 1024;
		struct found *larger = realloc(to->list, room * sizeof(*larger));
		if (!larger)
			return false;
		to->list = larger;
		to->room = room;
	}
	to->list[to->count] = (struct found){ ring, (uint32_t)to->count, *record };
	to->count++;
	return true;
}

static int by_time(const void *a, const void *b)
{
	const struct found *one = a, *other = b;

	if (one->record.stamp != other->record.stamp)
		return one->record.stamp < other->record.stamp ? -1 : 1;
	return one->order < other->order ? -1 : one->order > other->order;
}

const char *follow_begin(struct follower *f, trace_fetch fetch, void *file)
{
	memset(f, 0, sizeof(*f));
	f->fetch = fetch;
	f->file = file;
	const char *wrong = trace_load_header(&f->header, fetch, file);
	if (wrong)
		return wrong;
	return meter_begin(&f->meter, &f->header) ? NULL : "there is no memory";
}

void follow_free(struct follower *f)
{
	meter_free(&f->meter);
}

static bool fetch_ring(const struct follower *f, unsigned n, struct trace_ring *ring)
{
	return f->fetch(f->file, TRACE_HEADER_BYTES + n * sizeof(*ring), ring, sizeof(*ring)) &&
	       ring->head <= UINT64_C(1) << 48;
}

static bool fetch_record(const struct follower *f, unsigned n, uint64_t at, struct trace_record *to, size_t count)
{
	return f->fetch(f->file, trace_ring_offset(n) + (at & (trace_ring_records(n) - 1)) * sizeof(*to), to,
			count * sizeof(*to));
}

/* The place of the first record that the process surely does not write over now. */
static uint64_t first_whole(const struct follower *f, unsigned n)
{
	struct trace_ring ring;

	if (!fetch_ring(f, n, &ring))
		return UINT64_MAX;
	return ring.head + 1 > trace_ring_records(n) ? ring.head + 1 - trace_ring_records(n) : 0;
}

static void count_on(struct follower *f, unsigned n)
{
	struct follower_empty *empty = &f->empty[n];
	struct trace_record record;

	if (!empty->now || !fetch_record(f, n, f->read[n] - 1, &record, 1) || first_whole(f, n) > f->read[n] - 1 ||
	    record.kind != TRACE_EMPTY || record.object != empty->cq)
		return;
	if (record.empty.count > empty->counted)
		meter_more_empty(&f->meter, empty->cq, record.empty.count - empty->counted);
	empty->counted = record.empty.count;
}

/* How many there were. */
static uint64_t take_ring(struct follower *f, unsigned n, uint64_t head, uint64_t horizon, struct batch *to)
{
	enum { PART = 256 };
	const uint64_t size = trace_ring_records(n), before = f->read[n];
	struct trace_record records[PART];
	bool more = true;

	count_on(f, n);
	if (head - f->read[n] > size) {
		f->meter.missed += head - size - f->read[n];
		f->read[n] = head - size;
		f->empty[n].now = false;
	}
	while (more && f->read[n] < head) {
		const uint64_t left = size - (f->read[n] & (size - 1));
		uint64_t count = head - f->read[n] < PART ? head - f->read[n] : PART;
		count = count < left ? count : left;
		if (!fetch_record(f, n, f->read[n], records, count))
			break;
		const uint64_t whole = first_whole(f, n);
		for (uint64_t i = 0; i < count && more; i++) {
			struct trace_record *one = &records[i];
			if (f->read[n] < whole || !trace_is_record(one)) {
				f->meter.missed++;
			} else if (one->stamp > horizon || !put(to, n, one)) {
				more = false;
				continue;
			} else {
				f->empty[n] = (struct follower_empty){ one->kind == TRACE_EMPTY, one->object,
								       one->empty.count };
			}
			f->read[n]++;
		}
	}
	return f->read[n] - before;
}

uint64_t follow(struct follower *f, bool last)
{
	const struct trace_clocks now = trace_clocks_now();
	struct trace_ring rings[TRACE_RINGS];
	struct trace_header header;
	struct batch batch = { 0 };
	uint64_t most = 0;

	if (!trace_load_header(&header, f->fetch, f->file))
		f->header = header;
	const double ns_per_tick = trace_ns_per_tick(&f->header, &now);
	const uint64_t hold = (uint64_t)(HOLD_NS / ns_per_tick);
	const uint64_t horizon = last ? UINT64_MAX : now.ticks > hold ? now.ticks - hold : 0;
	f->meter.seconds_per_tick = ns_per_tick / 1e9;
	if (!f->fetch(f->file, TRACE_HEADER_BYTES, rings, sizeof(rings)))
		return 0;
	for (unsigned n = 0; n < TRACE_RINGS; n++) {
		if (rings[n].head < f->read[n] || rings[n].head > UINT64_C(1) << 48)
			continue;
		const uint64_t count = take_ring(f, n, rings[n].head, horizon, &batch);
		most = count > most ? count : most;
	}
	if (batch.count)
		qsort(batch.list, batch.count, sizeof(*batch.list), by_time);
	for (size_t i = 0; i < batch.count; i++)
		meter_take(&f->meter, &batch.list[i].record);
	free(batch.list);
	f->meter.lost = f->header.lost;
	return most;
}
