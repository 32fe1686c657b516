/*
 * What goes on while processes are recorded: the table of --live, and the metrics of --serve.
 *
 * What went wrong is looked for by a thread of its own, as that takes as long as the recordings are, and counting must not
 * wait. The counters belong to the thread that serves; the two share the text of findings, under a lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "trace/meter/meter.h"
#include "trace/tool/serve.h"
#include "trace/tool/tool.h"

enum {
	PROCESSES = 64, /* that are counted: a further one takes the place of the oldest that has ended */
	PACE_MS = 4,    /* a thread's ring of 16384 records may be written in that time, hardly in more */
	LOOK_MS = 100,  /* for new recordings */
	PAGE_MS = 200,  /* a page is as old at most */
	EXPLAIN_MS = 1000,
};

struct process {
	char path[PATH_MAX];
	int fd;
	bool ended;
	struct follower follower;
};

struct watcher {
	const char *directory;
	struct process *processes[PROCESSES];
	size_t count;
	char *page;
	size_t page_length;
	uint64_t page_ms, look_ms;
	pthread_t thread;
	bool explaining;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* below: under the lock */
	bool wanted, over;
	char *findings;
};

static uint64_t now_ms(void)
{
	return trace_clocks_now().ns / 1000000;
}

/* By this thread. */
static uint64_t computed_ms(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

/* ---- what went wrong ---------------------------------------------------------------------------------- */

static char *explain_now(const char *directory)
{
	struct shelf shelf = { .quiet = true };
	struct findings findings;
	char *text = NULL;
	size_t length;

	shelf_add(&shelf, directory);
	shelf_add_peers(&shelf);
	if (shelf_tell(&shelf)) {
		FILE *to = open_memstream(&text, &length);
		explain(&findings, shelf.stories, shelf.count, shelf.shown);
		if (to) {
			meters_print_findings(to, &findings);
			fclose(to);
		}
		findings_free(&findings);
	}
	shelf_free(&shelf);
	return text;
}

static void *explain_on(void *with)
{
	struct watcher *w = with;
	uint64_t next = 0;

	pthread_mutex_lock(&w->lock);
	while (!w->over) {
		if (!w->wanted || now_ms() < next) {
			const uint64_t until = trace_clocks_now().ns + UINT64_C(100000000);
			const struct timespec at = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
			if (w->wanted)
				pthread_cond_timedwait(&w->changed, &w->lock, &at);
			else
				pthread_cond_wait(&w->changed, &w->lock);
			continue;
		}
		w->wanted = false;
		pthread_mutex_unlock(&w->lock);
		/* What it computes counts, and not how long a busy machine lets it wait. */
		const uint64_t began = computed_ms();
		char *text = explain_now(w->directory);
		const uint64_t took = computed_ms() - began;
		next = now_ms() + (took * 20 > EXPLAIN_MS ? took * 20 : EXPLAIN_MS);
		pthread_mutex_lock(&w->lock);
		if (text) {
			free(w->findings);
			w->findings = text;
		}
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* ---- counting ----------------------------------------------------------------------------------------- */

static void forget(struct watcher *w, size_t n)
{
	struct process *one = w->processes[n];

	follow_free(&one->follower);
	if (one->fd >= 0)
		close(one->fd);
	free(one);
	memmove(&w->processes[n], &w->processes[n + 1], (--w->count - n) * sizeof(*w->processes));
}

/*
 * Makes room for one. False: it stays out. The series of two processes of one number would have the same names: one that has
 * called exec(), and what it was before. What had to make room before is found again, and has ended.
 */
static bool make_room(struct watcher *w, const struct trace_header *of)
{
	for (size_t n = 0; n < w->count; n++) {
		const struct trace_header *other = &w->processes[n]->follower.header;
		if (other->pid != of->pid)
			continue;
		if (other->begin_ns > of->begin_ns)
			return false;
		forget(w, n);
		return true;
	}
	for (size_t n = 0; n < w->count && w->count == PROCESSES && trace_is_alive(of); n++) {
		if (w->processes[n]->ended)
			forget(w, n);
	}
	return w->count < PROCESSES;
}

static void add(const char *path, const char *name, void *with)
{
	struct watcher *w = with;

	if (!shelf_is_recording(name))
		return;
	for (size_t n = 0; n < w->count; n++) {
		if (!strcmp(w->processes[n]->path, path))
			return;
	}
	struct process *one = calloc(1, sizeof(*one));
	if (!one)
		return;
	snprintf(one->path, sizeof(one->path), "%s", path);
	one->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	/* It may be about to be made. */
	if (one->fd >= 0 && !follow_begin(&one->follower, trace_fetch_file, &one->fd) &&
	    make_room(w, &one->follower.header)) {
		w->processes[w->count++] = one;
		return;
	}
	follow_free(&one->follower);
	if (one->fd >= 0)
		close(one->fd);
	free(one);
}

static void count_on(struct watcher *w)
{
	if (now_ms() >= w->look_ms) {
		shelf_each(w->directory, add, w);
		w->look_ms = now_ms() + LOOK_MS;
	}
	for (size_t n = 0; n < w->count; n++) {
		struct process *one = w->processes[n];
		if (one->ended)
			continue;
		/* Asked before: what it has written until then is all. */
		const bool alive = trace_is_alive(&one->follower.header);
		follow(&one->follower, !alive);
		one->ended = !alive;
	}
}

static const char *page(void *with, size_t *length)
{
	struct watcher *w = with;
	struct meter *meters[PROCESSES];
	char *text = NULL;
	size_t size = 0;

	pthread_mutex_lock(&w->lock);
	w->wanted = true;
	pthread_cond_signal(&w->changed);
	pthread_mutex_unlock(&w->lock);
	if (!w->page || now_ms() >= w->page_ms) {
		FILE *to = open_memstream(&text, &size);
		for (size_t n = 0; n < w->count; n++)
			meters[n] = &w->processes[n]->follower.meter;
		if (to) {
			meters_print(to, meters, w->count);
			pthread_mutex_lock(&w->lock);
			if (w->findings)
				fputs(w->findings, to);
			pthread_mutex_unlock(&w->lock);
		}
		if (to && !fclose(to)) {
			free(w->page);
			w->page = text;
			w->page_length = size;
			w->page_ms = now_ms() + PAGE_MS;
		} else {
			free(text);
		}
	}
	*length = w->page_length;
	return w->page;
}

/* ---- all ---------------------------------------------------------------------------------------------- */

static void begin(struct watcher *w, const char *directory)
{
	pthread_condattr_t how;

	*w = (struct watcher){ .directory = directory };
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&how);
	pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
	pthread_cond_init(&w->changed, &how);
	pthread_condattr_destroy(&how);
	w->explaining = !pthread_create(&w->thread, NULL, explain_on, w);
}

static void end(struct watcher *w)
{
	pthread_mutex_lock(&w->lock);
	w->over = true;
	pthread_cond_signal(&w->changed);
	pthread_mutex_unlock(&w->lock);
	if (w->explaining)
		pthread_join(w->thread, NULL);
	while (w->count)
		forget(w, w->count - 1);
	free(w->page);
	free(w->findings);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
}

/* A child's end leaves something to wait for; another's, only what was to be polled. */
static bool has_ended(const struct watching *what, const struct pollfd *ended)
{
	siginfo_t info = { 0 };

	if (what->enough && *what->enough)
		return true;
	if (ended->revents)
		return true;
	return what->is_child && (waitid(P_PID, (id_t)what->pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid);
}

void watch(const struct watching *what, struct server *server, const char *directory, bool live)
{
	struct pollfd fds[SERVE_CLIENTS + 2] = { { .fd = what->pidfd, .events = POLLIN } };
	struct watcher w;
	uint64_t show_ms = 0;

	if (server)
		begin(&w, directory);
	while (!has_ended(what, &fds[0])) {
		const uint64_t now = now_ms();
		if (live && now >= show_ms) {
			show_once(&directory, 1);
			show_ms = now + 1000;
		}
		const size_t more = server ? serve_wants(server, fds + 1) : 0;
		const long ms = server ? PACE_MS : 200;
		const struct timespec pace = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
		const bool paced = server || live || what->pidfd < 0;
		if (ppoll(fds, 1 + more, paced ? &pace : NULL, what->waiting) < 0) {
			for (size_t n = 0; n < 1 + more; n++)
				fds[n].revents = 0; /* a signal */
		}
		if (server) {
			count_on(&w);
			serve_turn(server, fds + 1, now_ms(), page, &w);
		}
	}
	if (server)
		end(&w);
}
