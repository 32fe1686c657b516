/*
 * Runs a program with the recorder, and the device, in front of libibverbs.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/control.h"
#include "tool/ask.h"
#include "trace/tool/tool.h"

static volatile sig_atomic_t child;

/* A terminal's signal goes to all of a process group; that it has hung up, to the leader of the session alone. */
static bool has_come_there_too(int number, const siginfo_t *from)
{
	return from->si_code == SI_KERNEL && getpgid((pid_t)child) == getpgrp() &&
	       (number != SIGHUP || getsid(0) != getpid());
}

/* The program decides what a signal means; then it is explained. */
static void pass_on(int number, siginfo_t *from, void *context)
{
	const int saved = errno;

	(void)context;
	if (child > 0 && !has_come_there_too(number, from))
		kill((pid_t)child, number);
	errno = saved;
}

static bool own_directory(char path[PATH_MAX])
{
	const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
	char *slash;

	if (length <= 0)
		return false;
	path[length] = '\0';
	slash = strrchr(path, '/');
	if (slash)
		*slash = '\0';
	return slash != NULL;
}

/* The recorder first: it calls the next library. A device that is preloaded already stays. */
static bool preload(void)
{
	char own[PATH_MAX], list[4 * PATH_MAX];
	const char *before = getenv("LD_PRELOAD");
	const bool has_device = before && strstr(before, "libsoftdev.so");

	if (!own_directory(own))
		return false;
	const int length = snprintf(list, sizeof(list), "%s/libsoftdev-trace.so%s%s%s%s%s", own, has_device ? "" : ":",
				    has_device ? "" : own, has_device ? "" : "/../libsoftdev.so",
				    before && *before ? ":" : "", before ? before : "");
	return length > 0 && (size_t)length < sizeof(list) && !setenv("LD_PRELOAD", list, 1);
}

int run(char *const *command, const char *directory, bool live, struct server *server)
{
	static const int passed[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction action = { .sa_sigaction = pass_on, .sa_flags = SA_RESTART | SA_SIGINFO }, old[4];
	sigset_t these, before;
	int status;

	/* What comes while there is no child to pass it on to waits. */
	sigemptyset(&these);
	for (size_t n = 0; n < 4; n++)
		sigaddset(&these, passed[n]);
	sigprocmask(SIG_BLOCK, &these, &before);
	for (size_t n = 0; n < 4; n++)
		sigaction(passed[n], &action, &old[n]);
	const pid_t pid = fork();
	if (!pid) {
		for (size_t n = 0; n < 4; n++)
			sigaction(passed[n], &old[n], NULL);
		sigprocmask(SIG_SETMASK, &before, NULL);
		if (!preload() || setenv("SOFTDEV_TRACE", directory, 1)) {
			fprintf(stderr, "softdev: the environment of %s cannot be set up\n", command[0]);
			_exit(126);
		}
		execvp(command[0], command);
		fprintf(stderr, "softdev: %s: %s\n", command[0], strerror(errno));
		_exit(errno == ENOENT ? 127 : 126);
	}
	const int error = errno;
	if (pid > 0)
		child = pid;
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (pid < 0) {
		fprintf(stderr, "softdev: %s\n", strerror(error));
		return 126;
	}
	const struct watching what = { .pid = pid, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0), .is_child = true };
	if (live || server)
		watch(&what, server, directory, live);
	if (what.pidfd >= 0)
		close(what.pidfd);
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return 126;
	}
	child = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- a process that runs ------------------------------------------------------------------------------ */

static volatile sig_atomic_t enough;

static void stop_waiting(int number)
{
	(void)number;
	enough = 1;
}

bool attach(pid_t pid, const char *directory)
{
	char request[PATH_MAX + 16];
	const char *said;

	snprintf(request, sizeof(request), SOFT_CONTROL_TRACE "%s", directory);
	const int error = control_ask("softdev trace", pid, request, &said);
	if (error > 0)
		fprintf(stderr, "softdev trace: process %d: %s", (int)pid, said);
	return !error;
}

void attached(pid_t pid, const char *directory, bool live, struct server *server)
{
	/* Not SA_RESTART: it ends the waiting, and not the process that is recorded. */
	struct sigaction action = { .sa_handler = stop_waiting };
	sigset_t these, before;
	const struct watching what = {
		.pid = pid, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0), .enough = &enough, .waiting = &before
	};

	/* They come only while this waits: one that came just before would not end the waiting. */
	sigemptyset(&these);
	sigaddset(&these, SIGINT);
	sigaddset(&these, SIGTERM);
	sigprocmask(SIG_BLOCK, &these, &before);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	if (what.pidfd >= 0) {
		watch(&what, server, directory, live);
		close(what.pidfd);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
}
