/*
 * The command `softdev trace`: runs programs under the recorder, and shows what recordings say.
 */
#ifndef SOFTDEV_TRACE_TOOL_H
#define SOFTDEV_TRACE_TOOL_H

#include <limits.h>
#include <signal.h>
#include <sys/types.h>

#include "trace/explain/rates.h"

struct server;

/* Recordings, and the stories of those that could be read. */
struct shelf {
	struct trace_recording *recordings;
	struct story *stories;
	size_t count, shown, room;
	uint64_t records; /* of those that are loaded */
	size_t left_out;  /* for which there was no room */
	bool quiet;       /* says nothing of what cannot be read */
};

/* ---- shelf.c ------------------------------------------------------------------------------------------ */

/* The directory of recordings of this user, made if need be. False: errno. */
bool shelf_base(char path[PATH_MAX]);
/* A new directory in it. */
bool shelf_new_run(char path[PATH_MAX]);
/* Removes recordings in it of processes that ended an hour ago, or a hundred runs. */
void shelf_prune(void);
/* The newest directory in it. False: there is none. */
bool shelf_newest_run(char path[PATH_MAX]);
/* Calls for each entry of a directory, in the order of names. */
void shelf_each(const char *directory, void (*call)(const char *path, const char *name, void *with), void *with);
bool shelf_is_recording(const char *name);
/* Adds a file, or the files of a directory, or (a number) the recordings of a process. Says what cannot be read. */
bool shelf_add(struct shelf *shelf, const char *what);
/* The place of the next one, which counts when count does. NULL: there is no room for what is in that file. */
struct trace_recording *shelf_next(struct shelf *shelf, const char *path);
/* Tells the stories of all. */
bool shelf_tell(struct shelf *shelf);
void shelf_free(struct shelf *shelf);

/* ---- peers.c ------------------------------------------------------------------------------------------ */

/* Ends what is shown. Adds other recordings of this user of the same time, as peers. */
void shelf_add_peers(struct shelf *shelf);

/* ---- run.c -------------------------------------------------------------------------------------------- */

/* Runs a program under the recorder; returns its exit status as a shell has it. A server may be NULL. */
int run(char *const *command, const char *directory, bool live, struct server *server);

/* Has the device of a process that runs load the recorder, which writes into the directory. False: it has said why. */
bool attach(pid_t pid, const char *directory);
/* Waits until that process has ended, or a signal says that it is enough. */
void attached(pid_t pid, const char *directory, bool live, struct server *server);

/* ---- watch.c ------------------------------------------------------------------------------------------ */

struct watching {
	pid_t pid;
	int pidfd; /* -1: the kernel has none */
	bool is_child;
	volatile sig_atomic_t *enough; /* NULL: only its end is */
	const sigset_t *waiting;       /* the signals that are blocked meanwhile; NULL: as ever */
};
/* Shows the recordings of a directory until the process has ended: as a table, to the clients of a server, or not at all. */
void watch(const struct watching *what, struct server *server, const char *directory, bool live);

/* ---- show.c ------------------------------------------------------------------------------------------- */

/* The table once a second, until the processes have ended, or for ever. */
void show_live(const char *const *targets, size_t count);

/* The table, as it is now. */
void show_once(const char *const *targets, size_t count);

#endif
