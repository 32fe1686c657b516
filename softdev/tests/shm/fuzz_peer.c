/* libFuzzer: nothing that a process of the same user writes into shared memory or on its Unix links, at any time, may
 * crash the device, or corrupt or stall another connection.
 *
 * The whole device, with its progress thread run step by step (roce/fuzz_net.c). Queue pairs of each kind have lanes
 * from and to a peer that speaks the protocol itself and does whatever the input asks for (raw_peer.c). Beside them are
 * bystanders: two queue pairs of this process that talk to each other, and one with lanes from and to a second, honest
 * peer, on the same completion queue as those under attack. After every step:
 *
 *   - the bystanders' states and memory change only by their own work, and they can exchange messages at any time;
 *   - memory changes only where it was opened to a peer, or lies in a receive or a READ that was posted;
 *   - no completion claims more bytes than its receive has, and no step takes longer than a peer may cost;
 *   - the descriptors, mappings, lanes and messages that the peer can cause are bounded, and gone when it is.
 *
 * Steps: fuzz_steps.h. The same file is the test that replays the corpus (roce/replay.c). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "core/core.h"
#include "fuzz_steps.h"
#include "raw_peer.h"
#include "softdev.h"
#include "tests/roce/fuzz_net.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: not true: %s (errno: %m)\n", __FILE__, __LINE__, #condition);            \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

enum {
    QKEY = 0x11111111,
    GUARD = 4096,
    AREA = 8192,
    AREAS = 5,
    SLOTS = 8,
    SLOT = 1024,
    RECEIVE = SLOT / 2,
    LINKS = 10,     /* that the peer may try to open */
    MOST_FDS = 700, /* of what one peer causes here, its own ends included */
    MOST_MAPS = 2 * STEPS,
    MOST_ANSWERS = 4, /* that wait for room: of one question, and what comes with it */
    FLOOD = 128,
    LEFT_FDS = 4,       /* not closed yet; a leak adds up */
    MOST_NS = 10000000, /* of one step; the clock counts looks at it */
    FIRST_QPN = 16,
};

/* ---- memory ------------------------------------------------------------------------------------------- */

/* The purposes of the areas between the guards. */
enum { AREA_OPEN, AREA_READ_ONLY, AREA_RECV, AREA_LANDING, AREA_SOURCE };

static _Alignas(4096) uint8_t arena[GUARD + AREAS * (AREA + GUARD)], calm[3][AREA];
static uint8_t arena_before[sizeof arena], calm_copy[3][AREA];
static uint8_t *slab;
static uint8_t peer_memory[AREA]; /* what the kernel copies to and from the peer's process */

static uint8_t *area(int which)
{
    return arena + GUARD + which * (AREA + GUARD);
}

static void check_area(const uint8_t *from, size_t size)
{
    MUST(!memcmp(from, arena_before + (from - arena), size));
}

/* Receives use the first half of their slot, READs the first three quarters. */
static void check_arena(void)
{
    for (int i = 0; i <= AREAS; i++)
        check_area(arena + i * (AREA + GUARD), GUARD);
    check_area(area(AREA_READ_ONLY), AREA);
    check_area(area(AREA_SOURCE), AREA);
    for (int i = 0; i < SLOTS; i++) {
        check_area(area(AREA_RECV) + i * SLOT + RECEIVE, SLOT - RECEIVE);
        check_area(area(AREA_LANDING) + i * SLOT + 3 * SLOT / 4, SLOT / 4);
    }
}

/* ---- the device --------------------------------------------------------------------------------------- */

static struct ibv_context *context;
static struct ibv_pd *pd, *calm_pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq, *calm_cq;
static struct ibv_srq *srq;
static struct ibv_mr *mrs[AREAS], *slab_mr, *calm_mrs[3];
/* The last of the calm ones is connected to the honest peer, and shares the queue of those under attack. */
static struct ibv_qp *qps[WHO], *calm_qps[3];
static struct ibv_ah *ah;
static union ibv_gid gid;

enum {
    FULL =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
};
static const int accesses[AREAS] = {
    [AREA_OPEN] = FULL,
    [AREA_READ_ONLY] = IBV_ACCESS_REMOTE_READ,
    [AREA_RECV] = IBV_ACCESS_LOCAL_WRITE,
    [AREA_LANDING] = IBV_ACCESS_LOCAL_WRITE,
};

static struct ibv_mr *reg(struct ibv_pd *in, uint8_t *at, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(in, at, AREA, access);

    MUST(mr);
    return mr;
}

static struct ibv_qp *make_qp(struct ibv_pd *in, struct ibv_cq *on, enum ibv_qp_type type,
                              struct ibv_srq *shared)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = on,
        .recv_cq = on,
        .srq = shared,
        .cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 64},
        .qp_type = type,
        .sq_sig_all = 1,
    };
    struct ibv_qp *qp = ibv_create_qp(in, &attr);

    MUST(qp);
    return qp;
}

