/*
 * Transport of connection manager messages. Each process of a user has Unix datagram sockets with a name of its own, and
 * more for each port that it listens on (names.c). A request finds its listener by that name; all other messages find
 * the process by the high bits of its connection id. The process that owns UDP port 4791 forwards messages from the
 * network in the same way.
 */
#ifndef SOFTDEV_CM_BUS_H
#define SOFTDEV_CM_BUS_H

#include "cm/proto.h"
#include "roce/roce.h"

enum { CM_ID_BITS = 32 - (24 - SOFT_QPN_INDEX_BITS) }; /* of a connection id, below the process's slot */

/* A name of this process: one socket for each place where it can be found; -1: not in that one. */
enum { CM_PLACES = 2 };
struct cm_bus_name {
	int fd[CM_PLACES];
};
#define CM_BUS_NO_NAME ((struct cm_bus_name){ { -1, -1 } })
static inline bool cm_bus_has(const struct cm_bus_name *name, int fd)
{
	return fd >= 0 && (name->fd[0] == fd || name->fd[1] == fd);
}

/* Takes the name of this process. 0 or errno (EADDRINUSE: it is taken). */
int cm_bus_bind_process(struct cm_bus_name *made);
/* Any address: of both families, or of one (RDMA_OPTION_ID_AFONLY). */
enum cm_family { CM_BOTH, CM_IPV4 = 4, CM_IPV6 = 6 };
static inline enum cm_family cm_family_of(const uint8_t gid[16])
{
	return soft_gid_is_ipv4(gid) ? CM_IPV4 : CM_IPV6;
}
/* A port of a port space. */
struct cm_port {
	uint16_t space, port;
	const uint8_t *gid;    /* NULL: any address */
	enum cm_family family; /* of any address */
	bool listen;           /* receives requests; else it only reserves the port */
};
/* 0 or errno. */
int cm_bus_bind_port(const struct cm_port *wanted, struct cm_bus_name *made);
/* Gives the name up. Idempotent. */
void cm_bus_release(struct cm_bus_name *name);
/* Closes what is the parent's: in the child, after fork(). */
void cm_bus_forget(struct cm_bus_name *name);
/* Reads one message from such a socket. False: none; others may follow when true and *size is 0. */
bool cm_bus_receive(int fd, struct cm_peer *from, uint8_t mad[CM_MAD_BYTES], size_t *size);
/* False: no such process. */
bool cm_bus_send(struct soft_ctx *ctx, const struct cm_peer *peer, const uint8_t mad[CM_MAD_BYTES]);
#endif
