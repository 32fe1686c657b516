/*
 * Two connection managers in virtual time, over a network that loses, repeats and reorders their messages;
 * and one that receives arbitrary messages. Every connection must end in the right state, and each event must
 * arrive exactly once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cm/proto.h"
#include "tests/harness.h"

enum { FLIGHT = 4096, USERS = 16, EVENTS = CM_EVENT_SIDR_REPLY + 1 };

/* State of one end of a connection. */
struct user {
    struct side *side;
    struct cm_conn *conn;
    unsigned int seen[EVENTS], requests;
    struct cm_mad last;
};

struct side {
    struct cm_engine engine;
    struct cm_peer other;
    struct user users[USERS];
    unsigned int nusers;
    enum cm_verdict verdict;
    bool listens;
};

static struct {
    uint64_t now, order;
    uint32_t random;
    uint32_t loss, duplicate; /* of 1000 */
    uint64_t delay;
    int drop_attribute; /* each message of that kind, the first time */
    uint64_t dropped;
    bool dead; /* messages do not arrive */
    bool died; /* the peer's process */
    unsigned int knocks;
    struct flying {
        uint64_t when, order;
        struct side *to;
        uint8_t mad[CM_MAD_BYTES];
    } flying[FLIGHT];
    unsigned int nflying;
} net;

static struct side a, b;

static uint32_t draw(uint32_t n)
{
    return test_random(&net.random) % n;
}

static void put(struct side *to, const uint8_t *mad)
{
    CHECK(net.nflying < FLIGHT);
    struct flying *f = &net.flying[net.nflying++];
    f->when = net.now + (net.delay ? draw((uint32_t)net.delay) : 0);
    f->order = net.order++;
    f->to = to;
    memcpy(f->mad, mad, CM_MAD_BYTES);
}

static bool on_send(void *owner, const struct cm_peer *peer, const uint8_t *mad)
{
    struct side *from = owner, *to = from == &a ? &b : &a;
    struct cm_mad parsed;

    CHECK(!memcmp(peer->remote, from->other.remote, 16));
    CHECK(cm_mad_parse(mad, CM_MAD_BYTES, &parsed)); /* every message sent can be parsed */
    if (net.dead)
        return false;
    if (parsed.attribute == net.drop_attribute && !net.dropped++)
        return true;
    if (draw(1000) < net.loss)
        return true;
    put(to, mad);
    if (draw(1000) < net.duplicate)
        put(to, mad);
    return true;
}

static void on_event(void *owner, struct cm_conn *c, enum cm_event_kind kind, const struct cm_mad *mad)
{
    struct user *u = c->user;

    CHECK(u->side == owner && u->conn == c);
    u->seen[kind]++;
    if (mad)
        u->last = *mad;
}

static enum cm_verdict on_request(void *owner, struct cm_conn *c, const struct cm_mad *mad)
{
    struct side *s = owner;

    if (!s->listens)
        return CM_NOBODY;
    if (s->verdict != CM_TAKEN || s->nusers == USERS)
        return CM_BUSY;
    struct user *u = &s->users[s->nusers++];
    *u = (struct user){.side = s, .conn = c, .requests = 1, .last = *mad};
    c->user = u;
    return CM_TAKEN;
}

static bool on_watch(void *owner, const struct cm_conn *c)
{
    (void)owner;
    CHECK(c->state == CM_ESTABLISHED && !c->peer.net);
    return net.died;
}

static void on_knock(void *owner, const struct cm_peer *peer)
{
    CHECK(peer->net && owner == &a);
    net.knocks++;
}

static const struct cm_calls calls = {
    .send = on_send, .event = on_event, .request = on_request, .died = on_watch, .knock = on_knock};

