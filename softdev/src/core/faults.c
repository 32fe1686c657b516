/*
 * The table of faults, and the functions by which programs set it.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fault_words.h"
#include "core/internal.h"

struct soft_fault_state soft_fault_state;

enum { MOST = 64, PLAN = 1 << 16 };

/* One fault of the table. */
struct fault {
	unsigned number;
	struct soft_fault_words words;
	uint64_t begin, end; /* UINT64_MAX: until it is ended */
	bool on, done;
	char text[SOFT_FAULT_TEXT];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault table[MOST];
static unsigned count, numbers;

_Static_assert(SOFT_FAULT_DEVICES == (int)SOFT_MAX_DEVICES && SOFT_FAULT_GIDS == (int)SOFT_GID_TABLE,
	       "what a fault names is what there is");

/* ---- what the table comes to --------------------------------------------------------------------------- */

/* The later ones of the table count. */
struct sum {
	uint64_t chance[SOFT_FAULT_KINDS], gids, slow, late;
	unsigned cut, mtu;
	bool any;
};

static unsigned devices_of(const struct soft_fault_words *w)
{
	return w->device ? 1u << (w->device - 1) : (1u << SOFT_MAX_DEVICES) - 1;
}

static void add_up(struct sum *sum, const struct soft_fault_words *w)
{
	for (int kind = 0; kind < SOFT_FAULT_KINDS; kind++)
		if (w->chances >> kind & 1)
			sum->chance[kind] = w->chance[kind];
	if (w->port == SOFT_FAULT_PORT_DOWN)
		sum->cut |= devices_of(w);
	else if (w->port == SOFT_FAULT_PORT_UP)
		sum->cut &= ~devices_of(w);
	if (w->has_gid)
		sum->gids |= UINT64_C(1) << w->gid;
	if (w->mtu)
		sum->mtu = w->mtu;
	if (w->slow_ns)
		sum->slow = w->slow_ns;
	if (w->late_ns)
		sum->late = w->late_ns;
}

static void announce(unsigned devices, enum ibv_event_type event)
{
	for (unsigned n = 0; n < SOFT_MAX_DEVICES; n++)
		if (devices >> n & 1)
			soft_ctx_announce(&soft_devices[n], event);
}

static void take_effect(const struct sum *sum)
{
	const unsigned before = atomic_load(&soft_fault_state.cut);
	const unsigned down = sum->cut & ~before, up = before & ~sum->cut;
	bool any = sum->cut || sum->gids || sum->mtu || sum->slow || atomic_load(&soft_fault_state.held);

	for (int kind = 0; kind < SOFT_FAULT_KINDS; kind++) {
		soft_fault_set((enum soft_fault)kind, sum->chance[kind]);
		any |= sum->chance[kind] != 0;
	}
	atomic_store(&soft_fault_state.slow, sum->slow);
	atomic_store(&soft_fault_state.late, sum->late ? sum->late : UINT64_C(1000000));
	atomic_store(&soft_fault_state.mtu, sum->mtu);
	atomic_store(&soft_fault_state.cut, sum->cut);
	if (any)
		atomic_store(&soft_faults_on, true);
	if (down) {
		announce(down, IBV_EVENT_PORT_ERR);
		soft_fault_cut(down, true);
	}
	if (atomic_exchange(&soft_fault_state.gids, sum->gids) != sum->gids)
		announce((1u << SOFT_MAX_DEVICES) - 1, IBV_EVENT_GID_CHANGE);
	if (!any)
		atomic_store(&soft_faults_on, false);
	if (up) {
		announce(up, IBV_EVENT_PORT_ACTIVE);
		soft_fault_cut(up, false);
	}
	/* What waited for the end of a fault goes on. */
	soft_kick_self();
}

/* What happens once, as a fault begins. */
static void strike(const struct soft_fault_words *w)
{
	if (w->announces)
		announce(devices_of(w), w->event);
	if (w->kills)
		soft_fault_kill(w->qp, soft_fault_draw());
}

/* One fault at that time. True: it is not as it was. */
static bool turn(struct fault *f, uint64_t now)
{
	const bool on = f->on, lasting = soft_fault_lasts(&f->words);
	bool struck = false;

	if (!f->on && !f->done && now >= f->begin) {
		f->on = true;
		struck = true;
	}
	/* One that is over before it was seen has its effect all the same: the end is another turn. */
	if (f->on && (lasting ? !struck && now >= f->end : true)) {
		f->on = false;
		if (f->words.every_ns) {
			const uint64_t rounds = (now - f->begin) / f->words.every_ns + 1;
			f->begin += rounds * f->words.every_ns;
			f->end = f->begin + f->words.for_ns;
		} else {
			f->done = true;
		}
	}
	if (struck)
		strike(&f->words);
	return f->on != on || (struck && lasting);
}

/* Brings all up to date; the time of the next change. The caller holds the lock. */
static uint64_t settle(bool changed)
{
	const uint64_t now = soft_clock_ns();
	uint64_t next = UINT64_MAX;
	struct sum sum = { .cut = 0 };
	unsigned left = 0;

	for (unsigned i = 0; i < count; i++)
		changed |= turn(&table[i], now);
	for (unsigned i = 0; i < count; i++) {
		if (table[i].done)
			continue;
		const uint64_t due = table[i].on ? table[i].end : table[i].begin;
		next = due < next ? due : next;
		if (table[i].on)
			add_up(&sum, &table[i].words);
		if (left != i)
			table[left] = table[i];
		left++;
	}
	count = left;
	if (changed)
		take_effect(&sum);
	soft_clock_want(next);
	return next;
}

void soft_faults_tick(void)
{
	soft_fault_release();
	soft_batch_release();
	pthread_mutex_lock(&lock);
	if (count)
		settle(false);
	pthread_mutex_unlock(&lock);
}

void soft_faults_before_fork(void)
{
	pthread_mutex_lock(&lock);
}

void soft_faults_after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* ---- requests ---------------------------------------------------------------------------------------- */

/* The caller holds the lock. */
static void add(const struct soft_fault_words *words, const char *text, size_t size)
{
	struct fault *f = &table[count];

	if (words->seeded)
		soft_fault_seed(words->seed);
	if (soft_fault_is_empty(words))
		return;
	*f = (struct fault){ .number = ++numbers, .words = *words };
	f->begin = soft_clock_ns() + words->at_ns;
	f->end = words->for_ns ? f->begin + words->for_ns : UINT64_MAX;
	snprintf(f->text, sizeof(f->text), "%.*s", (int)size, text);
	for (char *c = f->text; *c; c++)
		*c = *c < ' ' ? ' ' : *c;
	count++;
}

static size_t append(char *to, size_t size, size_t used, const char *format, ...) __attribute__((format(printf, 4, 5)));
static size_t append(char *to, size_t size, size_t used, const char *format, ...)
{
	va_list args;

	if (used + 1 >= size)
		return used;
	va_start(args, format);
	const int n = vsnprintf(to + used, size - used, format, args);
	va_end(args);
	return n < 0 ? used : used + (size_t)n < size ? used + (size_t)n : size - 1;
}

static void list(char *answer, size_t size)
{
	size_t used = 0;

	pthread_mutex_lock(&lock);
	settle(false);
	const uint64_t now = soft_clock_ns();
	for (unsigned i = 0; i < count; i++) {
		const struct fault *f = &table[i];
		const uint64_t until = f->on ? f->end : f->begin;

		used = append(answer, size, used, "%u: %s (%s", f->number, f->text, f->on ? "now" : "begins");
		if (until != UINT64_MAX)
			used = append(answer, size, used, f->on ? ", %.3f s left" : " in %.3f s",
				      (double)(until - now) / 1e9);
		used = append(answer, size, used, ")\n");
	}
	if (!count)
		used = append(answer, size, used, "no faults\n");
	pthread_mutex_unlock(&lock);
	for (int kind = 0; kind < SOFT_FAULT_KINDS; kind++)
		if (soft_fault_hits((enum soft_fault)kind))
			used = append(answer, size, used, "%s happened %llu times\n",
				      soft_fault_name((enum soft_fault)kind),
				      (unsigned long long)soft_fault_hits((enum soft_fault)kind));
	soft_fault_list_qps(answer + used, size - used);
}

static int clear(const char *which, char *answer, size_t size)
{
	char *end;
	unsigned long number = 0;
	unsigned ended = 0;

	while (*which == ' ')
		which++;
	if (*which) {
		number = strtoul(which, &end, 10);
		if (!number || *end) {
			snprintf(answer, size, "clear: a number of `list`, or nothing: all\n");
			return EINVAL;
		}
	}
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < count; i++) {
		if (number && table[i].number != number)
			continue;
		table[i].on = false;
		table[i].done = true;
		ended++;
	}
	settle(true);
	pthread_mutex_unlock(&lock);
	if (number && !ended) {
		snprintf(answer, size, "clear: there is no fault %lu\n", number);
		return ENOENT;
	}
	snprintf(answer, size, "%u ended\n", ended);
	return 0;
}

