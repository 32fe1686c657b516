/*
 * Faults in words: "port=down for=2s", "wire_drop=0.01 seed=7", and plans of several.
 */
#include "core/fault_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 64, SCALE_BITS = 53 };
#define LONGEST_NS (UINT64_C(1000000000) * 3600 * 24 * 30)

static const struct {
	const char *name;
	enum ibv_event_type event;
} events[] = {
	{ "device_fatal", IBV_EVENT_DEVICE_FATAL },
	{ "port_active", IBV_EVENT_PORT_ACTIVE },
	{ "port_err", IBV_EVENT_PORT_ERR },
	{ "lid_change", IBV_EVENT_LID_CHANGE },
	{ "pkey_change", IBV_EVENT_PKEY_CHANGE },
	{ "sm_change", IBV_EVENT_SM_CHANGE },
	{ "client_reregister", IBV_EVENT_CLIENT_REREGISTER },
	{ "gid_change", IBV_EVENT_GID_CHANGE },
};

/* ---- values ------------------------------------------------------------------------------------------ */

static bool read_time(const char *text, uint64_t *ns)
{
	static const struct {
		const char *unit;
		double ns;
	} units[] = { { "ns", 1 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 }, { "m", 6e10 } };
	char *end;
	const double n = strtod(text, &end);

	if (end == text)
		return false;
	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
		if (strcmp(end, units[i].unit) != 0)
			continue;
		if (!(n > 0 && n * units[i].ns <= (double)LONGEST_NS))
			return false;
		*ns = (uint64_t)(n * units[i].ns);
		return *ns != 0;
	}
	return false;
}

static bool read_number(const char *text, uint64_t most, uint64_t *number)
{
	char *end;

	/* strtoull() would take a sign. */
	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*number = strtoull(text, &end, 0);
	return !*end && !errno && *number <= most;
}

static bool read_mtu(const char *text, uint32_t *mtu)
{
	uint64_t bytes;

	if (!read_number(text, 4096, &bytes))
		return false;
	for (*mtu = IBV_MTU_256; *mtu <= IBV_MTU_4096; ++*mtu)
		if (UINT64_C(128) << *mtu == bytes)
			return true;
	return false;
}

static bool read_device(const char *text, uint32_t *device)
{
	uint64_t n;

	for (const char *name = "soft"; *name; name++)
		if (*text++ != *name)
			return false;
	if (!read_number(text, SOFT_FAULT_DEVICES - 1, &n))
		return false;
	*device = (uint32_t)n + 1;
	return true;
}

static bool read_qp(const char *text, uint32_t *qp)
{
	uint64_t n = 0;

	if (strcmp(text, "any") != 0 && (!read_number(text, 0xffffff, &n) || !n))
		return false;
	*qp = (uint32_t)n;
	return true;
}

static bool read_event(const char *text, enum ibv_event_type *event)
{
	for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++) {
		if (!strcmp(text, events[i].name)) {
			*event = events[i].event;
			return true;
		}
	}
	return false;
}

static bool read_chance(const char *text, uint64_t *chance)
{
	char *end;
	const double p = strtod(text, &end);

	if (end == text || *end || !(p >= 0 && p <= 1))
		return false;
	*chance = (uint64_t)(p * (double)(UINT64_C(1) << SCALE_BITS));
	return true;
}

static bool read_port(const char *text, enum soft_fault_port *port)
{
	*port = !strcmp(text, "down") ? SOFT_FAULT_PORT_DOWN :
		!strcmp(text, "up")   ? SOFT_FAULT_PORT_UP :
					SOFT_FAULT_PORT_AS_IS;
	return *port != SOFT_FAULT_PORT_AS_IS;
}

/* ---- words ------------------------------------------------------------------------------------------- */

/* Whether that word is among those that were read: which of two holds, no reader of a plan can tell. */
static bool is_there(const struct soft_fault_words *w, const char *name)
{
	const struct {
		const char *name;
		bool there;
	} words[] = {
		{ "seed", w->seeded },        { "at", w->at_ns != 0 },
		{ "for", w->for_ns != 0 },    { "every", w->every_ns != 0 },
		{ "slow", w->slow_ns != 0 },  { "late", w->late_ns != 0 },
		{ "device", w->device != 0 }, { "port", w->port != SOFT_FAULT_PORT_AS_IS },
		{ "mtu", w->mtu != 0 },       { "qp", w->kills },
		{ "async", w->announces },    { "gid", w->has_gid },
	};
	const int kind = soft_fault_named(name);

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (words[i].there && !strcmp(name, words[i].name))
			return true;
	return kind >= 0 && w->chances >> kind & 1;
}

