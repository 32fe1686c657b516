/*
 * Public extras of the software verbs device, beside the ibv_* functions it exports.
 */
#ifndef AIORDMA_SOFT_H
#define AIORDMA_SOFT_H

#include <stddef.h>
#include <stdint.h>

struct ibv_context;
struct ibv_pd;
struct ibv_qp;

#ifdef __cplusplus
extern "C" {
#endif

/* 1 when the context belongs to the software device. */
int aiordma_soft_is(struct ibv_context *context);

/*
 * How many devices the list shows, soft0 and so on, 1 to 4; otherwise that is what the environment variable
 * AIORDMA_SOFT_DEVICES says, or 1. All of a process reach all of the others. 0 or EINVAL.
 */
int aiordma_soft_devices(unsigned n);

/*
 * For tests of programs with several devices. Takes the port of a device (by name) down, or up again, in this process:
 * its contexts get IBV_EVENT_PORT_ERR or IBV_EVENT_PORT_ACTIVE, the port says so when it is asked, and while it is down
 * no queue pair is connected and no address handle made. Connected queue pairs are left to their owner. 0 or ENODEV.
 */
int aiordma_soft_port(const char *device, int up);

/* The contexts of a device get IBV_EVENT_DEVICE_FATAL; one that is opened anew works. 0 or ENODEV. */
int aiordma_soft_kill(const char *device);

/*
 * Page-aligned memory that processes holding an rkey may map: register it with ibv_reg_mr as usual, and
 * WRITE, READ and atomics of a QP peer on the same host become plain memory accesses of that peer.
 * length is rounded up to whole pages. NULL with errno set on failure.
 */
void *aiordma_soft_alloc(struct ibv_pd *pd, size_t length);

/* Gives the memory back. EBUSY while a memory region covers it, EINVAL when ptr/length are not of an alloc. */
int aiordma_soft_free(struct ibv_pd *pd, void *ptr, size_t length);

/*
 * Where a QP counts the RDMA WRITEs that were posted and not carried out meanwhile: they wait, travel in pieces, failed or
 * were flushed. A WRITE whose posting leaves the count as it was lies in the peer's memory, with all those before it;
 * others do when they complete. To be read by the thread that posts. NULL when it is no QP of this device.
 */
const volatile uint64_t *aiordma_soft_astray(struct ibv_qp *qp);

/* How many verbs calls went through this library: proof that it is in front of libibverbs. */
uint64_t aiordma_soft_calls(void);

/*
 * How often a message for a QP of this process, or of one of its own, found no receive posted (a receiver-not-ready
 * condition), retries included.
 */
uint64_t aiordma_soft_rnr(void);

/*
 * Sets the faults that the device makes on purpose in this process, in the format of the environment variable
 * AIORDMA_SOFT_FAULTS: "seed=7,event=0.01,error=1e-4" gives each kind a probability from 0 to 1, kinds not named get
 * none, NULL or "" ends all. Kinds: event (completion event lost), spurious (channel readable for nothing), error
 * (work request fails), drop, duplicate, reorder and corrupt (UD datagrams), delay (acknowledgement late). A seed makes
 * the sequence of draws repeatable. A reordered datagram comes behind the next one to its QP (and not at all when there
 * is none); a corrupt one has a bit changed that, on a wire, a checksum would have found. wire_drop, wire_duplicate,
 * wire_reorder, wire_corrupt, wire_delay (a millisecond) and wire_mark (congestion, as a router says it) are about packets from other hosts, of every kind.
 * wire_renumber is about packets to other hosts that leave behind others in one piece: their checksum is for another IPv4
 * identification, as where a network counts otherwise than Linux does.
 * 0, or EINVAL and no change.
 */
int aiordma_soft_faults(const char *spec);

/*
 * Counters of this process's packets to and from other hosts: sent, runs (of several packets that were sent as one),
 * received, send_failed, malformed, bad_icrc, no_qp,
 * wrong_peer (not from the address that the queue pair is connected to), forwarded (to another process of this host),
 * marked (by a congested router), cnps_sent, cnps_received (congestion
 * notifications), paced (sends that waited for their time). UINT64_MAX: no such counter.
 *
 * Senders that are notified slow down as DCQCN has it; the environment variable AIORDMA_SOFT_CONGESTION names the set
 * of parameters: sigcomm15 (as in the paper; the default), connectx (an adapter's), or off.
 *
 * Packets are sent with the traffic class of their address vector, if its DSCP is not 0, else with the DSCP that
 * AIORDMA_SOFT_DSCP names (46 if it is unset); notifications with AIORDMA_SOFT_CNP_DSCP (48). All say that routers may
 * mark them (ECN).
 */
uint64_t aiordma_soft_wire_count(const char *name);

/*
 * Writes every RoCEv2 packet that this process sends and receives from now on to a pcapng file, which Wireshark
 * reads; NULL or "" ends it. The environment variable AIORDMA_SOFT_CAPTURE does so from the beginning; a "%" in it
 * becomes the process id. 0 or errno.
 */
int aiordma_soft_capture(const char *path);

#ifdef __cplusplus
}
#endif
#endif