SOFT_EXPORT int softdev_fault(const char *request, char *answer, size_t size)
{
	struct soft_fault_words words;
	char why[SOFT_FAULT_WHY], none[1];
	const size_t length = strnlen(request, SOFT_FAULT_BYTES);

	if (!answer || !size) {
		answer = none;
		size = sizeof(none);
	}
	*answer = 0;
	if (!strcmp(request, "list")) {
		list(answer, size);
		return 0;
	}
	if (!strcmp(request, "clear") || !strncmp(request, "clear ", 6))
		return clear(request + 5, answer, size);
	if (length >= SOFT_FAULT_BYTES) {
		snprintf(answer, size, "a request has at most %d bytes\n", SOFT_FAULT_BYTES - 1);
		return EINVAL;
	}
	if (soft_fault_read(request, length, &words, why)) {
		snprintf(answer, size, "%s\n", why);
		return EINVAL;
	}
	if (words.kills && !words.at_ns && !words.every_ns && !soft_fault_may_kill(words.qp)) {
		snprintf(answer, size, "qp: there is no such queue pair that is connected; `list` shows all\n");
		return ENOENT;
	}
	pthread_mutex_lock(&lock);
	const bool full = count == MOST;
	if (!full) {
		add(&words, request, length);
		snprintf(answer, size, soft_fault_is_empty(&words) ? "no fault\n" : "%u\n", numbers);
		settle(false);
	} else {
		snprintf(answer, size, "there are %d faults; `clear` ends them\n", MOST);
	}
	pthread_mutex_unlock(&lock);
	return full ? ENOSPC : 0;
}

