/*
 * Transport of connection manager messages. Each process of a user has a Unix datagram socket with a unique abstract
 * name, and one more for each port that it listens on. A request finds its listener by that name; all other messages
 * find the process by the high bits of its connection id. The process that owns UDP port 4791 forwards messages from
 * the network in the same way.
 */
#ifndef AIORDMA_CM_BUS_H
#define AIORDMA_CM_BUS_H

#include "cm/proto.h"
#include "roce/roce.h"

enum { CM_ID_BITS = 32 - (24 - SOFT_QPN_INDEX_BITS) }; /* of a connection id, below the process's slot */

/* Opens a socket unique to this process. -1: errno (EADDRINUSE: the name is taken). */
int cm_bus_bind_process(void);
/* Binds a port of a port space; gid NULL: on any address. Either only reserves it, or also receives requests for it. */
int cm_bus_bind_port(uint16_t space, uint16_t port, const uint8_t *gid, bool listen);
/* Reads one message from such a socket. False: none; others may follow when true and *size is 0. */
bool cm_bus_receive(int fd, struct cm_peer *from, uint8_t mad[CM_MAD_BYTES], size_t *size);
/* False: no such process. */
bool cm_bus_send(struct soft_ctx *ctx, const struct cm_peer *peer, const uint8_t mad[CM_MAD_BYTES]);
/* In the child, after fork(). */
void cm_bus_after_fork(void);

#endif