static void start(uint32_t seed)
{
    static const struct side none;

    memset(&net, 0, sizeof net);
    net.random = seed;
    net.now = 1000000000;
    a = b = none;
    for (int i = 0; i < 2; i++) {
        struct side *s = i ? &b : &a;
        s->engine = (struct cm_engine){.calls = &calls,
                                       .owner = s,
                                       .guid = 100 + (uint64_t)i,
                                       .id_prefix = (uint32_t)(i + 1) << 22,
                                       .id_mask = (1u << 22) - 1,
                                       .next_id = seed};
        s->other.local[15] = (uint8_t)(1 + i);
        s->other.remote[15] = (uint8_t)(2 - i);
        s->other.net = true;
        s->listens = true;
        s->verdict = CM_TAKEN;
    }
}

static void deliver_next(void)
{
    unsigned int first = 0;

    for (unsigned int i = 1; i < net.nflying; i++)
        if (net.flying[i].when < net.flying[first].when ||
            (net.flying[i].when == net.flying[first].when && net.flying[i].order < net.flying[first].order))
            first = i;
    struct flying f = net.flying[first];
    net.flying[first] = net.flying[--net.nflying];
    if (f.when > net.now)
        net.now = f.when;
    cm_engine_receive(&f.to->engine, &f.to->other, f.mad, CM_MAD_BYTES, net.now);
}

/* Runs until nothing is in flight and nothing is due before `end`. */
static void run(uint64_t end)
{
    for (;;) {
        uint64_t next = 0, when = 0;

        for (unsigned int i = 0; i < net.nflying; i++)
            if (!when || net.flying[i].when < when)
                when = net.flying[i].when;
        const uint64_t due[] = {cm_engine_tick(&a.engine, net.now), cm_engine_tick(&b.engine, net.now)};
        for (int i = 0; i < 2; i++)
            if (due[i] && (!next || due[i] < next))
                next = due[i];
        if (net.nflying && (!next || when <= next))
            deliver_next();
        else if (next && next <= end)
            net.now = next;
        else if (!net.nflying)
            break;
    }
    if (end > net.now)
        net.now = end;
}

static void run_for(uint64_t ns)
{
    run(net.now + ns);
}

static struct user *connect_from(struct side *s, enum cm_attribute attribute)
{
    struct user *u = &s->users[s->nusers++];
    struct cm_mad mad = {.attribute = (uint16_t)attribute,
                         .service = cm_service(CM_SPACE_TCP, 7174),
                         .qpn = 77,
                         .psn = 5,
                         .mtu = 5,
                         .private_length = 4,
                         .private_data = "abc"};

    *u = (struct user){.side = s};
    u->conn = cm_conn_make(&s->engine, &s->other, u);
    CHECK(u->conn);
    cm_conn_connect(&s->engine, u->conn, &mad, net.now);
    return u;
}

static void accept_all(struct side *s, enum cm_attribute attribute)
{
    for (unsigned int i = 0; i < s->nusers; i++) {
        struct user *u = &s->users[i];
        struct cm_mad mad = {.attribute = (uint16_t)attribute, .qpn = 99, .psn = 6, .qkey = 3};

        if (u->requests && (u->conn->state == CM_REQ_RCVD || u->conn->state == CM_SIDR_REQ_RCVD))
            CHECK_EQ(cm_conn_accept(&s->engine, u->conn, &mad, net.now), 0);
    }
}

static void establish_all(struct side *s)
{
    for (unsigned int i = 0; i < s->nusers; i++)
        if (s->users[i].conn->state == CM_REP_RCVD)
            CHECK_EQ(cm_conn_establish(&s->engine, s->users[i].conn, net.now), 0);
}

static void release_all(void)
{
    for (int i = 0; i < 2; i++) {
        struct side *s = i ? &b : &a;
        for (unsigned int k = 0; k < s->nusers; k++)
            cm_conn_release(&s->engine, s->users[k].conn, net.now);
    }
    run_for(UINT64_C(400000000000));
    CHECK_EQ(a.engine.count, 0);
    CHECK_EQ(b.engine.count, 0);
}

#define SECONDS(n) ((n)*UINT64_C(1000000000))

