/*
 * rdma_cm on the software device: identifiers, event channels, and the functions that its files share.
 *
 *   program -> preload -> id.c, connect.c, qp.c, event.c -> proto.c -> bus.c
 *   bus.c => thread.c (its own thread: messages and time) -> proto.c -> event.c => program
 *
 * One lock for everything (cm.lock), outermost of the device's locks. Only the program's threads touch queue pairs,
 * without holding it.
 */
#ifndef SOFTDEV_CM_INTERNAL_H
#define SOFTDEV_CM_INTERNAL_H

#include "cm/bus.h"
#include "cm/cm.h"

enum cm_step {
	CM_NEW,
	CM_BOUND,
	CM_ADDRESS, /* resolved */
	CM_ROUTE,   /* resolved */
	CM_LISTENING,
	CM_CONNECTING, /* and all that follows */
};

struct cm_event {
	struct rdma_cm_event event; /* the program's view */
	struct cm_event *next;
	struct cm_id *owner; /* destruction of the id waits for its acknowledgement */
	uint8_t private_data[CM_PRIVATE_MAX];
};

struct cm_channel {
	struct rdma_event_channel channel; /* fd: eventfd, readable while there are events */
	struct cm_event *head, **tail;
	pthread_t reader; /* last thread that waited for events here, if any */
	bool has_reader;
	unsigned readers; /* threads that are in soft_rdma_get_cm_event() now */
};

struct cm_id {
	struct rdma_cm_id id; /* the program's view */
	struct cm_id *next;
	unsigned generation; /* differs from soft_cm's: inherited over fork(), unusable */
	enum cm_step step;
	bool only_family; /* on any address: of the address's own family */
	bool sync;        /* no channel was given: calls wait for their events */
	bool ended;       /* sync: DISCONNECTED was seen */
	struct cm_conn *conn;
	struct cm_bus_name port, listen;
	unsigned backlog, waiting; /* connection requests neither accepted nor refused yet */
	struct cm_id *listener;    /* the listening id, while it waits in that backlog */
	struct cm_peer peer;
	uint8_t sgid_index;
	enum ibv_mtu mtu;
	uint8_t tos, ack_timeout;
	uint8_t initiator_depth, responder_resources, retry_count, rnr_retry_count;
	uint32_t rq_psn, sq_psn, remote_qpn;
	uint32_t own_qpn; /* of a connected queue pair that is not in the id (iWARP); 0: none */
	/*
	 * From rdma_create_ep(): for a passive address the attributes of accepted connections, for an active one
	 * private data.
	 */
	struct ibv_qp_init_attr *qp_init;
	struct ibv_pd *qp_pd;
	void *connect_data;
	uint8_t connect_length;
	unsigned delivered, acknowledged; /* events */
};

struct cm {
	pthread_mutex_t lock;
	pthread_cond_t acknowledged;
	bool running;
	unsigned generation; /* one more in each forked child */
	struct cm_bus_name bus;
	int kick_fd, epoll_fd;
	struct ibv_context *context; /* stays open, as with librdmacm */
	struct ibv_pd *pd;           /* default, when the program passes no PD */
	struct cm_engine engine;
	struct cm_id *ids;
	bool net; /* the sockets are open */
};
extern struct cm soft_cm;

static inline struct cm_id *to_id(struct rdma_cm_id *id)
{
	return soft_container_of(id, struct cm_id, id);
}
static inline struct cm_channel *to_channel(struct rdma_event_channel *channel)
{
	return soft_container_of(channel, struct cm_channel, channel);
}
static inline bool cm_is_here(const struct cm_id *id)
{
	return id->generation == soft_cm.generation;
}
static inline int cm_fail(int error)
{
	errno = error;
	return -1;
}
static inline void cm_lock(void)
{
	pthread_mutex_lock(&soft_cm.lock);
}
static inline void cm_unlock(void)
{
	pthread_mutex_unlock(&soft_cm.lock);
}

/* ---- thread.c ------------------------------------------------------------------------------------ */

/* On the first call opens the device and starts the thread. 0 or errno. Takes the lock. */
int cm_start(void);
/* Make the thread check its timers, or new sockets. Lock held for both. */
void cm_kick(void);
bool cm_watch(int fd);
bool cm_watch_name(const struct cm_bus_name *name);
/* Prepares the network for use. 0 or errno. */
int cm_want_net(void);

/* ---- address.c ----------------------------------------------------------------------------------- */

/* False: neither IPv4 nor IPv6. */
bool cm_gid_of(const struct sockaddr *address, uint8_t gid[16]);
uint16_t cm_port_of(const struct sockaddr *address);
void cm_set_port(struct sockaddr *address, uint16_t port);
bool cm_is_any(const struct sockaddr *address);
/* The port that an id binds, or listens on. gid: of the address. */
struct cm_port cm_port_for(const struct cm_id *id, const struct sockaddr *address, const uint8_t gid[16], bool listen);
socklen_t cm_length_of(const struct sockaddr *address);
void cm_address_of(const uint8_t gid[16], uint16_t port, uint32_t scope, struct sockaddr_storage *address);
/* Source address of packets to that destination. 0 or errno. */
int cm_source_for(const struct sockaddr *to, struct sockaddr_storage *from);

/* ---- event.c ------------------------------------------------------------------------------------- */

/* Allocates an event of this id, not queued yet. NULL: no memory. */
struct cm_event *cm_event_make(struct cm_id *id, enum rdma_cm_event_type type, int status);
void cm_event_data(struct cm_event *event, const uint8_t *data, size_t length);
/* Lock held. */
void cm_event_push(struct cm_event *event);
/* Drops queued events of the id, and the ids of connection requests among them. Lock held. */
void cm_events_drop(struct cm_id *id);
void cm_events_move(struct cm_id *id, struct cm_channel *to);
/* A synchronous id waits for the event of its call; others return at once. 0, or -1 with errno. */
int cm_complete(struct cm_id *id);

/* ---- id.c ---------------------------------------------------------------------------------------- */

/* Lock held. */
struct cm_id *cm_id_make(struct rdma_event_channel *channel, void *context, enum rdma_port_space space);
void cm_id_free(struct cm_id *id);
/* A local address was resolved. Lock held. */
bool cm_id_place(struct cm_id *id, const uint8_t gid[16]);

/* ---- connect.c ----------------------------------------------------------------------------------- */

extern const struct cm_calls cm_calls;
/* The peer accepted: moves the queue pair on and sends the answer. 0 or errno. No lock held. */
int cm_answer_response(struct cm_id *id);

/* ---- qp.c ---------------------------------------------------------------------------------------- */

/* The queue pair that this id connects: its own, or on iWARP the one named by the program. NULL: neither. */
struct soft_qp *cm_qp_of(const struct cm_id *id);
/* Moves it through RTR to RTS with the connection's parameters. 0 or errno. */
int cm_qp_connect(struct cm_id *id);
void cm_qp_error(struct cm_id *id);
/* The address vector of the path. */
void cm_path(const struct cm_id *id, struct ibv_ah_attr *ah);

#endif