static void make_all(void)
{
    static const enum ibv_qp_type types[] = {[WHO_RC] = IBV_QPT_RC,
                                             [WHO_SRQ] = IBV_QPT_RC,
                                             [WHO_UC] = IBV_QPT_UC,
                                             [WHO_UD] = IBV_QPT_UD,
                                             [WHO_INIT] = IBV_QPT_RC};
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 16, .max_sge = 2}};
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}};

    srq = ibv_create_srq(pd, &attr);
    ah = ibv_create_ah(pd, &to);
    MUST(srq && ah);
    for (int who = 0; who < WHO; who++)
        qps[who] = make_qp(pd, cq, types[who], who == WHO_SRQ ? srq : NULL);
    for (int i = 0; i < 3; i++)
        calm_qps[i] = make_qp(calm_pd, i == 2 ? cq : calm_cq, IBV_QPT_RC, NULL);
}

static void open_device(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);

    for (int i = 0; i < count && !context; i++)
        if (!strcmp(list[i]->name, "soft0"))
            context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    MUST(context && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
    MUST(!ibv_query_gid(context, 1, 0, &gid));
    pd = ibv_alloc_pd(context);
    calm_pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    MUST(pd && calm_pd && channel && !fcntl(channel->fd, F_SETFL, O_NONBLOCK));
    cq = ibv_create_cq(context, 4096, NULL, channel, 0);
    calm_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    slab = softdev_alloc(pd, AREA);
    MUST(cq && calm_cq && slab);
}

static void to_init(struct ibv_qp *qp)
{
    const int rest = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = FULL};

    MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | rest));
}

