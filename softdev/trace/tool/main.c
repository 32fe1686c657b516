/*
 * softdev trace: the command line.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trace/explain/packets.h"
#include "trace/meter/meter.h"
#include "trace/tool/serve.h"
#include "trace/tool/tool.h"

static int usage(FILE *to, int status)
{
	fputs("usage: softdev trace [-o DIRECTORY] [--live] [--serve [ADDRESS:]PORT] PROGRAM [ARGUMENT...]\n"
	      "       softdev trace [-o DIRECTORY] [--live] [--serve [ADDRESS:]PORT] --attach PID\n"
	      "       softdev trace --explain | --dump | --rates | --live | --timeline | --pcapng | --metrics "
	      "[WHAT...]\n\nThe "
	      "first runs a program and records what it does with RDMA. When it has ended, standard error says "
	      "in\nsentences what went wrong. -o keeps the recordings in DIRECTORY; --live shows rates "
	      "meanwhile; --serve has\nPrometheus read counters, at http://ADDRESS:PORT/metrics (127.0.0.1, if there "
	      "is no address).\n\nThe second records a process of yours that runs on the device already, until it "
	      "ends.\n\nThe others show recordings. WHAT is a directory, a file, or the number of a process; "
	      "without it, the last\nrun of the first form.\n  --explain    what went wrong, in sentences (names of "
	      "the findings: man softdev)\n  --dump       each record as a line\n  --rates      per queue pair: "
	      "requests and bytes per second, batches, latencies\n  --live       the same of the last second, again "
	      "and again\n  --timeline   JSON for https://ui.perfetto.dev and chrome://tracing\n  --pcapng     "
	      "for Wireshark: the packets that the requests stand for, without payload\n  --metrics    "
	      "what --serve shows, of what is left of the records\n",
	      to);
	return status;
}

static void dump(const struct shelf *shelf)
{
	for (size_t n = 0; n < shelf->shown; n++) {
		const struct trace_recording *from = &shelf->recordings[n];
		printf("# %s (pid %u on %s)\n", from->header.program, from->header.pid, from->header.host);
		for (size_t i = 0; i < from->count; i++)
			trace_print(stdout, from, &from->items[i]);
	}
}

static void explain_all(FILE *to, const struct shelf *shelf)
{
	struct findings findings;

	explain(&findings, shelf->stories, shelf->count, shelf->shown);
	explain_print(to, &findings);
	findings_free(&findings);
}

/* Of processes of one number, that is one that has called exec(), the newest. */
static bool newest(const struct shelf *shelf, size_t n)
{
	const struct trace_header *one = &shelf->recordings[n].header;

	for (size_t k = 0; k < shelf->shown; k++) {
		const struct trace_header *other = &shelf->recordings[k].header;
		if (k != n && other->pid == one->pid &&
		    (other->begin_ns > one->begin_ns || (other->begin_ns == one->begin_ns && k > n)))
			return false;
	}
	return true;
}

static bool metrics(const struct shelf *shelf)
{
	struct meter *own = calloc(shelf->shown + 1, sizeof(*own));
	struct meter **meters = calloc(shelf->shown + 1, sizeof(struct meter *));
	struct findings findings;
	bool good = own && meters;
	size_t count = 0;

	for (size_t n = 0; good && n < shelf->shown; n++) {
		if (!newest(shelf, n))
			continue;
		meters[count] = &own[count];
		good = meter_tell(meters[count++], &shelf->recordings[n]);
	}
	if (good) {
		explain(&findings, shelf->stories, shelf->count, shelf->shown);
		meters_print(stdout, meters, count);
		meters_print_findings(stdout, &findings);
		findings_free(&findings);
	}
	for (size_t n = 0; n < count; n++)
		meter_free(meters[n]);
	free(own);
	free(meters);
	return good;
}

static bool capture(const struct shelf *shelf)
{
	size_t alone;
	const bool good = packets(stdout, shelf->stories, shelf->shown, &alone);

	if (alone)
		fprintf(stderr,
			"softdev: the senders to %zu queue pairs are in none of these recordings: of theirs, the "
			"capture has "
			"only\nmessages that completed a receive, and no WRITEs, READs and atomics. With their "
			"recordings "
			"it has them all:\nsoftdev trace --pcapng WHAT WHAT...\n",
			alone);
	return good;
}

static int show(const char *how, const char *const *targets, size_t count)
{
	struct shelf shelf = { 0 };
	bool good = true;

	if (!strcmp(how, "--live")) {
		show_live(targets, count);
		return 0;
	}
	if (!strcmp(how, "--pcapng") && isatty(STDOUT_FILENO)) {
		fputs("softdev: a capture is not for a terminal: softdev trace --pcapng > FILE\n", stderr);
		return 2;
	}
	for (size_t n = 0; n < count; n++)
		good &= shelf_add(&shelf, targets[n]);
	if (!strcmp(how, "--explain") || !strcmp(how, "--metrics"))
		shelf_add_peers(&shelf);
	if (!shelf_tell(&shelf)) {
		fputs("softdev: there is no memory\n", stderr);
		shelf_free(&shelf);
		return 1;
	}
	if (!shelf.count && good)
		fputs("softdev: nothing was recorded: the program has called neither verbs nor rdma_cm\n", stderr);
	if (!strcmp(how, "--explain")) {
		explain_all(stdout, &shelf);
	} else if (!strcmp(how, "--dump")) {
		dump(&shelf);
	} else if (!strcmp(how, "--timeline")) {
		timeline(stdout, shelf.stories, shelf.shown);
	} else if (!strcmp(how, "--pcapng")) {
		good &= capture(&shelf);
	} else if (!strcmp(how, "--metrics")) {
		good &= metrics(&shelf);
	} else {
		for (size_t n = 0; n < shelf.shown; n++)
			rates_print(stdout, &shelf.stories[n], shelf.stories[n].end, UINT64_MAX);
	}
	const bool any = shelf.count > 0;
	shelf_free(&shelf);
	return good && any && !ferror(stdout) ? 0 : 1;
}