/* The whole life of a connection; the user answers each event. */
static void live(void)
{
    struct user *u = connect_from(&a, CM_REQ);

    for (int i = 0; i < 400 && !(b.nusers && b.users[0].seen[CM_EVENT_ESTABLISHED]); i++) {
        run_for(SECONDS(1));
        accept_all(&b, CM_REP);
        run_for(SECONDS(1));
        establish_all(&a);
    }
    CHECK_EQ(u->seen[CM_EVENT_RESPONSE], 1);
    CHECK_EQ(b.nusers, 1);
    CHECK_EQ(b.users[0].seen[CM_EVENT_ESTABLISHED], 1);
    CHECK_EQ(b.users[0].conn->remote_qpn, 77);
    CHECK_EQ(u->conn->remote_qpn, 99);
    CHECK_EQ(cm_conn_disconnect(&a.engine, u->conn, net.now), 0);
    if (draw(2))
        CHECK_EQ(cm_conn_disconnect(&b.engine, b.users[0].conn, net.now), 0); /* both at once */
    run_for(SECONDS(200));
    CHECK_EQ(u->seen[CM_EVENT_DISCONNECTED], 1);
    CHECK_EQ(b.users[0].seen[CM_EVENT_DISCONNECTED], 1);
    CHECK_EQ(u->seen[CM_EVENT_TIMEWAIT_EXIT], 1);
    CHECK_EQ(b.users[0].seen[CM_EVENT_TIMEWAIT_EXIT], 1);
    CHECK_EQ(u->seen[CM_EVENT_REJECTED] + u->seen[CM_EVENT_UNREACHABLE], 0);
    release_all();
}

/* Nothing comes from a process that was killed: each end looks, and reports the end once. */
static void a_killed_process(void)
{
    for (int net_too = 0; net_too < 2; net_too++) {
        start(5);
        a.other.net = net_too;
        b.other.net = false;
        struct user *u = connect_from(&a, CM_REQ);
        run_for(SECONDS(1));
        accept_all(&b, CM_REP);
        run_for(SECONDS(1));
        establish_all(&a);
        run_for(SECONDS(20));
        CHECK_EQ(u->conn->state, CM_ESTABLISHED);
        CHECK_EQ(b.users[0].conn->state, CM_ESTABLISHED);
        net.died = net.dead = true;
        run_for(SECONDS(20));
        CHECK_EQ(b.users[0].seen[CM_EVENT_DISCONNECTED], 1);
        CHECK_EQ(b.users[0].seen[CM_EVENT_TIMEWAIT_EXIT], 1);
        CHECK_EQ(u->seen[CM_EVENT_DISCONNECTED], !net_too); /* over the network it is not looked at */
        release_all();
    }
}

static void a_life_on_bad_networks(void)
{
    for (uint32_t seed = 1; seed <= 1500; seed++) {
        start(seed);
        net.loss = draw(4) * 60;
        net.duplicate = draw(3) * 200;
        net.delay = draw(3) * 100000000; /* sometimes later than the first repetition */
        live();
    }
}

static void each_message_lost_once(void)
{
    static const int kinds[] = {CM_REQ, CM_REP, CM_RTU, CM_DREQ, CM_DREP};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        start(3);
        net.drop_attribute = kinds[i];
        live();
        CHECK(net.dropped >= 1);
    }
}