/* ---- plans ------------------------------------------------------------------------------------------- */

/* Of a file, up to PLAN bytes. NULL with errno. */
static char *read_plan(const char *path, size_t *size)
{
	char *text = malloc(PLAN);
	int fd = text ? open(path, O_RDONLY | O_CLOEXEC) : -1, error = errno;
	ssize_t got = 1;

	*size = 0;
	while (fd >= 0 && got > 0 && *size < PLAN) {
		got = read(fd, text + *size, PLAN - *size);
		if (got < 0 && errno == EINTR) {
			got = 1;
			continue;
		}
		*size += got > 0 ? (size_t)got : 0;
		error = errno;
	}
	const bool ok = fd >= 0 && got == 0;
	if (fd >= 0)
		close(fd);
	if (ok)
		return text;
	free(text);
	errno = fd >= 0 && got > 0 ? EFBIG : error;
	return NULL;
}

/* Which of a plan's faults that is about. */
static int bad_fault(unsigned nth, bool alone, char why[SOFT_FAULT_WHY])
{
	char what[SOFT_FAULT_WHY];

	snprintf(what, sizeof(what), "%s", why);
	if (!alone)
		snprintf(why, SOFT_FAULT_WHY, "fault %u: %.*s", nth, SOFT_FAULT_WHY - 20, what);
	return EINVAL;
}

/* Reads all requests of a plan, and then puts them into the table in place of what was there. 0 or EINVAL. */
static int replace(const char *plan, size_t size, char why[SOFT_FAULT_WHY])
{
	struct soft_fault_words words;
	char request[SOFT_FAULT_BYTES];
	unsigned faults = 0;

	for (int pass = 0; pass < 2; pass++) {
		if (pass) {
			pthread_mutex_lock(&lock);
			count = 0;
		}
		for (size_t at = 0; at < size;) {
			const size_t n = soft_fault_next(plan, size, &at, request, sizeof(request));

			if (n > sizeof(request)) {
				snprintf(why, SOFT_FAULT_WHY, "a fault of more than %zu bytes", sizeof(request));
				return EINVAL; /* found in the first pass */
			}
			if (soft_fault_read(request, n, &words, why))
				return bad_fault(faults + 1, !faults && at == size, why);
			faults += !pass && !soft_fault_is_empty(&words);
			if (faults > MOST) {
				snprintf(why, SOFT_FAULT_WHY, "more than %d faults", MOST);
				return EINVAL;
			}
			if (pass)
				add(&words, request, n);
		}
	}
	settle(true);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int set_all(const char *spec, char why[SOFT_FAULT_WHY])
{
	char *plan = NULL;
	size_t size = 0;
	int error;

	if (!spec || *spec != '@')
		return replace(spec ? spec : "", spec ? strlen(spec) : 0, why);
	plan = read_plan(spec + 1, &size);
	if (!plan) {
		snprintf(why, SOFT_FAULT_WHY, "the file cannot be read: %s", strerror(errno));
		return EINVAL;
	}
	error = replace(plan, size, why);
	free(plan);
	return error;
}

SOFT_EXPORT int softdev_faults(const char *spec)
{
	char why[SOFT_FAULT_WHY];

	return set_all(spec, why);
}

void soft_faults_read(void)
{
	const char *spec = getenv("SOFTDEV_FAULTS");
	char why[SOFT_FAULT_WHY];

	if (spec && set_all(spec, why))
		fprintf(stderr,
			"softdev: SOFTDEV_FAULTS=\"%s\" is not understood, so no faults are made: %s (man softdev "
			"lists "
			"the faults)\n",
			spec, why);
}
