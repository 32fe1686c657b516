/*
 * softdev fault: faults by hand in a process that runs on the device. `softdev` calls it.
 *
 * It sends one datagram to the socket of that process, and prints the answer (ask.c).
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool/ask.h"

enum { BAD_REQUEST = 1, USAGE = 2, NOBODY = 3, REQUEST = 1023 };

static int usage(FILE *to, int status)
{
	fputs("usage: softdev fault PID FAULT...     makes a fault in a running process, and prints its number\n"
	      "       softdev fault PID list         faults there are, and the process's queue pairs\n"
	      "       softdev fault PID clear [N]    ends the fault of that number, or all\n"
	      "\n"
	      "The process is one of yours that runs on the device, in the same network namespace. A fault is words:\n"
	      "  port=down, mtu=1024, gid=N, slow=5ms       states of the port and the device\n"
	      "  qp=any, qp=0x1234, async=gid_change        a queue pair dies; an event\n"
	      "  retry=0.01, rnr=0.5, cqe_lost=0.001 ...    by chance; man 7 softdev has all\n"
	      "  at=1s for=2s every=10s                     when it begins, how long it lasts, when it comes again\n"
	      "  device=soft1, seed=7                       which device; the same draws again\n"
	      "\n"
	      "Examples:\n"
	      "  softdev fault 4711 port=down for=2s\n"
	      "  softdev fault 4711 cqe_late=0.1 late=20ms for=1m seed=7\n",
	      to);
	return status;
}

/* The request from the words of the command line. False: too long. */
static bool join(char **words, int count, char request[REQUEST + 1])
{
	size_t used = 0;

	for (int i = 0; i < count; i++) {
		const size_t n = strlen(words[i]);

		if (n + (i > 0) > REQUEST - used)
			return false;
		if (i)
			request[used++] = ' ';
		memcpy(request + used, words[i], n);
		used += n;
	}
	request[used] = 0;
	return true;
}

int main(int argc, char **argv)
{
	char request[REQUEST + 1], *end;

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		return usage(stdout, 0);
	if (argc < 3)
		return usage(stderr, USAGE);
	errno = 0;
	const long pid = strtol(argv[1], &end, 10);
	if (errno || *end || pid <= 0 || pid > 0x7fffffff)
		return usage(stderr, USAGE);
	if (!join(argv + 2, argc - 2, request)) {
		fprintf(stderr, "softdev fault: a request has at most %d bytes\n", REQUEST);
		return USAGE;
	}
	const char *said;
	const int error = control_ask("softdev fault", (pid_t)pid, request, &said);
	if (error < 0)
		return NOBODY;
	fputs(said, error ? stderr : stdout);
	return error ? BAD_REQUEST : 0;
}