static void connect_qp(struct ibv_qp *qp, uint32_t qpn)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_256,
        .dest_qp_num = qpn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}}};
    const bool rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;

    to_init(qp);
    MUST(!ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE |
                            (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
                            (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 3, .rnr_retry = 3, .max_rd_atomic = 4};
    MUST(!ibv_modify_qp(
        qp, &attr,
        IBV_QP_STATE | IBV_QP_SQ_PSN |
            (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

static uint32_t key_of(int which)
{
    return mrs[which] ? mrs[which]->lkey : 0;
}

static void recv_one(int who, unsigned int slot)
{
    const uintptr_t at = (uintptr_t)area(AREA_RECV) + slot % SLOTS * SLOT;
    struct ibv_sge sge[2] = {{.addr = at, .length = RECEIVE / 2, .lkey = key_of(AREA_RECV)},
                             {.addr = at + RECEIVE / 2, .length = RECEIVE / 2, .lkey = key_of(AREA_RECV)}};
    struct ibv_recv_wr wr = {.sg_list = sge, .num_sge = 2}, *bad;

    if (who == WHO_SRQ)
        ibv_post_srq_recv(srq, &wr, &bad);
    else
        ibv_post_recv(qps[who], &wr, &bad); /* a full queue may refuse it */
}

/* ---- the two peers ------------------------------------------------------------------------------------ */

/* The end of a lane from the device. */
struct answerer {
    struct soft_seg *seg;
    int fd;
    struct soft_message asked; /* the last ATTACH */
    uint64_t resp_tail;
};

static struct raw_peer bad, good;
static struct raw_lane lanes[WHO], good_lane;
static struct answerer answerers[WHO], good_answerer;
static int more_links[LINKS], nmore, null_fd, pipes[2], small_fd, unsealed_fd;

static uint32_t bad_qpn(int who)
{
    return raw_qpn(&bad, FIRST_QPN + (uint32_t)who);
}

static int segment(size_t size, bool sealed)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    MUST(fd >= 0 && !ftruncate(fd, (off_t)size));
    MUST(!sealed || !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    return fd;
}

static void make_answerer(struct answerer *one)
{
    one->fd = segment(sizeof *one->seg, true);
    one->seg = mmap(NULL, sizeof *one->seg, PROT_READ | PROT_WRITE, MAP_SHARED, one->fd, 0);
    MUST(one->seg != MAP_FAILED);
    atomic_store(&one->seg->gate, 1);
}

/* Grants the lane that the device asked for. */
static bool grant(const struct raw_peer *peer, const struct answerer *one)
{
    struct soft_message msg = one->asked;

    msg.type = SOFT_ATTACHED;
    msg.cq = 3;
    msg.bit = 5;
    msg.event_id = SOFT_NO_EVENT;
    return raw_send(peer->answer_fd, &msg, &one->fd, 1);
}

/* A process that claims to be inside keeps what it claims for as long as it lives, which here is for ever
 * (test_sequences.c looks at that): the next run needs it. */
static void drop_lane(struct raw_lane *lane)
{
    if (!lane->seg)
        return;
    atomic_store(&lane->seg->inside, 0);
    raw_lane_drop(lane);
}

/* The lane that an ATTACH asked for, if it was granted. */
static void take_lane(struct raw_lane *lane, const struct raw_peer *peer, uint32_t from)
{
    struct soft_message msg;
    int fds[SOFT_PACKET_FDS];

    while (raw_receive(peer->ask_fd, &msg, fds) == 1) {
        if (msg.type == SOFT_ATTACHED && msg.src_qpn == from) {
            drop_lane(lane);
            raw_lane_take(lane, peer, &msg, fds[0]);
        }
        raw_close_all(fds);
    }
}

static void attach(struct raw_lane *lane, const struct raw_peer *peer, uint32_t from, const struct ibv_qp *to)
{
    struct soft_message msg = {.type = SOFT_ATTACH,
                               .src_qpn = from,
                               .dst_qpn = to->qp_num,
                               .qp_type = to->qp_type,
                               .attempt = 1,
                               .cq = 3,
                               .bit = 5,
                               .rnr_retry = 7};

    if (!peer->doors || !raw_send(peer->ask_fd, &msg, NULL, 0))
        return;
    net_run_thread();
    take_lane(lane, peer, from);
}

static void connect_peer(struct raw_peer *peer)
{
    raw_dial(peer, soft_proc.slot);
    net_run_thread();
    raw_accept(peer);
    raw_greeted(peer);
    net_run_thread();
}

static void disconnect_peer(struct raw_peer *peer)
{
    for (int who = 0; who < WHO; who++)
        drop_lane(&lanes[who]);
    raw_hang_up(peer);
    while (nmore)
        close(more_links[--nmore]);
    for (struct pollfd more = {.fd = peer->listen_fd, .events = POLLIN}; poll(&more, 1, 0) == 1;)
        close(accept4(peer->listen_fd, NULL, NULL, SOCK_CLOEXEC));
    net_run_thread();
}

/* ---- bystanders --------------------------------------------------------------------------------------- */

static unsigned int calm_talks, calm_found;
static uint64_t calm_sent; /* messages of the honest peer's two lanes */

/* Completions of those that share a queue: the calm ones are counted, the others checked. */
static void poll_all(void)
{
    struct ibv_wc wc[16];
    int n;

    while ((n = ibv_poll_cq(cq, 16, wc)) > 0)
        for (int i = 0; i < n; i++) {
            if (wc[i].qp_num == calm_qps[2]->qp_num) {
                MUST(wc[i].status == IBV_WC_SUCCESS);
                calm_found++;
            } else if (wc[i].status == IBV_WC_SUCCESS && wc[i].opcode == IBV_WC_RECV) {
                MUST(wc[i].byte_len <= RECEIVE);
            }
        }
    MUST(n == 0);
    struct ibv_async_event event;
    while (!ibv_get_async_event(context, &event))
        ibv_ack_async_event(&event);
}

static void calm_check(void)
{
    struct ibv_wc wc;

    for (int i = 0; i < 3; i++)
        MUST(soft_state(to_qp(calm_qps[i])) == IBV_QPS_RTS);
    MUST(!memcmp(calm, calm_copy, sizeof calm));
    MUST(ibv_poll_cq(calm_cq, 1, &wc) == 0);
    MUST(!calm_found);
}

static void calm_recv(int who)
{
    struct ibv_sge sge = {.addr = (uintptr_t)calm[who] + 4096, .length = 600, .lkey = calm_mrs[who]->lkey};
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *none;

    MUST(!ibv_post_recv(calm_qps[who], &recv, &none));
}

static void calm_post(int who, enum ibv_wr_opcode opcode)
{
    struct ibv_sge sge = {.addr = (uintptr_t)calm[who], .length = 600, .lkey = calm_mrs[who]->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode}, *none;

    wr.wr.rdma.remote_addr = (uintptr_t)calm[!who] + 1024;
    wr.wr.rdma.rkey = calm_mrs[!who]->rkey;
    MUST(!ibv_post_send(calm_qps[who], &wr, &none));
}

static void calm_fill(int who)
{
    calm_talks++;
    for (unsigned int i = 0; i < 600; i++)
        calm[who][i] = calm_copy[who][i] = (uint8_t)(calm_talks + i);
}

/* Those of this process: a WRITE and a SEND. */
static void talk_here(void)
{
    const int who = (int)(calm_talks % 2), to = !who;
    unsigned int found = 0;
    struct ibv_wc wc;

    calm_fill(who);
    calm_recv(to);
    calm_post(who, IBV_WR_RDMA_WRITE);
    calm_post(who, IBV_WR_SEND);
    memcpy(calm_copy[to] + 1024, calm[who], 600);
    memcpy(calm_copy[to] + 4096, calm[who], 600);
    for (int tries = 0; tries < 4; tries++)
        while (ibv_poll_cq(calm_cq, 1, &wc) == 1) {
            MUST(wc.status == IBV_WC_SUCCESS);
            found++;
        }
    MUST(found == 3);
}

/* The honest peer sends, writes and reads back. */
static void talk_from_peer(void)
{
    const struct soft_reth reth = {.addr = (uintptr_t)calm[2] + 1024, .rkey = calm_mrs[2]->rkey};
    struct soft_rec send = {
        .op = SOFT_OP_SEND, .flags = SOFT_REC_FIRST | SOFT_REC_LAST, .length = 600, .total = 600};
    struct soft_rec write = send, read = send, answer;
    struct soft_seg *seg = good_lane.seg;
    uint8_t bytes[600];

    calm_talks++;
    for (unsigned int i = 0; i < 600; i++)
        bytes[i] = (uint8_t)(calm_talks + i);
    write.op = SOFT_OP_WRITE;
    read.op = SOFT_OP_READ;
    write.flags |= SOFT_REC_REMOTE;
    read.flags |= SOFT_REC_REMOTE;
    read.length = 0;
    calm_recv(2);
    raw_record(&good_lane, send, NULL, bytes);
    raw_record(&good_lane, write, &reth, bytes);
    raw_record(&good_lane, read, &reth, NULL);
    raw_publish(&good_lane);
    memcpy(calm_copy[2] + 4096, bytes, 600);
    memcpy(calm_copy[2] + 1024, bytes, 600);
    calm_sent += 3;
    for (int tries = 0; tries < 4; tries++) {
        net_run_thread();
        poll_all();
    }
    MUST(calm_found == 1 && atomic_load(&seg->acked) == calm_sent);
    calm_found = 0;
    uint64_t at = atomic_load(&seg->resp_tail);
    MUST(at % SOFT_RESP_RING >= 640);
    memcpy(&answer, seg->resp + at % SOFT_RESP_RING - 640, sizeof answer);
    MUST(answer.op == SOFT_OP_DATA && answer.length == 600);
    MUST(!memcmp(seg->resp + at % SOFT_RESP_RING - 640 + sizeof answer, bytes, 600));
    atomic_store(&seg->resp_head, at);
}

/* And is sent to. */
static void talk_to_peer(void)
{
    static uint64_t read, acked;
    struct soft_seg *seg = good_answerer.seg;
    struct soft_rec rec;

    calm_fill(2);
    calm_post(2, IBV_WR_SEND);
    const uint64_t tail = atomic_load(&seg->tail);
    MUST(tail > read && tail % SOFT_REQ_RING >= 640);
    memcpy(&rec, seg->req + tail % SOFT_REQ_RING - 640, sizeof rec);
    MUST(rec.op == SOFT_OP_SEND && rec.length == 600);
    MUST(!memcmp(seg->req + tail % SOFT_REQ_RING - 640 + sizeof rec, calm[2], 600));
    read = tail;
    atomic_store(&seg->head, tail);
    atomic_store(&seg->acked, ++acked);
    soft_door_ring(&good.doors->cq[good_answerer.asked.cq], good_answerer.asked.bit);
    for (int tries = 0; tries < 4; tries++)
        poll_all();
    MUST(calm_found == 1);
    calm_found = 0;
}

static void calm_talk(void)
{
    poll_all();
    calm_check();
    talk_here();
    talk_from_peer();
    talk_to_peer();
    calm_check();
}

/* ---- what the bad peer does --------------------------------------------------------------------------- */

static void address(const struct step *s, struct soft_reth *reth)
{
    const uint8_t *at[REGIONS] = {area(AREA_OPEN), slab, area(AREA_READ_ONLY), area(AREA_RECV), calm[0]};
    const uint32_t keys[REGIONS] = {mrs[AREA_OPEN] ? mrs[AREA_OPEN]->rkey : 0,
                                    slab_mr ? slab_mr->rkey : 0,
                                    mrs[AREA_READ_ONLY] ? mrs[AREA_READ_ONLY]->rkey : 0,
                                    key_of(AREA_RECV),
                                    calm_mrs[0]->rkey,
                                    s->raw};
    const int region = s->region % REGIONS;

    *reth = (struct soft_reth){.addr = (uintptr_t)at[region] + (uintptr_t)(intptr_t)s->offset,
                               .rkey = keys[region],
                               .compare_add = s->value,
                               .swap = s->raw};
}

static uint32_t total_of(const struct step *s)
{
    return s->flags & FLAG_LARGE ? (uint32_t)s->total << 16 : s->total;
}

static void do_datagram(const struct step *s, struct raw_lane *lane)
{
    static struct {
        struct soft_deth deth;
        uint8_t payload[1 << 16];
    } datagram;
    struct soft_rec rec = {
        .op = s->op ? s->op : SOFT_OP_SEND, .flags = s->bits & ~SOFT_REC_REMOTE, .imm = s->raw};

    datagram.deth.src_qpn = s->flags & FLAG_WRONG ? s->raw : bad_qpn(WHO_UD);
    datagram.deth.qkey = QKEY + s->value % 2;
    rec.length = (uint32_t)sizeof datagram.deth + s->length;
    const uint64_t before = lane->tail;
    raw_record(lane, rec, NULL, &datagram);
    /* The length that counts is that of the payload alone. */
    rec.length = s->length + (s->flags & FLAG_LIE ? s->total : 0);
    const uint64_t size = (sizeof rec + sizeof datagram.deth + s->length + 63u) & ~(uint64_t)63;
    MUST(lane->tail - before >= size);
    memcpy(lane->seg->req + (lane->tail - size) % SOFT_REQ_RING, &rec, sizeof rec);
}

static void do_record(const struct step *s)
{
    static uint8_t payload[1 << 16];
    struct raw_lane *lane = &lanes[s->who % WHO];
    struct soft_rec rec = {
        .op = s->op, .flags = s->bits, .length = s->length, .imm = s->raw, .total = total_of(s)};
    struct soft_reth reth;

    if (!lane->seg)
        return;
    if ((s->flags & FLAG_BACK) && lane->tail >= SOFT_RECORD_ALIGN)
        lane->tail -= SOFT_RECORD_ALIGN;
    if (s->who % WHO == WHO_UD) {
        do_datagram(s, lane);
    } else {
        address(s, &reth);
        if ((s->bits & SOFT_REC_INV) && mrs[AREA_OPEN])
            rec.imm = mrs[AREA_OPEN]->rkey;
        memset(payload, s->value, rec.length);
        raw_record(lane, rec, &reth, s->flags & FLAG_LIE ? NULL : payload);
    }
    if (!(s->flags & FLAG_KEEP))
        raw_publish(lane);
}

static int handle(uint8_t which, int right)
{
    const int fds[HANDLES] = {[HANDLE_RIGHT] = right,
                              [HANDLE_NONE] = -1,
                              [HANDLE_SEGMENT] = answerers[0].fd,
                              [HANDLE_SMALL] = small_fd,
                              [HANDLE_UNSEALED] = unsealed_fd,
                              [HANDLE_PIPE] = pipes[1],
                              [HANDLE_PIPE_END] = pipes[0],
                              [HANDLE_NULL] = null_fd};

    return fds[which % HANDLES];
}

static unsigned int handles(const struct step *s, int right, int fds[2])
{
    fds[0] = handle(s->handles & 15, right);
    fds[1] = handle(s->handles >> 4, -1);
    return fds[0] < 0 ? 0 : fds[1] < 0 ? 1 : 2;
}

static int link_of(const struct step *s)
{
    if ((s->flags & FLAG_INLINE) && nmore)
        return more_links[s->value % nmore];
    return s->flags & FLAG_OTHER ? bad.answer_fd : bad.ask_fd;
}

static struct soft_message message_of(const struct step *s)
{
    static const uint32_t types[] = {SOFT_HELLO,    SOFT_ATTACH, SOFT_ATTACHED,  SOFT_RESOLVE,
                                     SOFT_RESOLVED, SOFT_ABSENT, SOFT_SLAB_GONE, SOFT_EVENT_GONE,
                                     SOFT_REFUSED,  10};
    const int who = s->who % WHO;
    const bool other = s->region % REGIONS == REGION_BYSTANDER, raw = s->flags & FLAG_WRONG;
    const uint32_t ours = other ? calm_qps[2]->qp_num : qps[who]->qp_num;
    const uint32_t theirs = other ? raw_qpn(&good, FIRST_QPN) : bad_qpn(who);
    struct soft_message msg = {
        .type = types[s->op % 10],
        .slot = raw ? s->raw : bad.slot,
        .qp_type = s->bits & 1 ? IBV_QPT_UD : qps[who]->qp_type,
        .attempt = raw ? s->value : atomic_load(&to_qp(qps[who])->attempt),
        .cq = s->value,
        .bit = s->raw,
        .event_id = s->bits >> 1,
        .bell = s->bits >> 5,
        .rnr_retry = s->value,
        .rkey = slab_mr && s->region % REGIONS == REGION_SLAB ? slab_mr->rkey : s->raw,
        .access = s->value,
        .index = s->raw,
        .gate = 1,
        .error = s->value,
        .base = s->total,
        .length = s->length,
        .serial = s->value,
        .slab = s->value,
        .slab_offset = (uint64_t)(int64_t)s->offset,
        .slab_length = s->flags & FLAG_LARGE ? UINT64_C(1) << s->length % 64 : s->length,
        .remote = (uintptr_t)peer_memory,
    };
    const bool asks = msg.type == SOFT_ATTACH || msg.type == SOFT_RESOLVE ||
                      (msg.type == SOFT_REFUSED && !(s->flags & FLAG_OTHER));

    msg.src_qpn = asks ? theirs : ours;
    msg.dst_qpn = asks ? ours : theirs;
    if (raw)
        (s->bits & 8 ? &msg.src_qpn : &msg.dst_qpn)[0] = s->raw;
    return msg;
}

static void do_message(const struct step *s)
{
    struct soft_message msg = message_of(s);
    int fds[2];

    if (msg.type == SOFT_HELLO) {
        const int own[2] = {bad.doors_fd, bad.published_fd};
        raw_send(link_of(s), &msg, own, 2);
        return;
    }
    const unsigned int n = handles(s, -1, fds);
    raw_send(link_of(s), &msg, fds, n);
}

static void read_all(int fd)
{
    struct soft_message msg;
    int fds[SOFT_PACKET_FDS];

    while (raw_receive(fd, &msg, fds) == 1) {
        raw_close_all(fds);
        net_run_thread();
    }
}

/* As long as the device takes them. */
static void do_flood(const struct step *s)
{
    const unsigned int most = s->length % FLOOD;
    int fds[2];
    const unsigned int n = handles(s, -1, fds);

    for (unsigned int i = 0; i < most; i++) {
        struct soft_message msg = message_of(s);

        msg.slab = i;
        if (s->bits & 2)
            msg.event_id = 1 + i + 64 * s->value;
        if ((s->bits & 4) && msg.type == SOFT_ATTACH)
            msg.src_qpn = raw_qpn(&bad, i);
        if (msg.type == SOFT_RESOLVED && !(s->flags & FLAG_WRONG)) {
            msg.rkey = s->raw % 8 << 8 | 0x77;
            msg.index = soft_key_index(msg.rkey);
            msg.access = FULL;
            msg.length = msg.slab_length = 4096;
            msg.slab_offset = 0;
        }
        if (raw_send(link_of(s), &msg, fds, n))
            continue;
        net_run_thread();
        if (s->flags & FLAG_BACK)
            read_all(link_of(s));
        if (!raw_send(link_of(s), &msg, fds, n))
            return;
    }
    net_run_thread();
    if (s->flags & FLAG_BACK)
        read_all(link_of(s));
}

/* The device asks for lanes and for memory. */
static void do_answer(const struct step *s)
{
    struct soft_message msg;
    int got[SOFT_PACKET_FDS], fds[2];

    if (bad.answer_fd < 0 || raw_receive(bad.answer_fd, &msg, got) != 1)
        return;
    raw_close_all(got);
    if (msg.type == SOFT_ATTACH) {
        const uint32_t who = (msg.dst_qpn - FIRST_QPN) % SOFT_MAX_QP;
        struct answerer *one = &answerers[who < WHO ? who : 0];

        one->asked = msg;
        one->resp_tail = 0;
        atomic_store(&one->seg->gate, 1);
        atomic_store(&one->seg->acked, 0);
        atomic_store(&one->seg->head, 0);
        atomic_store(&one->seg->nak, 0);
        atomic_store(&one->seg->resp_tail, 0);
        msg.type = SOFT_ATTACHED;
        msg.cq = 3;
        msg.bit = 5;
        msg.event_id = s->flags & FLAG_WRONG ? s->value : SOFT_NO_EVENT;
        const unsigned int n = handles(s, one->fd, fds);
        raw_send(bad.answer_fd, &msg, fds, n);
    } else if (msg.type == SOFT_RESOLVE) {
        msg.type = SOFT_RESOLVED;
        msg.access = s->flags & FLAG_WRONG ? s->value : FULL;
        msg.gate = 1;
        msg.base = 0x1000;
        msg.length = AREA;
        msg.serial = 0;
        msg.index = soft_key_index(msg.rkey);
        msg.slab = s->value;
        msg.slab_offset = s->flags & FLAG_WRONG ? (uint64_t)(int64_t)s->offset : 0;
        msg.slab_length = s->flags & FLAG_LARGE ? UINT64_C(1) << s->length % 64 : AREA;
        msg.remote = (uintptr_t)peer_memory;
        const unsigned int n = handles(s, -1, fds);
        raw_send(bad.answer_fd, &msg, fds, n);
    }
}

static void do_response(const struct step *s)
{
    struct answerer *one = &answerers[s->who % WHO];
    struct soft_rec rec = {
        .op = s->flags & FLAG_WRONG ? s->op : SOFT_OP_DATA, .length = s->length, .imm = s->raw};
    const uint64_t size = (sizeof rec + s->length + 63u) & ~(uint64_t)63;

    if (s->op % 4) {
        memcpy(one->seg->resp + one->resp_tail % SOFT_RESP_RING, &rec, sizeof rec);
        one->resp_tail += size;
        atomic_store(&one->seg->resp_tail, one->resp_tail);
    }
    atomic_store(&one->seg->head, atomic_load(&one->seg->tail));
    atomic_store(&one->seg->acked, atomic_load(&one->seg->acked) + s->bits % 4);
    if (bad.doors)
        soft_door_ring(&bad.doors->cq[one->asked.cq % SOFT_MAX_CQ], one->asked.bit % SOFT_DOOR_BITS);
}

static void do_word(const struct step *s)
{
    struct soft_seg *seg = s->flags & FLAG_OTHER ? answerers[s->who % WHO].seg : lanes[s->who % WHO].seg;
    const uint64_t value = s->flags & FLAG_LARGE ? UINT64_MAX - s->raw : s->raw;

    if (!seg)
        return;
    _Atomic(uint64_t) *const longs[] = {&seg->tail, &seg->want_ack, &seg->resp_head,
                                        &seg->head, &seg->acked,    &seg->resp_tail};
    _Atomic(uint32_t) *const shorts[] = {
        &seg->blocked,      &seg->rnr_retry, &seg->detached, (_Atomic(uint32_t) *)&seg->inside,
        &seg->resp_blocked, &seg->gate,      &seg->nak};
    const unsigned int which = s->op % 13u;
    if (which < 6)
        atomic_store(longs[which], value);
    else
        atomic_store(shorts[which - 6], (uint32_t)value);
    if (lanes[s->who % WHO].seg && !(s->flags & FLAG_KEEP))
        soft_door_ring(lanes[s->who % WHO].door, lanes[s->who % WHO].bit);
}

static void do_door(const struct step *s)
{
    if (!bad.doors)
        return;
    struct soft_door *door = &bad.doors->cq[s->value];

    if (s->flags & FLAG_LARGE) {
        memset((void *)door, s->bits, sizeof *door);
    } else {
        atomic_store(&door->near, s->raw | (uint64_t)s->length << 48);
        atomic_store(&door->summary, s->total);
        atomic_store(&door->far[s->op], s->raw);
        atomic_store(&door->fired, s->length);
    }
    (void)!send(link_of(s), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void do_link(const struct step *s)
{
    switch (s->op % 4) {
    case 0:
        if (nmore < LINKS)
            more_links[nmore++] = raw_connect(soft_proc.slot);
        break;
    case 1:
        if (nmore)
            close(more_links[--nmore]);
        break;
    case 2: shutdown(link_of(s), s->value % 2 ? SHUT_WR : SHUT_RDWR); break;
    default: (void)!send(link_of(s), s, s->length % STEP_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL); break;
    }
}

/* ---- work that the queue pairs post ------------------------------------------------------------------- */

static void do_post(const struct step *s)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,       IBV_WR_SEND_WITH_INV,      IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
    const int who = s->who % WHO;
    const enum ibv_wr_opcode opcode = opcodes[s->op % 8];
    const bool atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    const bool fetch = atomic || opcode == IBV_WR_RDMA_READ;
    struct ibv_sge sge = {.addr = (uintptr_t)area(AREA_SOURCE),
                          .length = who == WHO_UD ? s->length % 4096 : s->length % AREA,
                          .lkey = key_of(AREA_SOURCE)};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .imm_data = s->raw}, *none;

    if (fetch)
        sge = (struct ibv_sge){.addr = (uintptr_t)area(AREA_LANDING) + s->value % SLOTS * SLOT,
                               .length = atomic ? 8 : s->length % (3 * SLOT / 4 + 1),
                               .lkey = key_of(AREA_LANDING)};
    wr.wr.rdma.remote_addr = 0x1000 + (uint64_t)s->total;
    wr.wr.rdma.rkey = s->raw % 8 << 8 | 0x77;
    if (atomic) {
        wr.wr.atomic.remote_addr = 0x1000 + (uint64_t)s->total;
        wr.wr.atomic.rkey = s->raw % 8 << 8 | 0x77;
        wr.wr.atomic.compare_add = s->value;
    }
    if (who == WHO_UD) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = bad_qpn(s->flags & FLAG_WRONG ? s->value : WHO_UD);
        wr.wr.ud.remote_qkey = QKEY;
    }
    ibv_post_send(qps[who], &wr, &none); /* refused where the state, the type or a full queue requires it */
}

static void do_state(const struct step *s)
{
    static const enum ibv_qp_state states[] = {IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_SQD, IBV_QPS_RTS};
    const int who = s->who % WHO;
    struct ibv_qp_attr attr = {.qp_state = states[s->value % 4]};

    ibv_modify_qp(qps[who], &attr, IBV_QP_STATE);
    if (attr.qp_state == IBV_QPS_RESET && who != WHO_INIT)
        connect_qp(qps[who], bad_qpn(who));
}

static bool kept[AREAS + 1];

/* Closes it while it is in use, or opens it again with another key. */
static void do_region(int which)
{
    struct ibv_mr **mr = which < AREAS ? &mrs[which] : &slab_mr;

    if (*mr) {
        const int err = ibv_dereg_mr(*mr);
        MUST(!err || err == EBUSY); /* the peer claims to be inside */
        kept[which] = err;
        if (!err)
            *mr = NULL;
    } else {
        *mr = which < AREAS ? reg(pd, area(which), accesses[which]) : reg(pd, slab, FULL);
    }
}

static void run_timers(void)
{
    const struct itimerspec at_once = {.it_value = {.tv_nsec = 1}};
    struct pollfd ready = {.fd = soft_proc.timer_fd, .events = POLLIN};

    MUST(!timerfd_settime(soft_proc.timer_fd, 0, &at_once, NULL));
    MUST(poll(&ready, 1, -1) == 1);
    net_run_thread();
}

static void do_step(const struct step *s)
{
    switch (s->act % ACTS) {
    case ACT_ATTACH: attach(&lanes[s->who % WHO], &bad, bad_qpn(s->who % WHO), qps[s->who % WHO]); break;
    case ACT_ANSWER: do_answer(s); break;
    case ACT_RESPONSE: do_response(s); break;
    case ACT_MESSAGE: do_message(s); break;
    case ACT_WORD: do_word(s); break;
    case ACT_DOOR: do_door(s); break;
    case ACT_POST_SEND: do_post(s); break;
    case ACT_POST_RECV: recv_one(s->who % WHO, s->value); break;
    case ACT_TIME:
        net_now += UINT64_C(10000) << s->value % 16;
        run_timers();
        break;
    case ACT_BYSTANDERS: calm_talk(); break;
    case ACT_STATE: do_state(s); break;
    case ACT_REGION: do_region(s->value % (AREAS + 1)); break;
    case ACT_POLL:
        poll_all();
        if (s->value % 2)
            ibv_req_notify_cq(cq, s->value % 4 == 3);
        break;
    case ACT_LINK: do_link(s); break;
    case ACT_FLOOD: do_flood(s); break;
    default: do_record(s); break;
    }
    if (s->flags & FLAG_POLL)
        poll_all();
    else if (!(s->flags & FLAG_KEEP))
        net_run_thread();
}

/* ---- one run ------------------------------------------------------------------------------------------ */

static int count_fds(void)
{
    DIR *all = opendir("/proc/self/fd");
    int count = 0;

    MUST(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

/* What the peer's messages cost. */
static void check_costs(void)
{
    unsigned int links = 0, lanes = 0;

    for (const struct soft_link *link = soft_shm.links; link; link = link->next) {
        MUST(link->dialled || link->nqueue <= MOST_ANSWERS);
        links++;
    }
    for (const struct soft_ud_in *in = to_qp(qps[WHO_UD])->ud_in; in; in = in->next)
        lanes++;
    MUST(lanes <= links);
    MUST(atomic_load(&soft_shm.nmaps) <= MOST_MAPS);
}

static void reset(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static void meet_good_peer(void)
{
    struct soft_message msg;
    int fds[SOFT_PACKET_FDS];

    raw_open(&good);
    connect_peer(&good);
    make_answerer(&good_answerer);
    connect_qp(calm_qps[2], raw_qpn(&good, FIRST_QPN));
    attach(&good_lane, &good, raw_qpn(&good, FIRST_QPN), calm_qps[2]);
    MUST(good_lane.seg);
    do
        MUST(raw_receive(good.answer_fd, &msg, fds) == 1);
    while (msg.type != SOFT_ATTACH);
    raw_close_all(fds);
    good_answerer.asked = msg;
    MUST(grant(&good, &good_answerer));
    net_run_thread();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    setenv("SOFTDEV_WIRE", "off", 1);
    unsetenv("SOFTDEV_FAULTS");
    unsetenv("SOFTDEV_CAPTURE");
    unsetenv("SOFTDEV_DEVICE");
    net_one_thread = true;
    net_tick = 1000;
    net_peer_memory = peer_memory;
    net_peer_bytes = sizeof peer_memory;
    open_device();
    make_all();
    for (size_t i = 0; i < sizeof arena; i++)
        arena_before[i] = (uint8_t)(i * 7 + (i >> 8));
    for (int i = 0; i < 3; i++)
        calm_mrs[i] = reg(calm_pd, calm[i], FULL);
    for (int who = 0; who < WHO; who++)
        make_answerer(&answerers[who]);
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    small_fd = segment(4096, true);
    unsealed_fd = segment(sizeof(struct soft_seg), false);
    MUST(null_fd >= 0 && !pipe2(pipes, O_CLOEXEC | O_NONBLOCK));
    for (int i = 0; i < 2; i++)
        connect_qp(calm_qps[i], calm_qps[!i]->qp_num);
    meet_good_peer();
    raw_open(&bad);
    return 0;
}

/* Restores the state of the previous run. Creating queue pairs anew would be much slower. */
static void begin(void)
{
    memcpy(arena, arena_before, sizeof arena);
    memset(calm, 0, sizeof calm);
    memset(calm_copy, 0, sizeof calm_copy);
    for (int i = 0; i <= AREAS; i++)
        if (!(i < AREAS ? mrs[i] : slab_mr))
            do_region(i);
    connect_peer(&bad);
    for (int who = 0; who < WHO; who++) {
        if (who == WHO_INIT)
            to_init(qps[who]);
        else
            connect_qp(qps[who], bad_qpn(who));
        recv_one(who, (unsigned int)who);
        recv_one(who, (unsigned int)who + WHO);
    }
    net_run_thread();
}

static void end(void)
{
    disconnect_peer(&bad);
    for (int who = 0; who < WHO; who++)
        reset(qps[who]);
    for (int i = 0; i <= AREAS; i++)
        if (kept[i])
            do_region(i);
    for (int i = 0; i <= AREAS; i++)
        MUST(!kept[i]);
    to_srq(srq)->rq.head = to_srq(srq)->rq.tail; /* there is no other way to take receives back */
    poll_all();
    net_now += 1000000000; /* lanes to queue pairs that are absent are forgotten after a while */
    run_timers();
}

/* Shared memory needs none. */
void net_out(const struct net_packet *packet)
{
    (void)packet;
    MUST(false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int least;
    struct step step;

    begin();
    for (size_t at = 0; at + STEP_BYTES <= size && at < STEPS * (size_t)STEP_BYTES; at += STEP_BYTES) {
        memcpy(&step, data + at, STEP_BYTES);
        const uint64_t before = net_now;
        do_step(&step);
        MUST(step.act % ACTS == ACT_TIME || net_now - before < MOST_NS);
        calm_check();
        check_costs();
    }
    net_run_thread();
    calm_talk();
    check_arena();
    MUST(!least || count_fds() - least < MOST_FDS);
    end();
    calm_talk();
    const int left = count_fds();
    MUST(!least || left <= least + LEFT_FDS);
    if (!least)
        least = left;
    return 0;
}
