/*
 * The list of what rules have found, and how it is printed.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "trace/explain/explain.h"

/* What is wrong only if nothing was done before, which a recording that began in the middle does not know. */
static bool needs_all(const char *name)
{
	static const char *const names[] = { "leaked",         "not-rearmed",       "armed-too-late",
					     "unacked-events", "unacked-cm-events", "never-completed",
					     "no-receives",    "polled-in-vain" };

	for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++) {
		if (!strcmp(names[n], name))
			return true;
	}
	return false;
}

void found(struct findings *to, const struct story *story, const char *name, enum severity severity, uint64_t ns,
	   uint64_t key, const char *format, ...)
{
	/* What fails in a loop is one mistake, and looking through thousands of findings for each next one takes minutes. */
	enum { ALIKE = 16 };
	struct finding *last = NULL;
	unsigned alike = 0;
	va_list values;

	if (story->from->header.attached && needs_all(name))
		return;
	for (size_t n = 0; n < to->count; n++) {
		struct finding *old = &to->list[n];
		if (old->story != story || strcmp(old->name, name) != 0)
			continue;
		if (old->key == key) {
			old->times++;
			return;
		}
		last = old;
		alike++;
	}
	if (last && alike >= ALIKE) {
		last->times++;
		last->others++;
		return;
	}
	if (to->count == to->room) {
		const size_t room = to->room ? to->room * 2 : 16;
		struct finding *larger = realloc(to->list, room * sizeof(*larger));
		if (!larger)
			return;
		to->list = larger;
		to->room = room;
	}
	struct finding *one = &to->list[to->count++];
	*one = (struct finding){ .name = name, .severity = severity, .story = story, .ns = ns, .key = key, .times = 1 };
	va_start(values, format);
	vsnprintf(one->text, sizeof(one->text), format, values);
	va_end(values);
}

static int by_weight(const void *a, const void *b)
{
	const struct finding *one = *(struct finding *const *)a, *other = *(struct finding *const *)b;

	if (one->severity != other->severity)
		return one->severity < other->severity ? -1 : 1;
	if (one->ns != other->ns)
		return one->ns < other->ns ? -1 : 1;
	return one < other ? -1 : one > other;
}

/* Lines of at most a hundred columns, cut between words. */
static void print_wrapped(FILE *to, const char *text, unsigned indent)
{
	const unsigned width = 100;
	unsigned column = indent;

	while (*text) {
		const size_t word = strcspn(text, " ");
		if (column > indent && column + 1 + word > width) {
			fprintf(to, "\n%*s", (int)indent, "");
			column = indent;
		} else if (column > indent) {
			fputc(' ', to);
			column++;
		}
		column += (unsigned)fwrite(text, 1, word, to);
		text += word;
		text += strspn(text, " ");
	}
	fputc('\n', to);
}

static void print_one(FILE *to, const struct finding *one)
{
	static const char *const words[] = { [FAILED] = "FAILED", [WRONG] = "WRONG", [ADVICE] = "ADVICE" };
	char times[80] = "", whole[sizeof(one->text) + 200];

	if (one->others)
		snprintf(times, sizeof(times), " (%u times, %u of them others of this name)", one->times, one->others);
	else if (one->times > 1)
		snprintf(times, sizeof(times), " (%u times)", one->times);
	snprintf(whole, sizeof(whole), "%s %s, at %.6f s%s: %s", words[one->severity], one->name, (double)one->ns / 1e9,
		 times, one->text);
	fputs("  ", to);
	print_wrapped(to, whole, 4);
}

static void print_story(FILE *to, const struct findings *findings, const struct story *story)
{
	const struct trace_recording *from = story->from;
	struct finding **own = calloc(findings->count + 1, sizeof(*own));
	uint64_t messages = 0, bad = 0;
	size_t count = 0;

	for (size_t n = 0; own && n < findings->count; n++) {
		if (findings->list[n].story == story)
			own[count++] = &findings->list[n];
	}
	if (count)
		qsort(own, count, sizeof(*own), by_weight);
	for (size_t n = 0; n < story->qp_count; n++)
		messages += story->qps[n].sent + story->qps[n].received;
	for (size_t n = 0; n < count; n++)
		bad += own[n]->severity != ADVICE;
	fprintf(to, "%s (pid %u on %s%s): %zu queue pairs, %llu messages completed, %.3f s\n",
		from->header.program[0] ? from->header.program : "?", from->header.pid, from->header.host,
		from->alive ? ", running" : "", story->qp_count, (unsigned long long)messages,
		(double)story->end / 1e9);
	for (size_t n = 0; n < count; n++)
		print_one(to, own[n]);
	if (!bad)
		fputs("  Nothing went wrong that a recorder can see.\n", to);
	if (from->header.attached)
		fputs("  The recording began while the process ran: what it had done before is not known.\n", to);
	if (from->overwritten[0] || from->overwritten[1] || from->overwritten[2])
		fprintf(to,
			"  The oldest %llu records had to give way to newer ones: %llu of objects, %llu of memory.\n",
			(unsigned long long)from->overwritten[0] + from->overwritten[1] + from->overwritten[2],
			(unsigned long long)from->overwritten[0], (unsigned long long)from->overwritten[1]);
	if (from->header.lost)
		fprintf(to, "  %llu records of threads beyond the first %d were not kept.\n",
			(unsigned long long)from->header.lost, TRACE_RINGS - TRACE_RING_THREADS);
	if (from->unreadable)
		fprintf(to, "  %llu records could not be read.\n", (unsigned long long)from->unreadable);
	free(own);
}

void explain_print(FILE *to, const struct findings *findings)
{
	for (size_t n = 0; n < findings->shown; n++)
		print_story(to, findings, &findings->stories[n]);
}

void findings_free(struct findings *findings)
{
	free(findings->list);
	memset(findings, 0, sizeof(*findings));
}
