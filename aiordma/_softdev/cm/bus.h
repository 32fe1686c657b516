/*
 * How messages of the connection manager travel. Each process of a user has a Unix datagram socket with an abstract
 * name of its own, and one more for each port that it listens on: a request finds its listener by name, everything
 * else the process by the high bits of its connection id. What comes from the network is handed on in the same way,
 * by whichever process has UDP port 4791.
 */
#ifndef AIORDMA_CM_BUS_H
#define AIORDMA_CM_BUS_H

#include "cm/proto.h"
#include "roce/roce.h"

enum { CM_ID_BITS = 32 - (24 - SOFT_QPN_INDEX_BITS) }; /* of a connection id, below the process's slot */

/* A socket that only this process has. -1: errno (EADDRINUSE: somebody has it). */
int cm_bus_bind_process(void);
/* A port of a port space; gid NULL: on any address. To have it, or also to get the requests for it. */
int cm_bus_bind_port(uint16_t space, uint16_t port, const uint8_t *gid, bool listen);
/* One message that waits at such a socket. False: none; others may follow when true and *size is 0. */
bool cm_bus_receive(int fd, struct cm_peer *from, uint8_t mad[CM_MAD_BYTES], size_t *size);
/* False: nobody is there. */
bool cm_bus_send(struct soft_ctx *ctx, const struct cm_peer *peer, const uint8_t mad[CM_MAD_BYTES]);
/* After fork(), in the child. */
void cm_bus_after_fork(void);

#endif