/* What values a name has; NULL: there is no such name. *ok: this is one, and it is taken. */
static const char *read_word(const char *name, const char *value, struct soft_fault_words *w, bool *ok)
{
	static const char a_time[] = "a time from 1ns to 30 days: 200us, 5ms, 2s, 1m";
	uint64_t n = 0;
	int kind;

	if (!strcmp(name, "seed"))
		return *ok = w->seeded = read_number(value, UINT64_MAX, &w->seed), "a number";
	if (!strcmp(name, "at"))
		return *ok = read_time(value, &w->at_ns), a_time;
	if (!strcmp(name, "for"))
		return *ok = read_time(value, &w->for_ns), a_time;
	if (!strcmp(name, "every"))
		return *ok = read_time(value, &w->every_ns), a_time;
	if (!strcmp(name, "slow"))
		return *ok = read_time(value, &w->slow_ns), a_time;
	if (!strcmp(name, "late"))
		return *ok = read_time(value, &w->late_ns), a_time;
	if (!strcmp(name, "device"))
		return *ok = read_device(value, &w->device), "soft0, soft1, soft2 or soft3";
	if (!strcmp(name, "port"))
		return *ok = read_port(value, &w->port), "down or up";
	if (!strcmp(name, "mtu"))
		return *ok = read_mtu(value, &w->mtu), "256, 512, 1024, 2048 or 4096";
	if (!strcmp(name, "qp"))
		return *ok = w->kills = read_qp(value, &w->qp), "a queue pair's number, or any";
	if (!strcmp(name, "async"))
		return *ok = w->announces = read_event(value, &w->event),
		       "port_err, port_active, gid_change, lid_change, pkey_change, sm_change, client_reregister or "
		       "device_fatal";
	if (!strcmp(name, "gid")) {
		*ok = w->has_gid = read_number(value, SOFT_FAULT_GIDS - 1, &n);
		w->gid = (uint32_t)n;
		return "an index of the GID table, from 0 to 63";
	}
	kind = soft_fault_named(name);
	if (kind < 0)
		return NULL;
	*ok = read_chance(value, &w->chance[kind]);
	w->chances |= 1u << kind;
	return "a probability from 0 to 1";
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',';
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || c == '_';
}

static bool is_visible(char c)
{
	return c > ' ' && c < 127 && c != ',' && c != '=';
}

/* Copies what `belongs`, up to WORD - 1 bytes. False: nothing, or too long. */
static bool copy_word(const char *text, size_t size, size_t *at, bool (*belongs)(char), char word[WORD])
{
	size_t n = 0;

	while (*at < size && belongs(text[*at]) && n < WORD - 1)
		word[n++] = text[(*at)++];
	word[n] = 0;
	return n && (*at == size || !belongs(text[*at]));
}

static void skip(const char *text, size_t size, size_t *at)
{
	while (*at < size && (text[*at] == ' ' || text[*at] == '\t'))
		++*at;
}

static int check(const struct soft_fault_words *w, char why[SOFT_FAULT_WHY])
{
	if (w->every_ns && (w->for_ns >= w->every_ns || (!w->for_ns && soft_fault_lasts(w)))) {
		snprintf(why, SOFT_FAULT_WHY, "every= is longer than for=, which is named beside it");
		return EINVAL;
	}
	const char *of_what = w->for_ns ? "for" : w->at_ns ? "at" : w->every_ns ? "every" : w->device ? "device" : NULL;
	if (of_what && soft_fault_is_empty(w)) {
		snprintf(why, SOFT_FAULT_WHY, "%s= of what? Such as port=down for=2s", of_what);
		return EINVAL;
	}
	return 0;
}

int soft_fault_read(const char *text, size_t size, struct soft_fault_words *w, char why[SOFT_FAULT_WHY])
{
	char name[WORD], value[WORD];
	size_t at = 0;

	memset(w, 0, sizeof(*w));
	for (;;) {
		while (at < size && is_blank(text[at]))
			at++;
		if (at == size)
			return check(w, why);
		bool ok = copy_word(text, size, &at, is_letter, name);
		if (!ok) {
			size_t n = 0;

			while (n < WORD && at + n < size && text[at + n] > ' ' && text[at + n] < 127)
				n++;
			snprintf(why, SOFT_FAULT_WHY, "%s%.*s: here should be a word like port=down", name, (int)n,
				 text + at);
			return EINVAL;
		}
		skip(text, size, &at);
		ok = at < size && text[at] == '=';
		at += ok;
		skip(text, size, &at);
		if (!ok || !copy_word(text, size, &at, is_visible, value)) {
			snprintf(why, SOFT_FAULT_WHY, "%s: without a value", name);
			return EINVAL;
		}
		if (is_there(w, name)) {
			snprintf(why, SOFT_FAULT_WHY, "%s: twice", name);
			return EINVAL;
		}
		const char *wanted = read_word(name, value, w, &ok);
		if (!wanted)
			snprintf(why, SOFT_FAULT_WHY, "%s: there is no such fault", name);
		else if (!ok)
			snprintf(why, SOFT_FAULT_WHY, "%s=%s: wanted: %s", name, value, wanted);
		if (!wanted || !ok)
			return EINVAL;
	}
}

bool soft_fault_is_empty(const struct soft_fault_words *w)
{
	return !w->chances && !w->kills && !w->announces && !w->has_gid && !w->slow_ns && !w->late_ns && !w->mtu &&
	       w->port == SOFT_FAULT_PORT_AS_IS;
}

bool soft_fault_lasts(const struct soft_fault_words *w)
{
	struct soft_fault_words others = *w;

	others.kills = others.announces = false;
	return !soft_fault_is_empty(&others);
}

/* ---- plans ------------------------------------------------------------------------------------------- */

static const char heading[] = "[[fault]]";

static bool is_heading(const char *plan, size_t size, size_t at)
{
	return size - at >= sizeof(heading) - 1 && !memcmp(plan + at, heading, sizeof(heading) - 1);
}

size_t soft_fault_next(const char *plan, size_t size, size_t *at, char *to, size_t room)
{
	size_t n = 0;

	if (*at < size && is_heading(plan, size, *at))
		*at += sizeof(heading) - 1;
	for (; *at < size && !is_heading(plan, size, *at); ++*at) {
		const char c = plan[*at];

		if (c == ';') {
			++*at;
			break;
		}
		if (c == '#') {
			while (*at + 1 < size && plan[*at + 1] != '\n')
				++*at;
			continue;
		}
		if (c == '"' || c == '\'')
			continue;
		if (n < room)
			to[n] = c;
		n++;
	}
	return n;
}
