/*
 * A server of one page, for `softdev trace --serve`.
 *
 * Threads: one. No call waits.
 */
#ifndef SOFTDEV_TRACE_SERVE_H
#define SOFTDEV_TRACE_SERVE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SERVE_CLIENTS = 8, SERVE_REQUEST = 4096 };

struct server {
	int fd;
	struct serve_client {
		int fd;                      /* -1: none */
		char request[SERVE_REQUEST]; /* not the last: UBSan knows no end of what may be a flexible array */
		uint64_t until_ms;
		size_t got, sent, length;
		char *answer; /* NULL: it has not asked yet */
	} clients[SERVE_CLIENTS];
};

/* The page, which stays until the next call. NULL: no memory. */
typedef const char *(*serve_page)(void *with, size_t *length);

/* Listens at "[ADDRESS:]PORT" and says where. False: it has said why not. */
bool serve_begin(struct server *server, const char *where);
void serve_end(struct server *server);
/* What to poll for: SERVE_CLIENTS + 1 at most. */
size_t serve_wants(const struct server *server, struct pollfd *fds);
/* After poll() of these. */
void serve_turn(struct server *server, const struct pollfd *fds, uint64_t now_ms, serve_page page, void *with);

#endif
