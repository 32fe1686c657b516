/*
 * The UDP sockets, for the files that open them, send and receive.
 */
#ifndef SOFTDEV_ROCE_PORT_H
#define SOFTDEV_ROCE_PORT_H

#include "roce/internal.h"

enum { ROCE_IPV4, ROCE_IPV6, ROCE_FAMILIES };

struct roce_port {
	atomic_int fd;
	uint16_t number;
	atomic_bool hot;   /* a queue pair sends from here, or packets have arrived: polls check it */
	atomic_bool apart; /* a network device behind it does not split runs: UDP_SEGMENT has failed */
	bool watched;
};

struct roce_ports {
	pthread_mutex_t lock; /* to open and close */
	struct roce_port own[ROCE_FAMILIES], front[ROCE_FAMILIES];
};
extern struct roce_ports soft_roce_ports;
/* For soft_roce_receive(). */
#define ROCE_EVERY_PORT ((void *)&soft_roce_ports)

socklen_t soft_roce_address(const uint8_t gid[16], uint16_t port, uint32_t scope, struct sockaddr_in6 *to);
void soft_roce_gid(const void *address, bool ipv4, uint8_t gid[16]);

/* Opens port 4791 of that family if it is free and not open yet. The caller holds the lock. */
void soft_roce_front_open(int family);

/* ---- front.c ----------------------------------------------------------------------------------- */

/* Takes port 4791, or waits until its owner ends. The caller holds the lock, also for the next function. */
void soft_roce_front(void);
void soft_roce_front_close(void);
/* The progress thread: whether an epoll event belongs to front.c; handles it; handles its timer. */
bool soft_roce_front_is(const void *what);
void soft_roce_front_ended(const void *what);
void soft_roce_front_tick(void);

/* ---- source.c ---------------------------------------------------------------------------------- */

/* The caller holds the lock. */
void soft_roce_sources_close(void);

#endif
