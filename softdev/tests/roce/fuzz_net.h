/* A network without sockets and with a clock that stands still: the fuzzers compile the device with its
 * system calls renamed to net_*, so that a run depends only on its input. */
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
/* How much of it each look at the clock takes: 0, unless a fuzzer needs waits to end. */
extern uint64_t net_tick;

/* Set before the device is opened: its progress thread does not run, and net_run_thread() does its work. */
extern bool net_one_thread;
/* Until it would sleep. */
void net_run_thread(void);
/* What process_vm_readv() and its like reach of any process. */
extern uint8_t *net_peer_memory;
extern size_t net_peer_bytes;

/* How many packets can be sent until the sockets are full. */
extern unsigned int net_room;

/* Puts a packet in flight to the device's socket for that family and port; lost if none exists, or too
 * many wait. */
void net_put(const struct net_packet *packet);
/* Provided by the fuzzer: receives what the device sends, packet by packet. */
void net_out(const struct net_packet *packet);
/* Whether a packet is in flight. */
bool net_waiting(void);

#endif
