/* libFuzzer: no packet from any sender, at any time, may crash the device, or corrupt or stall another
 * queue pair.
 *
 * The whole device, on a network without sockets (fuzz_net.c). Queue pairs of every kind and in several
 * states have peers that send whatever the input asks for; so do strangers. Beside them two queue pairs,
 * the bystanders, exchange messages only with each other. After every step:
 *
 *   - the state of these two changes only by their own work, and they can exchange messages at any time;
 *   - memory changes only where it was opened to a peer, or lies in a receive or a READ that was posted;
 *   - all packets from the device are well-formed, go only to a peer, and are no more than was asked for.
 *
 * Steps: fuzz_steps.h. The same file is the test that replays the corpus (replay.c). */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_net.h"
#include "fuzz_steps.h"
#include "roce/port.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

enum {
    MTU = 256,
    PEER_QPN = 0x4242,
    QKEY = 0x11111111,
    PSN = 0xfffff0, /* of every first packet: it wraps soon */
    GUARD = 4096,
    AREA = 8192,
    AREAS = 5,
    SLOTS = 8,
    SLOT = 1024,
    MOST_PACKETS = 4096, /* most packets that one step may cause: 16 READs of a region, repeated */
};

/* ---- memory ----------------------------------------------------------------------------------------- */

/* The purposes of the areas between the guards. */
enum { AREA_OPEN, AREA_READ_ONLY, AREA_RECV, AREA_LANDING, AREA_SOURCE };

static _Alignas(4096) uint8_t arena[GUARD + AREAS * (AREA + GUARD)], calm[2][AREA];
static uint8_t arena_before[sizeof arena], calm_copy[2][AREA];

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
        check_area(area(AREA_RECV) + i * SLOT + SLOT / 2, SLOT / 2);
        check_area(area(AREA_LANDING) + i * SLOT + 3 * SLOT / 4, SLOT / 4);
    }
}

/* ---- the device ------------------------------------------------------------------------------------- */

static struct ibv_context *context;
static struct ibv_pd *pd, *calm_pd;
static struct ibv_cq *cq, *calm_cq;
static struct ibv_srq *srq;
static struct ibv_mr *mrs[AREAS], *calm_mrs[2];
static struct ibv_qp *qps[WHO], *calm_qps[2];
static struct ibv_ah *ah;

static const uint8_t peer4[16] = {[10] = 0xff, [11] = 0xff, 10, 1, 0, 2}, peer6[16] = {0xfd, 1, [15] = 2};
static const uint8_t stranger4[16] = {[10] = 0xff, [11] = 0xff, 10, 1, 0, 9},
                     stranger6[16] = {0xfd, 1, [15] = 9};
static const int accesses[AREAS] = {
    [AREA_OPEN] =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
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
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2},
        .qp_type = type,
        .sq_sig_all = 1,
    };
    struct ibv_qp *qp = ibv_create_qp(in, &attr);

    MUST(qp);
    return qp;
}

static void make_all(void)
{
    static const enum ibv_qp_type types[] = {
        [WHO_RC] = IBV_QPT_RC, [WHO_RC6] = IBV_QPT_RC, [WHO_UC] = IBV_QPT_UC,
        [WHO_UD] = IBV_QPT_UD, [WHO_SRQ] = IBV_QPT_RC, [WHO_INIT] = IBV_QPT_RC};
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 16, .max_sge = 2}};

    srq = ibv_create_srq(pd, &attr);
    MUST(srq);
    for (int who = 0; who < WHO_BYSTANDER; who++)
        qps[who] = make_qp(pd, cq, types[who], who == WHO_SRQ ? srq : NULL);
    for (int i = 0; i < 2; i++)
        calm_qps[i] = make_qp(calm_pd, calm_cq, IBV_QPT_RC, NULL);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    int count;
    struct ibv_device **list;

    (void)argc, (void)argv;
    setenv("SOFTDEV_WIRE", "only", 1);
    unsetenv("SOFTDEV_FAULTS");
    unsetenv("SOFTDEV_CAPTURE");
    unsetenv("SOFTDEV_DEVICE");
    list = ibv_get_device_list(&count);
    for (int i = 0; i < count && !context; i++)
        if (!strcmp(list[i]->name, "soft0"))
            context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    MUST(context);
    MUST(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
    pd = ibv_alloc_pd(context);
    calm_pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
    calm_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    MUST(pd && calm_pd && cq && calm_cq);
    for (int i = 0; i < 2; i++)
        calm_mrs[i] = reg(calm_pd, calm[i], accesses[AREA_OPEN]);
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
    memcpy(to.grh.dgid.raw, peer4, 16);
    ah = ibv_create_ah(pd, &to);
    MUST(ah);
    for (size_t i = 0; i < sizeof arena; i++)
        arena_before[i] = (uint8_t)(i * 7 + (i >> 8));
    make_all();
    return 0;
}

