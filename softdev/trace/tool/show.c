/*
 * The table of rates, once a second.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
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

static bool child_has_ended(void)
{
	siginfo_t info = { 0 };

	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid;
}

void show_live(const char *const *targets, size_t count)
{
	const struct timespec second = { .tv_sec = 1 };
	bool had_children = true;
	siginfo_t info;

	if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && errno == ECHILD)
		had_children = false;
	for (;;) {
		const bool alive = show(targets, count, isatty(STDOUT_FILENO));
		if (had_children ? child_has_ended() : !alive)
			return;
		nanosleep(&second, NULL);
	}
}