/* "-o" or a new run; its whole path, as the program may be in another directory. */
static bool place(const char *directory, char whole[PATH_MAX])
{
	char made[PATH_MAX];

	shelf_prune();
	if (directory ? mkdir(directory, 0700) && errno != EEXIST : !shelf_new_run(made)) {
		fprintf(stderr, "softdev: there can be no directory for recordings: %s\n", strerror(errno));
		return false;
	}
	if (!realpath(directory ? directory : made, whole)) {
		fprintf(stderr, "softdev: %s: %s\n", directory ? directory : made, strerror(errno));
		return false;
	}
	return true;
}

static int record(char *const *command, const char *directory, bool live, struct server *server)
{
	char whole[PATH_MAX];
	struct shelf shelf = { 0 };

	if (!place(directory, whole))
		return 126;
	const int status = run(command, whole, live, server);
	shelf_add(&shelf, whole);
	shelf_add_peers(&shelf);
	if (!shelf.count) {
		if (status != 127)
			fputs("softdev: nothing was recorded: the program has called neither verbs nor rdma_cm, or has "
			      "loaded them by dlopen()\n",
			      stderr);
		if (!directory)
			rmdir(whole);
	} else if (shelf_tell(&shelf)) {
		fputs("\n", stderr);
		explain_all(stderr, &shelf);
	}
	shelf_free(&shelf);
	return status;
}

static int record_running(const char *word, const char *directory, bool live, struct server *server)
{
	char whole[PATH_MAX], *end;
	struct shelf shelf = { 0 };

	errno = 0;
	const long pid = strtol(word, &end, 10);
	if (errno || *end || pid <= 0 || pid > INT_MAX)
		return usage(stderr, 2);
	if (!place(directory, whole))
		return 126;
	if (!attach((pid_t)pid, whole)) {
		if (!directory)
			rmdir(whole);
		return 1;
	}
	fprintf(stderr, "softdev: process %ld is recorded until it ends; Ctrl-C says what is known by then\n", pid);
	attached((pid_t)pid, whole, live, server);
	shelf_add(&shelf, whole);
	shelf_add_peers(&shelf);
	if (shelf.count && shelf_tell(&shelf))
		explain_all(stdout, &shelf);
	shelf_free(&shelf);
	return 0;
}

static bool is_view(const char *word)
{
	static const char *const views[] = { "--explain",  "--dump",   "--rates",  "--live",
					     "--timeline", "--pcapng", "--metrics" };

	for (size_t n = 0; n < sizeof(views) / sizeof(*views); n++) {
		if (!strcmp(word, views[n]))
			return true;
	}
	return false;
}

/* What --live alone would not know of: a process, a directory or a file of recordings; else it is a program to run. */
static bool is_target(const char *word)
{
	const size_t length = strlen(word);
	struct stat found;

	return (length && strspn(word, "0123456789") == length) || (length > 4 && !strcmp(word + length - 4, ".rec")) ||
	       (!stat(word, &found) && S_ISDIR(found.st_mode));
}

int main(int argc, char **argv)
{
	const char *directory = NULL, *running = NULL, *where = NULL, *first[1];
	char last[PATH_MAX];
	struct server server;
	bool live = false;
	int n = 1;

	if (argc < 2)
		return usage(stderr, 2);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
		return usage(stdout, 0);
	if (is_view(argv[1]) && (strcmp(argv[1], "--live") != 0 || argc == 2 || is_target(argv[2]))) {
		if (argc > 2)
			return show(argv[1], (const char *const *)argv + 2, (size_t)argc - 2);
		if (!shelf_newest_run(last)) {
			fputs("softdev: there is no recording yet: softdev trace PROGRAM\n", stderr);
			return 1;
		}
		first[0] = last;
		return show(argv[1], first, 1);
	}
	for (; n < argc && argv[n][0] == '-'; n++) {
		if (!strcmp(argv[n], "--")) {
			n++;
			break;
		}
		if (!strcmp(argv[n], "--live"))
			live = true;
		else if (!strcmp(argv[n], "-o") && n + 1 < argc)
			directory = argv[++n];
		else if (!strcmp(argv[n], "--attach") && n + 1 < argc)
			running = argv[++n];
		else if (!strcmp(argv[n], "--serve") && n + 1 < argc)
			where = argv[++n];
		else
			return usage(stderr, 2);
	}
	if (running ? n < argc : n == argc)
		return usage(stderr, 2);
	/* Before the program runs: it is no program to be recorded if nobody can look. */
	if (where && !serve_begin(&server, where))
		return 126;
	const int status = running ? record_running(running, directory, live, where ? &server : NULL) :
				     record(argv + n, directory, live, where ? &server : NULL);
	if (where)
		serve_end(&server);
	return status;
}