static void to_init(struct ibv_qp *qp)
{
    const int rest = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = (unsigned int)accesses[0]};

    MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | rest));
}

static void connect_qp(struct ibv_qp *qp, const uint8_t gid[16], uint32_t qpn)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_256,
        .dest_qp_num = qpn,
        .rq_psn = PSN,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.hop_limit = 64, .sgid_index = soft_gid_is_ipv4(gid) ? 0 : 1}},
    };
    const bool rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;

    to_init(qp);
    memcpy(attr.ah_attr.grh.dgid.raw, gid, 16);
    MUST(!ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE |
                            (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
                            (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .sq_psn = PSN,
                                .timeout = 14,
                                .retry_cnt = 3,
                                .rnr_retry = 3,
                                .max_rd_atomic = 4};
    MUST(!ibv_modify_qp(
        qp, &attr,
        IBV_QP_STATE | IBV_QP_SQ_PSN |
            (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

static uint32_t key_of(int which, bool remote)
{
    if (!mrs[which])
        return 0;
    return remote ? mrs[which]->rkey : mrs[which]->lkey;
}

static const uint8_t *peer_of(int who)
{
    return who == WHO_RC6 ? peer6 : peer4;
}

static void recv_one(int who, unsigned int slot)
{
    struct ibv_sge sge[2] = {{.addr = (uintptr_t)area(AREA_RECV) + slot % SLOTS * SLOT,
                              .length = SLOT / 4,
                              .lkey = key_of(AREA_RECV, false)},
                             {.addr = (uintptr_t)area(AREA_RECV) + slot % SLOTS * SLOT + SLOT / 4,
                              .length = SLOT / 4,
                              .lkey = key_of(AREA_RECV, false)}};
    struct ibv_recv_wr wr = {.sg_list = sge, .num_sge = 2}, *bad;

    if (who == WHO_SRQ)
        ibv_post_srq_recv(srq, &wr, &bad);
    else if (who < WHO_BYSTANDER)
        ibv_post_recv(qps[who], &wr, &bad); /* a full queue may refuse it */
}

/* ---- bystanders ------------------------------------------------------------------------------------- */

static struct soft_roce calm_roces[2];
static uint32_t calm_states[2];
static unsigned int calm_talks;

/* Their complete state, which must not change while they send nothing. */
static void calm_note(void)
{
    for (int i = 0; i < 2; i++) {
        calm_roces[i] = *to_qp(calm_qps[i])->roce;
        calm_states[i] = soft_state(to_qp(calm_qps[i]));
    }
}

static void calm_check(void)
{
    struct ibv_wc wc;

    for (int i = 0; i < 2; i++) {
        MUST(!memcmp(to_qp(calm_qps[i])->roce, &calm_roces[i], sizeof calm_roces[i]));
        MUST(soft_state(to_qp(calm_qps[i])) == calm_states[i]);
    }
    MUST(!memcmp(calm, calm_copy, sizeof calm));
    MUST(ibv_poll_cq(calm_cq, 1, &wc) == 0);
}

static void calm_post(int who, enum ibv_wr_opcode opcode, uint32_t from, uint32_t to, uint32_t length)
{
    struct ibv_sge sge = {.addr = (uintptr_t)calm[who] + from, .length = length, .lkey = calm_mrs[who]->lkey};
    struct ibv_send_wr wr = {.wr_id = opcode, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)calm[!who] + to;
        wr.wr.atomic.rkey = calm_mrs[!who]->rkey;
        wr.wr.atomic.compare_add = 3;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)calm[!who] + to;
        wr.wr.rdma.rkey = calm_mrs[!who]->rkey;
    }
    MUST(!ibv_post_send(calm_qps[who], &wr, &bad));
}

static void settle(void);

/* Sends one of each, of several packets, to the other: all of it completes at once, and correctly. No time
 * passes. */
static void calm_talk(void)
{
    const int who = (int)(calm_talks % 2), to = !who;
    struct ibv_sge sge = {.addr = (uintptr_t)calm[to] + 4096, .length = 600, .lkey = calm_mrs[to]->lkey};
    struct ibv_recv_wr recv = {.wr_id = 99, .sg_list = &sge, .num_sge = 1}, *bad;
    unsigned int found = 0;
    struct ibv_wc wc;

    calm_talks++;
    net_room = UINT_MAX; /* a full socket is full for all queue pairs */
    for (int i = 0; i < 600; i++)
        calm[who][i] = calm_copy[who][i] = (uint8_t)(calm_talks + (unsigned int)i);
    MUST(!ibv_post_recv(calm_qps[to], &recv, &bad));
    calm_post(who, IBV_WR_RDMA_WRITE, 0, 1024, 600);
    calm_post(who, IBV_WR_SEND, 0, 0, 600);
    calm_post(who, IBV_WR_RDMA_READ, 2048, 1024, 600);
    calm_post(who, IBV_WR_ATOMIC_FETCH_AND_ADD, 3072, 3080, 8);
    memcpy(calm_copy[to] + 1024, calm[who], 600);
    memcpy(calm_copy[to] + 4096, calm[who], 600);
    memcpy(calm_copy[who] + 2048, calm[who], 600);
    memcpy(calm_copy[who] + 3072, calm_copy[to] + 3080, 8);
    calm_copy[to][3080] = (uint8_t)(calm_copy[to][3080] + 3);
    for (int tries = 0; tries < 8; tries++) {
        settle();
        while (ibv_poll_cq(calm_cq, 1, &wc) == 1) {
            MUST(wc.status == IBV_WC_SUCCESS);
            found++;
        }
    }
    MUST(found == 5);
    if (calm_copy[to][3080] > 250)
        calm[to][3080] = calm_copy[to][3080] = 0; /* no carry into the next byte */
    calm_note();
    calm_check();
}

/* ---- what the device sends -------------------------------------------------------------------------- */

static unsigned int sent;

static bool to_peer_of(const struct roce_packet *p, const struct net_packet *out)
{
    if (soft_gid_is_ipv4(out->path.dst) ? memcmp(out->path.dst, peer4, 16) : memcmp(out->path.dst, peer6, 16))
        return false;
    return p->qpn == PEER_QPN;
}

void net_out(const struct net_packet *out)
{
    static const uint8_t loopback[16] = {[10] = 0xff, [11] = 0xff, 127, [15] = 1};
    struct roce_packet p;

    sent++;
    if (!memcmp(out->path.dst, loopback, 16) || !memcmp(out->path.dst, &in6addr_loopback, 16))
        return; /* forwarded to a process that does not exist */
    const uint8_t *icrc = out->bytes + out->size - ROCE_ICRC;
    MUST(roce_parse(out->bytes, out->size, &p) == ROCE_OK);
    MUST(p.payload_length <= MTU);
    MUST(roce_icrc_ipv4(&out->path, (struct roce_ipv4){.id = out->id}, out->bytes, out->size - ROCE_ICRC) ==
         (icrc[0] | (uint32_t)icrc[1] << 8 | (uint32_t)icrc[2] << 16 | (uint32_t)icrc[3] << 24));
    if (!memcmp(out->path.dst, net_here4, 16)) {
        MUST(p.qpn == calm_qps[0]->qp_num || p.qpn == calm_qps[1]->qp_num);
        net_put(out);
    } else {
        MUST(to_peer_of(&p, out));
    }
}

/* Delivers all packets in flight, as the progress thread would. */
static void settle(void)
{
    while (net_waiting())
        for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
            soft_roce_progress(&soft_roce_ports.front[family]);
            soft_roce_progress(&soft_roce_ports.own[family]);
        }
}

static void run_timers(void)
{
    for (int i = 0; i < WHO + 2; i++) {
        struct ibv_qp *qp = i < WHO ? qps[i] : calm_qps[i - WHO];
        struct soft_after after = {0};

        if (qp && atomic_load(&to_qp(qp)->roce_due_ns) && atomic_load(&to_qp(qp)->roce_due_ns) <= net_now)
            soft_roce_timer(to_qp(qp), &after);
        soft_after_run(&after);
    }
}

/* ---- packets ---------------------------------------------------------------------------------------- */

static struct soft_roce *roce_of(int who)
{
    return who < WHO_BYSTANDER ? to_qp(qps[who])->roce : NULL;
}

static uint32_t sequence(const struct step *s, const struct soft_roce *w)
{
    const uint32_t by = (uint32_t)(int32_t)s->psn & ROCE_24;
    const uint8_t base = s->base % BASES;

    if (!w || base == BASE_ABSOLUTE)
        return ((uint32_t)s->length << 8 | (uint8_t)s->psn) & ROCE_24;
    if (base == BASE_EXPECTED)
        return roce_psn_add(w->answer.psn, by);
    const uint64_t from = base == BASE_UNA ? w->ask.una : w->ask.next;
    return roce_psn_add(roce_psn_add(w->ask.first_psn, (uint32_t)(from & ROCE_24)), by);
}

static void address(const struct step *s, uint64_t *addr, uint32_t *rkey)
{
    static const int areas[] = {
        [REGION_OPEN] = AREA_OPEN, [REGION_READ_ONLY] = AREA_READ_ONLY, [REGION_LOCAL] = AREA_LANDING};
    const uint8_t region = s->region % REGIONS;

    *addr = (uint64_t)(int64_t)s->offset * 0x10001000100;
    *rkey = (uint32_t)s->length * 0x10001;
    if (region == REGION_BYSTANDER) {
        *addr = (uintptr_t)calm[0] + (uint64_t)(int64_t)s->offset;
        *rkey = calm_mrs[0]->rkey;
    } else if (region != REGION_NONE) {
        *addr = (uintptr_t)area(areas[region]) + (uint64_t)(int64_t)s->offset;
        *rkey = key_of(areas[region], true);
    }
}

/* Fields as the protocol requires for a packet that fits the state so far. */
static uint32_t right_length(const struct step *s, const struct roce_packet *p, const struct soft_roce *w)
{
    const uint16_t traits = roce_traits(p->opcode);
    uint32_t left = s->length;

    if (!(traits & ROCE_HAS_PAYLOAD))
        return 0;
    if (p->opcode == ROCE_CNP_OPCODE)
        return ROCE_CNP_BYTES;
    if (!(traits & (ROCE_IS_LAST | ROCE_IS_RESPONSE)))
        return MTU;
    if (w && (traits & ROCE_IS_RESPONSE) && w->ask.head != w->ask.tail) {
        const struct roce_message *m = &w->ask.ring[w->ask.head & w->ask.mask];
        const uint32_t done = (uint32_t)(w->ask.una - m->first) * MTU;
        left = done < m->length ? m->length - done : 0;
    } else if (w && (traits & ROCE_IS_WRITE) && !(traits & ROCE_IS_FIRST)) {
        left = w->answer.total - w->answer.placed;
    }
    return left < MTU ? left : MTU;
}

static void set_from(const struct step *s, int who, struct net_packet *packet)
{
    /* The device cannot distinguish a stranger at the peer's address from the peer: those two are only for
     * strangers. */
    const uint8_t from = who == WHO_BYSTANDER ? FROM_STRANGER : s->from % FROMS;
    const bool ipv6 = who == WHO_RC6;

    memcpy(packet->path.src, peer_of(who), 16);
    memcpy(packet->path.dst, ipv6 ? net_here6 : net_here4, 16);
    packet->path.dst_port = ROCE_PORT;
    packet->path.src_port = ROCE_PORT;
    if (from == FROM_PEER_OWN)
        packet->path.src_port = soft_roce_own_port(PEER_QPN);
    else if (from == FROM_PEER_OTHER)
        packet->path.src_port = 50000;
    else if (from == FROM_STRANGER)
        memcpy(packet->path.src, ipv6 ? stranger6 : stranger4, 16);
    else if (from == FROM_HERE)
        memcpy(packet->path.src, packet->path.dst, 16);
}

/* As the process that has port 4791 forwards packets. */
static void wrap(struct net_packet *packet)
{
    const bool ipv4 = soft_gid_is_ipv4(packet->path.src);
    const uint8_t loopback[16] = {[10] = 0xff, [11] = 0xff, 127, [15] = 1};
    uint8_t head[48] = "aiowire1";

    memcpy(head + 8, packet->path.src, 16);
    memcpy(head + 24, packet->path.dst, 16);
    memcpy(head + 40, &packet->path.src_port, 2);
    memcpy(head + 42, &packet->path.dst_port, 2);
    head[44] = packet->tos;
    memmove(packet->bytes + sizeof head, packet->bytes, packet->size);
    memcpy(packet->bytes, head, sizeof head);
    packet->size += sizeof head;
    memcpy(packet->path.src, ipv4 ? loopback : (const uint8_t *)&in6addr_loopback, 16);
    memcpy(packet->path.dst, packet->path.src, 16);
    packet->path.src_port = ROCE_PORT;
    packet->path.dst_port = soft_roce_own_port(qps[WHO_RC]->qp_num);
}

static void finish(const struct step *s, struct net_packet *packet)
{
    if ((s->flags & FLAG_RAW) && packet->size) {
        packet->bytes[s->value % packet->size] ^= (uint8_t)s->raw;
        packet->bytes[(s->value + 1u) % packet->size] ^= (uint8_t)(s->raw >> 8);
    }
    if ((s->flags & FLAG_SHORT) && packet->size >= 4)
        packet->size -= 4;
    if (s->flags & FLAG_LONG) {
        memset(packet->bytes + packet->size, 0, 4);
        packet->size += 4;
    }
    packet->id = s->flags & FLAG_RAW ? 0 : s->raw % (ROCE_BATCH + 2);
    const uint32_t icrc =
        roce_icrc_ipv4(&packet->path, (struct roce_ipv4){.id = packet->id}, packet->bytes, packet->size) ^
        (s->flags & FLAG_BAD_ICRC ? 1 : 0);
    for (int i = 0; i < ROCE_ICRC; i++)
        packet->bytes[packet->size + (size_t)i] = (uint8_t)(icrc >> 8 * i);
    packet->size += ROCE_ICRC;
    packet->tos = s->flags & FLAG_MARKED ? 3 : 2;
}

/* A congestion notification or acknowledgement to a bystander from its own address would count as its
 * peer's. */
static void do_packet(const struct step *s)
{
    static struct net_packet packet;
    const int who = s->who % WHO;
    const struct soft_roce *w = roce_of(who);
    const uint32_t numbers[WHO] = {[WHO_BYSTANDER] = calm_qps[0]->qp_num, [WHO_NOBODY] = s->length};
    struct roce_packet p = {
        .opcode = s->opcode,
        .solicited = s->flags & FLAG_SOLICITED,
        .ack_request = s->flags & FLAG_ACK,
        .becn = s->flags & FLAG_BECN,
        .migrated = true,
        .pkey = ROCE_PKEY,
        .qpn = who < WHO_BYSTANDER ? qps[who]->qp_num : numbers[who],
        .psn = sequence(s, w),
        .src_qpn = PEER_QPN,
        .qkey = s->value % 2 ? QKEY + s->value : QKEY,
        .length = s->length,
        .swap_add = s->value,
        .compare = s->raw,
        .original = s->value,
        .syndrome = s->value,
        .msn = s->raw,
        .imm = s->value,
        .invalidate = s->raw,
    };

    memset(&packet, 0, sizeof packet);
    set_from(s, who, &packet);
    address(s, &p.addr, &p.rkey);
    if (s->region % REGIONS == REGION_OPEN)
        p.invalidate = key_of(AREA_OPEN, true);
    p.payload_length = s->payload ? s->payload * 5u : right_length(s, &p, w);
    size_t n = roce_pack_headers(&p, packet.bytes);
    for (uint32_t i = 0; i < p.payload_length; i++)
        packet.bytes[n + i] = (uint8_t)(i ^ s->value);
    packet.size = n + p.payload_length + roce_pad(p.payload_length);
    finish(s, &packet);
    if (s->from % FROMS == FROM_FORWARDED && who != WHO_BYSTANDER)
        wrap(&packet);
    net_put(&packet);
}

static void do_nonsense(const struct step *s)
{
    static struct net_packet packet;

    memset(&packet, 0, sizeof packet);
    set_from(s, s->who % WHO == WHO_BYSTANDER ? WHO_BYSTANDER : WHO_RC, &packet);
    packet.size = s->length % (NET_MAX_BYTES - 4);
    for (size_t i = 0; i < packet.size; i++)
        packet.bytes[i] = ((const uint8_t *)s)[i % STEP_BYTES];
    finish(s, &packet);
    net_put(&packet);
}

/* ---- work that the queue pairs post ------------------------------------------------------------------- */

static void do_post(const struct step *s)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,       IBV_WR_SEND_WITH_INV,      IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
    const int who = s->who % WHO_BYSTANDER;
    const enum ibv_wr_opcode opcode = opcodes[s->opcode % 8];
    const bool atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    const bool fetch = atomic || opcode == IBV_WR_RDMA_READ;
    const unsigned int slot = s->value % SLOTS;
    struct ibv_sge sge[2];
    struct ibv_send_wr wr = {.sg_list = sge, .num_sge = 1, .opcode = opcode, .imm_data = s->raw}, *bad;

    wr.send_flags = s->flags & FLAG_SOLICITED ? IBV_SEND_SOLICITED | IBV_SEND_FENCE : 0;
    if (fetch) {
        sge[0] = (struct ibv_sge){.addr = (uintptr_t)area(AREA_LANDING) + slot * SLOT,
                                  .length = atomic ? 8 : s->length % (3 * SLOT / 8 + 1),
                                  .lkey = key_of(AREA_LANDING, false)};
        sge[1] = sge[0];
        sge[1].addr += 3 * SLOT / 8;
        wr.num_sge = !atomic && (s->flags & FLAG_ACK) ? 2 : 1;
    } else {
        sge[0] = (struct ibv_sge){.addr = (uintptr_t)area(AREA_SOURCE),
                                  .length = who == WHO_UD ? s->length % MTU : s->length % AREA,
                                  .lkey = key_of(AREA_SOURCE, false)};
    }
    wr.wr.rdma.remote_addr = 0x1000;
    wr.wr.rdma.rkey = 0x77;
    if (atomic) {
        wr.wr.atomic.remote_addr = 0x1000;
        wr.wr.atomic.rkey = 0x77;
        wr.wr.atomic.compare_add = s->value;
    }
    if (who == WHO_UD) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = PEER_QPN;
        wr.wr.ud.remote_qkey = QKEY;
    }
    ibv_post_send(qps[who], &wr, &bad); /* refused where the state, the type or a full queue requires it */
}

