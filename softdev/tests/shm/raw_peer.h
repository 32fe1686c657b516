/* A peer of the device that speaks its protocol itself, so that it can send any message on a Unix link and write any
 * record into a lane. It holds a slot like other processes of this user; the device may be in the same process. */
#ifndef SOFTDEV_TESTS_RAW_PEER_H
#define SOFTDEV_TESTS_RAW_PEER_H

#include "core/door.h"
#include "shm/unix_link.h"

struct raw_peer {
    uint32_t slot;
    int listen_fd;
    int ask_fd;    /* to the device's slot: here this peer is the requester */
    int answer_fd; /* from the device: here it is */
    int doors_fd, published_fd;
    struct soft_doors *doors; /* of the device, for this peer */
    struct soft_published *own;
};

/* The requester's end of a lane to a queue pair of the device. */
struct raw_lane {
    struct soft_seg *seg;
    struct soft_door *door;
    uint32_t bit;
    uint64_t tail; /* written; raw_publish() shows it to the device */
    int fd;        /* the link, for kicks */
};

/* Takes a slot. */
void raw_open(struct raw_peer *peer);
/* Connects to the device and greets it; the device's own connection and its greeting are pending afterwards. */
void raw_dial(struct raw_peer *peer, uint32_t slot);
/* One more connection to the device, and nothing more. */
int raw_connect(uint32_t slot);
/* Takes the device's connection, and greets it there, too. */
void raw_accept(struct raw_peer *peer);
/* Waits for the device's greeting, and takes its doors. */
void raw_greeted(struct raw_peer *peer);
/* All four. */
void raw_meet(struct raw_peer *peer, uint32_t slot);
/* Closes both connections, and keeps the slot. */
void raw_hang_up(struct raw_peer *peer);
void raw_close(struct raw_peer *peer);
/* A number of a queue pair of this peer. */
uint32_t raw_qpn(const struct raw_peer *peer, uint32_t n);

/* False: the socket is full or broken. Keeps the descriptors. */
bool raw_send(int fd, struct soft_message *msg, const int *fds, unsigned int nfds);
/* 1: a message; 0: none now; -1: the link has ended. Kicks are skipped; fds that are not there are -1. */
int raw_receive(int fd, struct soft_message *msg, int fds[SOFT_PACKET_FDS]);
/* The same, and waits. False: the link has ended. */
bool raw_wait(int fd, struct soft_message *msg, int fds[SOFT_PACKET_FDS]);
void raw_close_all(int fds[SOFT_PACKET_FDS]);

/* Takes a segment that came with a message. */
void raw_lane_take(struct raw_lane *lane, const struct raw_peer *peer, const struct soft_message *msg,
                   int fd);
/* Asks for a lane to a queue pair that is ready, and waits for it. */
void raw_attach(struct raw_lane *lane, const struct raw_peer *peer, uint32_t from, uint32_t to,
                enum ibv_qp_type type);
void raw_lane_drop(struct raw_lane *lane);
/* Writes one record, as it is; payload may be NULL. */
void raw_record(struct raw_lane *lane, struct soft_rec rec, const struct soft_reth *reth,
                const void *payload);
/* Shows the device what was written, rings and kicks. */
void raw_publish(struct raw_lane *lane);

#endif
