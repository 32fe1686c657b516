/* Requester and responder of a connection in virtual time, over a network of 1 ms each way that loses what
 * a test chooses. The requester's memory is `from`, the responder's `to`; READs go in the opposite
 * direction. */
#ifndef SOFTDEV_TESTS_ROCE_ENDS_H
#define SOFTDEV_TESTS_ROCE_ENDS_H

#include <string.h>

#include "roce/rc.h"
#include "tests/harness.h"

enum {
    MS = 1000000,
    ONE_WAY = MS,
    TIMEOUT = 67 * MS,
    MTU = 1024,
    QUEUE = 16,
    FETCHES = 4,
    MEMORY = 1 << 20,
    FLIGHT = 1 << 14,
    RETRIES = 3,
    FIRST_PSN = 0xfffff0,
};

struct flying {
    uint64_t when;
    bool request;
    struct roce_packet packet;
    uint8_t payload[MTU];
};

static struct {
    uint64_t now;
    uint32_t loss, random; /* of 1000 */
    struct flying flying[FLIGHT];
    unsigned head, tail;
    uint64_t requests, answers; /* sent */
} net;

static struct roce_ask ask;
static struct roce_answer answer;
static struct roce_message ring[QUEUE];
static struct roce_fetch fetches[FETCHES];
static uint8_t from[MEMORY], to[MEMORY];
static uint64_t patience_times; /* the shortest time before a retry */

static bool scatter(void *owner, uint32_t index, uint32_t offset, const uint8_t *bytes, uint32_t n)
{
    (void)owner;
    const struct roce_message *m = &ring[index % QUEUE];

    memcpy(to + (m->addr - (uintptr_t)from) + offset, bytes, n);
    return true;
}

static bool receive(void *owner)
{
    (void)owner;
    return true;
}

static int deliver(void *owner, const struct roce_delivery *delivery)
{
    (void)owner;
    (void)delivery;
    return 0;
}

static char *remote(void *owner, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status)
{
    (void)owner;
    (void)opcode;
    (void)rkey;
    (void)length;
    *status = 0;
    return (char *)(uintptr_t)addr;
}

static int write_to(void *owner, char *at, const uint8_t *bytes, uint32_t n)
{
    (void)owner;
    memcpy(at, bytes, n);
    return 0;
}

static void broken(void *owner)
{
    (void)owner;
    FAIL("a request made no sense");
}

static uint64_t patience(void *owner, uint64_t shortest_ns)
{
    (void)owner;
    return patience_times * shortest_ns;
}

static const struct roce_ask_owner ask_calls = {.scatter = scatter, .patience = patience};
static const struct roce_answer_owner answer_calls = {
    .receive = receive, .deliver = deliver, .remote = remote, .write = write_to, .broken = broken};

static void start_ends(uint64_t now)
{
    memset(&net, 0, sizeof net);
    net.now = now;
    net.random = 1;
    patience_times = 1;
    memset(fetches, 0, sizeof fetches);
    memset(to, 0, sizeof to);
    ask = (struct roce_ask){
        .calls = &ask_calls, .ring = ring, .mask = QUEUE - 1, .reliable = true, .mtu = MTU, .qpn = 5};
    ask.retry_cnt = ask.rnr_retry = RETRIES;
    ask.max_fetches = FETCHES;
    ask.timeout_ns = TIMEOUT;
    ask.most = ask.window = 64;
    answer = (struct roce_answer){.calls = &answer_calls,
                                  .fetches = fetches,
                                  .max_fetches = FETCHES,
                                  .reliable = true,
                                  .mtu = MTU,
                                  .qpn = 5};
    roce_ask_start(&ask, FIRST_PSN);
    roce_answer_start(&answer, FIRST_PSN);
    fill(from, MEMORY, 3);
}

/* The payload of a request that roce_ask_next() returned. */
static const uint8_t *payload_of(const struct roce_request *r)
{
    return from + (ring[r->index % QUEUE].addr - (uintptr_t)to) + r->offset;
}

static void transmit(bool request, const struct roce_packet *packet, const uint8_t *payload, bool lost)
{
    struct flying *f = &net.flying[net.tail % FLIGHT];

    *(request ? &net.requests : &net.answers) += 1;
    if (test_random(&net.random) % 1000 < net.loss || lost)
        return;
    CHECK(net.tail - net.head < FLIGHT);
    *f = (struct flying){.when = net.now + ONE_WAY, .request = request, .packet = *packet};
    if (packet->payload_length)
        memcpy(f->payload, payload, packet->payload_length);
    net.tail++;
}

static void post(uint8_t opcode, uint32_t at, uint32_t length)
{
    const uint8_t *base = opcode == IBV_WR_RDMA_READ ? from : to;

    roce_ask_post(&ask,
                  &(struct roce_message){.opcode = opcode, .length = length, .addr = (uintptr_t)base + at});
}

/* Runs the next event: a packet arrives, or the timer goes off. */
static void step(void)
{
    const uint64_t due = roce_ask_due(&ask);
    const bool flies = net.head != net.tail;
    struct flying *f = &net.flying[net.head % FLIGHT];

    CHECK_EQ(ask.status, 0);
    CHECK(flies || due);
    if (!flies || (due && due < f->when)) {
        net.now = due > net.now ? due : net.now;
        roce_ask_timer(&ask, net.now);
        return;
    }
    net.head++;
    net.now = f->when;
    f->packet.payload = f->payload;
    if (f->request)
        roce_answer_take(&answer, &f->packet);
    else
        roce_ask_take(&ask, &f->packet, net.now);
}

#endif