static void do_state(const struct step *s)
{
    static const enum ibv_qp_state states[] = {IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_SQD, IBV_QPS_RTS};
    const int who = s->who % WHO_BYSTANDER;
    struct ibv_qp_attr attr = {.qp_state = states[s->value % 4]};

    ibv_modify_qp(qps[who], &attr, IBV_QP_STATE);
    if (attr.qp_state == IBV_QPS_RESET)
        connect_qp(qps[who], peer_of(who), PEER_QPN);
}

/* Closes it while it is in use, or opens it again with another key. */
static void do_region(int which)
{
    if (mrs[which])
        MUST(!ibv_dereg_mr(mrs[which]));
    mrs[which] = mrs[which] ? NULL : reg(pd, area(which), accesses[which]);
}

static void poll_all(void)
{
    struct ibv_wc wc[16];
    int n;

    while ((n = ibv_poll_cq(cq, 16, wc)) > 0)
        ;
    MUST(n == 0);
    struct ibv_async_event event;
    while (!ibv_get_async_event(context, &event))
        ibv_ack_async_event(&event);
}

static void do_step(const struct step *s)
{
    const uint8_t act = s->act % ACTS;

    sent = 0;
    switch (act) {
    case ACT_POST_SEND: do_post(s); break;
    case ACT_POST_RECV: recv_one(s->who % WHO, s->value); break;
    case ACT_TIME:
        net_room = s->flags & FLAG_RAW ? s->raw % 64 : UINT_MAX;
        net_now += UINT64_C(10000) << s->value % 16;
        run_timers();
        break;
    case ACT_BYSTANDERS: calm_talk(); break;
    case ACT_STATE: do_state(s); break;
    case ACT_REGION: do_region(s->value % AREAS); break;
    case ACT_POLL: poll_all(); break;
    case ACT_NONSENSE: do_nonsense(s); break;
    default: do_packet(s); break;
    }
    /* Not always at once: packets also arrive in batches. */
    if (act >= ACT_POST_SEND || s->act & 1)
        settle();
    MUST(sent <= MOST_PACKETS);
}