static void refusals(void)
{
    start(1);
    struct user *u = connect_from(&a, CM_REQ);
    run_for(SECONDS(1));
    CHECK_EQ(b.nusers, 1);
    CHECK_EQ(memcmp(b.users[0].last.private_data, "abc", 4), 0);
    CHECK_EQ(cm_conn_reject(&b.engine, b.users[0].conn, CM_REASON_CONSUMER, "no", 3, net.now), 0);
    run_for(SECONDS(1));
    CHECK_EQ(u->seen[CM_EVENT_REJECTED], 1);
    CHECK_EQ(u->last.reason, CM_REASON_CONSUMER);
    CHECK_EQ(memcmp(u->last.private_data, "no", 3), 0);
    CHECK_EQ(cm_conn_establish(&a.engine, u->conn, net.now), EINVAL);
    release_all();

    start(2);
    b.listens = false;
    u = connect_from(&a, CM_REQ);
    run_for(SECONDS(5));
    CHECK_EQ(u->seen[CM_EVENT_REJECTED], 1);
    CHECK_EQ(u->last.reason, CM_REASON_INVALID_SERVICE);
    release_all();

    /* The server listens again a moment later: the second attempt finds it. */
    start(2);
    b.listens = false;
    u = connect_from(&a, CM_REQ);
    run_for(SECONDS(0));
    b.listens = true;
    run_for(SECONDS(1));
    CHECK_EQ(b.nusers, 1);
    CHECK_EQ(u->seen[CM_EVENT_REJECTED], 0);
    release_all();

    /* The active side cancels. */
    start(4);
    u = connect_from(&a, CM_REQ);
    run_for(SECONDS(1));
    accept_all(&b, CM_REP);
    run_for(SECONDS(1));
    CHECK_EQ(cm_conn_reject(&a.engine, u->conn, CM_REASON_CONSUMER, NULL, 0, net.now), 0);
    run_for(SECONDS(1));
    CHECK_EQ(b.users[0].seen[CM_EVENT_REJECTED], 1);
    release_all();
}

static void nobody_answers(void)
{
    start(1);
    net.loss = 1000;
    struct user *u = connect_from(&a, CM_REQ);
    run_for(SECONDS(300));
    CHECK_EQ(u->seen[CM_EVENT_UNREACHABLE], 1);
    release_all();

    start(1); /* on the same host: detected at once */
    net.dead = true;
    u = connect_from(&a, CM_REQ);
    run_for(SECONDS(1));
    CHECK_EQ(u->seen[CM_EVENT_REJECTED], 1);
    release_all();
}

/* The network refuses the first try, which does not count, and the second one, which is the first that it is asked about. */
static void the_network_answers(enum cm_attribute attribute, bool refused, enum cm_event_kind wanted)
{
    const uint8_t other[16] = {[15] = 77};

    start(1);
    net.loss = 1000;
    struct user *u = connect_from(&a, attribute);
    cm_engine_refused(&a.engine, u->conn->peer.remote, refused, net.now);
    CHECK_EQ(net.knocks, 0);
    run_for(SECONDS(1) / 2);
    CHECK_EQ(net.knocks, 1);
    cm_engine_refused(&a.engine, other, refused, net.now);
    CHECK_EQ(u->seen[wanted], 0);
    cm_engine_refused(&a.engine, u->conn->peer.remote, refused, net.now);
    CHECK_EQ(u->seen[wanted], 1);
    cm_engine_refused(&a.engine, u->conn->peer.remote, refused, net.now);
    run_for(SECONDS(300));
    CHECK_EQ(u->seen[wanted], 1);
    CHECK_EQ(net.knocks, 1);
    release_all();
}

static void nobody_listens_there(void)
{
    the_network_answers(CM_REQ, true, CM_EVENT_REJECTED);
    the_network_answers(CM_REQ, false, CM_EVENT_UNREACHABLE);
    the_network_answers(CM_SIDR_REQ, true, CM_EVENT_SIDR_REPLY);
    the_network_answers(CM_SIDR_REQ, false, CM_EVENT_UNREACHABLE);

    start(1); /* what is connected hears of no refusal */
    struct user *u = connect_from(&a, CM_REQ);
    run_for(SECONDS(1));
    accept_all(&b, CM_REP);
    run_for(SECONDS(1));
    cm_engine_refused(&a.engine, u->conn->peer.remote, true, net.now);
    CHECK_EQ(u->seen[CM_EVENT_REJECTED], 0);
    establish_all(&a);
    run_for(SECONDS(1));
    cm_engine_refused(&a.engine, u->conn->peer.remote, true, net.now);
    cm_engine_refused(&b.engine, u->conn->peer.local, true, net.now);
    CHECK_EQ(u->conn->state, CM_ESTABLISHED);
    release_all();
}

