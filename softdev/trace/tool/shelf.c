/*
 * Where recordings are: a private directory of the user, with one directory for each run.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "trace/tool/tool.h"

/* Nobody else may put anything there, or read it. */
static bool is_private(const char *path)
{
	struct stat found;

	return !lstat(path, &found) && S_ISDIR(found.st_mode) && found.st_uid == geteuid() && !(found.st_mode & 077);
}

bool shelf_base(char path[PATH_MAX])
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	const char *roots[] = { runtime && *runtime == '/' ? runtime : NULL, "/dev/shm", "/tmp" };

	for (size_t n = 0; n < sizeof(roots) / sizeof(*roots); n++) {
		if (!roots[n])
			continue;
		snprintf(path, PATH_MAX, "%s/softdev-trace-%u", roots[n], (unsigned)geteuid());
		if ((!mkdir(path, 0700) || errno == EEXIST) && is_private(path))
			return true;
	}
	return false;
}

bool shelf_new_run(char path[PATH_MAX])
{
	char base[PATH_MAX];
	struct timespec now;

	if (!shelf_base(base))
		return false;
	clock_gettime(CLOCK_REALTIME, &now);
	const int length =
		snprintf(path, PATH_MAX, "%s/%lld.%09ld-%d", base, (long long)now.tv_sec, now.tv_nsec, (int)getpid());
	return length < PATH_MAX && !mkdir(path, 0700);
}

bool shelf_is_recording(const char *name)
{
	const size_t length = strlen(name);

	return length > 4 && !strcmp(name + length - 4, ".rec");
}