/* ---- one run ---------------------------------------------------------------------------------------- */

static void reset(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

/* Restores the state of the previous run. Creating queue pairs anew would be much slower. */
/* The record of whether runs arrive outlives queue pairs, but one input must not depend on another. */
static void forget_runs(void)
{
    for (int ours = 0; ours < 2; ours++) {
        struct roce_runs *runs = roce_runs_of(net_here4, peer4, ours);

        MUST(runs);
        runs->doubt = 0;
        runs->pause_ns = runs->proven_at = 0;
        atomic_store(&runs->proven, ours);
        atomic_store(&runs->try_at, 0);
        atomic_store(&runs->arrived_at, 0);
        roce_runs_release(runs);
    }
}

static void begin(void)
{
    net_now = 1000000000;
    memcpy(arena, arena_before, sizeof arena);
    memset(calm, 0, sizeof calm);
    memset(calm_copy, 0, sizeof calm_copy);
    calm_talks = 0;
    net_room = UINT_MAX;
    for (int i = 0; i < AREAS; i++)
        if (!mrs[i])
            do_region(i);
    for (int who = 0; who < WHO_BYSTANDER; who++)
        reset(qps[who]);
    forget_runs();
    to_srq(srq)->rq.head = to_srq(srq)->rq.tail; /* there is no other way to take receives back */
    poll_all();
    for (int who = 0; who < WHO_BYSTANDER; who++) {
        if (who == WHO_INIT)
            to_init(qps[who]);
        else
            connect_qp(qps[who], peer_of(who), PEER_QPN);
        recv_one(who, (unsigned int)who);
        recv_one(who, (unsigned int)who + WHO_BYSTANDER);
    }
    for (int i = 0; i < 2; i++)
        reset(calm_qps[i]);
    settle(); /* delivers their last packets, which their successors must not receive */
    for (int i = 0; i < 2; i++)
        connect_qp(calm_qps[i], net_here4, calm_qps[!i]->qp_num);
    calm_note();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct step step;

    begin();
    for (size_t at = 0; at + STEP_BYTES <= size && at < STEPS * (size_t)STEP_BYTES; at += STEP_BYTES) {
        memcpy(&step, data + at, STEP_BYTES);
        do_step(&step);
        calm_check();
    }
    settle();
    calm_check();
    calm_talk();
    calm_talk();
    check_arena();
    return 0;
}