/* A server that takes two minutes to decide: its MRAs keep the client waiting. */
static void a_slow_server(void)
{
    start(1);
    struct user *u = connect_from(&a, CM_REQ);
    run_for(SECONDS(120));
    CHECK_EQ(u->seen[CM_EVENT_UNREACHABLE], 0);
    CHECK_EQ(b.nusers, 1);
    accept_all(&b, CM_REP);
    run_for(SECONDS(120)); /* and so does a client */
    CHECK_EQ(u->seen[CM_EVENT_RESPONSE], 1);
    establish_all(&a);
    run_for(SECONDS(1));
    CHECK_EQ(b.users[0].seen[CM_EVENT_ESTABLISHED], 1);
    release_all();
}

static void datagram_services(void)
{
    for (uint32_t seed = 1; seed < 200; seed++) {
        start(seed);
        net.loss = draw(4) * 100;
        net.duplicate = draw(3) * 200;
        struct user *u = connect_from(&a, CM_SIDR_REQ);
        for (int i = 0; i < 100 && !u->seen[CM_EVENT_SIDR_REPLY]; i++) {
            run_for(SECONDS(1));
            accept_all(&b, CM_SIDR_REP);
        }
        CHECK_EQ(u->seen[CM_EVENT_SIDR_REPLY], 1);
        CHECK_EQ(u->last.qpn, 99);
        CHECK_EQ(u->last.qkey, 3);
        CHECK(b.nusers >= 1);
        release_all();
    }
}

/* For any input, from the peer or a stranger, with known ids or not: no crash, no leak, and a stranger
 * cannot harm a correct user. */
static void hostile_messages(void)
{
    for (uint32_t seed = 1; seed <= 300; seed++) {
        start(seed);
        struct user *u = connect_from(&a, CM_REQ);
        run_for(SECONDS(1));
        accept_all(&b, CM_REP);
        run_for(SECONDS(1));
        establish_all(&a);
        run_for(SECONDS(1));
        struct cm_peer stranger = a.other;
        stranger.remote[15] = 200;
        for (int i = 0; i < 300; i++) {
            uint8_t bytes[CM_MAD_BYTES] = {1, 7, 2, 3};
            for (size_t k = 16; k < sizeof bytes; k++)
                bytes[k] = (uint8_t)draw(256);
            bytes[16] = 0;
            bytes[17] = (uint8_t)(0x0e + draw(14));
            if (draw(2))
                memcpy(bytes + 28, &(uint32_t){__builtin_bswap32(u->conn->local_id)}, 4);
            if (draw(2))
                memcpy(bytes + 24, &(uint32_t){__builtin_bswap32(u->conn->remote_id)}, 4);
            a.other.port = 1;
            /* Answers to a stranger go to the stranger: on_send() would refuse them. */
            struct cm_mad mad, answer;
            if (!cm_mad_parse(bytes, sizeof bytes, &mad) || cm_stranger_answer(&mad, &answer))
                continue;
            cm_engine_receive(&a.engine, &stranger, bytes, draw(4) ? sizeof bytes : draw(256), net.now);
        }
        CHECK_EQ(u->seen[CM_EVENT_DISCONNECTED] + u->seen[CM_EVENT_REJECTED], 0);
        CHECK_EQ(u->conn->state, CM_ESTABLISHED);
        /* The peer itself may end the connection, but do nothing else. */
        for (int i = 0; i < 500; i++) {
            uint8_t bytes[CM_MAD_BYTES];
            for (size_t k = 0; k < sizeof bytes; k++)
                bytes[k] = (uint8_t)draw(256);
            memcpy(bytes, (uint8_t[]){1, 7, 2, 3}, 4);
            bytes[16] = 0;
            bytes[17] = (uint8_t)(0x0e + draw(14));
            if (draw(2))
                memcpy(bytes + 28, &(uint32_t){__builtin_bswap32(u->conn->local_id)}, 4);
            cm_engine_receive(&a.engine, &a.other, bytes, sizeof bytes, net.now);
        }
        CHECK(u->seen[CM_EVENT_DISCONNECTED] <= 1);
        CHECK_EQ(u->seen[CM_EVENT_RESPONSE], 1);
        net.nflying = 0;
        release_all();
    }
}

