/*
 * The table of rates, once a second.
 */
#include <time.h>
#include <unistd.h>

#include "trace/tool/tool.h"

/* Whether a process of them runs. */
static bool show(const char *const *targets, size_t count, bool clear)
{
	struct shelf shelf = { 0 };
	bool alive = false;

	for (size_t n = 0; n < count; n++)
		shelf_add(&shelf, targets[n]);
	if (clear)
		fputs("\033[H\033[2J", stdout);
	if (shelf_tell(&shelf)) {
		for (size_t n = 0; n < shelf.count; n++) {
			const struct story *s = &shelf.stories[n];
			alive |= s->from->alive;
			rates_print(stdout, s, s->end, 1000000000);
		}
	}
	fflush(stdout);
	shelf_free(&shelf);
	return alive;
}

void show_once(const char *const *targets, size_t count)
{
	show(targets, count, isatty(STDOUT_FILENO));
}

void show_live(const char *const *targets, size_t count)
{
	const struct timespec second = { .tv_sec = 1 };

	while (show(targets, count, isatty(STDOUT_FILENO)))
		nanosleep(&second, NULL);
}