static int wanted(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

void shelf_each(const char *directory, void (*call)(const char *path, const char *name, void *with), void *with)
{
	struct dirent **list;
	const int count = scandir(directory, &list, wanted, alphasort);

	for (int n = 0; n < count; n++) {
		char path[PATH_MAX];
		if (snprintf(path, sizeof(path), "%s/%s", directory, list[n]->d_name) < (int)sizeof(path))
			call(path, list[n]->d_name, with);
		free(list[n]);
	}
	if (count >= 0)
		free(list);
}

/* ---- old ones ----------------------------------------------------------------------------------------- */

enum { KEEP_SECONDS = 3600, KEEP_RUNS = 100 };

struct pruning {
	unsigned runs, seen;
	bool crowded, removed; /* of the run that is looked at */
};

static bool is_old(const struct stat *found)
{
	return time(NULL) - found->st_mtime >= KEEP_SECONDS;
}

static void prune_file(const char *path, const char *name, void *with)
{
	struct pruning *to = with;
	struct trace_header header;
	struct stat found;

	if (!shelf_is_recording(name) || lstat(path, &found) || !(to->crowded || is_old(&found)))
		return;
	/* Stores into a mapping do not always change the time of the file. */
	if (trace_peek_file(&header, path) || !trace_is_alive(&header))
		to->removed |= !unlink(path);
}

/* The older ones come first. */
static void prune_run(const char *path, const char *name, void *with)
{
	struct pruning *to = with;
	struct stat found;

	(void)name;
	to->crowded = to->runs - to->seen++ > KEEP_RUNS;
	to->removed = false;
	if (lstat(path, &found) || !S_ISDIR(found.st_mode) || !(to->crowded || is_old(&found)))
		return;
	shelf_each(path, prune_file, to);
	if (to->removed || is_old(&found)) /* and not of a program that has recorded nothing yet */
		rmdir(path);               /* if nothing is left in it */
}

static void count_run(const char *path, const char *name, void *with)
{
	struct pruning *to = with;

	(void)path, (void)name;
	to->runs++;
}

void shelf_prune(void)
{
	struct pruning pruning = { 0 };
	char base[PATH_MAX];

	if (!shelf_base(base))
		return;
	shelf_each(base, count_run, &pruning);
	shelf_each(base, prune_run, &pruning);
}

static void keep_last(const char *path, const char *name, void *with)
{
	(void)name;
	snprintf(with, PATH_MAX, "%s", path);
}

bool shelf_newest_run(char path[PATH_MAX])
{
	char base[PATH_MAX];

	path[0] = '\0';
	if (shelf_base(base))
		shelf_each(base, keep_last, path);
	return path[0] != '\0';
}

/* ---- adding ------------------------------------------------------------------------------------------- */

/* Of recordings that are loaded. A whole one with all its threads has a million, and takes 100 MiB. */
enum { MOST_RECORDS = 4 << 20 };

struct trace_recording *shelf_next(struct shelf *shelf, const char *path)
{
	const uint64_t records = trace_peek_records(path);

	/* The first is there in any case. */
	if (shelf->count && shelf->records + records > MOST_RECORDS) {
		shelf->left_out++;
		return NULL;
	}
	if (shelf->count == shelf->room) {
		const size_t room = shelf->room ? shelf->room * 2 : 8;
		struct trace_recording *larger = realloc(shelf->recordings, room * sizeof(*larger));
		if (!larger)
			return NULL;
		shelf->recordings = larger;
		shelf->room = room;
	}
	shelf->records += records;
	return &shelf->recordings[shelf->count];
}

static bool add_file(struct shelf *shelf, const char *path)
{
	struct trace_recording *recording = shelf_next(shelf, path);
	const char *wrong = recording ? trace_load_file(recording, path) :
					"there is no memory for it beside those before it: name it alone";

	if (wrong) {
		if (!shelf->quiet)
			fprintf(stderr, "softdev: %s cannot be read: %s\n", path, wrong);
		if (recording)
			trace_free(recording);
		return false;
	}
	shelf->count++;
	return true;
}

static void add_entry(const char *path, const char *name, void *with)
{
	if (shelf_is_recording(name))
		add_file(with, path);
}

struct of_process {
	struct shelf *shelf;
	char prefix[32];
};

static void add_if_of_process(const char *path, const char *name, void *with)
{
	const struct of_process *of = with;

	if (shelf_is_recording(name) && !strncmp(name, of->prefix, strlen(of->prefix)))
		add_file(of->shelf, path);
}

static void add_run_of_process(const char *path, const char *name, void *with)
{
	(void)name;
	shelf_each(path, add_if_of_process, with);
}

bool shelf_add(struct shelf *shelf, const char *what)
{
	const size_t before = shelf->count;
	struct of_process of = { .shelf = shelf };
	struct stat found;
	char base[PATH_MAX];

	if (!stat(what, &found) && S_ISDIR(found.st_mode)) {
		shelf_each(what, add_entry, shelf);
		return true;
	}
	if (*what && strspn(what, "0123456789") == strlen(what) && strlen(what) < 20 && access(what, F_OK) &&
	    shelf_base(base)) {
		snprintf(of.prefix, sizeof(of.prefix), "%s-", what);
		shelf_each(base, add_run_of_process, &of);
		if (shelf->count == before)
			fprintf(stderr, "softdev: there is no recording of the process %s\n", what);
		return shelf->count > before;
	}
	return add_file(shelf, what);
}

/* ---- stories ------------------------------------------------------------------------------------------ */

bool shelf_tell(struct shelf *shelf)
{
	shelf->shown = shelf->shown ? shelf->shown : shelf->count;
	shelf->stories = calloc(shelf->count + 1, sizeof(*shelf->stories));
	if (!shelf->stories)
		return false;
	for (size_t n = 0; n < shelf->count; n++) {
		if (!story_tell(&shelf->stories[n], &shelf->recordings[n]))
			return false;
	}
	return true;
}

void shelf_free(struct shelf *shelf)
{
	for (size_t n = 0; n < shelf->count; n++) {
		if (shelf->stories)
			story_free(&shelf->stories[n]);
		trace_free(&shelf->recordings[n]);
	}
	free(shelf->stories);
	free(shelf->recordings);
	memset(shelf, 0, sizeof(*shelf));
}