/* Parsing and packing return the same bytes; the layout is checked against fixed offsets of the standard. */
static void layout(void)
{
    struct cm_mad mad = {.attribute = CM_REQ,
                         .tid = 1,
                         .local_id = 0x01020304,
                         .service = cm_service(CM_SPACE_TCP, 7174),
                         .guid = 2,
                         .qpn = 0x123456,
                         .psn = 0x654321,
                         .responder_resources = 3,
                         .initiator_depth = 4,
                         .retry_count = 5,
                         .rnr_retry_count = 6,
                         .mtu = 3,
                         .srq = true,
                         .ack_timeout = 17,
                         .hop_limit = 64,
                         .max_retries = 15,
                         .local_response_timeout = 20,
                         .response_timeout = 21};
    uint8_t bytes[CM_MAD_BYTES], again[CM_MAD_BYTES];
    struct cm_mad read;

    cm_mad_pack(&mad, bytes);
    CHECK_EQ(bytes[1], 7);
    CHECK_EQ(bytes[17], 0x10);
    CHECK_EQ(memcmp(bytes + 24 + 8, "\x00\x00\x00\x00\x01\x06\x1c\x06", 8), 0);
    CHECK_EQ(memcmp(bytes + 24 + 32, "\x12\x34\x56\x03", 4), 0);
    CHECK_EQ(bytes[24 + 39], 4);
    CHECK_EQ(bytes[24 + 43], 21 << 3);
    CHECK_EQ(memcmp(bytes + 24 + 44, "\x65\x43\x21", 3), 0);
    CHECK_EQ(bytes[24 + 47], 20 << 3 | 5);
    CHECK_EQ(bytes[24 + 50], 3 << 4 | 6);
    CHECK_EQ(bytes[24 + 51], 15 << 4 | 1 << 3);
    CHECK_EQ(bytes[24 + 95], 17 << 3);
    CHECK(cm_mad_parse(bytes, sizeof bytes, &read));
    cm_mad_pack(&read, again);
    CHECK_EQ(memcmp(bytes, again, sizeof bytes), 0);
    CHECK(!cm_mad_parse(bytes, sizeof bytes - 1, &read));
    bytes[24 + 50] = 6 << 4; /* no such MTU */
    CHECK(!cm_mad_parse(bytes, sizeof bytes, &read));

    struct cm_ip ip = {.src_port = 513}, got;
    ip.src[10] = ip.src[11] = ip.dst[10] = ip.dst[11] = 0xff;
    ip.src[15] = 1;
    ip.dst[15] = 2;
    cm_ip_pack(&ip, bytes);
    CHECK_EQ(memcmp(bytes, "\x00\x40\x02\x01", 4), 0);
    CHECK_EQ(bytes[4 + 10], 0);
    CHECK_EQ(bytes[20 + 15], 2);
    CHECK(cm_ip_parse(bytes, &got));
    CHECK_EQ(memcmp(&ip, &got, sizeof ip), 0);
    bytes[1] = 0x50;
    CHECK(!cm_ip_parse(bytes, &got));
}

TEST_MAIN(TEST(layout), TEST(each_message_lost_once), TEST(a_killed_process), TEST(a_life_on_bad_networks),
          TEST(refusals), TEST(nobody_answers), TEST(nobody_listens_there), TEST(a_slow_server),
          TEST(datagram_services), TEST(hostile_messages))
