/*
 * The UDP sockets of the wire, for the files that open them, send and receive.
 */
#ifndef AIORDMA_WIRE_PORT_H
#define AIORDMA_WIRE_PORT_H

#include "roce/internal.h"

enum { WIRE_IPV4, WIRE_IPV6, WIRE_FAMILIES };

struct wire_port {
	atomic_int fd;
	uint16_t number;
	atomic_bool hot;   /* a queue pair sends from here, or packets have come: polls look at it */
	atomic_bool apart; /* a network device behind it does not split what is sent as one: UDP_SEGMENT has failed */
	bool watched;
};

struct wire_ports {
	pthread_mutex_t lock; /* to open and close */
	struct wire_port own[WIRE_FAMILIES], front[WIRE_FAMILIES];
};
extern struct wire_ports soft_wire_ports;
/* For soft_wire_receive(). */
#define WIRE_EVERY_PORT ((void *)&soft_wire_ports)

socklen_t soft_wire_address(const uint8_t gid[16], uint16_t port, uint32_t scope, struct sockaddr_in6 *to);
void soft_wire_gid(const void *address, bool ipv4, uint8_t gid[16]);

/* Opens port 4791 of that family, if it is free and not open yet. The lock is held. */
void soft_wire_front_open(int family);

/* ---- front.c ----------------------------------------------------------------------------------- */

/* Takes port 4791, or waits until whoever has it ends. The lock is held, also for the next one. */
void soft_wire_front(void);
void soft_wire_front_close(void);
/* The progress thread: an epoll event of this file; it came; the timer went off. */
bool soft_wire_front_is(const void *what);
void soft_wire_front_ended(const void *what);
void soft_wire_front_tick(void);

/* ---- source.c ---------------------------------------------------------------------------------- */

/* The lock is held. */
void soft_wire_sources_close(void);

#endif
