/*
 * Two sides of a connected queue pair, each with requester and responder, and the program above each: memory
 * open to the peer, receives, and a log that checks every delivery. The test moves packets from one side to
 * the other.
 */
#ifndef SOFTDEV_TESTS_ROCE_SIDES_H
#define SOFTDEV_TESTS_ROCE_SIDES_H

#include <string.h>

#include "roce/rc.h"
#include "tests/harness.h"

enum { MEMORY = 1 << 16, READ_ONLY = 1 << 15, QUEUE = 32, MESSAGES = 60, FETCHES = 4, RKEY = 77 };

struct sent {
    uint8_t opcode;
    uint32_t length, imm;
    unsigned int seed;
};

struct side {
    struct roce_ask ask;
    struct roce_answer answer;
    struct roce_message ring[QUEUE];
    struct roce_fetch fetches[FETCHES];
    /* The program on this side: memory that the peer may use, what it sent, what it received. */
    uint8_t memory[MEMORY], expected[MEMORY], buffer[QUEUE][8192];
    struct sent log[MESSAGES], queued[QUEUE];
    struct roce_message posted[QUEUE];
    unsigned int nsent, ndelivered, deliveries[MESSAGES], receives;
    uint32_t completed, to_post;
    uint64_t counter; /* the sum of this side's FETCH_ADDs */
    uint8_t incoming[8192];
    struct side *peer;
};

static bool scatter(void *owner, uint32_t index, uint32_t offset, const uint8_t *from, uint32_t n)
{
    struct side *me = owner;

    CHECK(offset + n <= sizeof me->buffer[0]);
    memcpy(me->buffer[index % QUEUE] + offset, from, n);
    return true;
}

static bool receive(void *owner)
{
    return ((struct side *)owner)->receives > 0;
}

static int place(void *owner, uint32_t offset, const uint8_t *from, uint32_t n)
{
    struct side *me = owner;

    CHECK(offset + n <= sizeof me->incoming);
    memcpy(me->incoming + offset, from, n);
    return 0;
}

static int deliver(void *owner, const struct roce_delivery *delivery)
{
    struct side *me = owner;

    CHECK(me->receives > 0);
    me->receives--;
    /* The peer's next message that takes a receive: in order (and with UC, perhaps not the very next). */
    while (me->ndelivered < me->peer->nsent) {
        const struct sent *want = &me->peer->log[me->ndelivered];
        if (want->imm == delivery->imm && want->opcode == delivery->opcode)
            break;
        CHECK(!me->answer.reliable);
        me->ndelivered++;
    }
    CHECK(me->ndelivered < me->peer->nsent);
    const struct sent *want = &me->peer->log[me->ndelivered];
    CHECK_EQ(delivery->length, want->length);
    if (want->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
        CHECK(holds(me->incoming, want->length, want->seed));
    me->deliveries[me->ndelivered++]++;
    return 0;
}

static char *remote(void *owner, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status)
{
    struct side *me = owner;

    (void)opcode;
    *status = IBV_WC_REM_ACCESS_ERR;
    if (length && (rkey != RKEY || addr > MEMORY || length > MEMORY - addr)) /* C9-88 */
        return NULL;
    return (char *)me->memory + addr;
}

static int write_to(void *owner, char *to, const uint8_t *from, uint32_t n)
{
    (void)owner;
    if (n)
        memcpy(to, from, n);
    return 0;
}

static int atomic(void *owner, uint8_t opcode, char *at, uint64_t compare_add, uint64_t swap, uint64_t *found)
{
    uint64_t old, new;

    (void)owner;
    memcpy(&old, at, sizeof old);
    *found = old;
    new = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? old + compare_add : old == compare_add ? swap : old;
    memcpy(at, &new, sizeof new);
    return 0;
}

static void broken(void *owner)
{
    (void)owner;
}

static uint64_t longer = 1;

static uint64_t patience(void *owner, uint64_t shortest_ns)
{
    (void)owner;
    return longer * shortest_ns;
}

static const struct roce_ask_owner ask_calls = {.scatter = scatter, .patience = patience};
static const struct roce_answer_owner answer_calls = {.receive = receive,
                                                      .place = place,
                                                      .deliver = deliver,
                                                      .remote = remote,
                                                      .write = write_to,
                                                      .atomic = atomic,
                                                      .broken = broken};

static struct side one, two;

static void side_open(struct side *me, struct side *peer, bool reliable, uint32_t mtu, uint32_t psn,
                      uint32_t peer_psn)
{
    memset(me, 0, sizeof *me);
    me->peer = peer;
    me->ask = (struct roce_ask){.calls = &ask_calls,
                                .owner = me,
                                .ring = me->ring,
                                .mask = QUEUE - 1,
                                .reliable = reliable,
                                .mtu = mtu,
                                .qpn = 5,
                                .retry_cnt = 7,
                                .rnr_retry = 7,
                                .max_fetches = FETCHES,
                                .timeout_ns = 500000};
    me->answer = (struct roce_answer){.calls = &answer_calls,
                                      .owner = me,
                                      .fetches = me->fetches,
                                      .max_fetches = FETCHES,
                                      .reliable = reliable,
                                      .rnr_timer = 1,
                                      .mtu = mtu,
                                      .qpn = 5};
    roce_ask_start(&me->ask, psn);
    roce_answer_start(&me->answer, peer_psn);
    fill(me->memory + READ_ONLY, MEMORY - READ_ONLY, 9);
    memcpy(me->expected, me->memory, MEMORY);
}

#endif
