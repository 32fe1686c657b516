/*
 * Messages on their way to other processes of this host.
 */
#ifndef SOFTDEV_CM_OUTBOX_H
#define SOFTDEV_CM_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

enum { CM_OUTBOX_BYTES = 320 }; /* the longest message */

/*
 * Sends, or keeps the message until the socket of that name has room. False: nobody has that name. A message is lost
 * only where thousands wait, or where this process has no thread of the connection manager.
 */
bool cm_outbox_send(const struct sockaddr_un *name, socklen_t length, const void *message, size_t size);
/* From now on what waits is watched by that epoll descriptor (-1: no more): its data.fd go to cm_outbox_go_on(). */
void cm_outbox_watch(int epoll_fd);
/* The descriptor may be written to. False: it is none of ours. */
bool cm_outbox_go_on(int fd);
bool cm_outbox_is_empty(void);
/* In the child, after fork(). */
void cm_outbox_after_fork(void);

#endif
