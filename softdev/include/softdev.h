/*
 * Public extensions of the software verbs device, beside the ibv_* functions that it exports.
 */
#ifndef SOFTDEV_H
#define SOFTDEV_H

#include <stddef.h>
#include <stdint.h>

/* Of this header. Within a major version, functions are added and none is changed; before 1.0.0, within a minor one. */
#define SOFTDEV_VERSION_MAJOR 0
#define SOFTDEV_VERSION_MINOR 1
#define SOFTDEV_VERSION_PATCH 0
#define SOFTDEV_VERSION (SOFTDEV_VERSION_MAJOR * 10000 + SOFTDEV_VERSION_MINOR * 100 + SOFTDEV_VERSION_PATCH)

struct ibv_context;
struct ibv_pd;
struct ibv_qp;

#ifdef __cplusplus
extern "C" {
#endif

/* SOFTDEV_VERSION of the library that is loaded. */
unsigned softdev_version(void);

/* 1 when the context belongs to the software device. */
int softdev_is(struct ibv_context *context);

/*
 * 1 when only rdma_cm connects queue pairs of the software device: its personality (SOFTDEV_PERSONALITY) is that of such
 * an adapter.
 */
int softdev_by_cm(void);

/*
 * Sets the number of devices in the device list (soft0, soft1, ...), 1 to 4. Without this call the environment variable
 * SOFTDEV_DEVICES decides; the default is 1. All devices of a process reach all the others. Returns 0 or EINVAL.
 */
int softdev_devices(unsigned n);

/*
 * Which devices this process uses. "soft": rdma_cm is the software device's, even where the kernel has RDMA devices;
 * "none": the device list has no software device, and rdma_cm is the real library's; NULL: as the environment variable
 * SOFTDEV_DEVICE says, which has the same words. By default the software device is listed behind the kernel's devices,
 * and rdma_cm is the software device's if there are none. The first call of an rdma_cm function decides about rdma_cm
 * for the whole process. Returns 0 or EINVAL.
 */
int softdev_choose(const char *which);

/*
 * Takes the port of the named device down, or up again, in this process. For tests of programs with several devices.
 * The contexts of the device get IBV_EVENT_PORT_ERR or IBV_EVENT_PORT_ACTIVE, and ibv_query_port() reports the new
 * state. While the port is down, no queue pair can be connected and no address handle created; queue pairs that are
 * connected already are left to the program. Returns 0 or ENODEV.
 */
int softdev_port(const char *device, int up);

/* Sends IBV_EVENT_DEVICE_FATAL to the contexts of a device. A context opened afterwards works. Returns 0 or ENODEV. */
int softdev_kill(const char *device);

/*
 * Names the layout of what processes share: two whose numbers differ share no memory, and connect by packets only. The
 * number changes with each layout.
 */
unsigned softdev_layout(void);

/*
 * Allocates page-aligned memory that peer processes holding an rkey may map. Register it with ibv_reg_mr as usual;
 * WRITE, READ and atomics of a peer on the same host then become plain memory accesses of that peer. length is rounded
 * up to whole pages. Returns NULL with errno set on failure.
 *
 * ibv_dereg_mr() waits up to 10 ms for peers inside of an access. From one that does not leave, mapped memory is taken
 * away. Where the kernel copies for peers, to any other memory, it returns EBUSY: the memory is not the caller's before
 * a later call has returned 0.
 */
void *softdev_alloc(struct ibv_pd *pd, size_t length);

/*
 * Frees memory of softdev_alloc(). EBUSY while a memory region covers it, EINVAL when ptr and length match no
 * allocation.
 */
int softdev_free(struct ibv_pd *pd, void *ptr, size_t length);

/*
 * Address of a queue pair's count of RDMA WRITEs that posting did not finish: they wait, travel in pieces, failed or
 * were flushed. If posting a WRITE leaves the count unchanged, that WRITE and all before it are in the peer's memory
 * already; otherwise wait for the completion. Only the posting thread may read it. NULL for a queue pair of another
 * device.
 */
const volatile uint64_t *softdev_astray(struct ibv_qp *qp);

/*
 * A program that has accepted data for a queue pair of this device, and not posted all of it, says so before it returns
 * to where the data comes from (some = 1), and says when it has (some = 0). The thread that posts calls it.
 *
 * Where the next ibv_post_send() posts all of it, the program may say that before (some = 2), and some = 0 afterwards as
 * before: then a process that is killed has left either all of it or not even what was posted, at whichever instruction.
 */
void softdev_holds(struct ibv_qp *qp, int some);

/*
 * What a program has accepted for a queue pair, and said that it holds (some = 1), may fit into one message, which is not
 * worth to be posted for each piece. It can leave that message instead, up to SOFTDEV_WILL_BYTES: if this process ends
 * before it posts anything more, or says that it holds anything more, the message arrives as the last one, as by
 * IBV_WR_SEND_WITH_IMM, and nothing counts as held back. A message that is left takes the place of the one before. The
 * thread that posts calls it; on other ways than shared memory it does nothing.
 */
enum { SOFTDEV_WILL_BYTES = 48 };
void softdev_will(struct ibv_qp *qp, const void *message, uint32_t length, uint32_t imm_data);

/*
 * Says that RDMA WRITEs with a key of the peer's will follow. What it opens is found out meanwhile: until then, WRITEs go
 * through the queue pair's ring, and what does not fit there waits in this process, which may be killed. The thread that
 * posts calls it; on other ways than shared memory it does nothing.
 */
void softdev_expect(struct ibv_qp *qp, uint32_t rkey);

/*
 * Whether the way to the destination's process is there. Before, for a moment after both ends have been connected, what
 * is posted waits in this process, which may be killed. 1 for a queue pair that shares no memory with its destination,
 * and of another device.
 */
int softdev_reached(struct ibv_qp *qp);

/*
 * Leaves a number to the program at the other end of this queue pair, which may read it once this process has ended: how
 * much of what came has been taken, for instance. The thread that posts calls it.
 */
void softdev_note(struct ibv_qp *qp, uint64_t number);

/*
 * The number that the process of a queue pair's destination had left last. 0 while that process has not ended (as
 * softdev_left_whole() sees it), where it has left none, and for a queue pair of another device.
 */
uint64_t softdev_left_note(struct ibv_qp *qp);

/*
 * 1 when the process of a queue pair's destination has ended, on this host, and left nothing undone: all that it had
 * posted was carried out before this queue pair failed, and it had said that it held nothing back. -1 while the queue
 * pair is connected to another process of this host whose end would show here. 0 otherwise, also for a queue pair of
 * another device.
 */
int softdev_left_whole(struct ibv_qp *qp);

/* Not 0 once verbs calls went through this library: proof that it is loaded in front of libibverbs. */
uint64_t softdev_calls(void);

/*
 * Number of messages sent by or to a queue pair of this process that found no receive posted (receiver not ready),
 * retries included.
 */
uint64_t softdev_rnr(void);

/*
 * errno of the last resource (descriptors, memory) that this process, or with `peer` the other process, could not get
 * for a connection, since the last call; 0: none. Such a connection fails; others go on.
 */
int softdev_shortage(int peer);

/*
 * Sets the faults that the device makes in this process, in place of those that there were: a plan in the words of the
 * environment variable SOFTDEV_FAULTS. NULL or "" ends all. Returns 0, or EINVAL without any change.
 *
 * A fault is one or more words "name=value", by blanks or commas: "seed=7,event=0.01,error=1e-4", "port=down for=2s".
 * A plan has several, between semicolons, or is "@" and the path of a file: with semicolons, or in TOML, where each
 * [[fault]] is one. A word that a later fault has, too, counts as the later one says, while it lasts.
 *
 * When: at (begins after that time), for (lasts so long; without it, until it is ended), every (begins again after so
 * long). Times have a unit: 200us, 5ms, 2s, 1m.
 *
 * States: port=down (nothing is sent or received, requests wait for as long as their retries take and then fail;
 * ibv_query_port() and IBV_EVENT_PORT_ERR say so, and IBV_EVENT_PORT_ACTIVE when it ends); gid=N (entry N of the GID
 * table is gone, and IBV_EVENT_GID_CHANGE says so); mtu=1024 (the link carries no longer packets: those of queue pairs
 * with a larger path MTU are lost if the message is longer); slow=5ms (a queue pair begins to send one message in that
 * time, and takes messages of other processes of this host as rarely). device=soft1: of that device only, for port and
 * async.
 *
 * Once: qp=0x1234 or qp=any (a queue pair dies: IBV_EVENT_QP_FATAL, and what is left of it is flushed); async=port_err,
 * port_active, gid_change, lid_change, pkey_change, sm_change, client_reregister or device_fatal (the event alone).
 *
 * By chance, with a probability from 0 to 1, drawn from seed=N for the same sequence again: event (completion event
 * lost), spurious (event without a completion), error (work request fails), retry (it fails with
 * IBV_WC_RETRY_EXC_ERR), rnr (a message finds no receive, though one is posted), cqe_lost (a completion never comes),
 * cqe_late (it comes after late=5ms, by default 1ms, and those behind it no earlier), cqe_twice, delay (late
 * acknowledgement), and for UD datagrams drop, duplicate, reorder and corrupt. A reordered datagram arrives after
 * the next one to its queue pair, or never if none follows. A corrupt one has a flipped bit that a checksum would have
 * found on a real wire.
 *
 * wire_drop, wire_duplicate, wire_reorder, wire_corrupt, wire_delay (one millisecond) and wire_mark (congestion mark,
 * as set by a router) apply to packets of every kind from other hosts. wire_renumber applies to outgoing packets that
 * leave in one run with others: their checksum is computed for another IPv4 identification, as in a network that
 * numbers segments differently from Linux.
 */
int softdev_faults(const char *spec);

/*
 * Adds one fault, in the same words, or "list", "clear" or "clear N" (the number that list gives). The answer is text of
 * at most size - 1 bytes: the fault's number, the list, or what is wrong with the request. Other processes of the user
 * ask for the same by `softdev fault PID`. Returns 0, EINVAL, ENOENT (clear: no such fault; qp: no such queue pair) or
 * ENOSPC (64 faults).
 */
int softdev_fault(const char *request, char *answer, size_t size);

/*
 * Has the device go by a clock that the program moves, in nanoseconds and never back, for tests in virtual time:
 * retransmission, RNR and other retries, congestion control, the messages of rdma_cm, and the times of faults. Returns
 * when something is due next (UINT64_MAX: nothing is): the program calls again at that time, and whenever it has moved its
 * clock. What was due has happened when the call returns. 0: the system's clock again, as at first. Other processes have
 * their own clocks: lanes of shared memory, which wait for them, go by the system's.
 */
uint64_t softdev_clock(uint64_t now_ns);

/*
 * Counters of this process's packets to and from other hosts: sent, runs (several packets sent as one), received,
 * send_failed, malformed, bad_icrc, no_qp, wrong_peer (not from the address that the queue pair is connected to),
 * forwarded (to another process of this host), marked (by a congested router), cnps_sent and cnps_received (congestion
 * notifications), paced (sends delayed by congestion control). UINT64_MAX: no such counter.
 *
 * A sender that receives congestion notifications slows down as DCQCN specifies. The environment variable
 * SOFTDEV_CONGESTION selects the parameters: sigcomm15 (the paper's; the default), connectx (those of an adapter),
 * or off.
 *
 * Packets use the traffic class of their address vector if its DSCP is not 0, else the DSCP in SOFTDEV_DSCP
 * (default 46); congestion notifications use SOFTDEV_CNP_DSCP (default 48). All are marked ECN-capable.
 */
uint64_t softdev_wire_count(const char *name);

/*
 * Captures every RoCEv2 packet that this process sends and receives from now on into a pcapng file, which Wireshark
 * reads; NULL or "" ends the capture. The environment variable SOFTDEV_CAPTURE captures from the start; a "%" in
 * it becomes the process id. The file is new, and the user's alone, as packets have keys of memory and payload in them:
 * a file of the user's that is there gives way; a link, a pipe, a device or another user's file is refused. When the disk
 * is full the capture ends, which is said on standard error, and the program goes on. Returns 0 or errno.
 */
int softdev_capture(const char *path);

#ifdef __cplusplus
}
#endif
#endif
