/* A network without sockets and a clock that stands still: the fuzzers compile the device with its system calls
 * renamed to net_*, so that a run depends on nothing but its input. */
#ifndef SOFTDEV_TESTS_FUZZ_NET_H
#define SOFTDEV_TESTS_FUZZ_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roce/icrc.h"

enum { NET_MAX_BYTES = 4400 };

struct net_packet {
    struct roce_path path;
    uint8_t tos;
    uint16_t id; /* IPv4 identification */
    size_t size;
    uint8_t bytes[NET_MAX_BYTES];
};

/* Addresses of this host, as GIDs 0 and 1. */
extern const uint8_t net_here4[16], net_here6[16];
/* CLOCK_MONOTONIC, ns. */
extern uint64_t net_now;

/* So many packets can be sent until the sockets are full. */
extern unsigned int net_room;

/* On its way to the device's socket for that family and port; lost when there is none, or too many wait. */
void net_put(const struct net_packet *packet);
/* The fuzzer's: what the device sends, packet by packet. */
void net_out(const struct net_packet *packet);
/* Is something on its way? */
bool net_waiting(void);

#endif
