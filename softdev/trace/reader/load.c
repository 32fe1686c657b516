/*
 * From the bytes of a file to records in the order of time.
 */
#include <stdlib.h>
#include <string.h>

#include "trace/reader/reader.h"

/* More than this in one ring was written by no process. */
#define MOST_RECORDS (UINT64_C(1) << 48)

/* The recorder's strings end within their fields and are printable; these do from here on. */
static void clean(char *text, size_t size)
{
	text[size - 1] = '\0';
	for (; *text; text++) {
		if (*text < ' ' || *text > '~')
			*text = '?';
	}
}

double trace_ns_per_tick(const struct trace_header *header, const struct trace_clocks *clocks)
{
	const uint64_t enough = 50000000;
	uint64_t ns = header->late_ns - header->begin_ns, ticks = header->late_ticks - header->begin_ticks;

	if ((ns < enough || ns > INT64_MAX) && clocks && clocks->ns > header->begin_ns) {
		ns = clocks->ns - header->begin_ns;
		ticks = clocks->ticks - header->begin_ticks;
	}
	const double ratio = ticks ? (double)ns / (double)ticks : 0;
	return ratio > 0.01 && ratio < 1000 ? ratio : 1;
}

static uint64_t time_of(uint64_t ticks, const struct trace_header *header, double ratio)
{
	const uint64_t passed = ticks - header->begin_ticks;
	const double ns = (double)passed * ratio;

	/* Before the beginning: of a thread that had begun a call when the file was made. 0 is for what never was. */
	return passed > INT64_MAX || ns > 1e18 ? 1 : (uint64_t)ns + 1;
}

bool trace_is_record(struct trace_record *record)
{
	if (record->kind == TRACE_NOTHING || record->kind >= TRACE_KINDS)
		return false;
	if (record->kind == TRACE_DEVICE)
		clean(record->opened.name, sizeof(record->opened.name));
	return true;
}

static bool take(struct trace_recording *to, struct trace_record *record, unsigned ring, double ratio)
{
	if (!trace_is_record(record)) {
		to->unreadable++;
		return false;
	}
	to->items[to->count] = (struct trace_item){ .ns = time_of(record->stamp, &to->header, ratio),
						    .ring = ring,
						    .order = (uint32_t)to->count,
						    .record = *record };
	to->count++;
	return true;
}

static bool take_ring(struct trace_recording *to, trace_fetch fetch, void *file, unsigned n, double ratio)
{
	const uint64_t size = trace_ring_records(n), mask = size - 1;
	const uint64_t at = TRACE_HEADER_BYTES + n * sizeof(struct trace_ring);
	struct trace_ring ring;

	if (!fetch(file, at, &ring, sizeof(ring)))
		return false;
	if (!ring.head)
		return true;
	if (ring.head > MOST_RECORDS) {
		to->unreadable++;
		return true;
	}
	to->threads[n] = ring.thread;
	uint64_t first = ring.head > size ? ring.head - size : 0;
	const uint64_t count = ring.head - first;
	struct trace_item *items = realloc(to->items, (to->count + count) * sizeof(*items));
	struct trace_record *records = malloc(count * sizeof(*records));
	if (items)
		to->items = items;
	bool good = items && records;
	for (uint64_t i = first; good && i < ring.head;) {
		const uint64_t place = i & mask, left = size - place;
		const uint64_t run = ring.head - i < left ? ring.head - i : left;
		good = fetch(file, trace_ring_offset(n) + place * sizeof(*records), records + (i - first),
			     run * sizeof(*records));
		i += run;
	}
	/* What the process has written over meanwhile: its next record, too, may be half there. */
	struct trace_ring after;
	good = good && fetch(file, at, &after, sizeof(after)) && after.head >= ring.head && after.head <= MOST_RECORDS;
	const uint64_t whole = good && after.head + 1 > size ? after.head + 1 - size : 0;
	const uint64_t skipped = whole > first ? (whole < ring.head ? whole : ring.head) - first : 0;
	for (uint64_t i = skipped; good && i < count; i++)
		take(to, &records[i], n, ratio);
	to->overwritten[n < TRACE_RING_THREADS ? n : TRACE_RING_THREADS] += first + skipped;
	free(records);
	return good;
}

static int by_time(const void *a, const void *b)
{
	const struct trace_item *one = a, *other = b;

	if (one->ns != other->ns)
		return one->ns < other->ns ? -1 : 1;
	return one->order < other->order ? -1 : one->order > other->order;
}

const char *trace_load_header(struct trace_header *header, trace_fetch fetch, void *file)
{
	if (!fetch(file, 0, header, sizeof(*header)))
		return "it is too short for a recording";
	if (memcmp(header->magic, TRACE_MAGIC, sizeof(header->magic)) != 0)
		return "it is no recording, or one of another version";
	if (header->record_bytes != sizeof(struct trace_record) || header->rings != TRACE_RINGS ||
	    header->locked_records != TRACE_LOCKED_RECORDS || header->thread_records != TRACE_THREAD_RECORDS)
		return "its rings have other sizes than those of this version";
	clean(header->program, sizeof(header->program));
	clean(header->host, sizeof(header->host));
	return NULL;
}

const char *trace_load(struct trace_recording *to, trace_fetch fetch, void *file, const struct trace_clocks *clocks)
{
	memset(to, 0, sizeof(*to));
	const char *wrong = trace_load_header(&to->header, fetch, file);
	if (wrong)
		return wrong;
	const double ratio = to->ns_per_tick = trace_ns_per_tick(&to->header, clocks);
	for (unsigned n = 0; n < TRACE_RINGS; n++) {
		if (!take_ring(to, fetch, file, n, ratio))
			return "it is cut short, or there is no memory for it";
	}
	if (to->count)
		qsort(to->items, to->count, sizeof(*to->items), by_time);
	return NULL;
}

void trace_free(struct trace_recording *recording)
{
	free(recording->items);
	memset(recording, 0, sizeof(*recording));
}
